//! What the machine can do at most.

use std::hint::black_box;

use ignis_cpu::linear::Isa;

/// Operations of one call of `int8`.
pub(crate) const INT8_OPS: f64 = (ROUNDS * CHAINS * 2 * 64) as f64;
const ROUNDS: usize = 200_000;
const CHAINS: usize = 12;

/// Reads every byte once.
pub(crate) fn read(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx2.is_available() {
        // SAFETY: the instructions are available.
        return unsafe { x86::read(bytes) };
    }
    let (words, _) = bytes.as_chunks::<64>();
    words.iter().fold(0, |sum, line| sum ^ u64::from(line[0]))
}

/// `ROUNDS` times `CHAINS` independent multiply-adds of 64 pairs of bytes.
pub(crate) fn int8(isa: Isa) {
    #[cfg(target_arch = "x86_64")]
    match isa {
        // SAFETY: the instruction set is available, since it is being measured.
        Isa::Avx512Vnni => return unsafe { x86::int8_vnni() },
        // SAFETY: as above.
        Isa::Avx2 => return unsafe { x86::int8_avx2() },
        _ => {}
    }
    let (mut sums, x) = ([0i32; 16 * CHAINS], black_box([3i8; 4]));
    for round in 0..ROUNDS {
        for sum in &mut sums {
            for x in x {
                *sum = sum.wrapping_add(i32::from(x) * (round as i32 & 127));
            }
        }
        black_box(&mut sums);
    }
    let _ = isa;
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::{CHAINS, ROUNDS};

    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn read(bytes: &[u8]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); 4];
        for chunk in bytes.chunks_exact(128) {
            for (i, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the chunk has 128 bytes, and a prefetch never faults.
                unsafe {
                    let at = chunk.as_ptr().add(32 * i);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(2048).cast());
                    *sum = _mm256_xor_si256(*sum, _mm256_loadu_si256(at.cast()));
                }
            }
        }
        let sum = _mm256_xor_si256(
            _mm256_xor_si256(sums[0], sums[1]),
            _mm256_xor_si256(sums[2], sums[3]),
        );
        _mm256_extract_epi64::<0>(sum) as u64
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn int8_vnni() {
        let mut sums = black_box([_mm512_setzero_si512(); CHAINS]);
        let (a, b) = (black_box(_mm512_set1_epi8(1)), black_box(_mm512_set1_epi8(2)));
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// Two 32-byte products and their sums count as one of 64.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn int8_avx2() {
        let mut sums = black_box([_mm256_setzero_si256(); CHAINS / 2]);
        let b = black_box([_mm256_set1_epi8(2); CHAINS / 2]);
        for round in 0..4 * ROUNDS {
            let a = _mm256_set1_epi8(round as i8);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, b));
            }
        }
        black_box(sums);
    }
}
