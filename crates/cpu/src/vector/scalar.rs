//! The portable vector: plain loops that a compiler may vectorise.

use super::{LANES, Vector};

/// Sixteen floats in memory order.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; LANES]);

impl Scalar {
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Scalar(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

// SAFETY (each note below): pointers are valid for the lanes named, by the trait's contract.
impl Vector for Scalar {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Scalar([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen readable floats.
        Scalar(std::array::from_fn(|i| unsafe { *from.add(i) }))
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        // SAFETY: `n` readable floats.
        Scalar(std::array::from_fn(|i| if i < n { unsafe { *from.add(i) } } else { 0.0 }))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: sixteen readable halves.
        Scalar(std::array::from_fn(|i| f32::from_bits(u32::from(unsafe { *from.add(i) }) << 16)))
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen writable floats.
        unsafe { self.store_first(to, LANES) }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        for i in 0..n {
            // SAFETY: `n` writable floats.
            unsafe { *to.add(i) = self.0[i] }
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        self.zip(other, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Scalar(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        Scalar(std::array::from_fn(|i| if x.0[i] < limit.0[i] { 0.0 } else { self.0[i] }))
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, other: Self) -> Self {
        Scalar(std::array::from_fn(|i| if i < n { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    unsafe fn scale_by(self, magic: Self) -> Self {
        self.zip(magic, |p, m| f32::from_bits(p.to_bits().wrapping_add(m.to_bits() << 23)))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let mut lanes = self.0;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] = if lanes[i] > lanes[i + half] { lanes[i] } else { lanes[i + half] };
            }
        }
        lanes[0]
    }
    #[inline(always)]
    unsafe fn lane0(self) -> f32 {
        self.0[0]
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        (0..LANES).any(|i| self.0[i] > other.0[i])
    }
}
