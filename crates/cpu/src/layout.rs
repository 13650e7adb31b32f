//! Sizes on this device, as pure functions of the program and the limits.

use ignis_backend::{Activations, Addresses, DeviceError, DeviceLayout, KvFormat};
use ignis_ops::{
    ExpertLinear, KvShape, Linear, Op, Program, Rows, SectionSpec, WeightKind, WeightSpec,
};
use ignis_types::{Bytes, Limits, Overflow};

use crate::attention::Sizes;
use crate::experts::GroupMap;
use crate::linear::{Encoding, encoded_row_bytes, packed_bytes, supports};

/// Start of everything: a cache line, and the widest vector.
pub(crate) const ALIGN: u64 = 64;

/// What this device can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// Worker threads, the calling one included; at least 1. Scratch depends on it.
    pub threads: usize,
    /// How activations meet quantised weights.
    pub activations: Activations,
    /// How keys and values are stored.
    pub kv_format: KvFormat,
}

impl Default for CpuOptions {
    /// A thread a processor that this process may use, int8 activations, a bf16 pool.
    fn default() -> Self {
        CpuOptions {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            activations: Activations::Int8,
            kv_format: KvFormat::Bf16,
        }
    }
}

/// The sizes of a CPU device.
#[derive(Clone, Copy, Debug)]
pub struct CpuLayout {
    options: CpuOptions,
}

impl CpuLayout {
    /// Sizes under `options`.
    pub fn new(options: CpuOptions) -> CpuLayout {
        let threads = options.threads.max(1);
        CpuLayout { options: CpuOptions { threads, ..options } }
    }

    /// What it was made with.
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }
}

/// How the input of `op` is encoded for those of its parts that are quantised. The one place that
/// weighs speed against precision.
pub(crate) fn linear_encoding(op: &Linear, activations: Activations) -> Encoding {
    match activations {
        Activations::F32 => Encoding::F32,
        Activations::Int8 if op.precise => Encoding::Int16,
        Activations::Int8 => Encoding::Int8,
    }
}

/// As [`linear_encoding`], for experts.
pub(crate) fn expert_encoding(activations: Activations) -> Encoding {
    match activations {
        Activations::F32 => Encoding::F32,
        Activations::Int8 => Encoding::Int8,
    }
}

/// Bytes of a row in the wanted encoding, and of the plain values beside it: parts of plain dtypes
/// read those.
fn encoded_bytes(want: Encoding, cols: u64, rows: u64) -> Result<Bytes, Overflow> {
    let cols = u32::try_from(cols).map_err(|_| Overflow)?;
    let bytes = |encoding| Bytes(encoded_row_bytes(cols, encoding) as u64).times(rows);
    match want {
        Encoding::F32 => bytes(Encoding::F32),
        other => bytes(other)?.plus(bytes(Encoding::F32)?),
    }
}

impl DeviceLayout for CpuLayout {
    fn align(&self) -> u64 {
        ALIGN
    }

    fn weight_bytes(&self, weight: &WeightSpec) -> Result<Bytes, Overflow> {
        match weight.kind {
            WeightKind::Vector => Bytes(4).times(u64::from(weight.cols)),
            // `bind` refuses what the kernels do not run.
            _ if !supports(weight.dtype, weight.cols) => Ok(Bytes::ZERO),
            WeightKind::Experts { count } => {
                let rows = weight.rows.checked_div(count).unwrap_or(0);
                packed_bytes(weight.dtype, rows, weight.cols)?.times(u64::from(count))
            }
            _ => packed_bytes(weight.dtype, weight.rows, weight.cols),
        }
    }

    /// The encoding that `op` asks for, and the plain values beside it: parts of plain dtypes read
    /// those.
    fn linear_scratch(&self, op: &Linear, rows: u64, cols: u64) -> Result<Bytes, Overflow> {
        encoded_bytes(linear_encoding(op, self.options.activations), cols, rows)
    }

    fn expert_scratch(
        &self,
        _: &ExpertLinear,
        rows: u64,
        used: u64,
        cols: u64,
    ) -> Result<Bytes, Overflow> {
        let pairs = rows.checked_mul(used).ok_or(Overflow)?;
        encoded_bytes(expert_encoding(self.options.activations), cols, pairs)
    }

    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        self.options.kv_format.section_bytes(section)
    }

    /// Rotary angles of the round, the grouping by expert, partial sums, and each worker's pages
    /// and tiles.
    fn attention_scratch(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes(ScratchMap::new(program, limits, self, Bytes::ZERO)?.end))
    }

    /// A copy of the adjusted logits and a sortable key for each id.
    fn sampling_lane_bytes(&self, vocab: u32) -> Result<Bytes, Overflow> {
        Bytes(crate::sample::ID_BYTES).times(u64::from(vocab))?.aligned(ALIGN)
    }

    fn kv_page_bytes(&self, shape: &KvShape) -> Result<Bytes, Overflow> {
        self.options.kv_format.page_bytes(shape)
    }

    /// Threads and instruction sets are left out: results do not depend on them.
    fn state_format(&self) -> String {
        let CpuOptions { activations, kv_format, .. } = self.options;
        format!("cpu 1 {} {activations:?}", kv_format.dtype())
    }
}

