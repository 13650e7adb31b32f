//! A frame: one window of an image, with a header that says whose it is and a checksum.
//!
//! Layout (little endian): 8 bytes magic, u64 nonce of the image, u32 index of the window in it,
//! u32 bytes of payload, zeros, and at byte 56 the checksum, CRC-64/NVME over the 56 bytes before
//! it and the payload. The payload follows at byte 64.

use crc_fast::{CrcAlgorithm, Digest};
use ignis_backend::{BLOCK_BYTES, Sum};

use crate::geometry::{FRAME_HEADER_BYTES, PIECE_BYTES};

const MAGIC: u64 = u64::from_le_bytes(*b"ignisfrm");
const SUM_AT: usize = 56;

/// What a frame's header must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Nonce of the image.
    pub(crate) nonce: u64,
    /// Index of the window in its image.
    pub(crate) window: u32,
    /// Bytes of payload in it.
    pub(crate) bytes: u32,
}

/// A field of a frame that is not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) what: &'static str,
    pub(crate) found: u64,
    pub(crate) expected: u64,
}

/// Why a frame was not read.
#[derive(Debug)]
pub(crate) enum FrameError<E> {
    /// It is damaged.
    Damaged(Difference),
    /// The other end refused the bytes.
    Other(E),
}

impl Stamp {
    /// Bytes of the frame in use, in whole blocks: what a disk transfers.
    pub(crate) fn stored_bytes(&self) -> usize {
        (FRAME_HEADER_BYTES + self.bytes as usize).next_multiple_of(BLOCK_BYTES)
    }

    fn header(&self) -> [u8; SUM_AT] {
        let mut header = [0; SUM_AT];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        header[16..20].copy_from_slice(&self.window.to_le_bytes());
        header[20..24].copy_from_slice(&self.bytes.to_le_bytes());
        header
    }

    /// Where the payload lies in the frame.
    pub(crate) fn payload(&self) -> std::ops::Range<usize> {
        FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + self.bytes as usize
    }
}

/// A running checksum: CRC-64/NVME, as [`Sum`].
pub(crate) struct Checksum(Digest);

