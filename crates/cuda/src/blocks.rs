//! How a weight lies in device memory: the codes and scales of the file, of the same size, in the
//! order in which tensor cores are fed.
//!
//! A *block* is 16 rows and 64 columns, four steps of 16 columns. Lane `4 g + t` of a warp has
//! rows `g` and `g + 8` (`half` 0 and 1) and columns `16 t` to `16 t + 15`, four of each step: two
//! values (`second` 0) and two more (`second` 1), each a *pair*. So one scale is for all that a
//! lane has of a row. A block holds, lane by lane:
//! - plain types: of each step the pairs (half, second) 00, 10, 01, 11; f32 in two pieces, by half
//! - Q8_0: codes + 128, in two pieces of two steps: of each step and half the first values of its
//!   pairs, then the second ones, taking turns; then scales `[g, group, half]` f16
//! - 4-bit codes: a word a step, first values from bit 0 and second ones from bit 16, pairs in the
//!   order above; then scales: `[g, group, half]` f16 (Q4_0) or (d, m) (Q4_1); for Q4_K see `q4_k`
//! - Q6_K: low bits as above, then a word for two steps with two high bits each, in the same order;
//!   then scales `[g, t, half]` i8
//!
//! Eight blocks, 128 rows, lie one under the other, then the next 64 columns. What four blocks of a
//! super-block share goes before them: `[8 blocks, g, half]` (d, dmin) of Q4_K, d of Q6_K, f16.
//! Rows are padded to 128 and columns to 64, with zeros.

use ignis_formats::quant;
use ignis_types::DType;

use crate::units::format_of;

/// Rows of a block, and of the blocks that lie together.
const BLOCK_ROWS: usize = 16;
pub(crate) const GROUP_ROWS: usize = 128;
const BLOCK_COLS: usize = 64;

/// Bytes of one block, of what its rows share over `span` blocks, and that number.
struct Record {
    block: usize,
    shared: usize,
    span: usize,
}

fn record(dtype: DType) -> Record {
    let (block, shared, span) = match dtype {
        DType::F32 => (4096, 0, 1),
        DType::F16 | DType::BF16 => (2048, 0, 1),
        DType::Q8_0 => (1088, 0, 1),
        DType::Q4_0 => (576, 0, 1),
        DType::Q4_1 => (640, 0, 1),
        DType::Q4K => (560, 64, 4),
        DType::Q6K => (832, 32, 4),
        other => unreachable!("{other} was refused at bind"),
    };
    Record { block, shared, span }
}

/// Bytes of 128 rows of a matrix with `cols` columns; `None` where no kernel reads it.
pub(crate) fn group_bytes(dtype: DType, cols: u32) -> Option<usize> {
    format_of(dtype)?;
    let cols = cols as usize;
    if cols == 0 || !cols.is_multiple_of(dtype.block_elements() as usize) {
        return None;
    }
    let Record { block, shared, span } = record(dtype);
    let spans = cols.div_ceil(BLOCK_COLS * span);
    Some(spans * 8 * (span * block + shared))
}

/// Where a value lies in its block.
struct Place {
    lane: usize,
    step: usize,
    half: usize,
    /// 2 `second` + `half`: the place of its pair.
    pair: usize,
    odd: usize,
}

fn place(row: usize, col: usize) -> Place {
    let half = row % BLOCK_ROWS / 8;
    Place {
        lane: 4 * (row % 8) + col % BLOCK_COLS / 16,
        step: col % 16 / 4,
        half,
        pair: half + 2 * (col % 4 / 2),
        odd: col % 2,
    }
}

/// Writes 128 rows into their place, `out`, which holds zeros. `rows` are the stored rows, fewer at
/// the end of a matrix.
pub(crate) fn write_group(dtype: DType, rows: &[&[u8]], out: &mut [u8]) {
    for (row, stored) in rows.iter().enumerate() {
        let mut to = Target { out, record: record(dtype), row };
        match dtype {
            DType::F32 => plain::<4>(stored, &mut to),
            DType::F16 | DType::BF16 => plain::<2>(stored, &mut to),
            DType::Q8_0 => q8_0(stored, &mut to),
            DType::Q4_0 => nibbles::<18, 2>(stored, &mut to),
            DType::Q4_1 => nibbles::<20, 4>(stored, &mut to),
            DType::Q4K => q4_k(stored, &mut to),
            DType::Q6K => q6_k(stored, &mut to),
            other => unreachable!("{other} was refused at bind"),
        }
    }
}

