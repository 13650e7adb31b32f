//! From a checkpoint to a sealed engine.

use std::sync::atomic::{AtomicU64, Ordering};

use ignis_arena::{Arena, Space};
use ignis_backend::{Device, DeviceError};
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{Program, Sampling, WeightId, WeightSpec};
use ignis_pages::PageTable;
use ignis_tiers::{TierLimits, Tiers, window_bytes};
use ignis_types::{Bytes, Limits, Overflow, PageId, PlanLine};

use crate::engine::{Admission, Engine};
use crate::error::EngineError;
use crate::identity::{identity, identity_of_program};
use crate::layout::{StateSizes, lay_out};
use crate::moves::{Moves, Storage};
use crate::random::RandomWeights;
use crate::retained::Slots;
use crate::round::RoundPlan;

/// Bytes of weights converted so far; read from another thread while a load runs.
#[derive(Debug, Default)]
pub struct Progress {
    /// Stored bytes done.
    pub done: AtomicU64,
    /// Stored bytes in all; 0 before the headers are read.
    pub total: AtomicU64,
}

/// A device's memory, as the arena asks for it.
pub(crate) struct DeviceSpace<'a>(pub(crate) &'a mut dyn Device);

impl Space for DeviceSpace<'_> {
    type Error = DeviceError;
    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError> {
        self.0.reserve(bytes)
    }
    fn reservations(&self) -> u64 {
        self.0.reservations()
    }
}

/// Loads `checkpoint` on `device`, for `limits`, and seals it against `plan`.
///
/// Errors: anything that the checkpoint, the limits or the device refuse, and a plan that differs
/// from what was laid out, by line; host memory or a disk that `storage` cannot have. Nothing
/// stays reserved after an error.
pub fn load(
    checkpoint: &Checkpoint,
    limits: &Limits,
    device: Box<dyn Device>,
    plan: &[(PlanLine, Bytes)],
    storage: Storage,
    progress: &Progress,
) -> Result<Engine, EngineError> {
    let program = &Model::of(checkpoint)?.program;
    let put = |device: &mut dyn Device| {
        put_weights(program, device, progress, |_, weight| {
            weight.tensors().map(|name| Ok(checkpoint.data(checkpoint.require(name)?)?)).collect()
        })
    };
    let identity = identity(checkpoint, program, &*device)?;
    seat(program, limits, device, plan, page_table(limits), (storage, identity), put)
}

/// As [`load`], of random weights in the geometry of `model` instead of a checkpoint's.
pub fn load_random(
    model: &Model,
    limits: &Limits,
    device: Box<dyn Device>,
    plan: &[(PlanLine, Bytes)],
    storage: Storage,
    progress: &Progress,
) -> Result<Engine, EngineError> {
    let program = &model.program;
    let put = |device: &mut dyn Device| {
        let random = RandomWeights::new(program, model.shape.hidden)?;
        put_weights(program, device, progress, |index, weight| Ok(random.of(index, weight)))
    };
    let identity = identity_of_program(program, &*device);
    seat(program, limits, device, plan, page_table(limits), (storage, identity), put)
}

/// The witness model on a simulated device; pages are handed out in an order drawn from `seed`.
pub fn simulated(
    program: &Program,
    limits: &Limits,
    device: Box<dyn Device>,
    storage: Storage,
    seed: u64,
) -> Result<Engine, EngineError> {
    let plan: Vec<_> = {
        let mapped = lay_out(program, limits, device.layout())?;
        PlanLine::ALL.map(|line| (line, mapped.layout.line_bytes(line))).to_vec()
    };
    let mut order: Vec<PageId> = (0..limits.pages).map(PageId).collect();
    for i in (1..order.len()).rev() {
        let draw = ignis_ops::uniform(seed, i as u32) * (i + 1) as f64;
        order.swap(i, draw as usize);
    }
    let (stride, slots) = (limits.sequence_pages_max(), limits.retained());
    let pages = PageTable::with_order(order.into_iter(), limits.lanes_max, slots, stride);
    let identity = identity_of_program(program, &*device);
    seat(program, limits, device, &plan, pages, (storage, identity), |_| Ok(()))
}

fn page_table(limits: &Limits) -> PageTable {
    let (stride, slots) = (limits.sequence_pages_max(), limits.retained());
    PageTable::new(limits.pages, limits.lanes_max, slots, stride)
}

