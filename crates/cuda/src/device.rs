//! The running half of the CUDA device.

use std::sync::Arc;

use ignis_backend::{
    Addresses, Device, DeviceError, DeviceLayout, KvFormat, LaneSampling, StoredLayout,
    StoredScratch,
};
use ignis_ops::{Program, Round, Rows, SampleOut, WeightId, WeightSpec};
use ignis_types::{Bytes, Limits, Overflow, PlanLine};

use crate::launch::{Encoded, Launcher, SPLIT_QUERIES, TILE_QUERIES, attention_shared};
use crate::memory::Memory;
use crate::open::{self, CudaOptions, Opened};
use crate::program::{Compiled, Step, compile};
use crate::round::{Counts, RoundInputs};
use crate::sampling::Sampler;
use crate::weights;

/// An NVIDIA card as a device.
pub struct CudaDevice {
    layout: StoredLayout,
    bound: Option<Bound>,
    reservations: u64,
    memory: Option<Memory>,
    opened: Arc<Opened>,
}

/// What `bind` fixed.
struct Bound {
    compiled: Compiled,
    scratch: StoredScratch,
    addresses: Addresses,
    weights: Vec<WeightSpec>,
    limits: Limits,
    vocab: u32,
    layers: u32,
    kv_heads: u32,
    head_dim: u32,
    /// Rotary frequencies, and what multiplies cosines and sines.
    half: u32,
    magnitude: f32,
    /// Offset of the logits.
    logits: u64,
    inputs: RoundInputs,
    sampler: Sampler,
    /// Of the last round.
    counts: Counts,
    /// One row of logits, `[vocab]`, and the ids of a lane that are counted.
    row: Vec<f32>,
}

impl CudaDevice {
    /// Opens the first card: its context, and every kernel.
    ///
    /// Errors: `Unavailable`, with what to do; what the compiler or the driver says.
    pub fn new(options: &CudaOptions) -> Result<CudaDevice, DeviceError> {
        let opened = open::open(&options.libraries)?;
        let layout = StoredLayout { kv_format: options.kv_format };
        Ok(CudaDevice { layout, bound: None, reservations: 0, memory: None, opened })
    }

    /// Bytes of host memory that are pinned.
    pub fn pinned_bytes(&self) -> u64 {
        let bound = self.bound.as_ref();
        bound.map_or(0, |bound| bound.inputs.pinned_bytes() + bound.sampler.pinned_bytes())
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("memory is reserved before it is used")
    }

    /// The type that the pool stores: 0 bf16, 1 f32.
    fn stored(&self) -> usize {
        match self.layout.kv_format {
            KvFormat::Bf16 => 0,
            KvFormat::F32 => 1,
        }
    }

    fn value_bytes(&self) -> u32 {
        self.layout.kv_format.dtype().block_bytes() as u32
    }

    /// Lets attention have its shared memory, or says that the card has too little.
    fn allow_shared(&self, program: &Program) -> Result<(), DeviceError> {
        let (opened, head_dim) = (&self.opened, program.kv.head_dim);
        let width = crate::kernels::HEAD_DIMS.iter().position(|dim| head_dim <= *dim);
        let Some(width) = width else { return Ok(()) };
        let kernels = opened.kernels.attention[self.stored()][width];
        for (f, queries) in [(kernels.tiles, TILE_QUERIES), (kernels.split, SPLIT_QUERIES)] {
            let bytes = attention_shared(queries, head_dim, self.value_bytes());
            if bytes + 1024 > opened.card.shared_bytes_max {
                return Err(DeviceError::ShapeUnsupported {
                    what: "shared memory of attention",
                    found: u64::from(bytes),
                    expected: "less; use model.kv_format bf16",
                });
            }
            if bytes > 48 * 1024 {
                opened.context.allow_shared(f, bytes)?;
            }
        }
        Ok(())
    }

    /// Puts the steps of the body or the head on the stream.
    fn walk(&self, body: bool, head: bool) -> Result<(), DeviceError> {
        let bound = self.bound.as_ref().expect("the device is bound before it runs");
        let split = bound.compiled.head;
        let steps = &bound.compiled.steps;
        let (from, to) = (if body { 0 } else { split }, if head { steps.len() } else { split });
        steps[from..to].iter().try_for_each(|step| self.step(bound, step))
    }

