//! Opening the card: its context, its modules, and what the driver takes for them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use ignis_backend::{CopyWay, DeviceError, KvFormat, StoredActivations, StoredProducts};
use ignis_types::{Bytes, DType, PlanLine};

use crate::card::{self, Card};
use crate::driver::Context;
use crate::found::{card_memory, probe};
use crate::judge::{CudaFound, context_refused, judge};
use crate::kernels::{FORMATS, Kernels};
use crate::look::Look;
use crate::memory::Memory;
use crate::nvml;
use crate::nvrtc;

/// Where libraries and machine code lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Files that NVRTC's library may be, beside what the system's search finds. The one that suits
    /// driver and card best is taken.
    pub nvrtc: Vec<PathBuf>,
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
    /// How products of many rows are summed.
    pub products: StoredProducts,
    /// Whether a table that is no product's stays in host memory.
    pub tables_on_host: bool,
    /// Dtypes of the model's matrices in its file: kernels are made for how those are kept; `None`:
    /// every one there is.
    pub dtypes: Option<Vec<DType>>,
    /// Where libraries and machine code lie.
    pub libraries: Libraries,
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

/// The card that would be used, without making a context on it.
///
/// Errors: `Unavailable`, one sentence with its remedy.
pub fn check(libraries: &Libraries) -> Result<CudaFound, DeviceError> {
    judge(&probe(libraries))
}

/// The first card, whatever else may be missing.
fn first_card() -> Option<Card> {
    (card::is_present() && card::start().is_ok_and(|(_, cards)| cards > 0))
        .then(|| card::card(0).ok())
        .flatten()
}

/// Free memory of the card, from the driver's management library: no context is made.
///
/// Errors: `Unavailable`, as of [`check`].
pub fn free_bytes() -> Result<Bytes, DeviceError> {
    match first_card().and_then(|card| card_memory(&card)) {
        Some((_, free)) => Ok(free),
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
    nvml::process_bytes(&first_card()?.id, pid).map(Bytes)
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
    let formats = formats(options);
    let folder = options.libraries.cache.as_deref();
    let mut opened = OPENED.lock().expect("opening a card does not panic");
    let made = match &*opened {
        Some(opened) if opened.kernels.missing(&formats).is_empty() => return Ok(opened.clone()),
        Some(opened) => opened.with(&formats, folder)?,
        None => Opened::new(&check(&options.libraries)?, &formats, folder)?,
    };
    let made = Arc::new(made);
    *opened = Some(made.clone());
    Ok(made)
}

/// Formats that the model's matrices are kept in.
fn formats(options: &CudaOptions) -> Vec<usize> {
    let all = FORMATS.map(|(dtype, _)| dtype);
    let dtypes = options.dtypes.as_deref().unwrap_or(&all);
    let kept: Vec<DType> =
        dtypes.iter().map(|&dtype| options.activations.kept_dtype(dtype)).collect();
    (0..all.len()).filter(|&at| kept.contains(&all[at])).collect()
}

impl Opened {
    fn new(
        found: &CudaFound,
        formats: &[usize],
        folder: Option<&Path>,
    ) -> Result<Opened, DeviceError> {
        nvrtc::choose(&found.nvrtc)?;
        let card = card::card(0)?;
        let before = Look::at(&card);
        let context = Context::new(&card, found.driver)
            .map_err(|error| context_refused(&card.name, error))?;
        context.enter()?;
        context.wait()?;
        let with_context = Look::at(&card);
        let kernels = Kernels::load(&context, &card, folder, formats)?;
        force(&context, &kernels)?;
        force_copies(&context)?;
        let with_modules = Look::at(&card);
        let measured = [
            (PlanLine::CudaContext, before.taken_until(&with_context)),
            (PlanLine::Residual, with_context.taken_until(&with_modules)),
        ];
        Ok(Opened { card, context: Arc::new(context), kernels, measured })
    }

    /// The same card with kernels for further formats.
    fn with(&self, formats: &[usize], folder: Option<&Path>) -> Result<Opened, DeviceError> {
        self.context.enter()?;
        let before = Look::at(&self.card);
        let mut kernels = self.kernels.clone();
        let missing = kernels.missing(formats);
        kernels.add(&self.context, &self.card, folder, &missing)?;
        self.context.wait()?;
        let more = before.taken_until(&Look::at(&self.card)).0;
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
    let launcher = crate::launch::Launcher { context, kernels, products: StoredProducts::Same };
    launcher.add_rows(0, 0, 0)?;
    context.wait()
}
