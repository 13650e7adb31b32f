//! One table of cases, run against every instruction set and against a naive reading of the
//! contract.

mod naive;
mod products;
mod rows;

use ignis_types::DType;

use super::*;

/// Dtypes that can be packed.
const DTYPES: [DType; 13] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

/// A small generator, so that a failing case can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn row(&mut self, cols: usize) -> Vec<f32> {
        let size = 10f32.powf(self.unit());
        (0..cols).map(|_| size * self.unit() * self.unit().abs()).collect()
    }
}

/// Any codes, with scales of a plausible size.
fn stored_matrix(dtype: DType, rows: u32, cols: u32, random: &mut Random) -> Vec<u8> {
    let elements = u64::from(rows) * u64::from(cols);
    let bytes = dtype.bytes_of(elements).unwrap().expect("whole blocks").as_usize();
    let mut stored: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
    let scales_at: &[usize] = match dtype {
        DType::F32 => {
            for value in stored.chunks_exact_mut(4) {
                value.copy_from_slice(&random.unit().to_le_bytes());
            }
            return stored;
        }
        DType::F16 => {
            for value in stored.chunks_exact_mut(2) {
                value.copy_from_slice(&half::f16::from_f32(random.unit()).to_le_bytes());
            }
            return stored;
        }
        DType::BF16 => {
            for value in stored.chunks_exact_mut(2) {
                value.copy_from_slice(&half::bf16::from_f32(random.unit()).to_le_bytes());
            }
            return stored;
        }
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::I32 => unreachable!("not packed"),
    };
    for block in stored.chunks_exact_mut(dtype.block_bytes() as usize) {
        for &at in scales_at {
            let scale = half::f16::from_f32(0.02 * random.unit());
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    stored
}

/// Bytes at an address that is a multiple of 64.
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Aligned {
    fn zeroed(len: usize) -> Aligned {
        let bytes = vec![0; len + 64];
        let from = bytes.as_ptr().align_offset(64);
        Aligned { bytes, from, len }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.from..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..][..self.len]
    }
}

/// A stored matrix and its packed bytes.
struct Case {
    dtype: DType,
    rows: u32,
    cols: u32,
    stored: Vec<u8>,
    packed: Aligned,
}

impl Case {
    fn new(dtype: DType, rows: u32, cols: u32, random: &mut Random) -> Case {
        let stored = stored_matrix(dtype, rows, cols, random);
        let bytes = packed_bytes(dtype, rows, cols).unwrap().as_usize();
        let mut packed = Aligned::zeroed(bytes);
        pack(dtype, rows, cols, None, &stored, packed.get_mut()).unwrap();
        Case { dtype, rows, cols, stored, packed }
    }

    fn matrix(&self) -> Matrix {
        // SAFETY: the bytes were packed for this shape and live as long as the case.
        unsafe { Matrix::new(self.dtype, self.rows, self.cols, self.packed.get().as_ptr()) }
    }
}

fn encoded(isa: Isa, x: &[Vec<f32>], encoding: Encoding) -> Aligned {
    let stride = encoded_row_bytes(x[0].len() as u32, encoding);
    let mut bytes = Aligned::zeroed(stride * x.len());
    for (x, out) in x.iter().zip(bytes.get_mut().chunks_exact_mut(stride)) {
        encode_row_on(isa, x, encoding, out);
    }
    bytes
}

/// One product into a `y` that is filled with `before`, `stride` values a row.
fn product(
    isa: Isa,
    case: &Case,
    x: &[Vec<f32>],
    encoding: Encoding,
    bias: Option<&[f32]>,
    before: Option<f32>,
    splits: &[u32],
) -> Vec<f32> {
    const GUARD: f32 = 12345.0;
    let stride = case.rows as usize + 3;
    let enc = encoded(isa, x, encoding);
    let mut y = vec![before.unwrap_or(7.0); stride * x.len()];
    for row in y.chunks_exact_mut(stride) {
        row[case.rows as usize..].fill(GUARD);
    }
    let mut start = 0;
    for end in splits.iter().copied().chain([panels(case.rows)]) {
        // SAFETY: every slice has the rows and columns of the case.
        unsafe {
            run(
                isa,
                &case.matrix(),
                encoding,
                enc.get().as_ptr(),
                x.len(),
                y.as_mut_ptr(),
                stride,
                bias.map(|bias| bias.as_ptr()),
                before.is_some(),
                start..end,
            );
        }
        start = end;
    }
    for row in y.chunks_exact(stride) {
        assert_eq!(row[case.rows as usize..], [GUARD; 3], "wrote behind the results");
    }
    y.chunks_exact(stride).flat_map(|row| &row[..case.rows as usize]).copied().collect()
}

#[track_caller]
fn assert_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(same, "{what}: result {at} is {found:?}, expected {expected:?}");
    }
}