    fn step(&self, bound: &Bound, step: &Step) -> Result<(), DeviceError> {
        let Opened { context, kernels, .. } = &*self.opened;
        let run = Launcher { context, kernels };
        let counts = bound.counts;
        let rows_of = |rows: Rows| match rows {
            Rows::Round => counts.rows,
            Rows::Logits => counts.logit_rows,
        };
        let scratch = |offset| self.memory().address(bound.addresses.scratch.0 + offset, 0);
        let map = &bound.scratch;
        let values = |rows: Rows, width: u32| u64::from(rows_of(rows)) * u64::from(width);
        let angles = || (scratch(map.cos), scratch(map.sin));
        match *step {
            Step::Angles => run.rope_angles(
                scratch(map.positions),
                scratch(map.inv_freq),
                bound.half,
                bound.magnitude,
                angles(),
                counts.rows,
            ),
            Step::Embed { table, y } => {
                let f = &kernels.formats[table.format];
                run.embed(f, table.weight, scratch(map.tokens), y, counts.rows)
            }
            Step::RmsNorm { rows, x, w, y, groups, width, eps } => {
                run.rms_norm(x, w, y, (rows_of(rows), groups, width), eps)
            }
            Step::Encode { rows, x, cols, to } => {
                run.encode(x, Encoded { rows: rows_of(rows), ..to }, cols)
            }
            Step::Linear { rows, matrix, x, to } => {
                let f = &kernels.formats[matrix.format];
                run.linear(f, matrix.weight, Encoded { rows: rows_of(rows), ..x }, to)
            }
            Step::Rope { x, heads, head_dim } => {
                run.rope(x, angles(), (heads, head_dim, bound.half), counts.rows)
            }
            Step::KvAppend { layer, k, v } => run.kv_append(
                self.stored(),
                (k, v),
                (
                    self.memory().address(bound.addresses.kv_pool, 0),
                    scratch(map.tables),
                    bound.limits.sequence_pages_max(),
                ),
                (scratch(map.positions), scratch(map.lanes)),
                (bound.layers, layer, bound.kv_heads, bound.head_dim),
                counts.rows,
            ),
            Step::Attention { kernels: at, queries, pool } => {
                let f = kernels.attention[self.stored()][at];
                if counts.tiles > 0 {
                    run.attention(f.tiles, queries, pool, counts.tiles, self.value_bytes())?;
                }
                if counts.split == 0 {
                    return Ok(());
                }
                let tiles = queries.tiles + 8 * u64::from(counts.tiles);
                let cut = crate::launch::Queries { tiles, ..queries };
                let partials = scratch(map.partials);
                let counted = (counts.split, counts.runs);
                run.attention_split(f.split, cut, pool, partials, counted, self.value_bytes())
            }
            Step::SwiGlu { rows, gate, up, y, width } => {
                run.swiglu(gate, up, y, values(rows, width))
            }
            Step::Add { rows, x, y, width } => run.add_rows(x, y, values(rows, width)),
            Step::Gate { rows, gate, y, width } => run.gate_rows(gate, y, values(rows, width)),
            Step::Gather { x, y, width } => {
                run.gather_rows(x, y, scratch(map.logit_rows), width, counts.logit_rows)
            }
        }
    }
}

impl Device for CudaDevice {
    fn layout(&self) -> &dyn DeviceLayout {
        &self.layout
    }

    fn describe(&self) -> String {
        let card = &self.opened.card;
        let (major, minor) = card.capability;
        format!("cuda ({}, sm_{major}{minor}, {} processors)", card.name, card.processors)
    }

    fn measured(&self) -> &[(PlanLine, Bytes)] {
        &self.opened.measured
    }

    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError> {
        assert!(self.memory.is_none(), "the device plan is reserved once");
        self.reservations += 1;
        self.opened.context.enter()?;
        self.memory = Some(Memory::new(&self.opened.context, bytes)?);
        Ok(())
    }

    fn reservations(&self) -> u64 {
        self.reservations
    }

    fn bind(
        &mut self,
        program: &Program,
        addresses: &Addresses,
        limits: &Limits,
    ) -> Result<(), DeviceError> {
        assert!(self.bound.is_none(), "a program is bound once");
        self.opened.context.enter()?;
        let encoded = StoredScratch::encoded_bytes(program, limits).map_err(too_large)?;
        let scratch = StoredScratch::new(program, limits, encoded).map_err(too_large)?;
        if addresses.scratch.1.0 < scratch.end {
            return Err(DeviceError::ShapeUnsupported {
                what: "bytes of scratch",
                found: addresses.scratch.1.0,
                expected: "what the layout asks for",
            });
        }
        let value_bytes = u64::from(self.value_bytes());
        let memory = self.memory();
        let compiled = compile(program, addresses, limits, &scratch, memory, value_bytes)?;
        self.allow_shared(program)?;
        let frequencies: Vec<u8> =
            program.rope.inv_freq.iter().flat_map(|f| f.to_le_bytes()).collect();
        memory.write(&self.opened.context, addresses.scratch.0 + scratch.inv_freq, &frequencies)?;
        let logits = addresses.buffers[program.logits.0 as usize];
        let tiling = (compiled.group, TILE_QUERIES, compiled.vocab);
        let inputs = RoundInputs::new(&scratch, addresses.scratch.0, limits, tiling)?;
        let sampler = Sampler::new(memory, addresses, limits, (logits, program.vocab))?;
        self.bound = Some(Bound {
            compiled,
            scratch,
            addresses: addresses.clone(),
            weights: program.weights.clone(),
            limits: *limits,
            vocab: program.vocab,
            layers: program.kv.layers,
            kv_heads: program.kv.kv_heads,
            head_dim: program.kv.head_dim,
            half: program.rope.inv_freq.len() as u32,
            magnitude: program.rope.magnitude,
            logits,
            inputs,
            sampler,
            counts: Counts::default(),
            row: vec![0.0; program.vocab as usize],
        });
        Ok(())
    }

