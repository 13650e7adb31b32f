//! Log-probabilities of a prompt's own tokens: perplexity and parity, not serving.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::lane::LaneState;

impl Engine {
    /// Prefills `count` further tokens of the lane's prompt and shows the logits of each row.
    ///
    /// `visit(position, logits)` is called once a row, in order. The lane can be scored on until
    /// its prompt ends; it can not decode after that.
    pub fn score_rows(
        &mut self,
        lane: u32,
        count: u32,
        mut visit: impl FnMut(u32, &[f32]),
    ) -> Result<(), EngineError> {
        self.expect_no_round("score")?;
        self.composed.clear();
        self.compose_prefill(lane, count)?;
        let position = self.lanes[lane as usize].position;

        let mut done = 0;
        while done < count {
            let rows = (count - done).min(self.limits.lanes_max);
            self.composed.logit_rows.clear();
            (done..done + rows).for_each(|row| self.composed.logit_rows.push(row));
            let round = self.composed.round(&self.pages);
            let ran =
                if done == 0 { self.device.run(&round) } else { self.device.run_head(&round) };
            if let Err(error) = ran {
                self.lanes[lane as usize].state = LaneState::Broken;
                return Err(error.into());
            }
            for row in 0..rows {
                visit(position + done + row, self.device.logits(row)?);
            }
            done += rows;
        }
        let seat = &mut self.lanes[lane as usize];
        seat.position += count;
        seat.begun = true;
        Ok(())
    }

    /// Log-probability of each next prompt token, for `count` further tokens of the prompt; the
    /// prompt's last token has no next. Returns how many were written to `logprobs`.
    pub fn score(
        &mut self,
        lane: u32,
        count: u32,
        logprobs: &mut [f32],
    ) -> Result<usize, EngineError> {
        self.expect_state(lane, LaneState::Prefill)?;
        let seat = &self.lanes[lane as usize];
        let start = seat.position as usize;
        let end = seat.tokens.len().min(start + count as usize + 1);
        let targets: Vec<u32> = seat.tokens[end.min(start + 1)..end].to_vec();
        if logprobs.len() < targets.len() {
            let (found, limit) = (targets.len() as u32, logprobs.len() as u32);
            return Err(EngineError::RoundTooLarge { what: "scored tokens", found, limit });
        }
        self.score_rows(lane, count, |position, logits| {
            let at = position as usize - start;
            if let Some(&target) = targets.get(at) {
                logprobs[at] = log_softmax_at(logits, target as usize);
            }
        })?;
        Ok(targets.len())
    }
}

/// `log softmax(logits)[at]`, summed in f64.
fn log_softmax_at(logits: &[f32], at: usize) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - largest).exp()).sum();
    (f64::from(logits[at] - largest) - sum.ln()) as f32
}
