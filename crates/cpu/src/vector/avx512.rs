//! One 16-lane register (AVX-512).

use std::arch::x86_64::*;

use super::Vector;
use super::avx2::{largest8, sum8};

/// Lanes 0..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

/// The first `n` of sixteen lanes.
#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// Lanes 8..16.
#[inline(always)]
unsafe fn high(v: __m512) -> __m256 {
    // SAFETY: AVX-512F by contract.
    unsafe { _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)) }
}

macro_rules! one {
    ($op:ident($($arg:expr),*)) => {
        // SAFETY: AVX-512F by the trait's contract, and pointers valid for the lanes named.
        unsafe { $op($($arg),*) }
    };
}

impl Vector for Avx512 {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Avx512(one!(_mm512_set1_ps(x)))
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        Avx512(one!(_mm512_loadu_ps(from)))
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        Avx512(one!(_mm512_maskz_loadu_ps(mask(n), from)))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: sixteen readable halves; AVX-512F by the trait's contract.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        one!(_mm512_storeu_ps(to, self.0))
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        one!(_mm512_mask_storeu_ps(to, mask(n), self.0))
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Avx512(one!(_mm512_add_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        Avx512(one!(_mm512_sub_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Avx512(one!(_mm512_mul_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        Avx512(one!(_mm512_div_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Avx512(one!(_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Avx512(one!(_mm512_max_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        Avx512(one!(_mm512_min_ps(self.0, other.0)))
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        // SAFETY: AVX-512F by the trait's contract.
        unsafe {
            let below = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x.0, limit.0);
            Avx512(_mm512_maskz_mov_ps(!below, self.0))
        }
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, other: Self) -> Self {
        Avx512(one!(_mm512_mask_mov_ps(other.0, mask(n), self.0)))
    }
    #[inline(always)]
    unsafe fn scale_by(self, magic: Self) -> Self {
        // SAFETY: AVX-512F by the trait's contract.
        unsafe {
            let shift = _mm512_slli_epi32::<23>(_mm512_castps_si512(magic.0));
            Avx512(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(self.0), shift)))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: AVX-512F implies AVX2.
        unsafe { sum8(_mm256_add_ps(_mm512_castps512_ps256(self.0), high(self.0))) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: AVX-512F implies AVX2.
        unsafe { largest8(_mm256_max_ps(_mm512_castps512_ps256(self.0), high(self.0))) }
    }
    #[inline(always)]
    unsafe fn lane0(self) -> f32 {
        one!(_mm512_cvtss_f32(self.0))
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        // SAFETY: AVX-512F by the trait's contract.
        unsafe { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0) != 0 }
    }
}
