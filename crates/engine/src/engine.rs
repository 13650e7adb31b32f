//! Lanes over a sealed arena: who is seated, and what a lane holds.

use ignis_arena::{Arena, FixedVec, Sealed};
use ignis_backend::{Device, Recorded};
use ignis_ops::{LOGIT_BIAS_MAX, SampleOut, Sampling};
use ignis_pages::{Holder, PageTable};
use ignis_types::{Bytes, LaneId, Limits, PAGE_TOKENS, PlanLine, SlotId};

use crate::error::EngineError;
use crate::lane::{Lane, LaneState};
use crate::load::DeviceSpace;
use crate::moves::Moves;
use crate::retained::Slots;
use crate::round::{Composed, RoundResult, UnderWay};

/// A sequence to be seated.
#[derive(Clone, Copy, Debug)]
pub struct Admission<'a> {
    /// Its prompt, and what it drew before it lost its lane.
    pub tokens: &'a [u32],
    /// How many of `tokens` are the prompt's.
    pub prompt_tokens: u32,
    /// Its whole reservation.
    pub pages: u32,
    /// How it draws.
    pub sampling: &'a Sampling,
    /// `(id, bias)`, at most `LOGIT_BIAS_MAX`.
    pub logit_bias: &'a [(u32, f32)],
}

impl<'a> Admission<'a> {
    /// A prompt that nothing was drawn for yet, without a bias.
    pub fn new(prompt: &'a [u32], pages: u32, sampling: &'a Sampling) -> Self {
        let prompt_tokens = prompt.len() as u32;
        Admission { tokens: prompt, prompt_tokens, pages, sampling, logit_bias: &[] }
    }
}

/// A loaded model. Used by one thread at a time.
pub struct Engine {
    pub(crate) device: Box<dyn Device>,
    pub(crate) arena: Arena<Sealed>,
    pub(crate) limits: Limits,
    pub(crate) vocab: u32,
    /// Ids below this may be drawn.
    pub(crate) ids: u32,
    pub(crate) pages: PageTable,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) slots: Slots,
    pub(crate) moves: Moves,
    pub(crate) under_way: UnderWay,
    pub(crate) composed: Composed,
    pub(crate) samples: Vec<SampleOut>,
    pub(crate) results: FixedVec<RoundResult>,
}

