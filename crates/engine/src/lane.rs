//! A decode seat and the sequence in it.

use ignis_arena::FixedVec;
use ignis_ops::{LOGIT_BIAS_MAX, Sampling};

/// How far a seated sequence has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneState {
    Empty,
    /// Part of the prompt is not computed yet.
    Prefill,
    /// The prompt is done; `last_token` waits to be appended.
    Decode,
    /// A device fault left its pages in an unknown state; only release is possible.
    Broken,
}

impl LaneState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            LaneState::Empty => "empty",
            LaneState::Prefill => "in prefill",
            LaneState::Decode => "in decode",
            LaneState::Broken => "broken by a device fault",
        }
    }
}

/// One seat. All of its storage is made at load.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) state: LaneState,
    /// Tokens of the prompt.
    pub(crate) prompt: FixedVec<u32>,
    /// Tokens whose keys and values are stored: the position of the next row.
    pub(crate) position: u32,
    /// Tokens that the reserved pages hold.
    pub(crate) tokens_max: u32,
    /// Drawn, but not stored yet.
    pub(crate) last_token: u32,
    pub(crate) sampling: Sampling,
    pub(crate) logit_bias: FixedVec<(u32, f32)>,
}

impl Lane {
    pub(crate) fn new(context_tokens_max: u32) -> Self {
        Lane {
            state: LaneState::Empty,
            prompt: FixedVec::new(context_tokens_max as usize),
            position: 0,
            tokens_max: 0,
            last_token: 0,
            sampling: Sampling::default(),
            logit_bias: FixedVec::new(LOGIT_BIAS_MAX),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.state = LaneState::Empty;
        self.prompt.clear();
        self.logit_bias.clear();
        self.position = 0;
        self.tokens_max = 0;
    }
}