/// The blocks of one row.
struct Target<'a> {
    out: &'a mut [u8],
    record: Record,
    row: usize,
}

impl Target<'_> {
    fn span_at(&self, block: usize) -> usize {
        let Record { block: bytes, shared, span } = self.record;
        block / span * 8 * (span * bytes + shared)
    }

    /// The block that holds columns `64 block ..`.
    fn block(&mut self, block: usize) -> &mut [u8] {
        let Record { block: bytes, shared, span } = self.record;
        let tile = self.row / BLOCK_ROWS;
        let at = self.span_at(block) + 8 * shared + (block % span * 8 + tile) * bytes;
        &mut self.out[at..at + bytes]
    }

    /// What the row shares with the blocks beside.
    fn shared(&mut self, block: usize) -> &mut [u8] {
        let bytes = self.record.shared;
        let at = self.span_at(block) + self.row / BLOCK_ROWS * bytes;
        &mut self.out[at..at + bytes]
    }

    fn g_half(&self) -> (usize, usize) {
        (self.row % 8, self.row % BLOCK_ROWS / 8)
    }
}

/// Values of `N` bytes, two by two; the last of an odd number by itself.
fn plain<const N: usize>(stored: &[u8], to: &mut Target<'_>) {
    let row = to.row;
    for (b, values) in stored.chunks(BLOCK_COLS * N).enumerate() {
        let block = to.block(b);
        for (i, pair) in values.chunks(2 * N).enumerate() {
            let Place { lane, step, half, pair: at, .. } = place(row, 2 * i);
            let start = match N {
                2 => step * 512 + lane * 16 + at * 4,
                _ => (2 * step + half) * 512 + lane * 16 + at / 2 * 8,
            };
            block[start..start + pair.len()].copy_from_slice(pair);
        }
    }
}

fn q8_0(stored: &[u8], to: &mut Target<'_>) {
    let (row, (g, half)) = (to.row, to.g_half());
    for (i, group) in stored.chunks_exact(34).enumerate() {
        let block = to.block(i / 2);
        let scale = 1024 + g * 8 + i % 2 * 4 + half * 2;
        block[scale..scale + 2].copy_from_slice(&group[..2]);
        for (c, code) in group[2..].iter().enumerate() {
            let Place { lane, step, half, pair, odd } = place(row, i % 2 * 32 + c);
            let word = 2 * step + half;
            let at = word / 4 * 512 + lane * 16 + word % 4 * 4 + pair / 2 + 2 * odd;
            block[at] = code ^ 0x80;
        }
    }
}

/// Puts a code below 16 of column `col` of `row` into its block.
fn put_nibble(block: &mut [u8], row: usize, col: usize, code: u8) {
    let Place { lane, step, pair, odd, .. } = place(row, col);
    let bit = 4 * pair + 16 * odd;
    block[lane * 16 + step * 4 + bit / 8] |= code << (bit % 8);
}

/// Blocks of `HEAD` bytes of scales and 16 of codes, `BLOCK` in all.
fn nibbles<const BLOCK: usize, const HEAD: usize>(stored: &[u8], to: &mut Target<'_>) {
    let (row, (g, half)) = (to.row, to.g_half());
    for (i, group) in stored.chunks_exact(BLOCK).enumerate() {
        let block = to.block(i / 2);
        let scale = 512 + HEAD * (g * 4 + i % 2 * 2 + half);
        block[scale..scale + HEAD].copy_from_slice(&group[..HEAD]);
        for c in 0..32 {
            let code = group[HEAD + c % 16] >> (4 * (c / 16)) & 15;
            put_nibble(block, row, i % 2 * 32 + c, code);
        }
    }
}

