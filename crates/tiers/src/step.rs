//! What the tiers are sized for, and what a step of a move did.

use crate::error::TierError;
use crate::image::ImageId;

/// What the tiers are sized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierLimits {
    /// Bytes of a window: a power of two from 4 KiB to 2 GiB.
    pub window_bytes: u32,
    /// Windows of KV-RAM; 0 turns it off. Those of KV-disk follow from the disk's bytes.
    pub ram_windows: u32,
}

/// What one step of a move did.
#[derive(Debug)]
pub enum Step {
    /// No move in this direction is in flight.
    Idle,
    /// Nothing: a window has yet to arrive, or the disk to finish an operation, for which
    /// [`Tiers::wait`](crate::Tiers::wait) waits.
    Waiting,
    /// It went on.
    Advanced,
    /// The move is over: the image can be restored, or it has been.
    Landed(ImageId),
    /// The move is over. Out: the image is gone. In: what the sink was given is worthless; the
    /// image is gone if it [`is_damage`](TierError::is_damage), and kept otherwise.
    Failed(ImageId, TierError),
}
