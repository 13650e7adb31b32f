//! Gated activations: of two buffers, and of two products that a card makes in one launch.

use half::bf16;
use ignis_ops::{Linear, LinearPart, Op, SwiGlu, WeightKind};

use crate::bench::{Maker, random_rows, some_of, wide};
use crate::compare;
use crate::exact::{Exact, F32, F32_FUNCTION};
use crate::load::Load;
use crate::matrix::Matrix;
use crate::products::FORMATS;
use crate::rows::{ROWS_MAX, WIDTHS, linear, pick, run};

/// What each value becomes.
pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// How fast `silu` grows.
fn silu_slope(x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    sigmoid * (1.0 + x * (1.0 - sigmoid))
}

/// Activation and product.
pub(crate) fn swiglu(load: Load) {
    for width in WIDTHS {
        let picks = some_of(width);
        let mut maker = Maker::new();
        let [gate, up] = ["gate", "up"].map(|name| maker.rows(name, width));
        let y = maker.rows("y", picks.len() as u32);
        maker.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }));
        let by = maker.picks(&picks, width);
        maker.push(linear(gate, by, y));
        let made = maker.finish();
        assert_eq!(made.steps(), ["swiglu", "products"]);
        let [gates, ups] = [23, 24].map(|seed| random_rows(ROWS_MAX, width as usize, seed));
        let exact = |load| gated(load, &gates, &ups, width as usize, &picks);
        let found = |load| run(load, &made, &[(gate, &gates), (up, &ups)], y);
        compare(load, &format!("{load:?} swiglu of {width}"), picks.len(), found, exact);
    }
}

pub(crate) fn gated(
    load: Load,
    gates: &[f32],
    ups: &[f32],
    width: usize,
    picks: &[u32],
) -> Vec<Exact> {
    let value = |(&gate, &up): (&f32, &f32)| {
        let value = silu(gate.into()) * f64::from(up);
        // The exponent's own rounding counts as often as it is large.
        Exact::new(value).within((F32_FUNCTION + 2.0 * F32 * f64::from(gate).abs()) * value.abs())
    };
    let rows = gates.chunks(width).zip(ups.chunks(width));
    rows.flat_map(|(gates, ups)| {
        let row: Vec<Exact> = gates.iter().zip(ups).map(value).collect();
        pick(load, &row, picks)
    })
    .collect()
}

/// Gate and up as products, and the activation of both: one launch on a card that rounds to bf16.
pub(crate) fn gated_products(load: Load) {
    gated_picks(load);
    const COLS: usize = 512;
    for (dtype, inner) in FORMATS.into_iter().zip([75, 192, 64, 200, 17, 130, 2_128, 288]) {
        let picks = some_of(inner);
        let mut maker = Maker::new();
        let x = maker.rows("x", COLS as u32);
        let [gate, up] = ["gate", "up"].map(|name| maker.rows(name, inner));
        let y = maker.rows("y", picks.len() as u32);
        let [w_gate, w_up] =
            [(); 2].map(|()| maker.random(WeightKind::Matrix, dtype, (inner, COLS as u32)));
        let parts = [(w_gate, gate), (w_up, up)].map(|(w, y)| LinearPart { w, bias: None, y });
        let parts = parts.to_vec();
        maker.push(Op::Linear(Linear { x, parts, accumulate: false, precise: false }));
        maker.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }));
        let by = maker.picks(&picks, inner);
        maker.push(linear(gate, by, y));
        let made = maker.finish();
        assert_eq!(made.steps(), ["encode", "gated products", "products"]);
        let given = random_rows(ROWS_MAX, COLS, 25);
        let exact = |load| {
            let [gate, up] = [w_gate, w_up].map(|w| Matrix::new(load, &made, w));
            let row = |x: &[f32]| {
                let x = wide(x);
                let [gate, up] = [&gate, &up].map(|w| w.times(&x, false));
                let row: Vec<Exact> = gate.iter().zip(&up).map(|(g, u)| gated_of(g, u)).collect();
                pick(load, &row, &picks)
            };
            given.chunks(COLS).flat_map(row).collect()
        };
        let found = |load| run(load, &made, &[(x, &given)], y);
        compare(load, &format!("{load:?} gated {dtype}"), picks.len(), found, exact);
    }
}

