//! What works on one row: embedding, norms, sums of rows.
//!
//! A card only has norms joined to the product that reads them. That one picks columns here: a
//! result is the op's own, encoded and decoded.

use ignis_backend::FEW_ROWS;
use ignis_ops::{
    AddRows, BufferId, Embed, GatherRows, Linear, LinearPart, Op, RmsNorm, SwiGlu, WeightId,
    WeightKind,
};
use ignis_types::DType;

use crate::bench::{Bench, LIMITS, Made, Maker, random_rows, some_of, wide};
use crate::compare;
use crate::exact::{BF16, Exact, F32, F32_FUNCTION, judge};
use crate::gated::{behind_activation, gated};
use crate::load::{CPU, Load};
use crate::matrix::Matrix;
use crate::products::FORMATS;

/// Encoded rows lie in another order from `FEW_ROWS` on, and in tiles of 128.
pub(crate) const ROWS: [u32; 6] = [1, 7, FEW_ROWS, FEW_ROWS + 1, 128, 130];
pub(crate) const ROWS_MAX: usize = 130;

/// Widths: less than a block of 64 columns, blocks and a part of one, and more than 256 threads
/// take at a time (`EIGHTS` of `rows.cu`, which is 2,048; 1,024 of an activation).
pub(crate) const WIDTHS: [u32; 5] = [48, 75, 64, 288, 2_128];

/// Added to mean squares, of which those of small rows (`random_rows`) are a third.
const EPS: f32 = 1e-5;

pub(crate) fn linear(x: BufferId, w: WeightId, y: BufferId) -> Op {
    let parts = vec![LinearPart { w, bias: None, y }];
    Op::Linear(Linear { x, parts, accumulate: false, precise: false })
}

/// A value that was encoded, and then picked by a product, whose other summands are zero.
pub(crate) fn picked(load: Load, value: Exact) -> Exact {
    let size = value.value.abs();
    value.round(load.input_rounding() * size).within(4.0 * F32 * size)
}

/// x g / sqrt(mean + eps): sums of squares are of one sign, so each rounding counts once at most;
/// x g and the result are rounded too.
pub(crate) fn normed(x: &[f64], gain: &[f64], eps: f32) -> Vec<Exact> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    let relative = x.len() as f64 * F32 + F32_FUNCTION;
    let value = |(x, gain): (&f64, &f64)| x * gain * scale;
    x.iter().zip(gain).map(value).map(|y| Exact::new(y).within(relative * y.abs())).collect()
}

/// Those of `picks`.
pub(crate) fn pick(load: Load, row: &[Exact], picks: &[u32]) -> Vec<Exact> {
    picks.iter().map(|&pick| picked(load, row[pick as usize])).collect()
}

/// Rows of x and the results of each number of them.
pub(crate) fn run(
    load: Load,
    made: &Made,
    given: &[(BufferId, &[f32])],
    y: BufferId,
) -> Vec<Vec<f32>> {
    let mut bench = Bench::new(load, made, LIMITS);
    let rounds = ROWS.map(|rows| {
        bench.poison();
        for &(id, values) in given {
            let width = bench.program.buffer(id).width as usize;
            bench.put(id, &values[..rows as usize * width]);
        }
        bench.round(&[(2, 0, rows)], &[], &[]);
        bench.take(y, rows as usize)
    });
    rounds.to_vec()
}

/// A table of every format, and each of its rows at every place of a block: 16 rows, 64 columns.
pub(crate) fn embedding(load: Load) {
    for (dtype, vocab) in FORMATS.into_iter().zip([301, 16, 130, 77, 301, 129, 128, 40]) {
        let width = 3 * dtype.block_elements().max(25) as u32;
        let mut maker = Maker::new();
        let y = maker.rows("y", width);
        let table = maker.random(WeightKind::Table, dtype, (vocab, width));
        maker.push(Op::Embed(Embed { table, y }));
        let made = maker.finish();
        // The last first, and all of those that there are.
        let tokens: Vec<u32> = (0..130).map(|i| (vocab - 1 + 7 * i) % vocab).collect();
        let found = |load| {
            let mut bench = Bench::new(load, &made, LIMITS);
            let round = |rows: usize| {
                bench.poison();
                bench.round(&[(0, 0, rows as u32)], &tokens[..rows], &[]);
                bench.take(y, rows)
            };
            [1, 130].map(round).to_vec()
        };
        // Plain values may be kept as bf16; others are one product and one sum in f32.
        let exact = |load: Load| -> Vec<Exact> {
            let matrix = Matrix::new(CPU, &made, table);
            let rounding = if load.kept(dtype) == dtype { 2.0 * F32 } else { BF16 };
            let value = |&v: &f64| Exact::new(v).round(rounding * v.abs()).within(F32 * v.abs());
            tokens.iter().flat_map(|&t| matrix.row(t as usize).iter().map(value)).collect()
        };
        compare(load, &format!("{load:?} table of {dtype}"), width as usize, found, exact);
    }
}

