//! The other end of a move: the state of a sequence as one run of bytes.

use ignis_backend::DeviceError;

/// A sequence's state, addressed as the payload of its image.
///
/// A mover calls it with pieces of at most [`PIECE_BYTES`], in ascending order, each byte once.
///
/// [`PIECE_BYTES`]: crate::PIECE_BYTES
pub trait Payload {
    /// Fills `out` with the payload's bytes from `at` on.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError>;
    /// Stores `bytes` as the payload's bytes from `at` on. They are known to be right only once the
    /// move has landed.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError>;
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