/// The same of matrices that pick columns, of values that bf16 holds: both products are exact, and
/// the activation is seen by itself.
fn gated_picks(load: Load) {
    const COLS: u32 = 320;
    let gate_cols: Vec<u32> = (0..150).map(|i| 2 * i).collect();
    let up_cols: Vec<u32> = (0..150).map(|i| COLS - 1 - i).collect();
    let picks = some_of(150);
    let mut maker = Maker::new();
    let x = maker.rows("x", COLS);
    let [gate, up] = ["gate", "up"].map(|name| maker.rows(name, 150));
    let y = maker.rows("y", 150);
    let parts = [(&gate_cols, gate), (&up_cols, up)]
        .map(|(cols, y)| LinearPart { w: maker.picks(cols, COLS), bias: None, y })
        .to_vec();
    maker.push(Op::Linear(Linear { x, parts, accumulate: false, precise: false }));
    maker.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }));
    let by = maker.picks(&picks, 150);
    maker.push(linear(gate, by, y));
    let made = maker.finish();
    assert_eq!(made.steps(), ["encode", "gated products", "products"]);
    let given: Vec<f32> = random_rows(ROWS_MAX, COLS as usize, 31)
        .into_iter()
        .map(|value| bf16::from_f32(value).to_f32())
        .collect();
    let columns = |cols: &[u32]| -> Vec<f32> {
        let rows = given.chunks(COLS as usize);
        rows.flat_map(|row| cols.iter().map(|&col| row[col as usize])).collect()
    };
    let [gates, ups] = [&gate_cols, &up_cols].map(|cols| columns(cols));
    let exact = |load| gated(load, &gates, &ups, 150, &picks);
    let found = |load| run(load, &made, &[(x, &given)], y);
    compare(load, &format!("{load:?} gated picks"), picks.len(), found, exact);
}

/// silu(g) u of values that were rounded: to first order by the slopes; both products round the
/// same inputs, so a square of a sum is at most twice the sum of squares. Then all that is of
/// second order.
fn gated_of(g: &Exact, u: &Exact) -> Exact {
    let (by_g, by_u) = ((silu_slope(g.value) * u.value).abs(), silu(g.value).abs());
    let (off_g, off_u) = (g.allowed(), u.allowed());
    let value = silu(g.value) * u.value;
    let relative = F32_FUNCTION + 2.0 * F32 * g.value.abs();
    Exact {
        value,
        sum: by_g * g.sum + by_u * u.sum,
        square: 2.0 * (by_g * by_g * g.square + by_u * by_u * u.square),
        slack: by_g * g.slack + by_u * u.slack + relative * value.abs(),
    }
    // The second slope of silu is a half at most, the first 1.1.
    .within(off_g * off_g * (u.value.abs() + off_u) / 4.0 + 1.1 * off_g * off_u)
}

/// Products of an activation of gates up to 12: what computing it in f32 can change comes to the
/// same part of each summand.
pub(crate) fn behind_activation(w: &Matrix, gates: &[f32], ups: &[f32]) -> Vec<Exact> {
    let pairs = gates.iter().zip(ups);
    let x: Vec<f64> = pairs.map(|(&gate, &up)| silu(gate.into()) * f64::from(up)).collect();
    let size = |row: usize| w.row(row).iter().zip(&x).map(|(w, x)| (w * x).abs()).sum::<f64>();
    let products = w.times(&x, false).into_iter().enumerate();
    products.map(|(row, y)| y.within((F32_FUNCTION + 24.0 * F32) * size(row))).collect()
}
