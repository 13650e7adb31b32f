//! Rounds: composed from the lanes, begun, finished.
//!
//! A device that can do so runs a round between `begin_round` and `finish_round`; any other runs it
//! in `finish_round`. For the caller there is no difference. Between the two calls:
//!
//! - everything may be read;
//! - moves go on, may begin, and may be abandoned, slots may be spilled and dropped, and lanes that
//!   are not in the round may be released, captured, adopted for and moved out: none of that
//!   touches what the round reads or writes;
//! - a lane of the round can be none of that, nobody is seated, nothing is scored, and no second
//!   round begins: such a call is refused, and changes nothing.

use arrayvec::ArrayVec;
use ignis_arena::FixedVec;
use ignis_backend::LaneSampling;
use ignis_ops::{Round, SampleOut, Segment};
use ignis_pages::PageTable;
use ignis_types::{LANES_MAX, Limits};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::lane::{Lane, LaneState};

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

/// Whether a round was begun and not finished, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnderWay {
    Nothing,
    /// Composed; the device is to run it whole.
    Composed,
    /// The device runs it.
    Started,
}

/// A round's inputs, in fixed arrays.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) tokens: FixedVec<u32>,
    /// One for each lane; those of lanes that draw come last.
    pub(crate) segments: FixedVec<Segment>,
    /// One for each lane that draws, in the order of their segments.
    pub(crate) logit_rows: FixedVec<u32>,
}

impl Composed {
    pub(crate) fn new(limits: &Limits) -> Composed {
        let lanes_max = limits.lanes_max as usize;
        Composed {
            tokens: FixedVec::new(limits.round_rows_max() as usize),
            segments: FixedVec::new(lanes_max),
            logit_rows: FixedVec::new(lanes_max),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.segments.clear();
        self.logit_rows.clear();
    }

    /// As a device takes it.
    pub(crate) fn round<'a>(&'a self, pages: &'a PageTable) -> Round<'a> {
        Round {
            tokens: &self.tokens,
            segments: &self.segments,
            logit_rows: &self.logit_rows,
            block_tables: pages.tables(),
            stride: pages.stride() as usize,
        }
    }

    /// Segments of the lanes that draw.
    fn drawing(&self) -> &[Segment] {
        &self.segments[self.segments.len() - self.logit_rows.len()..]
    }

    /// How those lanes draw.
    fn sampling<'a>(
        &'a self,
        lanes: &'a [Lane],
        ids: u32,
    ) -> ArrayVec<LaneSampling<'a>, LANES_MAX> {
        let of = |(logit_row, segment): (usize, &Segment)| LaneSampling {
            lane: segment.lane,
            logit_row: logit_row as u32,
            position: segment.position + segment.rows,
            ids,
            params: &lanes[segment.lane as usize].sampling,
            logit_bias: &lanes[segment.lane as usize].logit_bias,
        };
        self.drawing().iter().enumerate().map(of).collect()
    }

    fn holds(&self, lane: u32) -> bool {
        self.segments.iter().any(|segment| segment.lane == lane)
    }
}

impl Engine {
    /// Runs one round: the prefill chunk and every decode lane in one pass over the weights.
    ///
    /// A prefill that reaches the end of its prompt draws that lane's first token. Results: the
    /// prefill lane's, if any, then the decode lanes' in order. After a device fault every lane of
    /// the round is broken and can only be released.
    pub fn round(&mut self, plan: RoundPlan<'_>) -> Result<&[RoundResult], EngineError> {
        self.begin_round(plan)?;
        self.finish_round()
    }

    /// Begins a round; returns whether the device runs it already. If not, `finish_round` will.
    ///
    /// Errors: the plan does not suit the lanes, or a round is under way; nothing changes then. A
    /// device fault, as of `round`; no round is under way after it.
    pub fn begin_round(&mut self, plan: RoundPlan<'_>) -> Result<bool, EngineError> {
        self.expect_no_round("begin a round")?;
        self.compose(plan)?;
        let begun = self.start();
        let started = begun.inspect_err(|_| break_lanes(&self.composed, &mut self.lanes))?;
        self.under_way = if started { UnderWay::Started } else { UnderWay::Composed };
        Ok(started)
    }

    /// Waits for the round under way, or runs it; gives what `round` gives.
    ///
    /// Errors: no round is under way; a device fault, as of `round`. None is under way after it.
    pub fn finish_round(&mut self) -> Result<&[RoundResult], EngineError> {
        self.results.clear();
        let ran = match std::mem::replace(&mut self.under_way, UnderWay::Nothing) {
            UnderWay::Nothing => return Err(EngineError::NoRound),
            UnderWay::Composed => self.run_and_draw(),
            UnderWay::Started => {
                let draws = self.composed.logit_rows.len();
                self.device.collect(&mut self.samples[..draws]).map_err(EngineError::from)
            }
        };
        ran.inspect_err(|_| break_lanes(&self.composed, &mut self.lanes))?;
        self.move_lanes_on();
        Ok(&self.results)
    }

