//! AVX2: two registers a vector (lanes 0..8 and 8..16), byte products by way of 16-bit sums.

use std::arch::x86_64::*;

use super::{Kernel, Simd, codes, cover};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// # Safety
/// The instructions are available, and the kernel's own contract holds.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promises.
    unsafe { kernel.run::<Avx2>() }
}

/// 64 bytes of codes as two registers.
#[inline(always)]
unsafe fn load_codes(from: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller's promise: 64 bytes.
    unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())] }
}

impl Avx2 {
    /// `dot` of one quad of columns after the other for codes up to 15: eight products of a lane
    /// fit a signed 16-bit sum (8 * 2 * 15 * 127 = 30,480).
    #[inline(always)]
    unsafe fn dot_small<const T: usize, const CODES: u8, const COVER: u8>(
        w: *const u8,
        a: [*const u8; T],
    ) -> [[__m256i; 2]; T] {
        let halves = match COVER {
            cover::ALL => 0..2,
            cover::LOW => 0..1,
            _ => 1..2,
        };
        // SAFETY: the contract of `Simd::dot`.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let mut out = [[_mm256_setzero_si256(); 2]; T];
            for j in 0..4 {
                for half in halves.clone() {
                    let [mut w0, mut w1] = if CODES == codes::NIBBLES {
                        load_codes(w.add(64 * j))
                    } else {
                        load_codes(w.add(64 * j + 256 * half))
                    };
                    if CODES == codes::NIBBLES {
                        if half == 1 {
                            w0 = _mm256_srli_epi16::<4>(w0);
                            w1 = _mm256_srli_epi16::<4>(w1);
                        }
                        w0 = _mm256_and_si256(w0, low);
                        w1 = _mm256_and_si256(w1, low);
                    }
                    for t in 0..T {
                        let x = a[t].add(16 * half + 4 * j).cast::<i32>().read_unaligned();
                        let x = _mm256_set1_epi32(x);
                        let [s0, s1] = out[t];
                        out[t] = [
                            _mm256_add_epi16(s0, _mm256_maddubs_epi16(w0, x)),
                            _mm256_add_epi16(s1, _mm256_maddubs_epi16(w1, x)),
                        ];
                    }
                }
            }
            let ones = _mm256_set1_epi16(1);
            for t in 0..T {
                let [s0, s1] = out[t];
                out[t] = [_mm256_madd_epi16(s0, ones), _mm256_madd_epi16(s1, ones)];
            }
            out
        }
    }

    /// `dot` for any byte: its two half bytes are summed apart, each as in `dot_small`.
    #[inline(always)]
    unsafe fn dot_bytes<const T: usize, const COVER: u8>(
        w: *const u8,
        a: [*const u8; T],
    ) -> [[__m256i; 2]; T] {
        let quads = match COVER {
            cover::ALL => 0..8,
            cover::LOW => 0..4,
            _ => 4..8,
        };
        // SAFETY: the contract of `Simd::dot`.
        unsafe {
            let low = _mm256_set1_epi8(15);
            let ones = _mm256_set1_epi16(1);
            let sixteens = _mm256_set1_epi16(16);
            let mut out = [[_mm256_setzero_si256(); 2]; T];
            // One register of lanes at a time, so that two sums a row stay in registers.
            for side in 0..2 {
                let mut sums = [[_mm256_setzero_si256(); 2]; T];
                for j in quads.clone() {
                    let codes = _mm256_loadu_si256(w.add(64 * j + 32 * side).cast());
                    let w0 = _mm256_and_si256(codes, low);
                    let w1 = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
                    for t in 0..T {
                        let x = a[t].add(4 * j).cast::<i32>().read_unaligned();
                        let x = _mm256_set1_epi32(x);
                        let [s0, s1] = sums[t];
                        sums[t] = [
                            _mm256_add_epi16(s0, _mm256_maddubs_epi16(w0, x)),
                            _mm256_add_epi16(s1, _mm256_maddubs_epi16(w1, x)),
                        ];
                    }
                }
                for t in 0..T {
                    let [s0, s1] = sums[t];
                    out[t][side] = _mm256_add_epi32(
                        _mm256_madd_epi16(s0, ones),
                        _mm256_madd_epi16(s1, sixteens),
                    );
                }
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn reduce(x: __m128i, f: impl Fn(__m128i, __m128i) -> __m128i) -> i32 {
        // SAFETY: the caller has the instructions.
        unsafe {
            let x = f(x, _mm_shuffle_epi32::<0b_01_00_11_10>(x));
            let x = f(x, _mm_shuffle_epi32::<0b_10_11_00_01>(x));
            _mm_cvtsi128_si32(x)
        }
    }
}

impl Simd for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    const FEW: usize = 4;
    const MANY: (usize, usize) = (1, 4);
    const CHUNK_BYTES: usize = 256 << 10;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller's promises.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        // SAFETY: the trait's contract: the instructions are available.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> [__m256; 2] {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: [__m256; 2]) {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> [__m256; 2] {
        // SAFETY: the trait's contract: 32 bytes.
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> [__m256; 2] {
        // SAFETY: the trait's contract: 32 bytes.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    unsafe fn to_f32(x: [__m256i; 2]) -> [__m256; 2] {
        // SAFETY: the trait's contract.
        unsafe { [_mm256_cvtepi32_ps(x[0]), _mm256_cvtepi32_ps(x[1])] }
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const T: usize, const CODES: u8, const COVER: u8>(
        w: [*const u8; P],
        a: [*const u8; T],
    ) -> [[[__m256i; 2]; T]; P] {
        // SAFETY: the trait's contract is theirs.
        unsafe {
            let mut out = [[[_mm256_setzero_si256(); 2]; T]; P];
            for p in 0..P {
                out[p] = if CODES == codes::BYTES {
                    Avx2::dot_bytes::<T, COVER>(w[p], a)
                } else {
                    Avx2::dot_small::<T, CODES, COVER>(w[p], a)
                };
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn widen(from: *const u8, to: *mut u8) {
        // SAFETY: the trait's contract: 256 bytes to read, 512 to write.
        unsafe {
            let low = _mm256_set1_epi8(15);
            for j in 0..8 {
                let pairs = _mm256_loadu_si256(from.add(32 * j).cast());
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), low);
                _mm256_storeu_si256(to.add(32 * j).cast(), _mm256_and_si256(pairs, low));
                _mm256_storeu_si256(to.add(256 + 32 * j).cast(), high);
            }
        }
    }

    #[inline(always)]
    unsafe fn column(from: *const u8, b: u32) -> [__m256; 2] {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe {
            let [w0, w1] = load_codes(from);
            let (shift, byte) = (_mm_cvtsi32_si128(8 * b as i32), _mm256_set1_epi32(255));
            [
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(w0, shift), byte)),
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srl_epi32(w1, shift), byte)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn abs_max_bits(from: *const f32) -> u32 {
        // SAFETY: the trait's contract: 32 values.
        unsafe {
            let bits = _mm256_set1_epi32(0x7fff_ffff);
            let mut max = _mm256_setzero_si256();
            for i in 0..4 {
                let x = _mm256_loadu_si256(from.add(8 * i).cast());
                max = _mm256_max_epu32(max, _mm256_and_si256(x, bits));
            }
            let max =
                _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
            Avx2::reduce(max, |a, b| _mm_max_epu32(a, b)) as u32
        }
    }

    #[inline(always)]
    unsafe fn round(x: [__m256; 2]) -> [__m256i; 2] {
        // SAFETY: the trait's contract. Rust keeps the rounding mode at nearest even.
        unsafe { [_mm256_cvtps_epi32(x[0]), _mm256_cvtps_epi32(x[1])] }
    }

    #[inline(always)]
    unsafe fn split(x: [__m256i; 2]) -> ([__m256i; 2], [__m256i; 2]) {
        let (mut high, mut low) = (x, x);
        for side in 0..2 {
            // SAFETY: the trait's contract.
            unsafe {
                // 255 is odd, so a quotient is never near a tie, and rounding it in f32 is exact.
                let x = x[side];
                let quotient = _mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(1.0 / 255.0));
                let h = _mm256_cvtps_epi32(quotient);
                let times_255 = _mm256_sub_epi32(_mm256_slli_epi32::<8>(h), h);
                high[side] = h;
                low[side] = _mm256_sub_epi32(x, times_255);
            }
        }
        (high, low)
    }

    #[inline(always)]
    unsafe fn sum(x: [__m256i; 2]) -> i32 {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm256_add_epi32(x[0], x[1]);
            let x = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            Avx2::reduce(x, |a, b| _mm_add_epi32(a, b))
        }
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, x: [__m256i; 2]) {
        // SAFETY: the trait's contract: 16 bytes.
        unsafe {
            let words = _mm256_packs_epi32(x[0], x[1]);
            let words = _mm256_permute4x64_epi64::<0b_11_01_10_00>(words);
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.cast(), bytes);
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}