impl Engine {
    pub(crate) fn new(
        device: Box<dyn Device>,
        arena: Arena<Sealed>,
        limits: Limits,
        vocab: u32,
        pages: PageTable,
        slots: Slots,
        moves: Moves,
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
            slots,
            moves,
            under_way: UnderWay::Nothing,
            composed: Composed::new(&limits),
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

    /// Seats a sequence, cold or behind the state of a retained slot. Its whole reservation is
    /// taken or nothing; whole pages of the slot are shared and count as taken already.
    ///
    /// Errors: the lane is taken; the tokens are none, hold an id outside the vocabulary, or do not
    /// fit the reservation with one token more; the slot is empty or not a proper prefix of them;
    /// pages are short; a round is under way. Nothing changes then.
    pub fn admit(
        &mut self,
        lane: u32,
        admission: &Admission<'_>,
        slot: Option<SlotId>,
    ) -> Result<(), EngineError> {
        self.expect_no_round("admit")?;
        self.expect_state(lane, LaneState::Empty)?;
        self.check_admission(admission)?;
        let copied = match slot {
            None => {
                self.pages.reserve(LaneId(lane), admission.pages)?;
                0
            }
            Some(slot) => {
                let tokens = self.check_slot(slot, admission.tokens)?;
                let tail = self.pages.reserve_from(LaneId(lane), admission.pages, slot, tokens)?;
                if let Err(error) = self.copy_slot(slot, lane, tail) {
                    self.pages.release(Holder::Lane(LaneId(lane)));
                    return Err(error);
                }
                tokens
            }
        };
        self.take_seat(lane, admission)?;
        self.lanes[lane as usize].stand_at(copied);
        Ok(())
    }

    /// Fills a seat whose pages are reserved; gives them back if the device fails.
    pub(crate) fn take_seat(
        &mut self,
        lane: u32,
        admission: &Admission<'_>,
    ) -> Result<(), EngineError> {
        let (prompt, output) = admission.tokens.split_at(admission.prompt_tokens as usize);
        if admission.sampling.has_penalties()
            && let Err(error) = self.device.reset_penalties(lane, prompt, output)
        {
            self.pages.release(Holder::Lane(LaneId(lane)));
            return Err(error.into());
        }
        let seat = &mut self.lanes[lane as usize];
        seat.clear();
        seat.tokens.assign(admission.tokens);
        seat.prompt_tokens = admission.prompt_tokens;
        seat.tokens_max = (admission.pages * PAGE_TOKENS).min(self.limits.context_tokens_max);
        seat.sampling.clone_from(admission.sampling);
        seat.logit_bias.assign(admission.logit_bias);
        Ok(())
    }

    pub(crate) fn check_admission(&self, admission: &Admission<'_>) -> Result<(), EngineError> {
        let refuse =
            |what, found, expected: String| Err(EngineError::Prompt { what, found, expected });
        let Admission { tokens, prompt_tokens, pages, logit_bias, .. } = *admission;
        let room = (u64::from(pages) * u64::from(PAGE_TOKENS))
            .min(u64::from(self.limits.context_tokens_max));
        let len = tokens.len() as u64;
        if len == 0 || len >= room {
            return refuse("length", len, format!("1 to {}", room.saturating_sub(1)));
        }
        if !(1..=len).contains(&u64::from(prompt_tokens)) {
            return refuse("prompt length", u64::from(prompt_tokens), format!("1 to {len}"));
        }
        let ids = tokens.iter().copied().chain(logit_bias.iter().map(|&(id, _)| id));
        let largest = ids.max().expect("the tokens are not empty");
        if largest >= self.vocab {
            return refuse("largest id", u64::from(largest), format!("below {}", self.vocab));
        }
        if logit_bias.len() > LOGIT_BIAS_MAX {
            let found = logit_bias.len() as u64;
            return refuse("logit bias entries", found, format!("at most {LOGIT_BIAS_MAX}"));
        }
        Ok(())
    }

    /// Empties a lane and frees its pages, whatever it is in; a move of it is abandoned. An empty
    /// lane stays as it is.
    ///
    /// Errors: the lane does not exist, or is in the round under way.
    pub fn release(&mut self, lane: u32) -> Result<(), EngineError> {
        self.expect_at_rest(lane)?;
        self.abandon_moves_of(lane);
        self.pages.release(Holder::Lane(LaneId(lane)));
        self.lanes[lane as usize].clear();
        Ok(())
    }

    /// Tokens of the lane whose keys and values are stored.
    pub fn position(&self, lane: u32) -> Result<u32, EngineError> {
        Ok(self.lane(lane)?.position)
    }

    /// Pages that nobody holds.
    pub fn pages_free(&self) -> u32 {
        self.pages.pages_free()
    }

    /// Distinct pages that these lanes hold together.
    pub fn pages_held(&mut self, lanes: &[u32]) -> Result<u32, EngineError> {
        for &lane in lanes {
            self.lane(lane)?;
        }
        Ok(self.pages.held_together(lanes.iter().copied().map(LaneId)))
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

    /// What the device recorded of decode rounds, if it records any.
    pub fn recorded(&self) -> Option<Recorded> {
        self.device.recorded()
    }

    /// Bytes of each plan line, read back from the arena.
    pub fn reserved(&self) -> impl Iterator<Item = (PlanLine, Bytes)> + '_ {
        PlanLine::ALL.into_iter().map(|line| (line, self.arena.layout().line_bytes(line)))
    }

    /// Bytes of host memory that the device has pinned: its own, slots, KV-RAM, buffers of KV-disk.
    pub fn pinned(&self) -> Bytes {
        self.device.pinned()
    }

    /// Requests for plan memory since the seal; 0 unless there is a bug.
    pub fn allocations_after_seal(&mut self) -> u64 {
        self.arena.allocations_after_seal(&DeviceSpace(&mut *self.device))
            + self.moves.allocations_after_seal()
    }

    pub(crate) fn lane(&self, lane: u32) -> Result<&Lane, EngineError> {
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
