//! Sizes of the simulated device: pages and sections; nothing else takes memory.

use ignis_backend::DeviceLayout;
use ignis_ops::{ExpertLinear, KvShape, Linear, Program, SectionSpec, WeightSpec};
use ignis_types::{Bytes, Limits, Overflow, PAGE_TOKENS};

/// Bytes of a page: its tokens.
pub(crate) const PAGE_BYTES: usize = 4 * PAGE_TOKENS as usize;

/// Sizes of the simulated device.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimLayout;

impl DeviceLayout for SimLayout {
    fn align(&self) -> u64 {
        64
    }
    fn weight_bytes(&self, _: &WeightSpec) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn linear_scratch(&self, _: &Linear, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn expert_scratch(&self, _: &ExpertLinear, _: u64, _: u64, _: u64) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn section_bytes(&self, section: &SectionSpec) -> Result<Bytes, Overflow> {
        Bytes(4).times(u64::from(section.layers))?.times(u64::from(section.elements))
    }
    fn attention_scratch(&self, _: &Program, _: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn sampling_lane_bytes(&self, _: u32) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn kv_page_bytes(&self, _: &KvShape) -> Result<Bytes, Overflow> {
        Ok(Bytes(PAGE_BYTES as u64))
    }
    fn state_format(&self) -> String {
        "simulated 1".into()
    }
}
