//! Products in float64, and how far from them those of a load may be.

use ignis_formats::quant;
use ignis_ops::{WeightId, WeightSpec};
use ignis_types::DType;

use crate::bench::Made;
use crate::exact::{BF16, Exact, F32, PAIR};
use crate::load::Load;

/// Slices that a card sums a row of columns in, and from how many columns on they are twice as
/// many: `SLICES` and `BLOCKS_LONG` of `products.cuh`.
const SLICES: u32 = 8;
const COLS_LONG: u32 = 128 * 64;

/// The most that one step of a tensor core changes, in parts of the sizes of all it adds: sixteen
/// products and a sum, aligned to the largest of them and cut at 24 bits.
pub(crate) const MMA: f64 = 16.0 * F32;

/// A matrix as a load reads it.
pub(crate) struct Matrix {
    dtype: DType,
    load: Load,
    cols: usize,
    /// `[rows, cols]`
    values: Vec<f64>,
    /// The most that each value's own rounding can change, relative.
    own: f64,
    /// Roundings that columns share.
    shared: Vec<Shared>,
}

/// A rounding of a scale or a minimum, which `span` columns of a row share.
struct Shared {
    span: usize,
    /// What of each value it is a factor of, `[rows, cols]`.
    part: Vec<f64>,
}

impl Matrix {
    pub(crate) fn new(load: Load, made: &Made, id: WeightId) -> Matrix {
        let spec = made.program.weight(id);
        let bytes = &made.stored[id.0 as usize];
        let mut values = vec![0f32; spec.rows as usize * spec.cols as usize];
        quant::dequantize(spec.dtype, bytes, &mut values).unwrap();
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let (dtype, cols) = (spec.dtype, spec.cols as usize);
        // In pairs values are taken in f32; on the CPU, as they are.
        let pairs = load.is_card() && !load.is_bf16();
        let (own, shared) = match load.is_bf16() {
            _ if dtype == DType::BF16 => (0.0, vec![]),
            true => (BF16, shared(spec, bytes, &values)),
            false => (if pairs { PAIR } else { 0.0 }, vec![]),
        };
        Matrix { dtype, load, cols, values, own, shared }
    }

    pub(crate) fn rows(&self) -> usize {
        self.values.len() / self.cols
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }

    /// Each row's product with `x`.
    pub(crate) fn times(&self, x: &[f64], precise: bool) -> Vec<Exact> {
        let rounded = self.load.input_roundings(x, self.dtype, precise);
        (0..self.rows()).map(|row| self.product(row, x, &rounded)).collect()
    }

    fn product(&self, row: usize, x: &[f64], rounded: &[f64]) -> Exact {
        let mut y = Exact::default();
        let mut size = 0.0;
        for ((w, x), rounded) in self.row(row).iter().zip(x).zip(rounded) {
            y.value += w * x;
            size += (w * x).abs();
            let (of_x, of_w) = ((w * rounded).abs(), self.own * (w * x).abs());
            y.sum += of_x + of_w;
            y.square += of_x * of_x + of_w * of_w;
        }
        for Shared { span, part } in &self.shared {
            let part = &part[row * self.cols..][..self.cols];
            for (part, x) in part.chunks(*span).zip(x.chunks(*span)) {
                let sum: f64 = part.iter().zip(x).map(|(w, x)| w * x).sum();
                y = y.round(BF16 * sum.abs());
            }
        }
        self.summed(y, size)
    }

    /// With what summing can change, of products whose sizes sum to `size`: on the CPU one rounding
    /// a column, each of at most all of it; on a card the steps of the longest slice one after the
    /// other (four a block of 64 columns, and as many again for each pair), then the slices.
    fn summed(&self, y: Exact, size: f64) -> Exact {
        let cols = self.cols as f64;
        if !self.load.is_card() {
            let sums = Exact {
                sum: y.sum + cols * F32 * size,
                square: y.square + cols * (F32 * size).powi(2),
                ..y
            };
            return sums.within(4.0 * F32 * size);
        }
        let slices = match self.cols as u32 {
            _ if self.load.is_fast() => 1,
            COLS_LONG.. if self.load.is_bf16() => 2 * SLICES,
            _ => SLICES,
        };
        // Four blocks that share a scale are in one slice.
        let blocks = (self.cols as u32).div_ceil(256).div_ceil(slices) * 4;
        let each = if self.load.is_bf16() { 4 } else { 16 };
        y.within((f64::from(blocks * each) * MMA + f64::from(slices + 4) * F32) * size)
    }
}

/// What is rounded of a quantised matrix beside its values: scales, as the codes' factor, and
/// minima; of Q4_K those of 256 columns, and again those of 32.
fn shared(spec: &WeightSpec, bytes: &[u8], values: &[f64]) -> Vec<Shared> {
    let Some(shape) = quant::code_shape(spec.dtype) else { return vec![] };
    if shape.signed_zero > 0 {
        return vec![Shared { span: shape.group, part: values.to_vec() }];
    }
    let mut codes = vec![0; values.len()];
    let [mut scales, mut mins] = [(); 2].map(|()| vec![0f32; values.len() / shape.group]);
    quant::unpack_codes(spec.dtype, bytes, &mut codes, &mut scales, &mut mins).unwrap();
    let min = |i: usize| f64::from(mins[i / shape.group]);
    let scaled: Vec<f64> = values.iter().enumerate().map(|(i, value)| value - min(i)).collect();
    let mins: Vec<f64> = (0..values.len()).map(min).collect();
    let spans: &[usize] = if spec.dtype == DType::Q4K { &[32, 256] } else { &[32] };
    let both = |&span: &usize| {
        [&scaled, &mins]
            .map(|part| Shared { span: span.min(spec.cols as usize), part: part.clone() })
    };
    spans.iter().flat_map(both).collect()
}
