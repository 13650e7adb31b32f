//! Finding a card and what it takes to use it: said plainly where something is missing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ignis_backend::{CopyWay, DeviceError, KvFormat, StoredActivations};
use ignis_types::{Bytes, DType, PlanLine};

use crate::driver::{self, Card, Context};
use crate::kernels::{FORMATS, Kernels};
use crate::memory::Memory;
use crate::nvml;
use crate::nvrtc;

/// The oldest compute capability that the kernels run on.
const CAPABILITY_MIN: (u32, u32) = (8, 0);
/// The oldest driver, as the driver counts: what loads code of the oldest NVRTC that knows them.
const DRIVER_MIN: u32 = 12_000;

/// Where libraries and machine code lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// NVRTC's library; `None` leaves it to the system's search.
    pub nvrtc: Option<PathBuf>,
    /// Folder for compiled kernels; `None` compiles at every start.
    pub cache: Option<PathBuf>,
}

/// What a CUDA device is opened with.
#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// How keys and values are stored.
    pub kv_format: KvFormat,
    /// What products read.
    pub activations: StoredActivations,
    /// Whether a table that is no product's stays in host memory.
    pub tables_on_host: bool,
    /// Dtypes of the model's matrices, for which kernels are made; `None`: every one there is.
    pub dtypes: Option<Vec<DType>>,
    /// Where libraries and machine code lie.
    pub libraries: Libraries,
}

/// A card that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaFound {
    /// As the driver names it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Of the driver: (13, 0).
    pub driver: (u32, u32),
    /// Of the compiler.
    pub nvrtc: (u32, u32),
    /// Its memory.
    pub total: Bytes,
}

/// A card in use: kept until the process ends, and shared by the loads that follow each other.
pub(crate) struct Opened {
    pub(crate) card: Card,
    pub(crate) context: Arc<Context>,
    pub(crate) kernels: Kernels,
    /// What the driver took, by line.
    pub(crate) measured: [(PlanLine, Bytes); 2],
}

static OPENED: Mutex<Option<Arc<Opened>>> = Mutex::new(None);

fn unavailable(problem: impl Into<String>, remedy: impl Into<String>) -> DeviceError {
    DeviceError::Unavailable { problem: problem.into(), remedy: remedy.into() }
}

/// The card that would be used, without making a context on it.
///
/// Errors: `Unavailable`, one sentence with its remedy.
pub fn check(libraries: &Libraries) -> Result<CudaFound, DeviceError> {
    let (card, driver) = find()?;
    if let Some(path) = &libraries.nvrtc
        && !nvrtc::load_from(path)
    {
        return Err(unavailable(
            format!("{} cannot be loaded", path.display()),
            "install it again with: pip install --force-reinstall nvidia-cuda-nvrtc",
        ));
    }
    if !nvrtc::is_present() {
        return Err(unavailable(
            "NVRTC, which compiles the kernels for this card, was not found",
            "install it with: pip install \"ignis[cuda]\"",
        ));
    }
    let Some((total, _)) = nvml::memory(&card.pci_bus_id) else {
        return Err(unavailable(
            "the driver's management library (libnvidia-ml.so.1) does not answer",
            "install the whole driver; in a container, grant it the \"utility\" capability",
        ));
    };
    Ok(CudaFound {
        name: card.name,
        capability: card.capability,
        driver: (driver / 1000, driver % 1000 / 10),
        nvrtc: nvrtc::version()?,
        total: Bytes(total),
    })
}

fn find() -> Result<(Card, u32), DeviceError> {
    if !driver::is_present() {
        return Err(unavailable(
            "no NVIDIA driver was found (libcuda.so.1)",
            "install it from https://www.nvidia.com/drivers, or use --device cpu",
        ));
    }
    let (version, cards) = driver::start().map_err(|error| {
        unavailable(
            format!("the NVIDIA driver does not start ({error})"),
            "see what nvidia-smi says, or use --device cpu",
        )
    })?;
    if version < DRIVER_MIN {
        return Err(unavailable(
            format!("the NVIDIA driver is for CUDA {}.{}", version / 1000, version % 1000 / 10),
            "install one for CUDA 12 or later",
        ));
    }
    if cards == 0 {
        return Err(unavailable(
            "the NVIDIA driver shows no card",
            "see CUDA_VISIBLE_DEVICES and nvidia-smi, or use --device cpu",
        ));
    }
    let card = driver::card(0)?;
    if card.capability < CAPABILITY_MIN {
        let (major, minor) = card.capability;
        return Err(unavailable(
            format!("{} has compute capability {major}.{minor}; the kernels need 8.0", card.name),
            "use an Ampere or later card, or --device cpu",
        ));
    }
    Ok((card, version))
}

