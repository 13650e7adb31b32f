//! `Linear`: every format of weights, at and around every number of rows at which another kernel
//! takes over. With it goes the encoding of inputs.

use ignis_backend::FEW_ROWS;
use ignis_ops::{BufferId, Linear, LinearPart, Op, WeightId, WeightKind};
use ignis_types::DType;

use crate::bench::{Bench, LIMITS, Made, Maker, random_rows, wide};
use crate::compare;
use crate::exact::{Exact, F32};
use crate::load::Load;
use crate::matrix::Matrix;

/// Every dtype that kernels read: `FORMATS` of `units.rs`.
pub(crate) const FORMATS: [DType; 8] = [
    DType::BF16,
    DType::F16,
    DType::F32,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q4K,
    DType::Q6K,
];

/// Tiles of few rows are of 8, 16 and [`FEW_ROWS`] (`product_launch`); of many, of 64 rows for any
/// card, 128 on Hopper, and 256 where products are fast.
pub(crate) const ROWS: [u32; 14] =
    [1, 2, 8, 9, 16, 17, FEW_ROWS, FEW_ROWS + 1, 64, 65, 128, 129, 256, 257];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    dtype: DType,
    cols: u32,
    /// Rows of each matrix: of one, with a bias and added to what is there, or of several.
    outs: &'static [u32],
    precise: bool,
    rows: &'static [u32],
}

impl Case {
    const fn new(dtype: DType, cols: u32, outs: &'static [u32]) -> Case {
        Case { dtype, cols, outs, precise: false, rows: &ROWS }
    }

    fn accumulates(&self) -> bool {
        self.outs.len() == 1
    }
}

/// Of each format a matrix with a bias, added to what is there, and three that share an input: with
/// tiles of 16 rows and of 128, and parts of them. Rows are stored by fours where they are whole
/// fours (`put_sums` of `many_hopper.cuh`), and else one by one.
fn cases() -> Vec<Case> {
    let of_format = |dtype: DType| {
        let block = dtype.block_elements() as u32;
        let [least, more] = match block {
            1 => [75, 320],
            32 => [32, 288],
            _ => [block, 3 * block],
        };
        [
            Case::new(dtype, least, &[150]),
            Case::new(dtype, more, &[192]),
            Case::new(dtype, more, &[17, 130, 128]),
        ]
    };
    FORMATS.into_iter().flat_map(of_format).collect()
}

/// Columns around those from which rows have twice as many slices, and matrices of more tiles than
/// a card runs at a time.
const LARGE: [Case; 7] = {
    const FEW: &[u32] = &[1, 9, FEW_ROWS];
    const BOTH: &[u32] = &[1, 9, 17, FEW_ROWS + 1, 129];
    [
        Case { rows: BOTH, ..Case::new(DType::BF16, 127 * 64, &[40]) },
        Case { rows: BOTH, ..Case::new(DType::BF16, 128 * 64, &[40]) },
        Case { rows: BOTH, ..Case::new(DType::Q8_0, 132 * 64 + 32, &[40]) },
        Case { rows: BOTH, ..Case::new(DType::Q4K, 124 * 64, &[40]) },
        Case { rows: BOTH, ..Case::new(DType::Q4K, 128 * 64, &[40]) },
        Case { rows: FEW, ..Case::new(DType::Q4_0, 64, &[8_000]) },
        Case { rows: &[1, 257], precise: true, ..Case::new(DType::BF16, 64, &[8_000, 400]) },
    ]
};

/// The matrices and biases of a program, and where results go.
struct Parts {
    x: BufferId,
    of: Vec<(WeightId, Option<WeightId>, BufferId)>,
}

fn make(case: &Case) -> (Made, Parts) {
    let mut maker = Maker::new();
    let x = maker.rows("x", case.cols);
    let part = |(i, &out): (usize, &u32)| {
        let w = maker.random(WeightKind::Matrix, case.dtype, (out, case.cols));
        let has_bias = case.accumulates() || i == 1;
        let bias = has_bias.then(|| maker.random(WeightKind::Vector, DType::F32, (1, out)));
        (w, bias, maker.rows("y", out))
    };
    let of: Vec<_> = case.outs.iter().enumerate().map(part).collect();
    let parts = of.iter().map(|&(w, bias, y)| LinearPart { w, bias, y }).collect();
    let accumulate = case.accumulates();
    maker.push(Op::Linear(Linear { x, parts, accumulate, precise: case.precise }));
    (maker.finish(), Parts { x, of })
}

/// Inputs: of each row the same, however many there are.
struct Inputs {
    x: Vec<f32>,
    before: Vec<f32>,
}

fn inputs(case: &Case) -> Inputs {
    let most = case.rows.iter().copied().max().unwrap() as usize;
    let before = if case.accumulates() { case.outs[0] as usize } else { 0 };
    Inputs {
        x: random_rows(most, case.cols as usize, u64::from(case.cols)),
        before: random_rows(most, before, 3),
    }
}

