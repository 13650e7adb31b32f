//! Two 8-lane registers (AVX2 and FMA).

use std::arch::x86_64::*;

use super::Vector;

/// Lanes 0..8 and 8..16.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

/// `n` set lanes, then clear ones, at `TABLE[8 - n..]`.
static PREFIX: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Masks with the first `n` of sixteen lanes set.
#[inline(always)]
unsafe fn masks(n: usize) -> (__m256i, __m256i) {
    let (low, high) = (n.min(8), n.max(8) - 8);
    // SAFETY: both offsets are at most 8, so eight integers of the table follow; AVX2 by contract.
    unsafe {
        let table = PREFIX.as_ptr();
        (
            _mm256_loadu_si256(table.add(8 - low).cast()),
            _mm256_loadu_si256(table.add(8 - high.min(8)).cast()),
        )
    }
}

/// Folds eight lanes by the fixed tree.
#[inline(always)]
pub(super) unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: AVX2 by contract.
    unsafe {
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)))
    }
}

#[inline(always)]
pub(super) unsafe fn largest8(v: __m256) -> f32 {
    // SAFETY: AVX2 by contract.
    unsafe {
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps(v, v, 1)))
    }
}

macro_rules! both {
    ($a:expr, $b:expr, $op:ident) => {
        // SAFETY: AVX2 by the trait's contract.
        unsafe { Avx2($op($a.0, $b.0), $op($a.1, $b.1)) }
    };
}

impl Vector for Avx2 {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // SAFETY: AVX2 by the trait's contract; so in every function below.
        unsafe { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: sixteen readable floats.
        unsafe { Avx2(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        // SAFETY: masked lanes are not read.
        unsafe {
            let (low, high) = masks(n);
            let next = from.wrapping_add(8);
            Avx2(_mm256_maskload_ps(from, low), _mm256_maskload_ps(next, high))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        // SAFETY: sixteen readable halves.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            Avx2(
                _mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(high, 16)),
            )
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: sixteen writable floats.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        // SAFETY: masked lanes are not written.
        unsafe {
            let (low, high) = masks(n);
            _mm256_maskstore_ps(to, low, self.0);
            _mm256_maskstore_ps(to.wrapping_add(8), high, self.1);
        }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        both!(self, other, _mm256_add_ps)
    }
    #[inline(always)]
    unsafe fn sub(self, other: Self) -> Self {
        both!(self, other, _mm256_sub_ps)
    }
    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        both!(self, other, _mm256_mul_ps)
    }
    #[inline(always)]
    unsafe fn div(self, other: Self) -> Self {
        both!(self, other, _mm256_div_ps)
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        // SAFETY: FMA by the trait's contract.
        unsafe { Avx2(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        both!(self, other, _mm256_max_ps)
    }
    #[inline(always)]
    unsafe fn min(self, other: Self) -> Self {
        both!(self, other, _mm256_min_ps)
    }
    #[inline(always)]
    unsafe fn zero_below(self, x: Self, limit: Self) -> Self {
        // SAFETY: AVX2 by the trait's contract.
        unsafe {
            Avx2(
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x.0, limit.0), self.0),
                _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x.1, limit.1), self.1),
            )
        }
    }
    #[inline(always)]
    unsafe fn first(self, n: usize, other: Self) -> Self {
        // SAFETY: AVX2 by the trait's contract.
        unsafe {
            let (low, high) = masks(n);
            Avx2(
                _mm256_blendv_ps(other.0, self.0, _mm256_castsi256_ps(low)),
                _mm256_blendv_ps(other.1, self.1, _mm256_castsi256_ps(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn scale_by(self, magic: Self) -> Self {
        #[inline(always)]
        unsafe fn half(p: __m256, magic: __m256) -> __m256 {
            // SAFETY: AVX2 by the trait's contract.
            unsafe {
                let shift = _mm256_slli_epi32(_mm256_castps_si256(magic), 23);
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shift))
            }
        }
        both!(self, magic, half)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: AVX2 by the trait's contract.
        unsafe { sum8(_mm256_add_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: AVX2 by the trait's contract.
        unsafe { largest8(_mm256_max_ps(self.0, self.1)) }
    }
    #[inline(always)]
    unsafe fn lane0(self) -> f32 {
        // SAFETY: AVX2 by the trait's contract.
        unsafe { _mm256_cvtss_f32(self.0) }
    }
    #[inline(always)]
    unsafe fn any_above(self, other: Self) -> bool {
        // SAFETY: AVX2 by the trait's contract.
        unsafe {
            let low = _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0);
            let high = _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, other.1);
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }
}
