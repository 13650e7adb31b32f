//! Opening the card: its context, its modules, and what the driver takes for them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use ignis_backend::{
    CopyWay, DeviceError, KvFormat, SUM_SLOT_BYTES, StoredActivations, StoredLayout, StoredProducts,
};
use ignis_ops::{Program, WeightKind};
use ignis_types::{Bytes, DType, PlanLine};

use crate::abi::{SUM_PARTS, SumPart, SumParts};
use crate::card::{self, Card};
use crate::driver::Context;
use crate::found::{card_memory, probe};
use crate::judge::{CudaFound, context_refused, judge};
use crate::kernels::{Kernels, Modules};
use crate::launch::Launcher;
use crate::look::Look;
use crate::memory::Memory;
use crate::nvml;
use crate::nvrtc;
use crate::sources::machine_code;
use crate::units::{Target, Unit, needed};

/// Where libraries and machine code lie.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Files that NVRTC's library may be, beside what the system's search finds. The one that suits
    /// driver and card best is taken.
    pub nvrtc: Vec<PathBuf>,
    /// Folder for compiled kernels; `None` compiles at every start.
    pub cache: Option<PathBuf>,
}

/// Which kernels run where some were made for one generation of cards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CudaKernels {
    /// Those that were made for the card that is here; the default.
    #[default]
    Own,
    /// Those that run on every card, of the same bits: for comparing.
    Portable,
}

/// What of a model decides which kernels run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// Dtypes, in its file, of the matrices that rows are multiplied with.
    pub dtypes: Vec<DType>,
    /// Values of an attention head.
    pub head_dim: u32,
}

impl ModelFacts {
    /// Those of a program.
    pub fn of(program: &Program) -> ModelFacts {
        let is_matrix = |kind| matches!(kind, WeightKind::Matrix | WeightKind::TableAndMatrix);
        let matrices = program.weights.iter().filter(|weight| is_matrix(weight.kind));
        let mut dtypes: Vec<DType> = vec![];
        for weight in matrices {
            if !dtypes.contains(&weight.dtype) {
                dtypes.push(weight.dtype);
            }
        }
        ModelFacts { dtypes, head_dim: program.kv.head_dim }
    }
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
    /// Which kernels run.
    pub kernels: CudaKernels,
    /// The model that is run: no kernels are compiled but its own.
    pub model: ModelFacts,
    /// Where libraries and machine code lie.
    pub libraries: Libraries,
}

impl CudaOptions {
    /// The sizes of such a device.
    pub(crate) fn layout(&self) -> StoredLayout {
        StoredLayout {
            kv_format: self.kv_format,
            activations: self.activations,
            products: self.products,
            tables_on_host: self.tables_on_host,
        }
    }

    /// What the kernels of such a device are compiled for on `card`.
    pub(crate) fn target(&self, card: &Card) -> Target {
        Target { capability: card.capability, kernels: self.kernels }
    }
}

/// A card in use: kept until [`close`], and shared by the loads that follow each other.
pub(crate) struct Opened {
    pub(crate) card: Card,
    pub(crate) context: Arc<Context>,
    pub(crate) modules: Modules,
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
    Ok(open(options)?.0.measured.to_vec())
}

/// Gives the card back that was opened: its context, and with it what the driver took, go now, or
/// when the last device on it is dropped. A later load opens it again. Nothing where none is open.
pub fn close() {
    let opened = OPENED.lock().expect("opening a card does not panic").take();
    drop(opened);
}

/// Opens the card: context, modules, and what they take; and finds the kernels of a load. Later
/// calls share the card, and add the units that it lacks.
///
/// Errors: `Unavailable`; a width of head that no kernel has; what the compiler or the driver says.
pub(crate) fn open(options: &CudaOptions) -> Result<(Arc<Opened>, Kernels), DeviceError> {
    let mut opened = OPENED.lock().expect("opening a card does not panic");
    let card = match &*opened {
        Some(opened) => opened.clone(),
        None => Arc::new(Opened::new(&check(&options.libraries)?)?),
    };
    card.context.enter()?;
    let missing = card.modules.missing(&needed(options, options.target(&card.card))?);
    let (card, kernels) = if missing.is_empty() {
        let kernels = Kernels::new(&card.context, &card.card, &card.modules, options)?;
        (card, kernels)
    } else {
        let (more, kernels) = card.with(&missing, options)?;
        (Arc::new(more), kernels)
    };
    *opened = Some(card.clone());
    Ok((card, kernels))
}

impl Opened {
    /// The card with its context, and no kernels.
    fn new(found: &CudaFound) -> Result<Opened, DeviceError> {
        nvrtc::choose(&found.nvrtc)?;
        let card = card::card(0)?;
        let before = Look::at(&card);
        let context = Context::new(&card, found.driver)
            .map_err(|error| context_refused(&card.name, error))?;
        context.enter()?;
        context.wait()?;
        let taken = before.taken_until(&Look::at(&card));
        let measured = [(PlanLine::CudaContext, taken), (PlanLine::Residual, Bytes::ZERO)];
        Ok(Opened { card, context: Arc::new(context), modules: Modules::default(), measured })
    }

    /// The same card with further units, compiled or read, and the kernels of the load that lacks
    /// them; what the driver takes for them is taken and measured now.
    fn with(
        &self,
        missing: &[Unit],
        options: &CudaOptions,
    ) -> Result<(Opened, Kernels), DeviceError> {
        let Opened { card, context, .. } = self;
        let folder = options.libraries.cache.as_deref();
        let codes = machine_code(card.capability, folder, missing)?;
        let before = Look::at(card);
        let mut modules = self.modules.clone();
        for (unit, code) in missing.iter().zip(&codes) {
            modules.add(unit.clone(), context.load(code)?);
        }
        let kernels = Kernels::new(context, card, &modules, options)?;
        force(context, &kernels)?;
        force_copies(context, &kernels)?;
        let more = before.taken_until(&Look::at(card)).0;
        let [context_line, (residual, bytes)] = self.measured;
        let measured = [context_line, (residual, Bytes(bytes.0 + more))];
        let opened = Opened { card: card.clone(), context: context.clone(), modules, measured };
        Ok((opened, kernels))
    }
}

/// Makes the driver take now what it would take at a first copy each way beside the rounds, and
/// its sum.
fn force_copies(context: &Context, kernels: &Kernels) -> Result<(), DeviceError> {
    let memory = Memory::new(context, Bytes(4096))?;
    let mut host = [0u8; 4096];
    for (way, stream) in [CopyWay::Out, CopyWay::In].into_iter().zip(&context.copy_streams) {
        // SAFETY: `host` is left alone until the wait below.
        unsafe { memory.travel(stream, way, 0, &mut host)? };
        stream.wait()?;
    }
    let nothing = SumParts {
        parts: [SumPart::default(); SUM_PARTS],
        slot: memory.address(0, SUM_SLOT_BYTES),
        out: memory.address(SUM_SLOT_BYTES, 8),
        slices: 0,
        unused: 0,
    };
    for stream in &context.sum_streams {
        kernels.sum_parts.launch(context, stream, &nothing)?;
        stream.wait()?;
    }
    Ok(())
}

/// The same for a first launch, of a kernel that touches nothing.
fn force(context: &Context, kernels: &Kernels) -> Result<(), DeviceError> {
    let products = StoredProducts::Same;
    let launcher = Launcher { context, kernels, products, overlaps: true };
    launcher.add_rows(0, 0, 0)?;
    context.wait()
}
