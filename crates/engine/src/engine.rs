//! Lanes and rounds over a sealed arena.

use arrayvec::ArrayVec;
use ignis_arena::{Arena, FixedVec, Sealed};
use ignis_backend::{Device, LaneSampling};
use ignis_ops::{LOGIT_BIAS_MAX, Round, SampleOut, Sampling, Segment};
use ignis_pages::PageTable;
use ignis_types::{Bytes, LANES_MAX, LaneId, Limits, PAGE_TOKENS, PlanLine};

use crate::error::EngineError;
use crate::lane::{Lane, LaneState};
use crate::load::DeviceSpace;

/// What a round does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundPlan<'a> {
    /// A lane and how many further tokens of its prompt to compute.
    pub prefill: Option<(u32, u32)>,
    /// Lanes that append their last token and draw the next.
    pub decode: &'a [u32],
}

/// What one lane drew in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundResult {
    /// Which lane.
    pub lane: u32,
    /// Its token and log-probabilities.
    pub sample: SampleOut,
}

/// A loaded model. Used by one thread at a time.
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) arena: Arena<Sealed>,
    pub(crate) limits: Limits,
    pub(crate) vocab: u32,
    /// Ids below this may be drawn.
    ids: u32,
    pub(crate) pages: PageTable,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) tokens: FixedVec<u32>,
    pub(crate) segments: FixedVec<Segment>,
    pub(crate) logit_rows: FixedVec<u32>,
    /// Lane of each logit row.
    drawing: FixedVec<u32>,
    samples: Vec<SampleOut>,
    results: FixedVec<RoundResult>,
}

impl Engine {
    pub(crate) fn new(
        device: Box<dyn Device>,
        arena: Arena<Sealed>,
        limits: Limits,
        vocab: u32,
        pages: PageTable,
    ) -> Self {
        let lanes_max = limits.lanes_max as usize;
        Engine {
            device,
            arena,
            limits,
            vocab,
            ids: vocab,
            pages,
            lanes: (0..lanes_max).map(|_| Lane::new(limits.context_tokens_max)).collect(),
            tokens: FixedVec::new(limits.round_rows_max() as usize),
            segments: FixedVec::new(lanes_max),
            logit_rows: FixedVec::new(lanes_max),
            drawing: FixedVec::new(lanes_max),
            samples: vec![SampleOut::default(); lanes_max],
            results: FixedVec::new(lanes_max),
        }
    }

    /// From now on only ids below `ids` are drawn: a tokenizer may know fewer than the table has
    /// rows.
    ///
    /// Errors: `ids` is 0 or more than the vocabulary.
    pub fn draw_below(&mut self, ids: u32) -> Result<(), EngineError> {
        if (1..=self.vocab).contains(&ids) {
            self.ids = ids;
            return Ok(());
        }
        Err(EngineError::Vocabulary { found: ids, rows: self.vocab })
    }

    /// Seats a sequence: `pages` pages are reserved for it, whole or not at all.
    ///
    /// Errors: the lane is taken; the prompt is empty, holds an id outside the vocabulary, or does
    /// not fit its reservation with one token more. Nothing changes then.
    pub fn admit(
        &mut self,
        lane: u32,
        prompt: &[u32],
        pages: u32,
        sampling: &Sampling,
        logit_bias: &[(u32, f32)],
    ) -> Result<(), EngineError> {
        self.expect_state(lane, LaneState::Empty)?;
        self.check_prompt(prompt, pages, logit_bias)?;
        self.pages.reserve(LaneId(lane), pages)?;
        if sampling.has_penalties()
            && let Err(error) = self.device.reset_penalties(lane, prompt)
        {
            self.pages.release(LaneId(lane));
            return Err(error.into());
        }
        let seat = &mut self.lanes[lane as usize];
        seat.clear();
        seat.state = LaneState::Prefill;
        seat.prompt.assign(prompt);
        seat.tokens_max = (pages * PAGE_TOKENS).min(self.limits.context_tokens_max);
        seat.sampling.clone_from(sampling);
        seat.logit_bias.assign(logit_bias);
        Ok(())
    }

    fn check_prompt(
        &self,
        prompt: &[u32],
        pages: u32,
        logit_bias: &[(u32, f32)],
    ) -> Result<(), EngineError> {
        let refuse =
            |what, found, expected: String| Err(EngineError::Prompt { what, found, expected });
        let room = (u64::from(pages) * u64::from(PAGE_TOKENS))
            .min(u64::from(self.limits.context_tokens_max));
        let len = prompt.len() as u64;
        if len == 0 || len >= room {
            return refuse("length", len, format!("1 to {}", room.saturating_sub(1)));
        }
        let ids = prompt.iter().copied().chain(logit_bias.iter().map(|&(id, _)| id));
        let largest = ids.max().expect("the prompt is not empty");
        if largest >= self.vocab {
            return refuse("largest id", u64::from(largest), format!("below {}", self.vocab));
        }
        if logit_bias.len() > LOGIT_BIAS_MAX {
            let found = logit_bias.len() as u64;
            return refuse("logit bias entries", found, format!("at most {LOGIT_BIAS_MAX}"));
        }
        Ok(())
    }

    /// Empties a lane and frees its pages; an empty lane stays as it is.
    pub fn release(&mut self, lane: u32) -> Result<(), EngineError> {
        self.lane(lane)?;
        self.pages.release(LaneId(lane));
        self.lanes[lane as usize].clear();
        Ok(())
    }