/// What lies where in the ops' scratch; offsets from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScratchMap {
    /// Cosines, then sines, `[rows, rotary_dim / 2]` f32 each.
    pub(crate) cos: u64,
    pub(crate) sin: u64,
    /// The round's rows by expert.
    pub(crate) groups: GroupMap,
    /// Partial sums of attention.
    pub(crate) partials: u64,
    /// Each worker's own.
    pub(crate) workers: u64,
    pub(crate) worker_bytes: u64,
    /// One behind the last byte.
    pub(crate) end: u64,
    pub(crate) sizes: Sizes,
}

impl ScratchMap {
    /// Places everything behind `encoded` bytes of encoded activations.
    pub(crate) fn new(
        program: &Program,
        limits: &Limits,
        layout: &CpuLayout,
        encoded: Bytes,
    ) -> Result<ScratchMap, Overflow> {
        let threads = layout.options.threads;
        let sizes = Sizes::new(program, limits, threads);
        let rows = u64::from(limits.round_rows_max());
        let angles = Bytes(4 * program.rope.inv_freq.len() as u64).times(rows)?.aligned(ALIGN)?;
        let worker = sizes.worker_bytes()?;

        let cos = encoded.aligned(ALIGN)?;
        let sin = cos.plus(angles)?;
        let grouped = sin.plus(angles)?;
        let groups = GroupMap::new(program, limits, grouped);
        let partials = grouped.plus(groups.bytes()?)?;
        let workers = partials.plus(sizes.partial_bytes()?)?.aligned(ALIGN)?;
        let end = workers.plus(worker.times(threads as u64)?)?;
        Ok(ScratchMap {
            cos: cos.0,
            sin: sin.0,
            groups,
            partials: partials.0,
            workers: workers.0,
            worker_bytes: worker.0,
            end: end.0,
            sizes,
        })
    }

    /// Bytes of the widest encoded input of `program`.
    pub(crate) fn encoded_bytes(
        program: &Program,
        limits: &Limits,
        layout: &CpuLayout,
    ) -> Result<Bytes, Overflow> {
        program.ops.iter().try_fold(Bytes::ZERO, |widest, op| {
            let bytes = match op {
                Op::Linear(op) => {
                    let x = program.buffer(op.x);
                    layout.linear_scratch(op, rows_max(x.rows, limits), x.width.into())?
                }
                Op::ExpertLinear(op) => {
                    let (ids, parts) = (program.buffer(op.ids), &op.parts);
                    let cols = parts.iter().map(|part| program.weight(part.w).cols).max();
                    let (rows, used) = (rows_max(ids.rows, limits), u64::from(ids.width));
                    layout.expert_scratch(op, rows, used, u64::from(cols.unwrap_or(0)))?
                }
                _ => return Ok(widest),
            };
            Ok(widest.max(bytes))
        })
    }
}

/// Rows of the widest round.
pub(crate) fn rows_max(rows: Rows, limits: &Limits) -> u64 {
    u64::from(match rows {
        Rows::Round => limits.round_rows_max(),
        Rows::Logits => limits.lanes_max,
    })
}

/// Checks that every region lies inside the reservation and that the scratch is large enough.
pub(crate) fn check_addresses(
    program: &Program,
    addresses: &Addresses,
    map: &ScratchMap,
    reserved: Bytes,
) -> Result<(), DeviceError> {
    let wrong = |what, found, expected| DeviceError::ShapeUnsupported { what, found, expected };
    let found = [addresses.weights.len(), addresses.buffers.len(), addresses.sections.len()];
    if found != [program.weights.len(), program.buffers.len(), program.sections.len()] {
        let found = found.iter().sum::<usize>() as u64;
        return Err(wrong("addresses", found, "one a weight, buffer and section"));
    }
    if addresses.scratch.1.0 < map.end {
        return Err(wrong("bytes of scratch", addresses.scratch.1.0, "what the layout asks for"));
    }
    let parts = addresses.weights.iter().chain(&addresses.buffers).chain(&addresses.sections);
    let starts = parts.copied().chain([
        addresses.scratch.0,
        addresses.kv_pool,
        addresses.penalty_counts,
        addresses.sampling,
    ]);
    for start in starts {
        if start > reserved.0 || !start.is_multiple_of(ALIGN) {
            return Err(wrong("start of a region", start, "aligned, inside the reservation"));
        }
    }
    Ok(())
}