/// Six-bit scales and minima of a group of 32 columns of rows g and g + 8 have 24 bits: from 0 and
/// 16 those of row g; from 6 the scale of row g + 8, from 22 the low two bits of its minimum and
/// from 12 the others. The low 16 bits lie in `[g, group]` u16, the rest in `[g, group]` u8 behind.
fn q4_k(stored: &[u8], to: &mut Target<'_>) {
    let (row, (g, half)) = (to.row, to.g_half());
    for (s, super_block) in stored.chunks_exact(144).enumerate() {
        let (head, codes) = super_block.split_at(16);
        let shared = g * 8 + half * 4;
        to.shared(4 * s)[shared..shared + 4].copy_from_slice(&head[..4]);
        for b in 0..4 {
            let block = to.block(4 * s + b);
            for c in 0..64 {
                let code = codes[32 * b + c % 32] >> (4 * (c / 32)) & 15;
                put_nibble(block, row, c, code);
            }
            for group in 0..2 {
                let (d, m) = q4_k_scale(&head[4..], 2 * b + group);
                let bits =
                    if half == 0 { d | m << 16 } else { d << 6 | m >> 2 << 12 | (m & 3) << 22 };
                let at = 2 * g + group;
                or_bytes(&mut block[512 + 2 * at..], &bits.to_le_bytes()[..2]);
                block[544 + at] |= (bits >> 16) as u8;
            }
        }
    }
}

/// Scale and minimum of group `i` of eight, from the twelve bytes that hold them.
fn q4_k_scale(bytes: &[u8], i: usize) -> (u32, u32) {
    let byte = |at: usize| u32::from(bytes[at]);
    if i < 4 {
        return (byte(i) & 63, byte(i + 4) & 63);
    }
    let both = byte(i + 4);
    (both & 15 | (byte(i - 4) >> 6) << 4, both >> 4 | (byte(i) >> 6) << 4)
}

fn or_bytes(to: &mut [u8], bits: &[u8]) {
    for (to, bits) in to.iter_mut().zip(bits) {
        *to |= bits;
    }
}

