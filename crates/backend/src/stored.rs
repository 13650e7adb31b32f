//! Sizes for a device that reads weights as the file stores them: what a GPU load is planned with.

use ignis_ops::{ExpertLinear, KvShape, Linear, Program, SectionSpec, WeightKind, WeightSpec};
use ignis_types::{Bytes, DType, Limits, Overflow};

use crate::layout::{DeviceLayout, KvFormat};

/// Sizes of a GPU load: weights in their stored blocks, products and attention in registers.
#[derive(Clone, Copy, Debug)]
pub struct StoredLayout {
    /// Format of the pool.
    pub kv_format: KvFormat,
}

impl DeviceLayout for StoredLayout {
    fn align(&self) -> u64 {
        256
    }

    fn weight_bytes(&self, weight: &WeightSpec) -> Result<Bytes, Overflow> {
        let dtype = if weight.kind == WeightKind::Vector { DType::F32 } else { weight.dtype };
        let blocks = u64::from(weight.cols).div_ceil(dtype.block_elements());
        Bytes(dtype.block_bytes()).times(blocks)?.times(u64::from(weight.rows))
    }

    fn linear_scratch(&self, _: &Linear, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn expert_scratch(&self, _: &ExpertLinear, _: u64, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        self.kv_format.section_bytes(section)
    }

    fn attention_scratch(&self, _: &Program, _: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }

    fn sampling_lane_bytes(&self, vocab: u32) -> Result<Bytes, Overflow> {
        Bytes(8).times(u64::from(vocab))
    }

    fn kv_page_bytes(&self, shape: &KvShape) -> Result<Bytes, Overflow> {
        self.kv_format.page_bytes(shape)
    }

    fn state_format(&self) -> String {
        format!("stored 1 {}", self.kv_format.dtype())
    }
}
