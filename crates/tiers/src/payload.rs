//! The other end of a move: the state of a sequence as one run of bytes.

use std::ops::Range;

use ignis_backend::{Blocks, Copied, CopyId, DeviceError};

/// A sequence's state, addressed as the payload of its image.
///
/// A mover asks for each byte once, in ascending order: in pieces of at most [`PIECE_BYTES`], or in
/// whole windows that travel beside the caller, some at a time, if the payload
/// [`is_beside`](Payload::is_beside).
///
/// [`PIECE_BYTES`]: crate::PIECE_BYTES
pub trait Payload {
    /// Fills `out` with the payload's bytes from `at` on.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;
    /// Stores `bytes` as the payload's bytes from `at` on. They are known to be right only once the
    /// move has landed.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Whether windows travel beside the caller; if not, the three calls below are not made.
    fn is_beside(&self) -> bool {
        false
    }
    /// Begins to fill `within` of `frame` with the payload's bytes from `at` on.
    fn begin_read(&mut self, at: u64, frame: Blocks, within: Range<usize>) -> CopyId {
        let _ = (at, frame, within);
        unreachable!("windows of this payload do not travel beside the caller")
    }
    /// Begins to store `within` of `frame` as the payload's bytes from `at` on, or gives the frame
    /// back with what is wrong. They are known to be right only once the move has landed.
    fn begin_write(
        &mut self,
        at: u64,
        frame: Blocks,
        within: Range<usize>,
    ) -> Result<CopyId, (Blocks, DeviceError)> {
        let _ = (at, frame, within);
        unreachable!("windows of this payload do not travel beside the caller")
    }
    /// Gives back the frame of a window that has arrived, with the sum of as many of its last bytes
    /// as were summed where they lie; `None` if it has not arrived. With `wait` it waits.
    fn end(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        let _ = (copies, wait);
        unreachable!("windows of this payload do not travel beside the caller")
    }
}

/// The source of a copy between tiers, which reads no sequence.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPayload;

impl Payload for NoPayload {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        Err(DeviceError::Fault { what: "a move out that was given no sequence to read" })
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::Fault { what: "a move in that was given no sequence to write" })
    }
}
