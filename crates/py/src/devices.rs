//! Which devices there are, and their sizes.

use std::path::PathBuf;

use ignis_backend::{
    Activations, Device, DeviceError, DeviceLayout, KvFormat, StoredActivations, StoredLayout,
    StoredProducts,
};
use ignis_cpu::{CpuDevice, CpuLayout, CpuOptions};
use ignis_cuda::{CudaDevice, CudaKernels, CudaOptions, Libraries, ModelFacts};
use ignis_ops::Program;
use ignis_sim::SimLayout;
use ignis_types::Limits;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors::from_engine;
use crate::facts::CudaFacts;
use crate::model::Source;

/// Which device, and how it is run.
#[pyclass(frozen, module = "ignis._native")]
#[derive(Clone)]
pub(crate) struct DeviceOptions {
    #[pyo3(get)]
    device: String,
    #[pyo3(get)]
    threads: usize,
    #[pyo3(get)]
    kv_format: String,
    #[pyo3(get)]
    activations: String,
    #[pyo3(get)]
    products: String,
    #[pyo3(get)]
    kernels: String,
    kv: KvFormat,
    /// For the CPU, and for a card.
    act: (Activations, StoredActivations),
    /// For a card.
    stored_products: StoredProducts,
    cuda_kernels: CudaKernels,
    /// On a card, a table that is no product's stays in host memory.
    tables_on_host: bool,
    libraries: Libraries,
}

#[pymethods]
impl DeviceOptions {
    #[new]
    #[pyo3(signature = (
        device,
        threads = 1,
        kv_format = "bf16",
        activations = None,
        nvrtc = vec![],
        cache = None,
        embedding = "device",
        products = "same",
        kernels = "own",
    ))]
    fn new(
        device: &str,
        threads: usize,
        kv_format: &str,
        activations: Option<&str>,
        nvrtc: Vec<PathBuf>,
        cache: Option<PathBuf>,
        embedding: &str,
        products: &str,
        kernels: &str,
    ) -> PyResult<Self> {
        let unknown = |what: &str, found: &str, expected: &str| {
            PyValueError::new_err(format!("{what} is {found:?}, expected {expected}"))
        };
        if !["cpu", "cuda", "sim"].contains(&device) {
            return Err(unknown("device", device, "cpu, cuda or sim"));
        }
        if !(1..=1024).contains(&threads) {
            return Err(unknown("threads", &threads.to_string(), "1 to 1024"));
        }
        let kv = match kv_format {
            "bf16" => KvFormat::Bf16,
            "f32" => KvFormat::F32,
            other => return Err(unknown("kv_format", other, "bf16 or f32")),
        };
        let on_card = device == "cuda";
        let activations = activations.unwrap_or(if on_card { "bf16" } else { "int8" });
        let act = match activations {
            "f32" => (Activations::F32, StoredActivations::F32),
            "bf16" if on_card => (Activations::Int8, StoredActivations::Bf16),
            "int8" if !on_card => (Activations::Int8, StoredActivations::Bf16),
            other if on_card => return Err(unknown("activations", other, "bf16 or f32")),
            other => return Err(unknown("activations", other, "int8 or f32")),
        };
        let stored_products = match (products, act.1) {
            ("same", _) => StoredProducts::Same,
            ("fast", StoredActivations::Bf16) if on_card => StoredProducts::Fast,
            ("fast", _) => {
                return Err(unknown("products", products, "same: fast is of bf16 on a card"));
            }
            (other, _) => return Err(unknown("products", other, "same or fast")),
        };
        let cuda_kernels = match kernels {
            "own" => CudaKernels::Own,
            "portable" => CudaKernels::Portable,
            other => return Err(unknown("kernels", other, "own or portable")),
        };
        if !["host", "device"].contains(&embedding) {
            return Err(unknown("embedding", embedding, "host or device"));
        }
        Ok(DeviceOptions {
            device: device.to_owned(),
            threads,
            kv_format: kv_format.to_owned(),
            activations: activations.to_owned(),
            products: products.to_owned(),
            kernels: kernels.to_owned(),
            kv,
            act,
            stored_products,
            cuda_kernels,
            tables_on_host: embedding == "host",
            libraries: Libraries { nvrtc, cache },
        })
    }

    /// The card that would be used, without a context on it.
    fn check_cuda(&self) -> PyResult<CudaCard> {
        let found = ignis_cuda::check(&self.libraries).map_err(|e| from_engine(e.into()))?;
        Ok(CudaCard {
            name: found.name,
            capability: found.capability,
            driver: found.driver,
            nvrtc: found.nvrtc.version,
            total_bytes: found.total.0,
        })
    }

    /// Everything that was found of a card; no context is made.
    fn cuda_facts(&self, py: Python<'_>) -> CudaFacts {
        py.detach(|| ignis_cuda::probe(&self.libraries)).into()
    }

    /// Bytes that the driver takes beside the reservation, by line, with the kernels of a model.
    fn measured(&self, py: Python<'_>, model: Source<'_>) -> PyResult<Vec<(&'static str, u64)>> {
        if self.device != "cuda" {
            return Ok(vec![]);
        }
        let options = self.cuda(&model.model(py)?.program);
        let lines = py.detach(|| ignis_cuda::measured(&options));
        let lines = lines.map_err(|e| from_engine(e.into()))?;
        Ok(lines.iter().map(|(line, bytes)| (line.name(), bytes.0)).collect())
    }
}

