//! Host memory in whole blocks, and what travels between it and a device beside the rounds.
//!
//! Key properties: a piece of memory is owned. A disk or a device that fills or reads it beside the
//! caller has it meanwhile, so that nothing is shared, and nothing is freed under a copy. Where the
//! memory comes from is hidden: the heap, or what a device has pinned.

use std::fmt;
use std::ops::{Deref, DerefMut};

use bytes::{Bytes, BytesMut};

use crate::disk::BLOCK_BYTES;
use crate::error::DeviceError;
use crate::sum::Sum;

/// Memory of the host that a device gave: always the same bytes, whole blocks, aligned to one.
pub trait HostBytes: Send + Sync {
    /// All of it.
    fn bytes(&self) -> &[u8];
    /// All of it, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

enum Memory {
    Heap(BytesMut),
    Given(Box<dyn HostBytes>),
}

/// Whole blocks in one piece of host memory. Derefs to its bytes. Its length never changes.
pub struct Blocks(Memory);

impl Blocks {
    /// `count` zeroed blocks, resident: every page has been written to. `None` if the system does
    /// not give the memory.
    pub fn zeroed(count: usize) -> Option<Blocks> {
        Blocks::pieces(1, count)?.pop()
    }

    /// `pieces` times `count` zeroed blocks, resident, from one allocation, which goes with the
    /// last of them.
    pub fn pieces(pieces: usize, count: usize) -> Option<Vec<Blocks>> {
        let bytes = count.checked_mul(BLOCK_BYTES)?;
        let len = bytes.checked_mul(pieces)?;
        let zeroed = bytemuck::allocation::try_zeroed_vec(len.checked_add(BLOCK_BYTES)?).ok()?;
        let mut all = Bytes::from(zeroed).try_into_mut().expect("nobody shares a fresh vector");
        let _ = all.split_to(all.as_ptr().align_offset(BLOCK_BYTES));
        all.truncate(len);
        // A system may hand out zero pages that it has yet to back; a write to each settles it.
        for block in all.chunks_mut(BLOCK_BYTES) {
            block[0] = std::hint::black_box(0);
        }
        Some((0..pieces).map(|_| Blocks(Memory::Heap(all.split_to(bytes)))).collect())
    }

    /// Memory that a device gave.
    pub fn given(memory: Box<dyn HostBytes>) -> Blocks {
        let bytes = memory.bytes();
        let whole = bytes.len().is_multiple_of(BLOCK_BYTES);
        assert!(whole && bytes.as_ptr().align_offset(BLOCK_BYTES) == 0, "whole blocks are given");
        Blocks(Memory::Given(memory))
    }
}

impl Deref for Blocks {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Given(memory) => memory.bytes(),
        }
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Heap(bytes) => bytes,
            Memory::Given(memory) => memory.bytes_mut(),
        }
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blocks({} B)", self.len())
    }
}

/// Which way copies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyWay {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// One copy of several that travel together: bytes that lie in one piece on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPart {
    /// Offset from the device base.
    pub at: u64,
    /// First byte in the host memory.
    pub host: usize,
    /// How many.
    pub bytes: usize,
}

/// Copies in flight, as their device numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId(pub u32);

/// Copies that are over.
#[derive(Debug)]
pub struct Copied {
    /// The memory that they went to or came from.
    pub host: Blocks,
    /// The sum of what travelled, in the order of the parts, where the device has it: of the
    /// reservation's bytes, before or after. An error if not all of them succeeded; then what they
    /// wrote is unspecified.
    pub result: Result<Sum, DeviceError>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_zero() {
        let blocks = Blocks::zeroed(3).unwrap();
        assert_eq!(blocks.len(), 3 * BLOCK_BYTES);
        assert_eq!(blocks.as_ptr() as usize % BLOCK_BYTES, 0);
        assert!(blocks.iter().all(|&byte| byte == 0));
        assert!(Blocks::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn pieces_lie_apart_in_one_allocation() {
        let mut pieces = Blocks::pieces(3, 2).unwrap();
        for (number, piece) in (1..).zip(&mut pieces) {
            assert_eq!(piece.len(), 2 * BLOCK_BYTES);
            piece.fill(number);
        }
        let start = pieces[0].as_ptr() as usize;
        for (i, piece) in pieces.iter().enumerate() {
            assert_eq!(piece.as_ptr() as usize, start + 2 * BLOCK_BYTES * i);
            assert!(piece.iter().all(|&byte| usize::from(byte) == i + 1));
        }
    }

    #[test]
    fn memory_that_the_system_has_not_is_none() {
        assert!(Blocks::zeroed(usize::MAX / BLOCK_BYTES).is_none());
        assert!(Blocks::pieces(1 << 20, 1 << 40).is_none());
    }
}