fn q6_k(stored: &[u8], to: &mut Target<'_>) {
    let (row, (g, half)) = (to.row, to.g_half());
    let (mut codes, mut d, mut m) = ([0u8; 256], [0f32; 16], [0f32; 16]);
    for (s, super_block) in stored.chunks_exact(210).enumerate() {
        quant::unpack_codes(DType::Q6K, super_block, &mut codes, &mut d, &mut m)
            .expect("the arrays have the size of a block");
        let shared = g * 4 + half * 2;
        to.shared(4 * s)[shared..shared + 2].copy_from_slice(&super_block[208..210]);
        for b in 0..4 {
            let block = to.block(4 * s + b);
            for t in 0..4 {
                block[768 + g * 8 + t * 2 + half] = super_block[192 + 4 * b + t];
            }
            for c in 0..64 {
                let code = codes[64 * b + c];
                put_nibble(block, row, c, code & 15);
                let Place { lane, step, pair, odd, .. } = place(row, c);
                let bit = 2 * (pair + step % 2 * 4) + 16 * odd;
                block[512 + lane * 8 + step / 2 * 4 + bit / 8] |= (code >> 4) << (bit % 8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code at a column, read as the kernels do.
    fn code_at(dtype: DType, block: &[u8], row: usize, col: usize) -> u8 {
        let Place { lane, step, half, pair, odd } = place(row, col);
        if dtype == DType::Q8_0 {
            let word = 2 * step + half;
            return block[word / 4 * 512 + lane * 16 + word % 4 * 4 + pair / 2 + 2 * odd];
        }
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let low = (word(lane * 16 + step * 4) >> (4 * pair + 16 * odd) & 15) as u8;
        if dtype != DType::Q6K {
            return low;
        }
        let high = word(512 + lane * 8 + step / 2 * 4) >> (2 * (pair + step % 2 * 4) + 16 * odd);
        low | ((high & 3) as u8) << 4
    }

    fn random(len: usize, seed: u32) -> Vec<u8> {
        let mut state = seed;
        let next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    }

    /// Rows of one group and what they become.
    fn packed(dtype: DType, cols: usize, rows: usize) -> (Vec<Vec<u8>>, Vec<u8>) {
        let blocks = cols / dtype.block_elements() as usize;
        let len = blocks * dtype.block_bytes() as usize;
        let stored: Vec<Vec<u8>> = (0..rows).map(|row| random(len, row as u32 + 7)).collect();
        let mut out = vec![0; group_bytes(dtype, cols as u32).unwrap()];
        let views: Vec<&[u8]> = stored.iter().map(Vec::as_slice).collect();
        write_group(dtype, &views, &mut out);
        (stored, out)
    }

    #[test]
    fn blocks_hold_the_codes_of_the_file() {
        for (dtype, cols) in [
            (DType::Q8_0, 32),
            (DType::Q8_0, 160),
            (DType::Q4_0, 64),
            (DType::Q4_1, 96),
            (DType::Q4K, 512),
            (DType::Q6K, 512),
        ] {
            let (stored, mut out) = packed(dtype, cols, 128);
            let groups = cols / quant::code_shape(dtype).unwrap().group;
            for (row, stored) in stored.iter().enumerate() {
                let mut expected = vec![0; cols];
                let (mut d, mut m) = (vec![0.0; groups], vec![0.0; groups]);
                quant::unpack_codes(dtype, stored, &mut expected, &mut d, &mut m).unwrap();
                let mut target = Target { out: &mut out, record: record(dtype), row };
                for (col, code) in expected.iter().enumerate() {
                    let block = target.block(col / 64);
                    assert_eq!(code_at(dtype, block, row, col), *code, "{dtype} {row} {col}");
                }
            }
        }
    }

    #[test]
    fn blocks_hold_the_last_of_an_odd_number_of_values() {
        let (stored, out) = packed(DType::BF16, 65, 2);
        for (row, stored) in stored.iter().enumerate() {
            // The second block's first column, step 0 of lane 4 row.
            let at = 8 * 2048 + row * 4 * 16;
            assert_eq!(out[at..at + 4], [stored[128], stored[129], 0, 0], "{row}");
        }
    }

    #[test]
    fn scales_of_q4_k_are_where_the_kernels_look() {
        let (stored, mut out) = packed(DType::Q4K, 256, 128);
        for (row, stored) in stored.iter().enumerate() {
            let mut target = Target { out: &mut out, record: record(DType::Q4K), row };
            let (g, half) = target.g_half();
            for b in 0..4 {
                let block = target.block(b);
                for group in 0..2 {
                    let at = 2 * g + group;
                    let low = u16::from_le_bytes(block[512 + 2 * at..][..2].try_into().unwrap());
                    let bits = u32::from(low) | u32::from(block[544 + at]) << 16;
                    let pair = if half == 0 {
                        bits
                    } else {
                        bits >> 6 & 0x0003_003f | bits << 6 & 0x003c_0000
                    };
                    let found = (pair & 63, pair >> 16 & 63);
                    assert_eq!(
                        found,
                        q4_k_scale(&stored[4..16], 2 * b + group),
                        "{row} {b} {group}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_group_has_the_size_of_its_stored_rows_and_padding() {
        for dtype in [DType::BF16, DType::F32, DType::Q8_0, DType::Q4_1, DType::Q4K, DType::Q6K] {
            let row = 512 / dtype.block_elements() * dtype.block_bytes();
            assert_eq!(group_bytes(dtype, 512), Some(128 * row as usize), "{dtype}");
        }
        assert_eq!(group_bytes(DType::Q8_0, 96), group_bytes(DType::Q8_0, 128));
    }

    #[test]
    fn what_no_kernel_reads_has_no_blocks() {
        assert!(group_bytes(DType::Q5K, 256).is_none());
        assert!(group_bytes(DType::Q8_0, 40).is_none());
        assert!(group_bytes(DType::Q4K, 128).is_none());
    }
}