/// A card and what drives it.
#[pyclass(frozen, get_all, module = "ignis._native")]
pub(crate) struct CudaCard {
    name: String,
    capability: (u32, u32),
    driver: (u32, u32),
    nvrtc: (u32, u32),
    total_bytes: u64,
}

impl DeviceOptions {
    fn cpu(&self) -> CpuOptions {
        CpuOptions { threads: self.threads, activations: self.act.0, kv_format: self.kv }
    }

    fn cuda(&self, program: &Program) -> CudaOptions {
        CudaOptions {
            kv_format: self.kv,
            activations: self.act.1,
            products: self.stored_products,
            tables_on_host: self.tables_on_host,
            kernels: self.cuda_kernels,
            model: ModelFacts::of(program),
            libraries: self.libraries.clone(),
        }
    }

    fn stored(&self) -> StoredLayout {
        StoredLayout {
            kv_format: self.kv,
            activations: self.act.1,
            products: self.stored_products,
            tables_on_host: self.tables_on_host,
        }
    }

    /// Whether the device, which need not be here, runs a program at all.
    pub(crate) fn check(&self, program: &Program, limits: &Limits) -> Result<(), DeviceError> {
        if self.device != "cuda" {
            return Ok(());
        }
        ignis_cuda::check_program(program, limits, self.stored())
    }

    /// The sizes of the device, which need not be here.
    pub(crate) fn layout(&self) -> Box<dyn DeviceLayout> {
        match self.device.as_str() {
            "cuda" => Box::new(self.stored()),
            "sim" => Box::new(SimLayout),
            _ => Box::new(CpuLayout::new(self.cpu())),
        }
    }

    /// The device itself, for a load of `program`.
    pub(crate) fn open(&self, program: &Program) -> PyResult<Box<dyn Device>> {
        if self.device == "cpu" {
            let device = CpuDevice::new(self.cpu()).map_err(|e| from_engine(e.into()))?;
            return Ok(Box::new(device));
        }
        if self.device == "cuda" {
            let device = CudaDevice::new(&self.cuda(program));
            return Ok(Box::new(device.map_err(|e| from_engine(e.into()))?));
        }
        Err(PyValueError::new_err(format!("device {:?} cannot load a model", self.device)))
    }
}

/// Every unit of kernels that a load on a card of compute capability (major, minor) may compile: a
/// name of its own, the file of `crates/cuda/kernels`, and the compiler's options.
#[pyfunction]
pub(crate) fn kernel_units(capability: (u32, u32)) -> Vec<(String, String, Vec<String>)> {
    let of = |unit: &ignis_cuda::Unit| {
        (unit.name(), format!("{}.cu", unit.file), unit.options(capability))
    };
    ignis_cuda::units(capability).iter().map(of).collect()
}

/// Pieces of kernels that this process has begun to compile, and did not find compiled.
#[pyfunction]
pub(crate) fn kernels_made() -> u32 {
    ignis_cuda::kernels_made()
}

/// Bytes of the card that the driver counts to a process; `None` where it does not say.
#[pyfunction]
#[pyo3(signature = (pid = None))]
pub(crate) fn process_bytes(pid: Option<u32>) -> Option<u64> {
    ignis_cuda::process_bytes(pid.unwrap_or_else(std::process::id)).map(|bytes| bytes.0)
}

/// Gives the card back that [`DeviceOptions::measured`] or a load opened, once no load uses it.
#[pyfunction]
pub(crate) fn close_card(py: Python<'_>) {
    py.detach(ignis_cuda::close);
}

/// Device memory free now, in bytes.
#[pyfunction]
pub(crate) fn free_bytes(device: &str) -> PyResult<u64> {
    match device {
        "cpu" => ignis_cpu::free_bytes()
            .map(|bytes| bytes.0)
            .ok_or_else(|| PyOSError::new_err("the system does not say how much RAM is free")),
        "cuda" => ignis_cuda::free_bytes().map(|bytes| bytes.0).map_err(|e| from_engine(e.into())),
        other => Err(PyValueError::new_err(format!("no reading of free memory on {other:?}"))),
    }
}
