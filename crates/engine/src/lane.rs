//! A decode seat and the sequence in it.

use ignis_arena::FixedVec;
use ignis_ops::{LOGIT_BIAS_MAX, Sampling};

/// How far a seated sequence has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    Empty,
    /// More than the last of its tokens is not stored yet, or the last is the prompt's own.
    Prefill,
    /// All tokens but the last, which was drawn, are stored.
    Decode,
    /// Its image is being written; in no round.
    Leaving,
    /// It is being filled from an image; in no round.
    Arriving,
    /// A device fault left its pages in an unknown state; only release is possible.
    Broken,
}

impl LaneState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LaneState::Empty => "empty",
            LaneState::Prefill => "in prefill",
            LaneState::Decode => "in decode",
            LaneState::Leaving => "being moved out",
            LaneState::Arriving => "being moved in",
            LaneState::Broken => "broken by a device fault",
        }
    }
}

/// One seat. All of its storage is made at load.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    /// The prompt, and what was drawn.
    pub(crate) tokens: FixedVec<u32>,
    /// How many of them are the prompt's.
    pub(crate) prompt_tokens: u32,
    /// Tokens whose keys and values are stored: the position of the next row.
    pub(crate) position: u32,
    /// Whether anything was computed in this seat.
    pub(crate) begun: bool,
    /// Tokens that the reserved pages hold.
    pub(crate) tokens_max: u32,
    pub(crate) sampling: Sampling,
    pub(crate) logit_bias: FixedVec<(u32, f32)>,
}

impl Lane {
    pub(crate) fn new(context_tokens_max: u32) -> Self {
        Lane {
            state: LaneState::Empty,
            tokens: FixedVec::new(context_tokens_max as usize),
            prompt_tokens: 0,
            position: 0,
            begun: false,
            tokens_max: 0,
            sampling: Sampling::default(),
            logit_bias: FixedVec::new(LOGIT_BIAS_MAX),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.state = LaneState::Empty;
        self.tokens.clear();
        self.logit_bias.clear();
        self.prompt_tokens = 0;
        self.position = 0;
        self.begun = false;
        self.tokens_max = 0;
    }

    /// Starts, or goes on, behind the first `position` tokens.
    ///
    /// Where only a drawn token is left it is decoded, as it would have been, and not prefilled.
    pub(crate) fn stand_at(&mut self, position: u32) {
        self.position = position;
        let tokens = self.tokens.len() as u32;
        let drawn = tokens > self.prompt_tokens && position + 1 == tokens;
        self.state = if drawn { LaneState::Decode } else { LaneState::Prefill };
    }
}
