//! Opening the card: its context, its modules, and what the driver takes for them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ignis_backend::{DeviceError, KvFormat};
use ignis_types::{Bytes, PlanLine};

use crate::driver::{self, Card, Context};
use crate::found::probe;
use crate::judge::{CudaFound, context_refused, judge};
use crate::kernels::Kernels;
use crate::nvml;

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
    /// Where libraries and machine code lie.
    pub libraries: Libraries,
}

/// A card in use: kept until the process ends, and shared by the loads that follow each other.
pub(crate) struct Opened {
    pub(crate) card: Card,
    pub(crate) context: Context,
    pub(crate) kernels: Kernels,
    /// What the driver took, by line.
    pub(crate) measured: Vec<(PlanLine, Bytes)>,
}

static OPENED: Mutex<Option<Arc<Opened>>> = Mutex::new(None);

/// The card that would be used, without making a context on it.
///
/// Errors: `Unavailable`, one sentence with its remedy.
pub fn check(libraries: &Libraries) -> Result<CudaFound, DeviceError> {
    judge(&probe(libraries))
}

/// The first card, whatever else may be missing.
fn first_card() -> Option<Card> {
    (driver::is_present() && driver::start().is_ok_and(|(_, cards)| cards > 0))
        .then(|| driver::card(0).ok())
        .flatten()
}

/// Free memory of the card, from the driver's management library: no context is made.
///
/// Errors: `Unavailable`, as of [`check`].
pub fn free_bytes() -> Result<Bytes, DeviceError> {
    let free = first_card().and_then(|card| nvml::memory(&card.pci_bus_id));
    match free {
        Some((_, free)) => Ok(Bytes(free)),
        None => Err(judge(&probe(&Libraries::default())).err().unwrap_or_else(|| {
            DeviceError::Unavailable {
                problem: "the driver does not say how much memory is free".into(),
                remedy: "see what nvidia-smi says".into(),
            }
        })),
    }
}

/// Bytes of the card that the driver counts to a process; `None` where it does not say.
pub fn process_bytes(pid: u32) -> Option<Bytes> {
    nvml::process_bytes(&first_card()?.pci_bus_id, pid).map(Bytes)
}

/// What the driver takes beside the reservation, by line: opens the card.
///
/// Errors: as of [`CudaDevice::new`](crate::CudaDevice::new).
pub fn measured(libraries: &Libraries) -> Result<Vec<(PlanLine, Bytes)>, DeviceError> {
    Ok(open(libraries)?.measured.clone())
}

/// Opens the card: context, modules, and what they take. Later calls share it.
///
/// Errors: `Unavailable`; what the compiler or the driver says.
pub(crate) fn open(libraries: &Libraries) -> Result<Arc<Opened>, DeviceError> {
    let mut opened = OPENED.lock().expect("opening a card does not panic");
    if let Some(opened) = &*opened {
        return Ok(opened.clone());
    }
    check(libraries)?;
    let card = driver::card(0)?;
    let free = || nvml::memory(&card.pci_bus_id).map_or(0, |(_, free)| free);
    let before = free();
    let context = Context::new(&card).map_err(|error| context_refused(&card.name, error))?;
    context.enter()?;
    context.wait()?;
    let with_context = free();
    let kernels = Kernels::load(&context, &card, libraries.cache.as_deref())?;
    force(&context, &kernels)?;
    let with_modules = free();
    let measured = vec![
        (PlanLine::CudaContext, Bytes(before.saturating_sub(with_context))),
        (PlanLine::Residual, Bytes(with_context.saturating_sub(with_modules))),
    ];
    let made = Arc::new(Opened { card, context, kernels, measured });
    *opened = Some(made.clone());
    Ok(made)
}

/// Makes the driver take now what it would take at a first launch: a kernel that touches nothing.
fn force(context: &Context, kernels: &Kernels) -> Result<(), DeviceError> {
    let launcher = crate::launch::Launcher { context, kernels };
    launcher.add_rows(0, 0, 0)?;
    context.wait()
}
