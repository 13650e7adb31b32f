//! Host memory that a GPU load pins for itself.

use ignis_ops::{LOGIT_BIAS_MAX, Program, WeightKind, WeightSpec};
use ignis_types::{Bytes, Limits, Overflow};

use crate::layout::{DeviceLayout, SAMPLE_ROW_BYTES};
use crate::stored::{DRAW_BYTES, SUM_SLOTS, StoredLayout, StoredScratch};

/// Pieces of a round's inputs: of rounds that decode, and of others.
const PIECES: u64 = 2;

impl StoredLayout {
    /// Whether a weight stays on the host: a table that is read a row at a time and nothing else,
    /// if tables do.
    pub fn is_on_host(&self, weight: &WeightSpec) -> bool {
        self.tables_on_host && weight.kind == WeightKind::Table
    }

    /// Where each weight that stays on the host lies there, one behind the other, and the bytes of
    /// all of them.
    pub fn tables(&self, program: &Program) -> Result<(Vec<Option<u64>>, Bytes), Overflow> {
        let on_device = StoredLayout { tables_on_host: false, ..*self };
        let mut end = Bytes::ZERO;
        let place = |weight: &WeightSpec| {
            if !self.is_on_host(weight) {
                return Ok(None);
            }
            let start = end;
            end = end.plus(on_device.weight_bytes(weight)?)?.aligned(self.align())?;
            Ok(Some(start.0))
        };
        let places = program.weights.iter().map(place).collect::<Result<_, Overflow>>()?;
        Ok((places, end))
    }

    /// What rounds and sampling send and fetch, and the sums of what travels.
    pub(crate) fn pinned_rounds(
        &self,
        scratch: &StoredScratch,
        limits: &Limits,
    ) -> Result<Bytes, Overflow> {
        let inputs = Bytes(scratch.inv_freq - scratch.tokens).times(PIECES)?;
        let lane = DRAW_BYTES + 8 * LOGIT_BIAS_MAX as u64 + SAMPLE_ROW_BYTES;
        let lanes = Bytes(lane).times(u64::from(limits.lanes_max))?;
        inputs.plus(lanes)?.plus(Bytes(8 * SUM_SLOTS))
    }
}