/// Norm and product. The widest row whose norm is encoded at once is of 16,384 columns, which are
/// a product of sixteen slices.
pub(crate) fn norm(load: Load) {
    for width in WIDTHS.into_iter().chain([16_384]) {
        let picks = some_of(width);
        let mut maker = Maker::new();
        let [x, n] = ["x", "normed"].map(|name| maker.rows(name, width));
        let y = maker.rows("y", picks.len() as u32);
        let w = maker.random(WeightKind::Vector, DType::F32, (1, width));
        maker.push(Op::RmsNorm(RmsNorm { x, w, y: n, eps: EPS }));
        let by = maker.picks(&picks, width);
        maker.push(linear(n, by, y));
        let made = maker.finish();
        assert_eq!(made.steps(), ["norm", "products"]);
        let mut given = random_rows(ROWS_MAX, width as usize, 21);
        given[6 * width as usize..][..width as usize].fill(0.0);
        let exact = |load| {
            let gain = Matrix::new(CPU, &made, w).row(0).to_vec();
            let row = |x: &[f32]| pick(load, &normed(&wide(x), &gain, EPS), &picks);
            given.chunks(width as usize).flat_map(row).collect()
        };
        let found = |load| run(load, &made, &[(x, &given)], y);
        compare(load, &format!("{load:?} norm of {width}"), picks.len(), found, exact);
    }
}

/// The head: the norm of the rows that logits are wanted of, and their product.
pub(crate) fn norm_of_gathered_rows(load: Load) {
    const WIDTH: u32 = 288;
    let mut maker = Maker::new();
    let x = maker.rows("x", WIDTH);
    let [last, n] = ["last", "normed"].map(|name| maker.logits(name, WIDTH));
    let y = maker.logits("logits", 192);
    let w = maker.random(WeightKind::Vector, DType::F32, (1, WIDTH));
    let idle = maker.rows("idle", 8);
    maker.push(Op::AddRows(AddRows { x: idle, y: idle }));
    maker.begin_head();
    maker.push(Op::GatherRows(GatherRows { x, y: last }));
    maker.push(Op::RmsNorm(RmsNorm { x: last, w, y: n, eps: EPS }));
    let picks = some_of(WIDTH);
    let by = maker.picks(&picks, WIDTH);
    maker.push(linear(n, by, y));
    let made = maker.finish_at(y);
    let given = random_rows(ROWS_MAX, WIDTH as usize, 22);
    let rows: [&[u32]; 3] = [&[0], &[1, 2, 3, 64, 129], &[3, 5, 9, 30, 31, 32, 127, 128]];
    for logit_rows in rows {
        let found = |load| {
            let mut bench = Bench::new(load, &made, LIMITS);
            bench.poison();
            bench.put(x, &given);
            bench.round(&[(2, 0, ROWS_MAX as u32)], &[], logit_rows);
            vec![bench.take(y, logit_rows.len())]
        };
        let exact = |load| {
            let gain = Matrix::new(CPU, &made, w).row(0).to_vec();
            let row = |&row: &u32| {
                let x = &given[(row * WIDTH) as usize..][..WIDTH as usize];
                pick(load, &normed(&wide(x), &gain, EPS), &picks)
            };
            logit_rows.iter().flat_map(row).collect()
        };
        compare(load, &format!("{load:?} rows {logit_rows:?}"), picks.len(), found, exact);
    }
}