/// Results of part `at` of each number of rows.
fn run(load: Load, case: &Case, at: usize) -> Vec<Vec<f32>> {
    let (made, parts) = make(case);
    let given = inputs(case);
    let mut bench = Bench::new(load, &made, LIMITS);
    let rounds = case.rows.iter().map(|&rows| {
        bench.poison();
        let n = rows as usize;
        bench.put(parts.x, &given.x[..n * case.cols as usize]);
        if case.accumulates() {
            bench.put(parts.of[0].2, &given.before[..n * case.outs[0] as usize]);
        }
        bench.round(&[(3, 0, rows)], &[], &[]);
        bench.take(parts.of[at].2, n)
    });
    rounds.collect()
}

/// y = [before +] W x [+ bias]: two more roundings.
fn exact(load: Load, case: &Case, at: usize) -> Vec<Exact> {
    let (made, parts) = make(case);
    let given = inputs(case);
    let (w, bias, _) = parts.of[at];
    let matrix = Matrix::new(load, &made, w);
    let bias = bias.map(|id| Matrix::new(load, &made, id));
    let rows = given.x.chunks(case.cols as usize).enumerate().flat_map(|(row, x)| {
        let mut y = matrix.times(&wide(x), case.precise);
        for (col, y) in y.iter_mut().enumerate() {
            let bias = bias.as_ref().map_or(0.0, |bias| bias.row(0)[col]);
            let before = given.before.get(row * matrix.rows() + col).map_or(0.0, |&b| b.into());
            let sizes = 2.0 * y.value.abs() + 2.0 * bias.abs() + f64::abs(before);
            *y = Exact { value: y.value + bias + before, ..*y }.within(F32 * sizes);
        }
        y
    });
    rows.collect()
}

fn check(load: Load, case: &Case) {
    for (at, &out) in case.outs.iter().enumerate() {
        let name = format!("{load:?} {case:?} part {at}");
        let found = |load| run(load, case, at);
        compare(load, &name, out as usize, found, |load| exact(load, case, at));
    }
}

pub(crate) fn formats_and_rows(load: Load) {
    cases().iter().for_each(|case| check(load, case));
}

pub(crate) fn long_rows_and_many_tiles(load: Load) {
    LARGE.iter().for_each(|case| check(load, case));
}

/// Of those formats whose kernels of many rows are of another kind: plain, and in super-blocks.
pub(crate) fn other_kernels(load: Load) {
    let all = cases();
    let some = all.iter().filter(|case| [DType::BF16, DType::Q4K].contains(&case.dtype));
    some.chain(&LARGE[6..]).for_each(|case| check(load, case));
}

/// Matrices of unlike formats that share an input are launches of their own.
pub(crate) fn unlike_parts(load: Load) {
    let dtypes = [DType::Q4K, DType::Q6K, DType::Q4K, DType::BF16];
    let mut maker = Maker::new();
    let x = maker.rows("x", 512);
    let parts = dtypes.map(|dtype| {
        let w = maker.random(WeightKind::Matrix, dtype, (48, 512));
        LinearPart { w, bias: None, y: maker.rows("y", 48) }
    });
    let of = parts.to_vec();
    maker.push(Op::Linear(Linear { x, parts: of, accumulate: false, precise: false }));
    let made = maker.finish();
    let given = random_rows(FEW_ROWS as usize + 1, 512, 9);
    for LinearPart { w, y, .. } in parts {
        let found = |load| {
            let mut bench = Bench::new(load, &made, LIMITS);
            let rounds = [3, FEW_ROWS as usize + 1].map(|rows| {
                bench.poison();
                bench.put(x, &given[..rows * 512]);
                bench.round(&[(0, 0, rows as u32)], &[], &[]);
                bench.take(y, rows)
            });
            rounds.to_vec()
        };
        let exact = |load| {
            let matrix = Matrix::new(load, &made, w);
            given.chunks(512).flat_map(|x| matrix.times(&wide(x), false)).collect()
        };
        compare(load, &format!("{load:?} unlike part {w:?}"), 48, found, exact);
    }
}

/// What a card is held to, tried without one: inputs and plain weights rounded to bf16 and summed
/// in float64 are right; the same less one column of 288, or of 8,192, is not.
pub(crate) fn bounds_of_bf16_see_a_dropped_column() {
    use half::bf16;

    use crate::exact::judge;
    use crate::load::CARD;
    for (dtype, cols) in [(DType::F32, 288), (DType::BF16, 128 * 64)] {
        let case = Case { rows: &[24], ..Case::new(dtype, cols, &[40, 40]) };
        let (made, parts) = make(&case);
        let matrix = Matrix::new(CARD, &made, parts.of[0].0);
        let exact = exact(CARD, &case, 0);
        let round = |value: f64| f64::from(bf16::from_f64(value));
        let rounded = |dropped: usize| -> Vec<f32> {
            let x = inputs(&case).x;
            let product = |x: &[f32], row: usize| -> f64 {
                let pairs = matrix.row(row).iter().zip(x).enumerate();
                let kept = pairs.filter(|(col, _)| *col != dropped);
                kept.map(|(_, (&w, &x))| round(w) * round(x.into())).sum()
            };
            let rows = x.chunks(cols as usize);
            rows.flat_map(|x| (0..40).map(move |row| product(x, row) as f32)).collect()
        };
        judge(&exact, &rounded(usize::MAX), 40).unwrap();
        for dropped in [0, 63, cols as usize - 1] {
            assert!(judge(&exact, &rounded(dropped), 40).is_err(), "{dtype} without {dropped}");
        }
    }
}
