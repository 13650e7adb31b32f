//! The contract, read word by word: no panels, no lanes, no records.

use ignis_formats::quant;
use ignis_types::DType;

use super::super::Encoding;
use super::Case;

/// One row of weights as codes; `d` and `m` for every 16 columns.
struct Codes {
    u: Vec<u8>,
    d: Vec<f32>,
    m: Vec<f32>,
    halves: bool,
}

fn codes(case: &Case, row: usize) -> Codes {
    let row_bytes = case.stored.len() / case.rows as usize;
    let (shape, cols) = (quant::code_shape(case.dtype).unwrap(), case.cols as usize);
    let (mut u, groups) = (vec![0; cols], cols / shape.group);
    let (mut d, mut m) = (vec![0.0; groups], vec![0.0; groups]);
    let stored = &case.stored[row * row_bytes..][..row_bytes];
    quant::unpack_codes(case.dtype, stored, &mut u, &mut d, &mut m).unwrap();
    let every_16 = |of: &[f32]| (0..cols / 16).map(|at| of[at * 16 / shape.group]).collect();
    Codes { u, d: every_16(&d), m: every_16(&m), halves: shape.group == 16 }
}

/// Weights as f32, `[rows, cols]`.
pub(super) fn values(case: &Case) -> Vec<f32> {
    let mut out = vec![0.0; case.rows as usize * case.cols as usize];
    quant::dequantize(case.dtype, &case.stored, &mut out).unwrap();
    out
}

fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// `y[t, n]` by the contract.
pub(super) fn product(
    case: &Case,
    x: &[Vec<f32>],
    encoding: Encoding,
    bias: Option<&[f32]>,
    before: Option<f32>,
) -> Vec<f32> {
    let is_float = matches!(case.dtype, DType::F32 | DType::F16 | DType::BF16);
    let floats = is_float.then(|| values(case));
    let mut y = vec![0.0; x.len() * case.rows as usize];
    for n in 0..case.rows as usize {
        let codes = (!is_float).then(|| codes(case, n));
        for (t, x) in x.iter().enumerate() {
            let acc = match (&floats, &codes) {
                (Some(w), _) => {
                    let w = &w[n * x.len()..][..x.len()];
                    w.iter().zip(x).fold(0.0, |acc, (&w, &x)| fma(w, x, acc))
                }
                (_, Some(w)) if encoding == Encoding::F32 => (0..x.len()).fold(0.0, |acc, k| {
                    let w = fma(w.d[k / 16], f32::from(w.u[k]), w.m[k / 16]);
                    fma(w, x[k], acc)
                }),
                (_, Some(w)) => encoded(w, x, encoding),
                _ => unreachable!(),
            };
            let acc = bias.map_or(acc, |bias| acc + bias[n]);
            y[t * case.rows as usize + n] = before.map_or(acc, |before| before + acc);
        }
    }
    y
}

fn encoded(w: &Codes, x: &[f32], encoding: Encoding) -> f32 {
    let q_max: f32 = if encoding == Encoding::Int8 { 127.0 } else { 32512.0 };
    let mut acc = 0.0;
    for (g, x) in x.chunks_exact(32).enumerate() {
        let is_plain = x.iter().all(|x| x.is_finite());
        let a = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
        let (mut d, mut q) = (a / q_max, [0i64; 32]);
        if !is_plain {
            d = f32::NAN;
        } else if a < 2f32.powi(-96) {
            d = 0.0;
        } else {
            for (q, x) in q.iter_mut().zip(x) {
                *q = (x * (q_max / a)).round_ties_even() as i64;
                assert!(q.unsigned_abs() <= q_max as u64);
            }
        }
        let u = &w.u[32 * g..][..32];
        let dot =
            |from: usize, to: usize| (from..to).map(|k| i64::from(u[k]) * q[k]).sum::<i64>() as f32;
        let s = |from: usize, to: usize| d * q[from..to].iter().sum::<i64>() as f32;
        let (dw, mw) = (&w.d[2 * g..][..2], &w.m[2 * g..][..2]);
        if w.halves {
            acc = fma(dw[0] * d, dot(0, 16), acc);
            acc = fma(dw[1] * d, dot(16, 32), acc);
            acc = fma(mw[0], s(0, 16), acc);
            acc = fma(mw[1], s(16, 32), acc);
        } else {
            acc = fma(dw[0] * d, dot(0, 32), acc);
            acc = fma(mw[0], s(0, 32), acc);
        }
    }
    acc
}
