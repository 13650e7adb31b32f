//! Blocks of 256 elements ("K quants"): integer scales a group, one or two half-precision scales
//! over all of them.
//!
//! Codes are stored in planes: each byte of a run holds the codes of elements one run apart.

use super::{CodeShape, Layout, scale_at};

/// Group scales and minima 4 + 4 bits [16], codes 2 bits [64 B], d f16, dmin f16.
pub(super) const Q2_K: Layout = Layout {
    codes: CodeShape { group: 16, code_max: 3, signed_zero: 0 },
    scales_at: &[80, 82],
    unpack: |block, codes, scales, mins| {
        let (d, dmin) = (scale_at(block, 80), scale_at(block, 82));
        for (g, &packed) in block[..16].iter().enumerate() {
            scales[g] = d * f32::from(packed & 15);
            mins[g] = -(dmin * f32::from(packed >> 4));
        }
        two_bits(&block[16..80], codes);
    },
};

/// Third bits [32 B], low codes 2 bits [64 B], group scales 6 bits [12 B], d f16.
pub(super) const Q3_K: Layout = Layout {
    codes: CodeShape { group: 16, code_max: 7, signed_zero: 4 },
    scales_at: &[108],
    unpack: |block, codes, scales, _| {
        let (d, packed) = (scale_at(block, 108), &block[96..108]);
        for (g, scale) in scales.iter_mut().enumerate().take(16) {
            // Low four bits: a nibble of the first eight bytes. High two: of the last four.
            let low = packed[g % 8] >> (4 * (g / 8)) & 15;
            let high = packed[8 + g % 4] >> (2 * (g / 4)) & 3;
            *scale = d * f32::from((low | high << 4) as i8 - 32);
        }
        two_bits(&block[32..96], codes);
        high_bits(&block[..32], codes, 2);
    },
};

/// d f16, dmin f16, group scales and minima 6 bits [12 B], codes 4 bits [128 B].
pub(super) const Q4_K: Layout = Layout {
    codes: CodeShape { group: 32, code_max: 15, signed_zero: 0 },
    scales_at: &[0, 2],
    unpack: |block, codes, scales, mins| {
        scales_and_mins(block, scales, mins);
        four_bits(&block[16..144], codes);
    },
};

/// d f16, dmin f16, group scales and minima 6 bits [12 B], fifth bits [32 B], low codes [128 B].
pub(super) const Q5_K: Layout = Layout {
    codes: CodeShape { group: 32, code_max: 31, signed_zero: 0 },
    scales_at: &[0, 2],
    unpack: |block, codes, scales, mins| {
        scales_and_mins(block, scales, mins);
        four_bits(&block[48..176], codes);
        high_bits(&block[16..48], codes, 4);
    },
};

/// Low codes 4 bits [128 B], high codes 2 bits [64 B], group scales i8 [16], d f16.
pub(super) const Q6_K: Layout = Layout {
    codes: CodeShape { group: 16, code_max: 63, signed_zero: 32 },
    scales_at: &[208],
    unpack: |block, codes, scales, _| {
        let d = scale_at(block, 208);
        for (scale, &stored) in scales.iter_mut().zip(&block[192..208]) {
            *scale = d * f32::from(stored as i8);
        }
        for (half, codes) in codes.chunks_exact_mut(128).enumerate() {
            let (low, high) = (&block[half * 64..][..64], &block[128 + half * 32..][..32]);
            for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
                let low = &low[plane % 2 * 32..][..32];
                for ((code, &low), &high) in codes.iter_mut().zip(low).zip(high) {
                    *code = low >> (4 * (plane / 2)) & 15 | (high >> (2 * plane) & 3) << 4;
                }
            }
        }
    },
};

/// Scales and minima of `Q4_K` and `Q5_K`: eight of each, six bits wide.
fn scales_and_mins(block: &[u8], scales: &mut [f32], mins: &mut [f32]) {
    let (d, dmin, packed) = (scale_at(block, 0), scale_at(block, 2), &block[4..16]);
    for g in 0..8 {
        // The first four groups are whole; the others take nibbles of the last four bytes, and
        // their top bits from the top bits of the first four groups.
        let (scale, min) = match g {
            0..4 => (packed[g] & 63, packed[g + 4] & 63),
            _ => {
                let both = packed[g + 4];
                (both & 15 | packed[g - 4] >> 6 << 4, both >> 4 | packed[g] >> 6 << 4)
            }
        };
        scales[g] = d * f32::from(scale);
        mins[g] = -(dmin * f32::from(min));
    }
}

/// Each 32 bytes hold 128 codes: four planes of 32.
fn two_bits(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(128)) {
        for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, &b)| *code = b >> (2 * plane) & 3);
        }
    }
}

/// Each 32 bytes hold 64 codes: two planes of 32.
fn four_bits(bytes: &[u8], codes: &mut [u8]) {
    for (bytes, codes) in bytes.chunks_exact(32).zip(codes.chunks_exact_mut(64)) {
        for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(bytes).for_each(|(code, &b)| *code = b >> (4 * plane) & 15);
        }
    }
}

/// Adds one bit to each of 256 codes, as bit `to`: eight planes of 32 in 32 bytes.
fn high_bits(bytes: &[u8], codes: &mut [u8], to: u32) {
    for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
        codes.iter_mut().zip(bytes).for_each(|(code, &b)| *code |= (b >> plane & 1) << to);
    }
}
