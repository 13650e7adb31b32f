//! How a weight lies in device memory: the codes and scales of the file, bit for bit and of the
//! same size, in an order that tensor cores can be fed from.
//!
//! A row is cut into groups of 32 columns. In *fragment order* thread `t` (of 4) finds its eight
//! columns side by side: place `8t + 4i + e` holds column `16i + 4t + e`. Then, by format:
//! - plain types: each group in fragment order
//! - Q8_0: pairs of groups; thread by thread, 8 codes of each. Then scales [rows, groups] f16
//! - 4-bit codes: runs of four groups; thread by thread, a word of each: bit `4p` holds place `2p`,
//!   bit `16 + 4p` place `2p + 1`. Then what the format keeps beside its codes: a scale (Q4_0),
//!   scale and minimum (Q4_1) a group, or the 16 bytes of a super-block (Q4_K)
//! - Q6_K: low four bits as above; high two bits, a half word for each word of low bits: bit `2p`
//!   place `2p`, bit `8 + 2p` place `2p + 1`; scales [rows, super-blocks, 16] i8; f16 [rows,
//!   super-blocks]
//!
//! A last run of fewer groups is laid out as narrow as it is. So the planes fill what the stored
//! blocks did: `StoredLayout` counts them by the dtype's own size.

use ignis_formats::quant;
use ignis_types::DType;

use crate::kernels::format_of;

/// Columns that share a scale, and that a tensor-core step takes.
pub(crate) const GROUP: usize = 32;

/// Bytes of one row in each plane. Planes follow each other, each `[rows, bytes]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowBytes {
    pub(crate) codes: usize,
    pub(crate) high: usize,
    pub(crate) scales: usize,
    pub(crate) supers: usize,
}

/// The planes of a matrix; `None` where no kernel reads it.
pub(crate) fn row_bytes(dtype: DType, cols: u32) -> Option<RowBytes> {
    format_of(dtype)?;
    let cols = cols as usize;
    let whole = (dtype.block_elements() as usize).max(GROUP);
    if cols == 0 || !cols.is_multiple_of(whole) {
        return None;
    }
    let (groups, supers) = (cols / 32, cols / 256);
    let (codes, high, scales, supers) = match dtype {
        DType::F32 => (4 * cols, 0, 0, 0),
        DType::F16 | DType::BF16 => (2 * cols, 0, 0, 0),
        DType::Q8_0 => (cols, 0, 2 * groups, 0),
        DType::Q4_0 => (cols / 2, 0, 2 * groups, 0),
        DType::Q4_1 => (cols / 2, 0, 4 * groups, 0),
        DType::Q4K => (cols / 2, 0, 16 * supers, 0),
        _ => (cols / 2, cols / 4, 16 * supers, 2 * supers),
    };
    Some(RowBytes { codes, high, scales, supers })
}

/// One row of each plane, to be written.
pub(crate) struct Row<'a> {
    pub(crate) codes: &'a mut [u8],
    pub(crate) high: &'a mut [u8],
    pub(crate) scales: &'a mut [u8],
    pub(crate) supers: &'a mut [u8],
}

/// Writes a stored row of whole groups into its planes. `row_bytes` gave the sizes.
pub(crate) fn write_row(dtype: DType, stored: &[u8], row: Row<'_>) {
    match dtype {
        DType::F32 => plain::<16>(stored, row.codes),
        DType::F16 | DType::BF16 => plain::<8>(stored, row.codes),
        DType::Q8_0 => bytes(stored, row),
        DType::Q4_0 => nibbles::<18, 2>(stored, row),
        DType::Q4_1 => nibbles::<20, 4>(stored, row),
        DType::Q4K => q4_k(stored, row),
        DType::Q6K => q6_k(stored, row),
        other => unreachable!("{other} was refused at bind"),
    }
}

/// Four columns, `N` bytes, stay together.
fn plain<const N: usize>(stored: &[u8], codes: &mut [u8]) {
    for (from, to) in stored.chunks_exact(8 * N).zip(codes.chunks_exact_mut(8 * N)) {
        for t in 0..4 {
            for i in 0..2 {
                to[(2 * t + i) * N..][..N].copy_from_slice(&from[(4 * i + t) * N..][..N]);
            }
        }
    }
}

fn bytes(stored: &[u8], row: Row<'_>) {
    let groups = stored.len() / 34;
    for (g, block) in stored.chunks_exact(34).enumerate() {
        row.scales[2 * g..2 * g + 2].copy_from_slice(&block[..2]);
        let held = 2.min(groups - g / 2 * 2);
        for t in 0..4 {
            for i in 0..2 {
                let to = g / 2 * 64 + (t * held + g % 2) * 8 + 4 * i;
                row.codes[to..to + 4].copy_from_slice(&block[2 + 16 * i + 4 * t..][..4]);
            }
        }
    }
}

/// Codes below 16 of one group as the words of four threads.
fn words(codes: impl Fn(usize) -> u8) -> [u32; 4] {
    std::array::from_fn(|t| {
        (0..8).fold(0, |word, place| {
            let col = place / 4 * 16 + 4 * t + place % 4;
            word | u32::from(codes(col)) << (place / 2 * 4 + place % 2 * 16)
        })
    })
}

