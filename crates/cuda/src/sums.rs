//! Sums of what travels, made on the card where the bytes lie.
//!
//! A flight has a slot of the reservation, to which a kernel adds the sums of its parts, and a word
//! of pinned memory, where the kernel leaves the result.

use std::ffi::c_void;

use ignis_backend::{COPIES_MAX, CopyPart, DeviceError, SUM_SLOT_BYTES, Sum};

use crate::abi::{SUM_PARTS, SumPart, SumParts};
use crate::driver::{Context, Function, Module, Shape};
use crate::memory::{Memory, Pinned};
use crate::stream::Stream;

/// Slots, of both ways.
const SLOTS: usize = 2 * COPIES_MAX;

/// Most CTAs of a launch. Rounds beside it take as long with 32 as with 128, which sum a window in
/// half the time.
const CTAS_MAX: u32 = 128;

/// The kernel that sums what travels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SumKernel {
    f: Function,
    threads: u32,
    /// Words of eight bytes that a CTA takes at a time.
    slice_words: u32,
    /// Every sum is divided by x to the bits of this many bytes more than lie before its end, so
    /// that the kernel's powers of 1 / x are never negative (`SUM_MORE` of `sums.cu`); a result is
    /// multiplied by as many.
    more: u64,
}

impl SumKernel {
    /// Finds it in its module.
    pub(crate) fn find(module: Module) -> Result<SumKernel, DeviceError> {
        let [threads, slice_words, parts, more] = module.words(c"sums_shape")?;
        assert_eq!(parts as usize, SUM_PARTS, "parts of a launch that sums");
        let f = module.function(c"sum_parts")?;
        Ok(SumKernel { f, threads, slice_words, more: more.into() })
    }

    /// Has `stream` add the sums of parts to a slot.
    pub(crate) fn launch(
        &self,
        context: &Context,
        stream: &Stream,
        p: &SumParts,
    ) -> Result<(), DeviceError> {
        let grid = (p.slices.clamp(1, CTAS_MAX), 1, 1);
        let shape = Shape { grid, threads: self.threads, shared_bytes: 0 };
        let mut args = [(&raw const *p).cast_mut().cast::<c_void>()];
        // SAFETY: the parameter of the kernel; its parts and its slot lie in the reservation and
        // its result in pinned memory, which are dropped only after the stream is idle.
        unsafe { context.launch_beside(stream, self.f, shape, &mut args) }
    }
}

/// The slots and the kernel that fills them.
#[derive(Debug)]
pub(crate) struct Sums {
    kernel: SumKernel,
    /// Offset of the slots in the reservation.
    slots: u64,
    results: Pinned,
    /// Of the results, as the card has it.
    results_at: u64,
}

impl Sums {
    /// With slots of [`SUM_SLOT_BYTES`] from this offset on.
    pub(crate) fn new(kernel: SumKernel, slots: u64) -> Result<Sums, DeviceError> {
        let results = Pinned::new(8 * SLOTS)?;
        let results_at = results.device_address();
        Ok(Sums { kernel, slots, results, results_at })
    }

    /// Bytes pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.results.bytes().len() as u64
    }

    /// Has `stream` empty a slot.
    pub(crate) fn clear(
        &self,
        memory: &Memory,
        stream: &Stream,
        slot: usize,
    ) -> Result<(), DeviceError> {
        memory.zero(stream.raw(), self.slot(slot), SUM_SLOT_BYTES)
    }

    /// Has `stream` add parts to a slot, at most [`SUM_PARTS`], behind `before` bytes; gives the
    /// bytes behind them.
    pub(crate) fn add(
        &self,
        (context, memory): (&Context, &Memory),
        stream: &Stream,
        slot: usize,
        parts: &[CopyPart],
        before: u64,
    ) -> Result<u64, DeviceError> {
        let mut all = [SumPart::default(); SUM_PARTS];
        let (mut end, mut slices) = (before, 0);
        for (to, part) in all.iter_mut().zip(parts) {
            let bytes = part.bytes as u64;
            let at = memory.address(part.at, bytes);
            end += bytes;
            *to = SumPart { at, bytes, end };
            // Words that the part touches, as the kernel counts them.
            let words = (at + bytes).div_ceil(8) - at / 8;
            slices += words.div_ceil(self.kernel.slice_words.into()) as u32;
        }
        let slot_at = memory.address(self.slot(slot), SUM_SLOT_BYTES);
        let out = self.results_at + 8 * slot as u64;
        let p = SumParts { parts: all, slot: slot_at, out, slices, unused: 0 };
        self.kernel.launch(context, stream, &p)?;
        Ok(end)
    }

    /// The sum of `bytes` bytes that were added to a slot, and have been summed.
    pub(crate) fn result(&self, slot: usize, bytes: u64) -> Sum {
        match bytes {
            0 => Sum::NONE,
            _ => Sum::of_remainder(self.results.word(8 * slot), bytes + self.kernel.more, bytes),
        }
    }

    fn slot(&self, slot: usize) -> u64 {
        assert!(slot < SLOTS, "slot {slot} of {SLOTS}");
        self.slots + SUM_SLOT_BYTES * slot as u64
    }
}