/// Products that write whole rows and their norm: activation, product, norm, product. Up to
/// `FEW_ROWS` rows one launch makes product and norm.
pub(crate) fn norm_behind_products(load: Load) {
    for (inner, hidden) in [(96, 75), (288, 320)] {
        let picks = some_of(hidden);
        let mut maker = Maker::new();
        let [gate, up] = ["gate", "up"].map(|name| maker.rows(name, inner));
        let [h, n] = ["hidden", "normed"].map(|name| maker.rows(name, hidden));
        let y = maker.rows("y", picks.len() as u32);
        let down = maker.random(WeightKind::Matrix, DType::Q8_0, (hidden, inner));
        let gain = maker.random(WeightKind::Vector, DType::F32, (1, hidden));
        maker.push(Op::SwiGlu(SwiGlu { gate, up, y: gate }));
        let parts = vec![LinearPart { w: down, bias: None, y: h }];
        maker.push(Op::Linear(Linear { x: gate, parts, accumulate: true, precise: false }));
        maker.push(Op::RmsNorm(RmsNorm { x: h, w: gain, y: n, eps: EPS }));
        let by = maker.picks(&picks, hidden);
        maker.push(linear(n, by, y));
        let made = maker.finish();
        assert_eq!(made.steps(), ["swiglu", "products and norm", "products"]);
        let gain = Matrix::new(CPU, &made, gain).row(0).to_vec();
        let down = Matrix::new(load, &made, down);
        let [gates, ups] = [26, 27].map(|seed| random_rows(ROWS_MAX, inner as usize, seed));
        let before = random_rows(ROWS_MAX, hidden as usize, 28);
        let mut bench = Bench::new(load, &made, LIMITS);
        for rows in ROWS.map(|rows| rows as usize) {
            bench.poison();
            for (id, values, width) in
                [(gate, &gates, inner), (up, &ups, inner), (h, &before, hidden)]
            {
                bench.put(id, &values[..rows * width as usize]);
            }
            bench.round(&[(1, 0, rows as u32)], &[], &[]);
            let (sums, found) = (bench.take(h, rows), bench.take(y, rows));
            let row_of = |row| {
                let at = row * inner as usize..(row + 1) * inner as usize;
                behind_activation(&down, &gates[at.clone()], &ups[at])
            };
            let products = (0..rows).flat_map(row_of).zip(&before);
            let added = |(y, &before): (Exact, &f32)| {
                let value = y.value + f64::from(before);
                Exact { value, ..y }.within(F32 * value.abs())
            };
            let wanted: Vec<Exact> = products.map(added).collect();
            let name = format!("{load:?} {inner} to {hidden}, {rows} rows");
            judge(&wanted, &sums, hidden as usize).unwrap_or_else(|e| panic!("{name}: {e}"));
            // The norm is of the rows that are there.
            let row = |x: &[f32]| pick(load, &normed(&wide(x), &gain, EPS), &picks);
            let wanted: Vec<Exact> = sums.chunks(hidden as usize).flat_map(row).collect();
            judge(&wanted, &found, picks.len()).unwrap_or_else(|e| panic!("{name}, norm: {e}"));
        }
    }
}

/// A sum of two f32.
pub(crate) fn sums_of_rows(load: Load) {
    for width in [1, 75, 288] {
        let mut maker = Maker::new();
        let [x, y] = ["x", "y"].map(|name| maker.rows(name, width));
        maker.push(Op::AddRows(AddRows { x, y }));
        let made = maker.finish();
        let [xs, ys] = [29, 30].map(|seed| random_rows(ROWS_MAX, width as usize, seed));
        for round in run(load, &made, &[(x, &xs), (y, &ys)], y) {
            let sums: Vec<f32> = xs.iter().zip(&ys).map(|(x, y)| x + y).collect();
            assert_eq!(round, sums[..round.len()], "{load:?} {width}");
        }
    }
}

/// The bounds of a card are near enough to tell another `eps`, a gain of another column, and an
/// exponent that is off by a fiftieth.
pub(crate) fn bounds_of_bf16_see_another_norm_and_activation() {
    use crate::load::CARD;
    let x = wide(&random_rows(2, 288, 21)[288..]);
    let gain: Vec<f64> = wide(&random_rows(1, 289, 5)).iter().map(|g| 1.0 + 0.3 * g).collect();
    let picks = some_of(288);
    let wanted = pick(CARD, &normed(&x, &gain[..288], EPS), &picks);
    let found = |gain: &[f64], eps| -> Vec<f32> {
        let row = normed(&x, gain, eps);
        picks.iter().map(|&pick| row[pick as usize].value as f32).collect()
    };
    judge(&wanted, &found(&gain[..288], EPS), picks.len()).unwrap();
    assert!(judge(&wanted, &found(&gain[..288], 1.1 * EPS), picks.len()).is_err());
    assert!(judge(&wanted, &found(&gain[1..], EPS), picks.len()).is_err());

    let [gates, ups] = [32, 33].map(|seed| random_rows(4, 288, seed));
    let wanted = gated(CARD, &gates, &ups, 288, &picks);
    let found = |by: f64| -> Vec<f32> {
        let rows = gates.chunks(288).zip(ups.chunks(288));
        rows.flat_map(|(gates, ups)| {
            picks.iter().map(move |&pick| {
                let (gate, up) = (f64::from(gates[pick as usize]), f64::from(ups[pick as usize]));
                (gate / (1.0 + (-by * gate).exp()) * up) as f32
            })
        })
        .collect()
    };
    judge(&wanted, &found(1.0), picks.len()).unwrap();
    assert!(judge(&wanted, &found(1.02), picks.len()).is_err());
}