    /// Fills the round's arrays; every check is made before any state changes.
    fn compose(&mut self, plan: RoundPlan<'_>) -> Result<(), EngineError> {
        self.composed.clear();
        if let Some((lane, count)) = plan.prefill {
            self.compose_prefill(lane, count)?;
        }
        for &lane in plan.decode {
            self.compose_decode(lane)?;
        }
        Ok(())
    }

    pub(crate) fn compose_prefill(&mut self, lane: u32, count: u32) -> Result<(), EngineError> {
        self.expect_state(lane, LaneState::Prefill)?;
        let seat = &self.lanes[lane as usize];
        let left = seat.tokens.len() as u32 - seat.position;
        let limit = left.min(self.limits.chunk_tokens_max);
        if count == 0 || count > limit {
            return Err(EngineError::RoundTooLarge { what: "prefill tokens", found: count, limit });
        }
        let start = seat.position as usize;
        let Composed { tokens, segments, logit_rows } = &mut self.composed;
        tokens.append(&seat.tokens[start..start + count as usize]);
        segments.push(Segment { lane, row: 0, rows: count, position: seat.position });
        if count == left {
            logit_rows.push(count - 1);
        }
        Ok(())
    }

    fn compose_decode(&mut self, lane: u32) -> Result<(), EngineError> {
        self.expect_state(lane, LaneState::Decode)?;
        let seat = &self.lanes[lane as usize];
        if seat.position + 1 >= seat.tokens_max {
            return Err(EngineError::LaneFull { lane, tokens: seat.tokens_max });
        }
        if self.composed.holds(lane) {
            let (found, expected) = ("in the round twice", "in it once");
            return Err(EngineError::LaneState { lane, found, expected });
        }
        let Composed { tokens, segments, logit_rows } = &mut self.composed;
        let row = tokens.len() as u32;
        tokens.push(seat.tokens[seat.position as usize]);
        segments.push(Segment { lane, row, rows: 1, position: seat.position });
        logit_rows.push(row);
        Ok(())
    }

    fn start(&mut self) -> Result<bool, EngineError> {
        if self.composed.tokens.is_empty() {
            return Ok(false);
        }
        let sampling = self.composed.sampling(&self.lanes, self.ids);
        Ok(self.device.start(&self.composed.round(&self.pages), &sampling)?)
    }

    fn run_and_draw(&mut self) -> Result<(), EngineError> {
        if self.composed.tokens.is_empty() {
            return Ok(());
        }
        self.device.run(&self.composed.round(&self.pages))?;
        let sampling = self.composed.sampling(&self.lanes, self.ids);
        if sampling.is_empty() {
            return Ok(());
        }
        Ok(self.device.sample(&sampling, &mut self.samples[..sampling.len()])?)
    }

    /// Moves every lane of the round forward and collects what was drawn.
    fn move_lanes_on(&mut self) {
        for segment in self.composed.segments.iter() {
            let seat = &mut self.lanes[segment.lane as usize];
            seat.position += segment.rows;
            seat.begun = true;
        }
        for (&Segment { lane, .. }, sample) in self.composed.drawing().iter().zip(&self.samples) {
            let seat = &mut self.lanes[lane as usize];
            seat.state = LaneState::Decode;
            seat.tokens.push(sample.token);
            self.results.push(RoundResult { lane, sample: *sample });
        }
    }

    pub(crate) fn expect_no_round(&self, call: &'static str) -> Result<(), EngineError> {
        match self.under_way {
            UnderWay::Nothing => Ok(()),
            UnderWay::Composed | UnderWay::Started => Err(EngineError::RoundUnderWay { call }),
        }
    }

    /// The lane exists, and is not in a round that is under way.
    pub(crate) fn expect_at_rest(&self, lane: u32) -> Result<(), EngineError> {
        self.lane(lane)?;
        if self.under_way != UnderWay::Nothing && self.composed.holds(lane) {
            let (found, expected) = ("in the round under way", "in none");
            return Err(EngineError::LaneState { lane, found, expected });
        }
        Ok(())
    }
}

/// What a device fault leaves of a round.
fn break_lanes(composed: &Composed, lanes: &mut [Lane]) {
    for segment in composed.segments.iter() {
        lanes[segment.lane as usize].state = LaneState::Broken;
    }
}