    fn put_weight(&mut self, id: WeightId, stored: &[&[u8]]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        let bound = self.bound.as_ref().expect("the device is bound before weights are put");
        let weight = &bound.weights[id.0 as usize];
        let at = bound.addresses.weights[id.0 as usize];
        weights::put(&self.opened.context, self.memory(), weight, stored, at)
    }

    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        bound.counts = bound.inputs.send(&self.opened.context, memory, round)?;
        self.walk(true, !round.logit_rows.is_empty())
    }

    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        let context = &self.opened.context;
        bound.inputs.send_logit_rows(context, memory, round, &mut bound.counts)?;
        self.walk(false, !round.logit_rows.is_empty())
    }

    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it samples");
        assert_eq!(lanes.len(), out.len(), "one result a lane");
        for (i, lane) in lanes.iter().enumerate() {
            let rows = bound.limits.lanes_max;
            assert!(lane.lane < rows && lane.logit_row < rows, "lane {} to sample", lane.lane);
            let twice = lanes[..i].iter().any(|other| other.lane == lane.lane);
            assert!(!twice, "lane {} is sampled twice", lane.lane);
        }
        if lanes.is_empty() {
            return Ok(());
        }
        let Opened { context, kernels, .. } = &*self.opened;
        bound.sampler.sample(Launcher { context, kernels }, memory, lanes, out)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceError> {
        self.opened.context.enter()?;
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        assert!(row < bound.limits.lanes_max, "row {row} of the logits");
        let at = bound.logits + u64::from(row) * u64::from(bound.vocab) * 4;
        // SAFETY: the bytes of floats, all of them; any bits are a float.
        let bytes = unsafe { bound.row.align_to_mut::<u8>().1 };
        memory.read(&self.opened.context, at, bytes)?;
        Ok(&bound.row)
    }

    fn reset_penalties(
        &mut self,
        lane: u32,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        let context = &self.opened.context;
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        assert!(lane < bound.limits.lanes_max, "lane {lane} of the penalties");
        let row = 4 * u64::from(bound.vocab);
        let at = bound.addresses.penalty_counts + u64::from(lane) * row;
        memory.zero(context, at, row)?;
        // The lane's sampling keys are free between rounds, and hold two ids for each of the vocab.
        let keys = bound.sampler.keys_at(lane);
        let room = 2 * bound.vocab as usize;
        let launcher = Launcher { context, kernels: &self.opened.kernels };
        for (ids, prompt) in [(prompt, true), (output, false)] {
            for piece in ids.chunks(room) {
                assert!(piece.iter().all(|&id| id < bound.vocab), "an id outside the vocabulary");
                memory.write(context, keys, bytes_of(piece))?;
                let count = piece.len() as u32;
                let marked = if prompt { count } else { 0 };
                let counts = memory.address(at, row);
                launcher.count_tokens(counts, memory.address(keys, 0), marked, count)?;
                context.wait()?;
            }
        }
        Ok(())
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        self.memory().read(&self.opened.context, at, out)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        self.memory().write(&self.opened.context, at, bytes)
    }

    fn copy(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), DeviceError> {
        assert!(from.abs_diff(to) >= bytes.0, "a copy of {bytes} overlaps itself");
        self.opened.context.enter()?;
        self.memory().copy(&self.opened.context, from, to, bytes.0)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What the stream still does must end before the memory goes.
        let _ = self.opened.context.enter();
        let _ = self.opened.context.wait();
    }
}

/// Ids as they lie in memory: both sides count from the little end.
fn bytes_of(ids: &[u32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "hosts of NVIDIA cards are little-endian") };
    // SAFETY: any bytes of integers are bytes, and one more aligned than the other has no rest.
    unsafe { ids.align_to::<u8>().1 }
}

fn too_large(_: Overflow) -> DeviceError {
    DeviceError::ShapeUnsupported {
        what: "a size",
        found: u64::MAX,
        expected: "less than 2^64 bytes",
    }
}
