//! AVX-512: one register a vector, and a multiply-add of four bytes a lane in one instruction.

use std::arch::x86_64::*;

use super::{Kernel, Simd, codes, cover};

/// AVX-512 F, BW, VL and VNNI.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

/// # Safety
/// The instructions are available, and the kernel's own contract holds.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promises.
    unsafe { kernel.run::<Avx512>() }
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const FEW: usize = 8;
    const MANY: (usize, usize) = (2, 6);
    const CHUNK_BYTES: usize = 1 << 20;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller's promises.
        unsafe { run(kernel) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: the trait's contract: the instructions are available.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 32 bytes.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        // SAFETY: the trait's contract: 32 bytes.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn to_f32(x: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn dot<const P: usize, const T: usize, const CODES: u8, const COVER: u8>(
        w: [*const u8; P],
        a: [*const u8; T],
    ) -> [[__m512i; T]; P] {
        let halves = match COVER {
            cover::ALL => 0..2,
            cover::LOW => 0..1,
            _ => 1..2,
        };
        // SAFETY: the trait's contract: a whole group of weights, 32 bytes of each row.
        unsafe {
            let low = _mm512_set1_epi8(15);
            let mut out = [[_mm512_setzero_si512(); T]; P];
            for half in halves {
                for j in 0..4 {
                    let mut codes = [low; P];
                    for p in 0..P {
                        if CODES == codes::NIBBLES {
                            let pairs = _mm512_loadu_si512(w[p].add(64 * j).cast());
                            let pairs =
                                if half == 1 { _mm512_srli_epi16::<4>(pairs) } else { pairs };
                            codes[p] = _mm512_and_si512(pairs, low);
                        } else {
                            codes[p] = _mm512_loadu_si512(w[p].add(64 * j + 256 * half).cast());
                        }
                    }
                    for t in 0..T {
                        let x = a[t].add(4 * j + 16 * half).cast::<i32>().read_unaligned();
                        let x = _mm512_set1_epi32(x);
                        for p in 0..P {
                            out[p][t] = _mm512_dpbusd_epi32(out[p][t], codes[p], x);
                        }
                    }
                }
            }
            out
        }
    }

    #[inline(always)]
    unsafe fn widen(from: *const u8, to: *mut u8) {
        // SAFETY: the trait's contract: 256 bytes to read, 512 to write.
        unsafe {
            let low = _mm512_set1_epi8(15);
            for j in 0..4 {
                let pairs = _mm512_loadu_si512(from.add(64 * j).cast());
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(pairs), low);
                _mm512_storeu_si512(to.add(64 * j).cast(), _mm512_and_si512(pairs, low));
                _mm512_storeu_si512(to.add(256 + 64 * j).cast(), high);
            }
        }
    }

    #[inline(always)]
    unsafe fn column(from: *const u8, b: u32) -> __m512 {
        // SAFETY: the trait's contract: 64 bytes.
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(8 * b as i32));
            _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(255)))
        }
    }

    #[inline(always)]
    unsafe fn abs_max_bits(from: *const f32) -> u32 {
        // SAFETY: the trait's contract: 32 values.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(from.cast()), _mm512_loadu_si512(from.add(16).cast()));
            let bits = _mm512_set1_epi32(0x7fff_ffff);
            let max = _mm512_max_epu32(_mm512_and_si512(a, bits), _mm512_and_si512(b, bits));
            _mm512_reduce_max_epu32(max)
        }
    }

    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512i {
        // SAFETY: the trait's contract. Rust keeps the rounding mode at nearest even.
        unsafe { _mm512_cvtps_epi32(x) }
    }

    #[inline(always)]
    unsafe fn split(x: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the trait's contract.
        unsafe {
            // 255 is odd, so a quotient is never near a tie, and rounding it in f32 is exact.
            let quotient = _mm512_mul_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(1.0 / 255.0));
            let high = _mm512_cvtps_epi32(quotient);
            let times_255 = _mm512_sub_epi32(_mm512_slli_epi32::<8>(high), high);
            (high, _mm512_sub_epi32(x, times_255))
        }
    }

    #[inline(always)]
    unsafe fn sum(x: __m512i) -> i32 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_reduce_add_epi32(x) }
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, x: __m512i) {
        // SAFETY: the trait's contract: 16 bytes.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(x)) }
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