/// Lay out, reserve on the device and the host, bind, put the weights, seal, warm up.
fn seat(
    program: &Program,
    limits: &Limits,
    mut device: Box<dyn Device>,
    plan: &[(PlanLine, Bytes)],
    pages: PageTable,
    (storage, identity): (Storage, u128),
    put_weights: impl FnOnce(&mut dyn Device) -> Result<(), EngineError>,
) -> Result<Engine, EngineError> {
    limits.check()?;
    let mut mapped = lay_out(program, limits, device.layout())?;
    for &(line, bytes) in device.measured() {
        mapped.layout.outside(line, bytes);
    }
    let addresses = mapped.addresses();
    let sizes = StateSizes::new(program, device.layout())?;
    let state = mapped.state(&sizes, limits);
    let building = Arena::map(mapped.layout, &mut DeviceSpace(&mut *device))?;
    let slots = Slots::new(limits, &state, &mut *device)?;
    let moves = Moves::new(state, tiers(storage, identity, &sizes, limits, &mut *device)?);
    device.bind(program, &addresses, limits)?;
    put_weights(&mut *device)?;
    device.weights_arrived()?;
    let arena = building.seal(plan, &DeviceSpace(&mut *device))?;
    let mut engine = Engine::new(device, arena, *limits, program.vocab, pages, slots, moves);
    engine.warm_up()?;
    Ok(engine)
}

/// KV-RAM, and KV-disk with what an earlier process left there.
fn tiers(
    storage: Storage,
    identity: u128,
    sizes: &StateSizes,
    limits: &Limits,
    device: &mut dyn Device,
) -> Result<Tiers, EngineError> {
    let longest = sizes.payload(limits.context_tokens_max)?;
    let window = match storage.window_bytes {
        Some(bytes) => bytes,
        None => window_bytes(longest.0).ok_or(Overflow)?,
    };
    let ram_windows = u32::try_from(storage.ram_bytes / u64::from(window)).unwrap_or(u32::MAX);
    let tier_limits = TierLimits { window_bytes: window, ram_windows };
    let Storage { nonce_seed, disk, .. } = storage;
    let mut take = |pieces, bytes| device.host_memory(pieces, bytes);
    Ok(Tiers::with_memory(tier_limits, identity, nonce_seed, disk, &mut take)?)
}

/// Puts every weight, of which `tensors` gives the stored bytes by its index.
fn put_weights<'a>(
    program: &Program,
    device: &mut dyn Device,
    progress: &Progress,
    tensors: impl Fn(usize, &WeightSpec) -> Result<Vec<&'a [u8]>, EngineError>,
) -> Result<(), EngineError> {
    let total = program.weights.iter().map(stored_bytes).sum();
    progress.total.store(total, Ordering::Relaxed);
    for (index, weight) in program.weights.iter().enumerate() {
        device.put_weight(WeightId(index as u32), &tensors(index, weight)?)?;
        progress.done.fetch_add(stored_bytes(weight), Ordering::Relaxed);
    }
    Ok(())
}

/// Parts of one tensor are one weight each; what a part leaves out is not its own.
fn stored_bytes(weight: &WeightSpec) -> u64 {
    let elements = u64::from(weight.rows) * u64::from(weight.cols);
    elements / weight.dtype.block_elements() * weight.dtype.block_bytes()
}

impl Engine {
    /// One prefill and one decode round, so that nothing is done for the first time in serving.
    /// A simulated device may fail it on purpose; its lane is released all the same.
    fn warm_up(&mut self) -> Result<(), EngineError> {
        if self.limits.context_tokens_max < 4 {
            return Ok(());
        }
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        self.admit(0, &Admission::new(&[0, 0], 1, &sampling), None)?;
        let chunk = 2.min(self.limits.chunk_tokens_max);
        let mut ran = Ok(());
        for plan in [
            RoundPlan { prefill: Some((0, chunk)), decode: &[] },
            RoundPlan { prefill: None, decode: &[0] },
        ] {
            if chunk == 2 && ran.is_ok() {
                ran = self.round(plan).map(|_| ());
            }
        }
        self.release(0)?;
        match ran {
            Err(EngineError::Device(DeviceError::Fault { .. })) | Ok(()) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
