//! Device memory as an array of slots, each holding the token that was stored there.

use ignis_backend::{Addresses, Device, DeviceError, DeviceLayout, LaneSampling};
use ignis_ops::{
    ExpertLinear, KvShape, Linear, Program, Round, SampleOut, SectionSpec, WeightId, WeightSpec,
};
use ignis_types::{Bytes, Limits, Overflow, PAGE_TOKENS};

use crate::witness::witness_next;

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
    fn section_bytes(&self, _: &SectionSpec) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn attention_scratch(&self, _: &Program, _: &Limits) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn sampling_lane_bytes(&self, _: u32) -> Result<Bytes, Overflow> {
        Ok(Bytes::ZERO)
    }
    fn kv_page_bytes(&self, _: &KvShape) -> Result<Bytes, Overflow> {
        Ok(Bytes(u64::from(PAGE_TOKENS) * 4))
    }
}

/// Runs the witness over real block tables.
#[derive(Debug)]
pub struct SimDevice {
    seed: u64,
    fault_ppm: u32,
    draws: u64,
    reservations: u64,
    vocab: u32,
    /// `[pages, PAGE_TOKENS]` stored tokens.
    slots: Vec<u32>,
    /// `[lanes_max, vocab]`, one hot.
    logits: Vec<f32>,
}

impl SimDevice {
    /// A device whose witness hashes with `seed` and whose runs fail `fault_ppm` times in a
    /// million.
    pub fn new(seed: u64, fault_ppm: u32) -> Self {
        SimDevice {
            seed,
            fault_ppm,
            draws: 0,
            reservations: 0,
            vocab: 0,
            slots: Vec::new(),
            logits: Vec::new(),
        }
    }

    fn slot(round: &Round<'_>, lane: u32, position: u32) -> usize {
        let entry = lane as usize * round.stride + (position / PAGE_TOKENS) as usize;
        let page = round.block_tables[entry];
        page as usize * PAGE_TOKENS as usize + (position % PAGE_TOKENS) as usize
    }

    fn faulty(&mut self) -> bool {
        self.draws += 1;
        let draw =
            witness_next([self.draws as u32, (self.draws >> 32) as u32], 1_000_000, self.seed);
        draw < self.fault_ppm
    }
}

impl Device for SimDevice {
    fn layout(&self) -> &dyn DeviceLayout {
        &SimLayout
    }

    fn describe(&self) -> String {
        format!("simulated (seed {})", self.seed)
    }

    fn reserve(&mut self, _: Bytes) -> Result<(), DeviceError> {
        self.reservations += 1;
        Ok(())
    }

    fn reservations(&self) -> u64 {
        self.reservations
    }

    fn bind(
        &mut self,
        program: &Program,
        _: &Addresses,
        limits: &Limits,
    ) -> Result<(), DeviceError> {
        self.vocab = program.vocab;
        self.slots = vec![u32::MAX; limits.pages as usize * PAGE_TOKENS as usize];
        self.logits = vec![0.0; limits.lanes_max as usize * program.vocab as usize];
        Ok(())
    }

    fn put_weight(&mut self, _: WeightId, _: &[&[u8]]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        if self.faulty() {
            return Err(DeviceError::Fault { what: "simulated run" });
        }
        for segment in round.segments {
            for i in 0..segment.rows {
                let slot = Self::slot(round, segment.lane, segment.position + i);
                self.slots[slot] = round.tokens[(segment.row + i) as usize];
            }
        }
        self.run_head(round)
    }

    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        let vocab = self.vocab as usize;
        for (at, &row) in round.logit_rows.iter().enumerate() {
            let segment = round
                .segments
                .iter()
                .find(|s| (s.row..s.row + s.rows).contains(&row))
                .expect("a logit row lies in a segment");
            let last = segment.position + (row - segment.row);
            let prefix = (0..=last).map(|p| self.slots[Self::slot(round, segment.lane, p)]);
            let next = witness_next(prefix, self.vocab, self.seed);
            let logits = &mut self.logits[at * vocab..(at + 1) * vocab];
            logits.fill(0.0);
            logits[next as usize] = 1.0;
        }
        Ok(())
    }

    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        for (lane, out) in lanes.iter().zip(out) {
            let logits = self.logits(lane.logit_row);
            let token = logits.iter().position(|&l| l == 1.0).expect("logits are one hot");
            *out = SampleOut { token: token as u32, ..SampleOut::default() };
        }
        Ok(())
    }

    fn logits(&self, row: u32) -> &[f32] {
        let vocab = self.vocab as usize;
        &self.logits[row as usize * vocab..][..vocab]
    }

    fn reset_penalties(&mut self, _: u32, _: &[u32]) -> Result<(), DeviceError> {
        Ok(())
    }
}
