//! From a checkpoint to a sealed engine.

use std::sync::atomic::{AtomicU64, Ordering};

use ignis_arena::{Arena, Space};
use ignis_backend::{Device, DeviceError};
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{Program, Sampling, WeightId, WeightSpec};
use ignis_pages::PageTable;
use ignis_types::{Bytes, Limits, PageId, PlanLine};

use crate::engine::{Engine, RoundPlan};
use crate::error::EngineError;
use crate::layout::lay_out;

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
/// from what was laid out, by line. Nothing stays reserved after an error.
pub fn load(
    checkpoint: &Checkpoint,
    limits: &Limits,
    device: Box<dyn Device>,
    plan: &[(PlanLine, Bytes)],
    progress: &Progress,
) -> Result<Engine, EngineError> {
    let model = Model::of(checkpoint)?;
    let put = |device: &mut dyn Device| put_weights(checkpoint, &model.program, device, progress);
    let pages = PageTable::new(limits.pages, limits.lanes_max, limits.sequence_pages_max());
    seat(&model.program, limits, device, plan, pages, put)
}

/// The witness model on a simulated device; pages are handed out in an order drawn from `seed`.
pub fn simulated(
    program: &Program,
    limits: &Limits,
    device: Box<dyn Device>,
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
    let stride = limits.sequence_pages_max();
    let pages = PageTable::with_order(order.into_iter(), limits.lanes_max, stride);
    seat(program, limits, device, &plan, pages, |_| Ok(()))
}

/// Lay out, reserve, bind, put the weights, seal, warm up.
fn seat(
    program: &Program,
    limits: &Limits,
    mut device: Box<dyn Device>,
    plan: &[(PlanLine, Bytes)],
    pages: PageTable,
    put_weights: impl FnOnce(&mut dyn Device) -> Result<(), EngineError>,
) -> Result<Engine, EngineError> {
    limits.check()?;
    let mapped = lay_out(program, limits, device.layout())?;
    let addresses = mapped.addresses();
    let building = Arena::map(mapped.layout, &mut DeviceSpace(&mut *device))?;
    device.bind(program, &addresses, limits)?;
    put_weights(&mut *device)?;
    let arena = building.seal(plan, &DeviceSpace(&mut *device))?;
    let mut engine = Engine::new(device, arena, *limits, program.vocab, pages);
    engine.warm_up()?;
    Ok(engine)
}

fn put_weights(
    checkpoint: &Checkpoint,
    program: &Program,
    device: &mut dyn Device,
    progress: &Progress,
) -> Result<(), EngineError> {
    // Parts of one tensor are one weight each; what a part leaves out is not its own.
    let stored_bytes = |weight: &WeightSpec| {
        let elements = u64::from(weight.rows) * u64::from(weight.cols);
        elements / weight.dtype.block_elements() * weight.dtype.block_bytes()
    };
    let total = program.weights.iter().map(stored_bytes).sum();
    progress.total.store(total, Ordering::Relaxed);
    for (index, weight) in program.weights.iter().enumerate() {
        let stored = weight
            .tensors()
            .map(|name| checkpoint.data(checkpoint.require(name)?))
            .collect::<Result<Vec<_>, _>>()?;
        device.put_weight(WeightId(index as u32), &stored)?;
        progress.done.fetch_add(stored_bytes(weight), Ordering::Relaxed);
    }
    Ok(())
}

impl Engine {
    /// One prefill and one decode round, so that nothing is done for the first time in serving.
    /// A simulated device may fail it on purpose; its lane is released all the same.
    fn warm_up(&mut self) -> Result<(), EngineError> {
        if self.limits.context_tokens_max < 4 {
            return Ok(());
        }
        self.admit(0, &[0, 0], 1, &Sampling { temperature: 0.0, ..Sampling::default() }, &[])?;
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
