//! Sizes that depend on the kind of device, as pure functions.

use ignis_ops::{
    ExpertLinear, KvShape, Linear, Program, SectionFormat, SectionSpec, TOP_LOGPROBS_MAX,
    WeightSpec,
};
use ignis_types::{Bytes, DType, Limits, Overflow, PAGE_TOKENS};

/// Bytes of the fixed results of one sampled row.
pub const SAMPLE_ROW_BYTES: u64 = 16 + 8 * TOP_LOGPROBS_MAX as u64;

/// How keys and values are stored in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvFormat {
    /// 2 bytes a value; the serving default.
    Bf16,
    /// 4 bytes a value; for exact tests.
    F32,
}

impl KvFormat {
    /// The stored dtype.
    pub fn dtype(self) -> DType {
        match self {
            KvFormat::Bf16 => DType::BF16,
            KvFormat::F32 => DType::F32,
        }
    }

    /// Bytes of one page `[layers, 2 (K, V), kv_heads, PAGE_TOKENS, head_dim]`.
    pub fn page_bytes(self, shape: &KvShape) -> Result<Bytes, Overflow> {
        Bytes(self.dtype().block_bytes())
            .times(u64::from(shape.layers) * 2)?
            .times(u64::from(shape.kv_heads))?
            .times(u64::from(shape.head_dim) * u64::from(PAGE_TOKENS))
    }

    /// Bytes of one lane of a section `[layers, elements]`.
    pub fn section_bytes(self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        let dtype = match section.format {
            SectionFormat::F32 => DType::F32,
            SectionFormat::AsKv => self.dtype(),
        };
        Bytes(dtype.block_bytes())
            .times(u64::from(section.layers))?
            .times(u64::from(section.elements))
    }
}

/// Precision of activations in products with quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activations {
    /// Integer codes a group of 32 columns; fast, the default.
    Int8,
    /// f32 throughout: slower, for tests and for those who want it.
    F32,
}

/// Bytes that a kind of device needs, computed without one.
pub trait DeviceLayout {
    /// Start alignment of every region and weight, a power of two.
    fn align(&self) -> u64;
    /// Bytes of a weight in the arena, in the layout that the kernels read.
    fn weight_bytes(&self, weight: &WeightSpec) -> Result<Bytes, Overflow>;
    /// Scratch of a [`Linear`] over `rows` rows of `cols` columns: the encoded input.
    fn linear_scratch(&self, op: &Linear, rows: u64, cols: u64) -> Result<Bytes, Overflow>;
    /// Scratch of an [`ExpertLinear`] over `rows` rows that go to `used` experts each: the encoded
    /// input, `cols` values wide.
    fn expert_scratch(
        &self,
        op: &ExpertLinear,
        rows: u64,
        used: u64,
        cols: u64,
    ) -> Result<Bytes, Overflow>;
    /// Bytes of one lane of a section.
    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow>;
    /// Scratch of attention, routing and whatever else is not one product's, in the widest round.
    fn attention_scratch(&self, program: &Program, limits: &Limits) -> Result<Bytes, Overflow>;
    /// Which of a program's buffers lie in memory, by `BufferId`; others are never read or written.
    fn buffers_in_memory(&self, program: &Program) -> Vec<bool> {
        vec![true; program.buffers.len()]
    }
    /// The most that the driver takes for recorded decode rounds, beside the reservation.
    fn graph_bytes(&self, _: &Program, _: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    /// Host memory that a load pins beside slots and windows: a round's inputs and results, and
    /// tables that stay on the host.
    fn pinned_bytes(&self, _: &Program, _: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    /// Bytes that sampling needs for each lane beside its logits row.
    fn sampling_lane_bytes(&self, vocab: u32) -> Result<Bytes, Overflow>;
    /// Bytes of one KV page.
    fn kv_page_bytes(&self, shape: &KvShape) -> Result<Bytes, Overflow>;
    /// What the bytes of pages and sections depend on beside the model: their layout, and the
    /// arithmetic that computed them. Two loads may read each other's only if it is equal.
    fn state_format(&self) -> String;
}
