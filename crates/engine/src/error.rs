//! Failures of a load or a round.

use ignis_arena::ArenaError;
use ignis_backend::DeviceError;
use ignis_formats::FormatError;
use ignis_models::ModelError;
use ignis_pages::PagesError;
use ignis_tiers::TierError;
use ignis_types::{LimitsError, Overflow};

/// Why the engine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The checkpoint holds no model that is supported.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A limit lies outside its range.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// A size left 64 bits.
    #[error(transparent)]
    Overflow(#[from] Overflow),
    /// The plan and the load differ.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The device refused or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Pages are short, or a lane holds some already.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// The lane does not exist.
    #[error("lane {lane} does not exist; there are {lanes}")]
    LaneUnknown {
        /// Asked for.
        lane: u32,
        /// How many there are.
        lanes: u32,
    },
    /// The lane is not in the state that the call needs.
    #[error("lane {lane} is {found}, expected {expected}")]
    LaneState {
        /// Which lane.
        lane: u32,
        /// Its state.
        found: &'static str,
        /// The state needed.
        expected: &'static str,
    },
    /// A prompt that cannot be seated.
    #[error("prompt: {what} is {found}, expected {expected}")]
    Prompt {
        /// Which property.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What is possible.
        expected: String,
    },
    /// A tokenizer does not match the model.
    #[error("the tokenizer has {found} tokens, the model's vocabulary has {rows} rows")]
    Vocabulary {
        /// Ids that the tokenizer knows.
        found: u32,
        /// Rows of the embedding table.
        rows: u32,
    },
    /// A round asks for more than it may.
    #[error("round: {what} is {found}, at most {limit}")]
    RoundTooLarge {
        /// Which count.
        what: &'static str,
        /// Its value.
        found: u32,
        /// The maximum.
        limit: u32,
    },
    /// The call is for the time between two rounds.
    #[error("cannot {call} while a round is under way")]
    RoundUnderWay {
        /// What was asked.
        call: &'static str,
    },
    /// There is no round to finish.
    #[error("no round is under way")]
    NoRound,
    /// The sequence has filled the pages that it reserved.
    #[error("lane {lane} has used all {tokens} tokens of its reservation")]
    LaneFull {
        /// Which lane.
        lane: u32,
        /// Tokens reserved.
        tokens: u32,
    },
    /// The retained slot does not exist.
    #[error("retained slot {slot} does not exist; there are {slots}")]
    SlotUnknown {
        /// Asked for.
        slot: u32,
        /// How many there are.
        slots: u32,
    },
    /// The retained slot is not in the state that the call needs.
    #[error("retained slot {slot} is {found}, expected {expected}")]
    SlotState {
        /// Which slot.
        slot: u32,
        /// Its state.
        found: &'static str,
        /// The state needed.
        expected: &'static str,
    },
    /// KV-RAM or KV-disk refused or failed.
    #[error(transparent)]
    Tier(#[from] TierError),
    /// An image holds more tokens than the sequence that it is for.
    #[error("an image of {found} tokens cannot seat a sequence of {tokens}")]
    ImageTooLong {
        /// Tokens of the image.
        found: u32,
        /// Tokens of the sequence.
        tokens: u32,
    },
}
