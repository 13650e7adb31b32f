//! Which devices there are, and their sizes.

use std::path::PathBuf;

use ignis_backend::{Activations, Device, DeviceLayout, KvFormat, StoredLayout};
use ignis_cpu::{CpuDevice, CpuLayout, CpuOptions};
use ignis_cuda::{CudaDevice, CudaOptions, Libraries};
use ignis_sim::SimLayout;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::errors::from_engine;
use crate::facts::CudaFacts;

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
    kv: KvFormat,
    act: Activations,
    libraries: Libraries,
}

#[pymethods]
impl DeviceOptions {
    #[new]
    #[pyo3(signature = (
        device,
        threads = 1,
        kv_format = "bf16",
        activations = "int8",
        nvrtc = None,
        kernels = None,
    ))]
    fn new(
        device: &str,
        threads: usize,
        kv_format: &str,
        activations: &str,
        nvrtc: Option<PathBuf>,
        kernels: Option<PathBuf>,
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
        let act = match activations {
            "int8" => Activations::Int8,
            "f32" => Activations::F32,
            other => return Err(unknown("activations", other, "int8 or f32")),
        };
        Ok(DeviceOptions {
            device: device.to_owned(),
            threads,
            kv_format: kv_format.to_owned(),
            activations: activations.to_owned(),
            kv,
            act,
            libraries: Libraries { nvrtc, cache: kernels },
        })
    }

    /// The card that would be used, without a context on it.
    fn check_cuda(&self) -> PyResult<CudaCard> {
        let found = ignis_cuda::check(&self.libraries).map_err(|e| from_engine(e.into()))?;
        Ok(CudaCard {
            name: found.name,
            capability: found.capability,
            driver: found.driver,
            nvrtc: found.nvrtc,
            total_bytes: found.total.0,
        })
    }

    /// Everything that was found of a card; no context is made.
    fn cuda_facts(&self, py: Python<'_>) -> CudaFacts {
        py.detach(|| ignis_cuda::probe(&self.libraries)).into()
    }

    /// Bytes that the driver takes beside the reservation, by line.
    fn measured(&self, py: Python<'_>) -> PyResult<Vec<(&'static str, u64)>> {
        if self.device != "cuda" {
            return Ok(vec![]);
        }
        let lines = py.detach(|| ignis_cuda::measured(&self.libraries));
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
        CpuOptions { threads: self.threads, activations: self.act, kv_format: self.kv }
    }

    /// The sizes of the device, which need not be here.
    pub(crate) fn layout(&self) -> Box<dyn DeviceLayout> {
        match self.device.as_str() {
            "cuda" => Box::new(StoredLayout { kv_format: self.kv }),
            "sim" => Box::new(SimLayout),
            _ => Box::new(CpuLayout::new(self.cpu())),
        }
    }

    /// The device itself.
    pub(crate) fn open(&self) -> PyResult<Box<dyn Device>> {
        if self.device == "cpu" {
            let device = CpuDevice::new(self.cpu()).map_err(|e| from_engine(e.into()))?;
            return Ok(Box::new(device));
        }
        if self.device == "cuda" {
            let libraries = self.libraries.clone();
            let device = CudaDevice::new(&CudaOptions { kv_format: self.kv, libraries });
            return Ok(Box::new(device.map_err(|e| from_engine(e.into()))?));
        }
        Err(PyValueError::new_err(format!("device {:?} cannot load a model", self.device)))
    }
}

/// Bytes of the card that the driver counts to a process; `None` where it does not say.
#[pyfunction]
#[pyo3(signature = (pid = None))]
pub(crate) fn process_bytes(pid: Option<u32>) -> Option<u64> {
    ignis_cuda::process_bytes(pid.unwrap_or_else(std::process::id)).map(|bytes| bytes.0)
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