    /// Runs one round: the prefill chunk and every decode lane in one pass over the weights.
    ///
    /// A prefill that reaches the end of its prompt draws that lane's first token. Results: the
    /// prefill lane's, if any, then the decode lanes' in order. After a device fault every lane of
    /// the round is broken and can only be released.
    pub fn round(&mut self, plan: RoundPlan<'_>) -> Result<&[RoundResult], EngineError> {
        self.results.clear();
        self.compose(plan)?;
        if self.tokens.is_empty() {
            return Ok(&self.results);
        }
        let ran = self.run_and_draw();
        if ran.is_err() {
            for segment in self.segments.iter() {
                self.lanes[segment.lane as usize].state = LaneState::Broken;
            }
        }
        ran?;
        self.advance();
        Ok(&self.results)
    }

    /// Fills the round's arrays; every check is made before any state changes.
    fn compose(&mut self, plan: RoundPlan<'_>) -> Result<(), EngineError> {
        self.clear_round();
        if let Some((lane, count)) = plan.prefill {
            self.compose_prefill(lane, count)?;
        }
        for &lane in plan.decode {
            self.compose_decode(lane)?;
        }
        Ok(())
    }

    pub(crate) fn clear_round(&mut self) {
        self.tokens.clear();
        self.segments.clear();
        self.logit_rows.clear();
        self.drawing.clear();
    }

    pub(crate) fn compose_prefill(&mut self, lane: u32, count: u32) -> Result<(), EngineError> {
        self.expect_state(lane, LaneState::Prefill)?;
        let seat = &self.lanes[lane as usize];
        let left = seat.prompt.len() as u32 - seat.position;
        let limit = left.min(self.limits.chunk_tokens_max);
        if count == 0 || count > limit {
            return Err(EngineError::RoundTooLarge { what: "prefill tokens", found: count, limit });
        }
        let start = seat.position as usize;
        self.tokens.append(&seat.prompt[start..start + count as usize]);
        self.segments.push(Segment { lane, row: 0, rows: count, position: seat.position });
        if count == left {
            self.logit_rows.push(count - 1);
            self.drawing.push(lane);
        }
        Ok(())
    }

    fn compose_decode(&mut self, lane: u32) -> Result<(), EngineError> {
        self.expect_state(lane, LaneState::Decode)?;
        let seat = &self.lanes[lane as usize];
        if seat.position + 1 >= seat.tokens_max {
            return Err(EngineError::LaneFull { lane, tokens: seat.tokens_max });
        }
        if self.segments.iter().any(|segment| segment.lane == lane) {
            let (found, expected) = ("in the round twice", "in it once");
            return Err(EngineError::LaneState { lane, found, expected });
        }
        let row = self.tokens.len() as u32;
        self.tokens.push(seat.last_token);
        self.segments.push(Segment { lane, row, rows: 1, position: seat.position });
        self.logit_rows.push(row);
        self.drawing.push(lane);
        Ok(())
    }

    fn run_and_draw(&mut self) -> Result<(), EngineError> {
        let round = Round {
            tokens: &self.tokens,
            segments: &self.segments,
            logit_rows: &self.logit_rows,
            block_tables: self.pages.tables(),
            stride: self.pages.stride() as usize,
        };
        self.device.run(&round)?;
        if self.drawing.is_empty() {
            return Ok(());
        }
        let mut sampling: ArrayVec<LaneSampling<'_>, LANES_MAX> = ArrayVec::new();
        for (logit_row, &lane) in self.drawing.iter().enumerate() {
            let seat = &self.lanes[lane as usize];
            let segment = self.segments.iter().find(|s| s.lane == lane);
            let segment = segment.expect("a drawing lane has a segment");
            sampling.push(LaneSampling {
                lane,
                logit_row: logit_row as u32,
                position: segment.position + segment.rows,
                ids: self.ids,
                params: &seat.sampling,
                logit_bias: &seat.logit_bias,
            });
        }
        Ok(self.device.sample(&sampling, &mut self.samples[..sampling.len()])?)
    }

    /// Moves every lane of the round forward and collects what was drawn.
    fn advance(&mut self) {
        for segment in self.segments.iter() {
            self.lanes[segment.lane as usize].position += segment.rows;
        }
        for (&lane, sample) in self.drawing.iter().zip(&self.samples) {
            let seat = &mut self.lanes[lane as usize];
            seat.state = LaneState::Decode;
            seat.last_token = sample.token;
            self.results.push(RoundResult { lane, sample: *sample });
        }
    }

    /// Tokens of the lane whose keys and values are stored.
    pub fn position(&self, lane: u32) -> Result<u32, EngineError> {
        Ok(self.lane(lane)?.position)
    }

    /// Pages that no lane holds.
    pub fn pages_free(&self) -> u32 {
        self.pages.pages_free()
    }

    /// What the engine was loaded for.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Rows of the vocabulary, padding included.
    pub fn vocab(&self) -> u32 {
        self.vocab
    }

    /// The device, in words.
    pub fn describe(&self) -> String {
        self.device.describe()
    }

    /// Bytes of each plan line, read back from the arena.
    pub fn reserved(&self) -> impl Iterator<Item = (PlanLine, Bytes)> + '_ {
        PlanLine::ALL.into_iter().map(|line| (line, self.arena.layout().line_bytes(line)))
    }

    /// Requests for plan memory since the seal; 0 unless there is a bug.
    pub fn allocations_after_seal(&mut self) -> u64 {
        self.arena.allocations_after_seal(&DeviceSpace(&mut *self.device))
    }

    fn lane(&self, lane: u32) -> Result<&Lane, EngineError> {
        let lanes = self.limits.lanes_max;
        self.lanes.get(lane as usize).ok_or(EngineError::LaneUnknown { lane, lanes })
    }

    pub(crate) fn expect_state(&self, lane: u32, expected: LaneState) -> Result<(), EngineError> {
        let found = self.lane(lane)?.state;
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.name(), expected.name());
        Err(EngineError::LaneState { lane, found, expected })
    }
}
