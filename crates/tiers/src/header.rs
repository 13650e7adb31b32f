//! The two kinds of block that make a file of frames a store: its label, and an image's header.
//!
//! An image's header is written after all of its frames, and commits them. It lies in the slot that
//! bears the number of the image's first window, so a header is free whenever a window is. A slot
//! of zeros holds no image. All numbers are little endian.

use ignis_backend::BLOCK_BYTES;

use crate::frame::{Checksum, Stamp, u32_at, u64_at};
use crate::geometry::{IMAGE_WINDOWS_MAX, window_room, windows_of};
use crate::image::{ImageHead, Kind, TOKEN_BYTES};

const IMAGE_MAGIC: u64 = u64::from_le_bytes(*b"ignisimg");
const LABEL_MAGIC: u64 = u64::from_le_bytes(*b"ignisdsk");
/// Changes with the meaning of any byte of a label, header, frame or payload start.
const VERSION: u32 = 1;
const SUM_AT: usize = 248;
const LIST_AT: usize = 256;

/// What a label says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label {
    pub(crate) window_bytes: u32,
    pub(crate) windows: u32,
}

impl Label {
    pub(crate) fn encode(&self, block: &mut [u8]) {
        block.fill(0);
        put(block, 0, &LABEL_MAGIC.to_le_bytes());
        put(block, 8, &VERSION.to_le_bytes());
        put(block, 12, &self.window_bytes.to_le_bytes());
        put(block, 16, &self.windows.to_le_bytes());
        seal(block);
    }

    pub(crate) fn decode(block: &[u8]) -> Option<Label> {
        let known = u64_at(block, 0) == LABEL_MAGIC && u32_at(block, 8) == VERSION;
        (known && is_sealed(block))
            .then(|| Label { window_bytes: u32_at(block, 12), windows: u32_at(block, 16) })
    }
}

/// What a header says of an image, its list of windows apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Model, KV format and layout that the payload belongs to.
    pub(crate) identity: u128,
    /// Number that its frames bear.
    pub(crate) nonce: u64,
    pub(crate) head: ImageHead,
    pub(crate) window_bytes: u32,
}

impl Header {
    /// Windows of the image.
    pub(crate) fn windows(&self) -> u32 {
        windows_of(self.head.payload_bytes, self.window_bytes) as u32
    }

    /// What the frame of window `window` must say.
    pub(crate) fn stamp(&self, window: u32) -> Stamp {
        stamp(self.nonce, self.head.payload_bytes, self.window_bytes, window)
    }

    /// True if a block was meant to be a header, whole or not.
    pub(crate) fn is_marked(block: &[u8]) -> bool {
        u64_at(block, 0) == IMAGE_MAGIC
    }

    /// Writes the header of an image with these windows, of which there must be `windows()`.
    pub(crate) fn encode(&self, list: impl Iterator<Item = u32>, block: &mut [u8]) {
        block.fill(0);
        put(block, 0, &IMAGE_MAGIC.to_le_bytes());
        put(block, 8, &VERSION.to_le_bytes());
        put(block, 12, &self.window_bytes.to_le_bytes());
        put(block, 16, &self.identity.to_le_bytes());
        put(block, 32, &self.nonce.to_le_bytes());
        put(block, 40, &[self.head.kind.code(), self.head.class]);
        put(block, 44, &self.head.position.to_le_bytes());
        put(block, 48, &self.head.payload_bytes.to_le_bytes());
        put(block, 56, &self.windows().to_le_bytes());
        let mut count = 0;
        for (i, window) in list.enumerate() {
            put(block, LIST_AT + 4 * i, &window.to_le_bytes());
            count += 1;
        }
        assert_eq!(count, self.windows(), "an image lists each of its windows");
        seal(block);
    }

    /// The header in slot `slot` of a file of `windows` windows of `window_bytes`, and its windows.
    /// `None` if it is not whole, or not the header of that slot.
    pub(crate) fn decode(block: &[u8], slot: u32, file: &Label) -> Option<(Header, Vec<u32>)> {
        let known = u64_at(block, 0) == IMAGE_MAGIC && u32_at(block, 8) == VERSION;
        if !known || !is_sealed(block) {
            return None;
        }
        let head = ImageHead {
            kind: Kind::from_code(block[40])?,
            class: block[41],
            position: u32_at(block, 44),
            payload_bytes: u64_at(block, 48),
        };
        let identity = u128::from_le_bytes(block[16..32].try_into().expect("16 bytes were cut"));
        let window_bytes = u32_at(block, 12);
        let header = Header { identity, nonce: u64_at(block, 32), head, window_bytes };
        let fits = window_bytes == file.window_bytes
            && head.position > 0
            && head.payload_bytes >= TOKEN_BYTES * u64::from(head.position)
            && windows_of(head.payload_bytes, window_bytes) <= u64::from(IMAGE_WINDOWS_MAX)
            && u32_at(block, 56) == header.windows();
        if !fits {
            return None;
        }
        let list: Vec<u32> =
            (0..header.windows() as usize).map(|i| u32_at(block, LIST_AT + 4 * i)).collect();
        let inside = list.iter().all(|&window| window < file.windows);
        (inside && list[0] == slot).then_some((header, list))
    }
}

/// What the frame of window `window` of an image must say.
pub(crate) fn stamp(nonce: u64, payload_bytes: u64, window_bytes: u32, window: u32) -> Stamp {
    let room = window_room(window_bytes);
    let left = payload_bytes - u64::from(window) * room;
    Stamp { nonce, window, bytes: left.min(room) as u32 }
}

fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

fn sum(block: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    sum.add(&block[..SUM_AT]);
    sum.add(&block[LIST_AT..BLOCK_BYTES]);
    sum.finish()
}

fn seal(block: &mut [u8]) {
    let sum = sum(block);
    put(block, SUM_AT, &sum.to_le_bytes());
}

fn is_sealed(block: &[u8]) -> bool {
    u64_at(block, SUM_AT) == sum(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Label = Label { window_bytes: 8192, windows: 9 };

    fn header() -> (Header, Vec<u8>) {
        let head = ImageHead { kind: Kind::Prefix, class: 1, position: 64, payload_bytes: 20_000 };
        let header = Header { identity: 5 << 90, nonce: 6, head, window_bytes: 8192 };
        let mut block = vec![0xAA; BLOCK_BYTES];
        header.encode([4, 8, 2].into_iter(), &mut block);
        (header, block)
    }

    #[test]
    fn a_header_reads_back_in_its_own_slot_only() {
        let (header, block) = header();
        assert_eq!(Header::decode(&block, 4, &FILE), Some((header, vec![4, 8, 2])));
        assert_eq!(Header::decode(&block, 8, &FILE), None);
        assert_eq!(Header::decode(&block, 4, &Label { windows: 8, ..FILE }), None);
        assert_eq!(Header::decode(&block, 4, &Label { window_bytes: 4096, ..FILE }), None);
    }

    #[test]
    fn no_flipped_bit_of_a_header_or_label_goes_unseen() {
        let (_, mut block) = header();
        for bit in 0..BLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&block, 4, &FILE), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
        FILE.encode(&mut block);
        assert_eq!(Label::decode(&block), Some(FILE));
        for bit in 0..BLOCK_BYTES * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Label::decode(&block), None, "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
