//! Sampling of a round's lanes: parameters to the card, a chain of launches, whose results are
//! written where the host reads them.

use ignis_backend::{
    Addresses, DRAW_BYTES, DeviceError, LaneSampling, SAMPLE_ROW_BYTES, sample_state_bytes,
};
use ignis_ops::{LOGIT_BIAS_MAX, SampleOut, TOP_LOGPROBS_MAX};
use ignis_types::Limits;

use crate::abi::Samples;
use crate::driver::Context;
use crate::launch::Launcher;
use crate::memory::{Memory, Pinned};
use crate::stream::Event;

const DRAW: usize = DRAW_BYTES as usize;
const BIASES: usize = 8 * LOGIT_BIAS_MAX;
const ROW: usize = SAMPLE_ROW_BYTES as usize;

/// The sampling region, from its start: draws `[lanes]`, biases `[lanes, LOGIT_BIAS_MAX]`, what the
/// launches leave each other `[lanes]`, keys `[lanes, vocab]` u64, adjusted logits
/// `[lanes, vocab]` f32.
#[derive(Debug)]
pub(crate) struct Sampler {
    at: u64,
    args: Samples,
    /// Draws, then biases.
    inputs: Pinned,
    results: Pinned,
    drawn: Event,
    lanes_max: usize,
}

impl Sampler {
    /// Places everything in the region, and pins what is sent and fetched.
    pub(crate) fn new(
        memory: &Memory,
        addresses: &Addresses,
        limits: &Limits,
        (logits, vocab): (u64, u32),
    ) -> Result<Sampler, DeviceError> {
        let lanes = u64::from(limits.lanes_max);
        let at = addresses.sampling;
        let biases = at + lanes * DRAW_BYTES;
        let states = biases + lanes * BIASES as u64;
        let keys = states + lanes * sample_state_bytes(vocab);
        let adjusted = keys + lanes * 8 * u64::from(vocab);
        let lanes_max = limits.lanes_max as usize;
        let inputs = Pinned::new(lanes_max * (DRAW + BIASES))?;
        let results = Pinned::new(lanes_max * ROW)?;
        let row = |start, bytes| memory.address(start, lanes * bytes);
        let args = Samples {
            draws: row(at, DRAW_BYTES),
            biases: row(biases, BIASES as u64),
            logits: row(logits, 4 * u64::from(vocab)),
            counts: row(addresses.penalty_counts, 4 * u64::from(vocab)),
            adjusted: row(adjusted, 4 * u64::from(vocab)),
            keys: row(keys, 8 * u64::from(vocab)),
            states: row(states, sample_state_bytes(vocab)),
            rows: results.device_address(),
            bias_max: LOGIT_BIAS_MAX as u32,
            vocab,
        };
        let drawn = Event::new()?;
        Ok(Sampler { at, args, inputs, results, drawn, lanes_max })
    }

    /// Bytes pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        (self.inputs.bytes().len() + self.results.bytes().len()) as u64
    }

    /// Starts copying the draws of `lanes`, of which the last ones were collected.
    pub(crate) fn send(
        &mut self,
        context: &Context,
        memory: &Memory,
        lanes: &[LaneSampling<'_>],
    ) -> Result<(), DeviceError> {
        let biased = self.write(lanes);
        let len = if biased { self.inputs.bytes().len() } else { lanes.len() * DRAW };
        self.inputs.send(context, memory, self.at, len)
    }

    /// Writes the draws for a recorded round, which reads them itself, all but biases.
    pub(crate) fn write_recorded(
        &mut self,
        context: &Context,
        memory: &Memory,
        lanes: &[LaneSampling<'_>],
    ) -> Result<(), DeviceError> {
        if self.write(lanes) {
            self.inputs.send(context, memory, self.at, self.inputs.bytes().len())?;
        }
        Ok(())
    }

    /// Where draws lie on the host, as the card addresses it, and on the card.
    pub(crate) fn draws(&self) -> (u64, u64) {
        (self.inputs.device_address(), self.args.draws)
    }

    /// Draws for `count` lanes.
    pub(crate) fn launch(&self, launcher: Launcher<'_>, count: u32) -> Result<(), DeviceError> {
        launcher.sample(&self.args, count)
    }

    /// The draws are on the stream.
    pub(crate) fn mark_drawn(&self, context: &Context) -> Result<(), DeviceError> {
        self.drawn.record(context)
    }

    /// Waits for the results: the one place where a round does.
    pub(crate) fn collect(&mut self, out: &mut [SampleOut]) -> Result<(), DeviceError> {
        self.drawn.wait()?;
        for (row, out) in self.results.bytes().chunks_exact(ROW).zip(out) {
            *out = result(row);
        }
        Ok(())
    }

    /// Writes the draws and biases; whether there is any bias.
    fn write(&mut self, lanes: &[LaneSampling<'_>]) -> bool {
        let (draws, biases) = self.inputs.bytes_mut().split_at_mut(self.lanes_max * DRAW);
        let mut biased = false;
        let parts = draws.chunks_exact_mut(DRAW).zip(biases.chunks_exact_mut(BIASES));
        for (lane, (draw, biases)) in lanes.iter().zip(parts) {
            draw.copy_from_slice(&draw_bytes(lane));
            for (&(id, bias), to) in lane.logit_bias.iter().zip(biases.chunks_exact_mut(8)) {
                to[..4].copy_from_slice(&id.to_le_bytes());
                to[4..].copy_from_slice(&bias.to_le_bytes());
                biased = true;
            }
        }
        biased
    }
}

/// `struct Draw` of `sample.cuh`.
fn draw_bytes(lane: &LaneSampling<'_>) -> [u8; DRAW] {
    let params = lane.params;
    let mut out = [0; DRAW];
    out[..8].copy_from_slice(&params.seed.to_le_bytes());
    let floats = [
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    ];
    let alternatives = params.logprobs.map_or(u32::MAX, |n| n.min(TOP_LOGPROBS_MAX as u32));
    let words = [
        params.top_k,
        lane.lane,
        lane.logit_row,
        lane.position,
        lane.ids,
        alternatives,
        lane.logit_bias.len().min(LOGIT_BIAS_MAX) as u32,
    ];
    let all = floats.map(f32::to_bits).into_iter().chain(words);
    for (word, to) in all.zip(out[8..].chunks_exact_mut(4)) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// `struct Row` of `sample.cuh`.
fn result(row: &[u8]) -> SampleOut {
    let word = |i: usize| {
        u32::from_le_bytes(row[4 * i..4 * i + 4].try_into().expect("a word has four bytes"))
    };
    let top_len = word(2).min(TOP_LOGPROBS_MAX as u32);
    let mut out = SampleOut {
        token: word(0),
        logprob: f32::from_bits(word(1)),
        top_len,
        ..SampleOut::default()
    };
    for i in 0..top_len as usize {
        out.top_ids[i] = word(4 + i);
        out.top_logprobs[i] = f32::from_bits(word(4 + TOP_LOGPROBS_MAX + i));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use ignis_ops::Sampling;

    #[test]
    fn a_draw_lies_as_the_kernel_reads_it() {
        let params = Sampling { seed: 7, top_k: 5, temperature: 0.5, ..Sampling::default() };
        let lane = LaneSampling {
            lane: 2,
            logit_row: 3,
            position: 4,
            ids: 9,
            params: &params,
            logit_bias: &[],
        };
        let bytes = draw_bytes(&lane);
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8)), (7, 0.5f32.to_bits()));
        assert_eq!([32, 36, 40, 44, 48, 52, 56].map(word), [5, 2, 3, 4, 9, u32::MAX, 0]);
    }
}