/// Free memory of the card, from the driver's management library: no context is made.
pub fn free_bytes() -> Result<Bytes, DeviceError> {
    let (card, _) = find()?;
    nvml::memory(&card.pci_bus_id).map(|(_, free)| Bytes(free)).ok_or_else(|| {
        unavailable(
            "the driver's management library does not say how much memory is free",
            "install the whole driver; in a container, grant it the \"utility\" capability",
        )
    })
}

/// Bytes of the card that the driver counts to this process; `None` where it does not say.
pub fn process_bytes() -> Option<Bytes> {
    let (card, _) = find().ok()?;
    nvml::process_bytes(&card.pci_bus_id).map(Bytes)
}

/// What the driver takes beside the reservation, by line: opens the card.
///
/// Errors: as of [`CudaDevice::new`](crate::CudaDevice::new).
pub fn measured(options: &CudaOptions) -> Result<Vec<(PlanLine, Bytes)>, DeviceError> {
    Ok(open(options)?.measured.to_vec())
}

/// Opens the card: context, modules, and what they take. Later calls share it, and add the kernels
/// that they lack.
///
/// Errors: `Unavailable`; what the compiler or the driver says.
pub(crate) fn open(options: &CudaOptions) -> Result<Arc<Opened>, DeviceError> {
    let formats: Vec<usize> = match &options.dtypes {
        Some(dtypes) => (0..FORMATS.len()).filter(|&at| dtypes.contains(&FORMATS[at].0)).collect(),
        None => (0..FORMATS.len()).collect(),
    };
    let folder = options.libraries.cache.as_deref();
    let mut opened = OPENED.lock().expect("opening a card does not panic");
    let made = match &*opened {
        Some(opened) if opened.kernels.missing(&formats).is_empty() => return Ok(opened.clone()),
        Some(opened) => opened.with(&formats, folder)?,
        None => {
            check(&options.libraries)?;
            Opened::new(&formats, folder)?
        }
    };
    let made = Arc::new(made);
    *opened = Some(made.clone());
    Ok(made)
}

fn free_on(card: &Card) -> u64 {
    nvml::memory(&card.pci_bus_id).map_or(0, |(_, free)| free)
}

impl Opened {
    fn new(formats: &[usize], folder: Option<&Path>) -> Result<Opened, DeviceError> {
        let (card, driver) = find()?;
        let before = free_on(&card);
        let context = Context::new(&card, driver)?;
        context.enter()?;
        context.wait()?;
        let with_context = free_on(&card);
        let kernels = Kernels::load(&context, &card, folder, formats)?;
        force(&context, &kernels)?;
        force_copies(&context)?;
        let with_modules = free_on(&card);
        let measured = [
            (PlanLine::CudaContext, Bytes(before.saturating_sub(with_context))),
            (PlanLine::Residual, Bytes(with_context.saturating_sub(with_modules))),
        ];
        Ok(Opened { card, context: Arc::new(context), kernels, measured })
    }

    /// The same card with kernels for further formats.
    fn with(&self, formats: &[usize], folder: Option<&Path>) -> Result<Opened, DeviceError> {
        self.context.enter()?;
        let before = free_on(&self.card);
        let mut kernels = self.kernels.clone();
        let missing = kernels.missing(formats);
        kernels.add(&self.context, &self.card, folder, &missing)?;
        self.context.wait()?;
        let more = before.saturating_sub(free_on(&self.card));
        let [context_line, (residual, bytes)] = self.measured;
        let measured = [context_line, (residual, Bytes(bytes.0 + more))];
        let (card, context) = (self.card.clone(), self.context.clone());
        Ok(Opened { card, context, kernels, measured })
    }
}

/// The same for a first copy each way beside the rounds.
fn force_copies(context: &Context) -> Result<(), DeviceError> {
    let memory = Memory::new(context, Bytes(4096))?;
    let mut host = [0u8; 4096];
    for (way, stream) in [CopyWay::Out, CopyWay::In].into_iter().zip(&context.copy_streams) {
        // SAFETY: `host` is left alone until the wait below.
        unsafe { memory.travel(stream, way, 0, &mut host)? };
        stream.wait()?;
    }
    Ok(())
}

/// Makes the driver take now what it would take at a first launch: a kernel that touches nothing.
fn force(context: &Context, kernels: &Kernels) -> Result<(), DeviceError> {
    let launcher = crate::launch::Launcher { context, kernels };
    launcher.add_rows(0, 0, 0)?;
    context.wait()
}