impl Checksum {
    pub(crate) fn new() -> Checksum {
        Checksum(Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

/// Writes a frame: `fill(at, piece)` gives the payload's bytes from `at` on, piece by piece.
pub(crate) fn write_frame<E>(
    frame: &mut [u8],
    stamp: &Stamp,
    mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let header = stamp.header();
    let mut sum = Checksum::new();
    sum.add(&header);
    for (i, piece) in frame[stamp.payload()].chunks_mut(PIECE_BYTES).enumerate() {
        fill(i * PIECE_BYTES, piece)?;
        sum.add(piece);
    }
    frame[..SUM_AT].copy_from_slice(&header);
    frame[SUM_AT..FRAME_HEADER_BYTES].copy_from_slice(&sum.finish().to_le_bytes());
    frame[stamp.payload().end..stamp.stored_bytes()].fill(0);
    Ok(())
}

/// Completes a frame whose payload is in place: header, checksum, and zeros behind it. The last
/// bytes of the payload were `summed` where they came from.
pub(crate) fn seal_frame(frame: &mut [u8], stamp: &Stamp, summed: Sum) {
    frame[..SUM_AT].copy_from_slice(&stamp.header());
    let sum = joined(frame, stamp, summed);
    frame[SUM_AT..FRAME_HEADER_BYTES].copy_from_slice(&sum.to_le_bytes());
    frame[stamp.payload().end..stamp.stored_bytes()].fill(0);
}

/// Checks a whole frame, payload and all. The last bytes of the payload were `summed` where they
/// have gone, and are not looked at here.
pub(crate) fn check_frame(frame: &[u8], stamp: &Stamp, summed: Sum) -> Result<(), Difference> {
    check_header(frame, stamp)?;
    check_sum(frame, joined(frame, stamp, summed))
}

/// The checksum of a frame with a header, of whose payload the last bytes were `summed`.
fn joined(frame: &[u8], stamp: &Stamp, summed: Sum) -> u64 {
    let payload = &frame[stamp.payload()];
    let here = (payload.len() as u64).checked_sub(summed.bytes);
    let here = &payload[..here.expect("no more is summed than the payload") as usize];
    Sum::of(&frame[..SUM_AT]).then(Sum::of(here)).then(summed).value
}

/// Reads a frame: `take(at, piece)` is given the payload's bytes from `at` on, piece by piece. They
/// are right only if the whole call succeeds.
pub(crate) fn read_frame<E>(
    frame: &[u8],
    stamp: &Stamp,
    mut take: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<(), FrameError<E>> {
    check_header(frame, stamp).map_err(FrameError::Damaged)?;
    let mut sum = Checksum::new();
    sum.add(&frame[..SUM_AT]);
    for (i, piece) in frame[stamp.payload()].chunks(PIECE_BYTES).enumerate() {
        // Taken first: a copy reads ahead better than a checksum does.
        take(i * PIECE_BYTES, piece).map_err(FrameError::Other)?;
        sum.add(piece);
    }
    check_sum(frame, sum.finish()).map_err(FrameError::Damaged)
}

/// Copies a frame as it is, and checks what arrived.
pub(crate) fn copy_frame(from: &[u8], to: &mut [u8], stamp: &Stamp) -> Result<(), Difference> {
    to[..FRAME_HEADER_BYTES].copy_from_slice(&from[..FRAME_HEADER_BYTES]);
    check_header(to, stamp)?;
    let mut sum = Checksum::new();
    sum.add(&to[..SUM_AT]);
    let (to_payload, from_payload) = (&mut to[stamp.payload()], &from[stamp.payload()]);
    for (to, from) in to_payload.chunks_mut(PIECE_BYTES).zip(from_payload.chunks(PIECE_BYTES)) {
        to.copy_from_slice(from);
        sum.add(to);
    }
    to[stamp.payload().end..stamp.stored_bytes()].fill(0);
    check_sum(to, sum.finish())
}

/// Compares the header of a frame with what it must say; the payload is not looked at.
pub(crate) fn check_header(frame: &[u8], stamp: &Stamp) -> Result<(), Difference> {
    let fields = [
        ("the magic number", u64_at(frame, 0), MAGIC),
        ("the nonce of its image", u64_at(frame, 8), stamp.nonce),
        ("the index in its image", u64::from(u32_at(frame, 16)), u64::from(stamp.window)),
        ("its payload's length", u64::from(u32_at(frame, 20)), u64::from(stamp.bytes)),
    ];
    for (what, found, expected) in fields {
        if found != expected {
            return Err(Difference { what, found, expected });
        }
    }
    Ok(())
}

fn check_sum(frame: &[u8], found: u64) -> Result<(), Difference> {
    let expected = u64_at(frame, SUM_AT);
    if found == expected {
        Ok(())
    } else {
        Err(Difference { what: "its checksum", found, expected })
    }
}

/// The little-endian u64 at byte `at`.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were cut"))
}

/// The little-endian u32 at byte `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were cut"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { nonce: 7, window: 3, bytes: 5000 };

    fn frame() -> Vec<u8> {
        let mut frame = vec![0xEE; 8192];
        write_frame(&mut frame, &STAMP, |at, piece| {
            piece.iter_mut().enumerate().for_each(|(i, byte)| *byte = (at + i) as u8);
            Ok::<(), ()>(())
        })
        .unwrap();
        frame
    }

    fn read(frame: &[u8], stamp: &Stamp) -> Result<Vec<u8>, FrameError<()>> {
        let mut out = Vec::new();
        read_frame(frame, stamp, |_, piece| {
            out.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(out)
    }

    #[test]
    fn a_frame_reads_back_and_only_as_what_it_is() {
        let frame = frame();
        let wanted: Vec<u8> = (0..5000).map(|i| i as u8).collect();
        assert_eq!(read(&frame, &STAMP).unwrap(), wanted);
        for other in [
            Stamp { nonce: 8, ..STAMP },
            Stamp { window: 2, ..STAMP },
            Stamp { bytes: 4999, ..STAMP },
        ] {
            assert!(matches!(read(&frame, &other), Err(FrameError::Damaged(_))), "{other:?}");
        }
    }

    /// The sum of the last `bytes` of a payload.
    fn summed(frame: &[u8], bytes: usize) -> Sum {
        Sum::of(&frame[STAMP.payload().end - bytes..STAMP.payload().end])
    }

    #[test]
    fn a_frame_whose_bytes_were_summed_elsewhere_is_the_same() {
        let wanted = frame();
        for elsewhere in [0, 1, 2500, 5000] {
            let summed = summed(&wanted, elsewhere);
            let mut sealed = vec![0xEE; 8192];
            sealed[STAMP.payload()].copy_from_slice(&wanted[STAMP.payload()]);
            seal_frame(&mut sealed, &STAMP, summed);
            assert!(sealed == wanted, "{elsewhere}");
            assert_eq!(check_frame(&sealed, &STAMP, summed), Ok(()));
            let other = Stamp { window: 2, ..STAMP };
            assert!(check_frame(&sealed, &other, summed).is_err(), "{elsewhere}");
        }
    }

    #[test]
    fn every_flipped_bit_of_header_and_payload_is_seen() {
        let mut frame = frame();
        for bit in (0..FRAME_HEADER_BYTES * 8).chain((512..(64 + 5000) * 8).step_by(97)) {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read(&frame, &STAMP), Err(FrameError::Damaged(_))), "bit {bit}");
            let (all, half) = (summed(&frame, 5000), summed(&frame, 2500));
            for summed in [Sum::NONE, half, all] {
                assert!(check_frame(&frame, &STAMP, summed).is_err(), "bit {bit}");
            }
            let mut to = vec![0; 8192];
            assert!(copy_frame(&frame, &mut to, &STAMP).is_err(), "bit {bit}");
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let mut to = vec![1; 8192];
        copy_frame(&frame, &mut to, &STAMP).unwrap();
        assert_eq!(to[..5120], frame[..5120]);
    }
}
