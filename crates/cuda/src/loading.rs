//! The way of weights to the card: packed by every processor into pinned memory, copied from there
//! while the next piece is packed.
//!
//! Key properties: two pieces, so packing and copying overlap, and the slower sets the rate. A
//! piece is packed again only after its copy has ended. Their memory is no line of the plan: it is
//! pinned with the first weight, and let go once the last has arrived, before the load is compared
//! with its plan.
//!
//! Leaves out: what is packed, and how.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ignis_backend::DeviceError;
use ignis_formats::quant;
use ignis_types::DType;

use crate::driver::Context;
use crate::memory::{Memory, Pinned};
use crate::stream::Event;

/// Bytes of a piece: large enough that starting the threads that pack it costs little.
pub(crate) const PIECE_BYTES: usize = 64 << 20;

/// Bytes that a thread takes at once, about.
const STRIPE_BYTES: usize = 1 << 20;

/// Pieces in pinned memory, in turn packed and on their way.
#[derive(Debug)]
pub(crate) struct Uploader {
    pieces: [Staged; 2],
    /// The piece that is packed now, or next.
    at: usize,
    /// Bytes of it that are packed.
    len: usize,
}

#[derive(Debug)]
struct Staged {
    pinned: Pinned,
    /// Passed once its copy has ended.
    copied: Event,
}

impl Uploader {
    /// Pins two pieces.
    ///
    /// Errors: `Reserve`, where the memory cannot be had or pinned.
    pub(crate) fn new() -> Result<Uploader, DeviceError> {
        let staged = || -> Result<Staged, DeviceError> {
            Ok(Staged { pinned: Pinned::new(PIECE_BYTES)?, copied: Event::new()? })
        };
        Ok(Uploader { pieces: [staged()?, staged()?], at: 0, len: 0 })
    }

    /// The first `len` bytes of the next piece, at most [`PIECE_BYTES`]; their content is left from
    /// an earlier one. Waits until that one has been copied.
    pub(crate) fn piece(&mut self, len: usize) -> Result<&mut [u8], DeviceError> {
        assert!(len <= PIECE_BYTES, "{len} bytes of a piece of {PIECE_BYTES}");
        let staged = &mut self.pieces[self.at];
        staged.copied.wait()?;
        self.len = len;
        Ok(&mut staged.pinned.bytes_mut()[..len])
    }

    /// Starts copying the piece that was packed to `at`, behind what is on the stream.
    pub(crate) fn send(
        &mut self,
        context: &Context,
        memory: &Memory,
        at: u64,
    ) -> Result<(), DeviceError> {
        let staged = &self.pieces[self.at];
        staged.pinned.send(context, memory, at, self.len)?;
        staged.copied.record(context)?;
        self.at = 1 - self.at;
        self.len = 0;
        Ok(())
    }

    /// Waits until every piece has arrived, and lets the pinned memory go.
    pub(crate) fn finish(self) -> Result<(), DeviceError> {
        self.wait()
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.pieces.iter().try_for_each(|staged| staged.copied.wait())
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        // Copies read the pinned memory, which goes now. What failed in them was or will be said by
        // whoever waits for the stream.
        let _ = self.wait();
    }
}

/// Cuts `out` into stripes of `step` bytes, the last one shorter, and gives each with its number to
/// one of as many threads as there are processors.
pub(crate) fn share(out: &mut [u8], step: usize, work: impl Fn(usize, &mut [u8]) + Sync) {
    let stripes = out.len().div_ceil(step.max(1));
    let left = Mutex::new(out.chunks_mut(step.max(1)).enumerate());
    let run = || {
        loop {
            let next = left.lock().expect("taking a stripe does not panic").next();
            match next {
                Some((at, stripe)) => work(at, stripe),
                None => return,
            }
        }
    };
    on_threads(stripes, run);
}

/// As [`quant::check_finite`], by every processor.
pub(crate) fn check_finite(dtype: DType, stored: &[u8]) -> Result<(), usize> {
    let block = dtype.block_bytes() as usize;
    let step = (STRIPE_BYTES / block).max(1) * block;
    let stripes = stored.len().div_ceil(step);
    let (next, bad) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let run = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            // Stripes are taken in order; none before a bad one is left out.
            if at >= stripes || bad.load(Ordering::Relaxed) < at * (step / block) {
                return;
            }
            let stripe = &stored[at * step..stored.len().min((at + 1) * step)];
            if let Err(found) = quant::check_finite(dtype, stripe) {
                bad.fetch_min(at * (step / block) + found, Ordering::Relaxed);
            }
        }
    };
    on_threads(stripes, run);
    match bad.into_inner() {
        usize::MAX => Ok(()),
        block => Err(block),
    }
}

/// Runs `work` on this thread and on others, together at most `parts`.
fn on_threads(parts: usize, work: impl Fn() + Sync) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..processors.min(parts) {
            scope.spawn(&work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_is_written_once_with_its_number() {
        for (len, step) in [(0, 8), (1, 8), (8, 8), (1000, 7), (5, 0)] {
            let mut out = vec![0u8; len];
            share(&mut out, step, |at, stripe| {
                stripe.iter_mut().for_each(|byte| *byte += 1 + (at % 100) as u8);
            });
            let expected = (0..len).map(|i| 1 + (i / step.max(1) % 100) as u8);
            assert!(out.iter().copied().eq(expected), "{len} by {step}");
        }
    }

    #[test]
    fn the_first_bad_block_is_found_wherever_it_lies() {
        for (dtype, bits) in [(DType::BF16, [0x80, 0x7f]), (DType::Q8_0, [0x00, 0x7c])] {
            let block = dtype.block_bytes() as usize;
            let blocks = 3 * STRIPE_BYTES / block + 5;
            let clean = vec![0u8; blocks * block];
            assert_eq!(check_finite(dtype, &clean), Ok(()));
            assert_eq!(check_finite(dtype, &[]), Ok(()));
            let stripe = STRIPE_BYTES / block;
            for bad in [0, 1, stripe - 1, stripe, 2 * stripe + 3, blocks - 1] {
                let mut stored = clean.clone();
                for at in [bad, blocks - 1] {
                    stored[at * block..at * block + 2].copy_from_slice(&bits);
                }
                assert_eq!(check_finite(dtype, &stored), Err(bad), "{dtype}");
            }
            assert_eq!(check_finite(dtype, &clean[1..]), Err(blocks - 1), "a part of a block");
        }
    }
}