/// Puts the words of group `g` of `groups` into its run.
fn put_words(codes: &mut [u8], g: usize, groups: usize, words: [u32; 4]) {
    let held = 4.min(groups - g / 4 * 4);
    for (t, word) in words.into_iter().enumerate() {
        let to = g / 4 * 64 + (t * held + g % 4) * 4;
        codes[to..to + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Blocks of `HEAD` bytes of scales and 16 of codes, `BLOCK` in all.
fn nibbles<const BLOCK: usize, const HEAD: usize>(stored: &[u8], row: Row<'_>) {
    let groups = stored.len() / BLOCK;
    for (g, block) in stored.chunks_exact(BLOCK).enumerate() {
        row.scales[HEAD * g..HEAD * (g + 1)].copy_from_slice(&block[..HEAD]);
        let code = |col: usize| block[HEAD + col % 16] >> (4 * (col / 16)) & 15;
        put_words(row.codes, g, groups, words(code));
    }
}

fn q4_k(stored: &[u8], row: Row<'_>) {
    let groups = stored.len() / 144 * 8;
    for (s, block) in stored.chunks_exact(144).enumerate() {
        row.scales[16 * s..16 * (s + 1)].copy_from_slice(&block[..16]);
        for g in 0..8 {
            let code = |col: usize| block[16 + g / 2 * 32 + col] >> (4 * (g % 2)) & 15;
            put_words(row.codes, 8 * s + g, groups, words(code));
        }
    }
}

fn q6_k(stored: &[u8], row: Row<'_>) {
    let groups = stored.len() / 210 * 8;
    let (mut codes, mut scales, mut mins) = ([0u8; 256], [0f32; 16], [0f32; 16]);
    for (s, block) in stored.chunks_exact(210).enumerate() {
        quant::unpack_codes(DType::Q6K, block, &mut codes, &mut scales, &mut mins)
            .expect("the arrays have the size of a block");
        row.scales[16 * s..16 * (s + 1)].copy_from_slice(&block[192..208]);
        row.supers[2 * s..2 * (s + 1)].copy_from_slice(&block[208..210]);
        for (g, codes) in codes.chunks_exact(GROUP).enumerate() {
            let g = 8 * s + g;
            put_words(row.codes, g, groups, words(|col| codes[col] & 15));
            for t in 0..4 {
                let half = (0..8).fold(0u16, |half, place| {
                    let col = place / 4 * 16 + 4 * t + place % 4;
                    half | u16::from(codes[col] >> 4) << (place / 2 * 2 + place % 2 * 8)
                });
                let to = (g / 4 * 16 + 4 * t + g % 4) * 2;
                row.high[to..to + 2].copy_from_slice(&half.to_le_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code at a column, read as the kernels do.
    fn code_at(dtype: DType, codes: &[u8], high: &[u8], cols: usize, col: usize) -> u8 {
        let (g, groups, col) = (col / 32, cols / 32, col % 32);
        let place = (col >> 2 & 3) * 8 + (col >> 4) * 4 + (col & 3);
        let (t, place) = (place / 8, place % 8);
        if dtype == DType::Q8_0 {
            let held = 2.min(groups - g / 2 * 2);
            return codes[g / 2 * 64 + (t * held + g % 2) * 8 + place];
        }
        let held = 4.min(groups - g / 4 * 4);
        let at = (g / 4 * 16 + t * held + g % 4) * 4;
        let word = u32::from_le_bytes(codes[at..at + 4].try_into().unwrap());
        let low = (word >> (place / 2 * 4 + place % 2 * 16) & 15) as u8;
        if dtype != DType::Q6K {
            return low;
        }
        let at = (g / 4 * 16 + t * 4 + g % 4) * 2;
        let half = u16::from_le_bytes(high[at..at + 2].try_into().unwrap());
        low | ((half >> (place / 2 * 2 + place % 2 * 8) & 3) as u8) << 4
    }

    #[test]
    fn planes_hold_the_codes_of_the_file_and_fill_its_size() {
        for (dtype, cols) in [
            (DType::Q8_0, 32),
            (DType::Q8_0, 96),
            (DType::Q4_0, 64),
            (DType::Q4_1, 128),
            (DType::Q4_0, 576),
            (DType::Q4K, 512),
            (DType::Q6K, 512),
        ] {
            let blocks = cols / dtype.block_elements() as usize;
            let len = blocks * dtype.block_bytes() as usize;
            let mut state = 7u32;
            let stored: Vec<u8> = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .collect();
            let sizes = row_bytes(dtype, cols as u32).unwrap();
            assert_eq!(sizes.codes + sizes.high + sizes.scales + sizes.supers, len);
            let [mut codes, mut high, mut scales, mut supers] =
                [sizes.codes, sizes.high, sizes.scales, sizes.supers].map(|n| vec![0xa5; n]);
            let row = Row {
                codes: &mut codes,
                high: &mut high,
                scales: &mut scales,
                supers: &mut supers,
            };
            write_row(dtype, &stored, row);
            let mut expected = vec![0; cols];
            let groups = cols / quant::code_shape(dtype).unwrap().group;
            let (mut d, mut m) = (vec![0.0; groups], vec![0.0; groups]);
            quant::unpack_codes(dtype, &stored, &mut expected, &mut d, &mut m).unwrap();
            // Signed bytes are kept signed.
            let flip = if dtype == DType::Q8_0 { 0x80 } else { 0 };
            for (col, code) in expected.iter().enumerate() {
                assert_eq!(code_at(dtype, &codes, &high, cols, col), code ^ flip, "{dtype} {col}");
            }
        }
    }

    #[test]
    fn what_no_kernel_reads_has_no_planes() {
        assert!(row_bytes(DType::Q5K, 256).is_none());
        assert!(row_bytes(DType::BF16, 40).is_none());
        assert!(row_bytes(DType::Q4K, 128).is_none());
    }
}
