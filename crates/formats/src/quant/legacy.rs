//! Blocks of 32 elements with one scale, in the order `d`, `m` (if any), high bits (if any), codes.
//!
//! A byte of 4-bit codes holds element `i` low and element `i + 16` high.

use super::{CodeShape, Layout, scale_at};

const GROUP: usize = 32;

/// d f16, codes 16 B.
pub(super) const Q4_0: Layout = Layout {
    codes: CodeShape { group: GROUP, code_max: 15, signed_zero: 8 },
    scales_at: &[0],
    unpack: |block, codes, scales, _| {
        scales[0] = scale_at(block, 0);
        nibbles(&block[2..18], codes);
    },
};

/// d f16, m f16, codes 16 B.
pub(super) const Q4_1: Layout = Layout {
    codes: CodeShape { group: GROUP, code_max: 15, signed_zero: 0 },
    scales_at: &[0, 2],
    unpack: |block, codes, scales, mins| {
        scales[0] = scale_at(block, 0);
        mins[0] = scale_at(block, 2);
        nibbles(&block[4..20], codes);
    },
};

/// d f16, fifth bits u32, low codes 16 B.
pub(super) const Q5_0: Layout = Layout {
    codes: CodeShape { group: GROUP, code_max: 31, signed_zero: 16 },
    scales_at: &[0],
    unpack: |block, codes, scales, _| {
        scales[0] = scale_at(block, 0);
        nibbles(&block[6..22], codes);
        fifth_bits(&block[2..6], codes);
    },
};

/// d f16, m f16, fifth bits u32, low codes 16 B.
pub(super) const Q5_1: Layout = Layout {
    codes: CodeShape { group: GROUP, code_max: 31, signed_zero: 0 },
    scales_at: &[0, 2],
    unpack: |block, codes, scales, mins| {
        scales[0] = scale_at(block, 0);
        mins[0] = scale_at(block, 2);
        nibbles(&block[8..24], codes);
        fifth_bits(&block[4..8], codes);
    },
};

/// d f16, codes 32 B, signed.
pub(super) const Q8_0: Layout = Layout {
    codes: CodeShape { group: GROUP, code_max: 255, signed_zero: 128 },
    scales_at: &[0],
    unpack: |block, codes, scales, _| {
        scales[0] = scale_at(block, 0);
        // Flipping the sign bit of a two's complement byte adds 128.
        codes.iter_mut().zip(&block[2..34]).for_each(|(code, &byte)| *code = byte ^ 0x80);
    },
};

fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Bit `i` of the little-endian word is the fifth bit of code `i`.
fn fifth_bits(word: &[u8], codes: &mut [u8]) {
    for (codes, &byte) in codes.chunks_exact_mut(8).zip(word) {
        codes.iter_mut().enumerate().for_each(|(bit, code)| *code |= (byte >> bit & 1) << 4);
    }
}
