//! What a disk tier asks of a disk: whole blocks, read and written beside the caller.
//!
//! Key properties: a buffer is owned, aligned for unbuffered I/O, and travels with its operation,
//! so that nothing is shared with whoever carries it out; an operation that was started always
//! comes back, with its buffer. Operations in flight at the same time may finish in any order.
//!
//! Leaves out: files, their layout, and what the bytes mean.

use std::fmt;
use std::time::Duration;

use crate::host::Blocks;

/// Bytes of a block: offsets and lengths of disk operations are multiples of it.
pub const BLOCK_BYTES: usize = 4096;

/// Which way an operation moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskAction {
    /// From the disk into the buffer.
    Read,
    /// From the buffer to the disk.
    Write,
}

impl fmt::Display for DiskAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskAction::Read => "read",
            DiskAction::Write => "write",
        })
    }
}

/// One operation, which owns its buffer.
#[derive(Debug)]
pub struct DiskOp {
    /// The caller's number for it, given back with the result.
    pub id: u64,
    /// Read or write.
    pub action: DiskAction,
    /// First byte on the disk; a multiple of `BLOCK_BYTES`.
    pub offset: u64,
    /// How many bytes, from the start of `buffer`; a multiple of `BLOCK_BYTES`, not 0.
    pub bytes: usize,
    /// Where they come from or go to; at least `bytes` long.
    pub buffer: Blocks,
}

/// An operation that is over.
#[derive(Debug)]
pub struct DiskDone {
    /// The operation as it was started, buffer included. After a failed read the buffer's content
    /// is unspecified; after a failed write, the disk's in that range is.
    pub op: DiskOp,
    /// Whether all of its bytes were transferred.
    pub result: Result<(), DiskError>,
}

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// The system reported a failure.
    #[error("{action} of {bytes} B at byte {offset} failed: {reason}")]
    Io {
        /// Read or write.
        action: DiskAction,
        /// Where.
        offset: u64,
        /// How much was asked.
        bytes: u64,
        /// What the system said.
        reason: String,
    },
    /// Fewer bytes were transferred than asked, and no more could be.
    #[error("{action} of {bytes} B at byte {offset} ended after {done} B")]
    Short {
        /// Read or write.
        action: DiskAction,
        /// Where.
        offset: u64,
        /// How much was asked.
        bytes: u64,
        /// How much was transferred.
        done: u64,
    },
    /// The volume has no room for the write.
    #[error("no space left for a write of {bytes} B at byte {offset}")]
    Full {
        /// Where.
        offset: u64,
        /// How much was asked.
        bytes: u64,
    },
}

/// A disk of fixed size that carries out operations beside the caller.
pub trait Disk: Send {
    /// Bytes of the disk; every operation lies inside.
    fn bytes(&self) -> u64;
    /// What errors and tables call it: the path of its file.
    fn describe(&self) -> String;
    /// Operations that may be in flight at once; one more is a bug of the caller.
    fn depth(&self) -> usize;
    /// Begins an operation and returns at once.
    fn start(&mut self, op: DiskOp);
    /// An operation that is over. If there is none yet, waits up to `wait` for one in flight; with
    /// none in flight it returns `None` at once. Takes nothing from the heap unless one failed.
    fn finished(&mut self, wait: Duration) -> Option<DiskDone>;
}
