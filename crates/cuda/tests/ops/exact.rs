//! Values in float64, and how far from them arithmetic of fewer bits may come.
//!
//! Every rounding is counted with the most that it can change. One to the nearest is an error about
//! zero, and no two depend on each other: of n of them, of at most e_i each, the sum passes
//! `SIGMAS` sqrt(sum e_i^2) with probability 2 exp(-SIGMAS^2 / 2) (Hoeffding), 5e-11 for one value.
//! Its square is sum e_i^2 in the mean at most, and in truth a third of it, as errors are spread
//! evenly. So three things are held against the bounds: every value, and the mean squares of a row
//! and of all, as parts of theirs. The last sees one dropped column of thousands. What is not about
//! zero goes into `slack`, whole.

/// Errors of bf16 to nearest, relative: 8 bits of a value are kept.
pub(crate) const BF16: f64 = 1.0 / (1 << 8) as f64;
/// Of a value as two bf16.
pub(crate) const PAIR: f64 = BF16 * BF16;
/// Of f32.
pub(crate) const F32: f64 = 1.0 / (1 << 24) as f64;
/// Of a function that is approximated in f32 (exp2, exp, reciprocals: two units), and a few
/// roundings beside it.
pub(crate) const F32_FUNCTION: f64 = 16.0 * F32;

const SIGMAS: f64 = 7.0;

/// Least values whose mean square says something.
const COUNT_MIN: usize = 16;

/// A value, and what its roundings may come to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Exact {
    pub(crate) value: f64,
    /// Sum of the most that each independent rounding can change, and of the squares of that.
    pub(crate) sum: f64,
    pub(crate) square: f64,
    /// The most that all else can change.
    pub(crate) slack: f64,
}

impl Exact {
    pub(crate) fn new(value: f64) -> Exact {
        Exact { value, ..Exact::default() }
    }

    /// One more rounding, which changes the value by at most `most`.
    pub(crate) fn round(mut self, most: f64) -> Exact {
        self.sum += most;
        self.square += most * most;
        self
    }

    pub(crate) fn within(mut self, slack: f64) -> Exact {
        self.slack += slack;
        self
    }

    /// Largest difference from the value.
    pub(crate) fn allowed(&self) -> f64 {
        self.sum.min(SIGMAS * self.square.sqrt()) + self.slack
    }
}

/// Whether `found`, rows of `width` values, is within what its roundings allow; if not, where. NaN
/// is not within anything.
pub(crate) fn judge(exact: &[Exact], found: &[f32], width: usize) -> Result<(), String> {
    assert_eq!(exact.len(), found.len(), "as many values as were asked for");
    let mut all = Squares::default();
    for (row, (exact, found)) in exact.chunks(width).zip(found.chunks(width)).enumerate() {
        let mut of_row = Squares::default();
        for (col, (exact, &found)) in exact.iter().zip(found).enumerate() {
            let off = (f64::from(found) - exact.value).abs();
            if off.is_nan() || off > exact.allowed() {
                return Err(format!("row {row} column {col}: {found}, {exact:?}"));
            }
            of_row.add(exact, off);
        }
        // Of few values four times the mean: they may share some of their roundings.
        if of_row.mean() > 4.0 {
            return Err(format!("row {row}: mean square {:.2}", of_row.mean()));
        }
        all.join(&of_row);
    }
    match all.mean() {
        mean if mean > 1.0 => Err(format!("all: mean square {mean:.2}")),
        _ => Ok(()),
    }
}

/// Squares of what values are off by, beyond their slack, as parts of what they are in the mean.
#[derive(Default)]
struct Squares {
    sum: f64,
    count: usize,
}

impl Squares {
    fn add(&mut self, exact: &Exact, off: f64) {
        if exact.square > 0.0 {
            self.sum += (off - exact.slack).max(0.0).powi(2) / exact.square;
            self.count += 1;
        }
    }

    fn join(&mut self, other: &Squares) {
        self.sum += other.sum;
        self.count += other.count;
    }

    /// Zero where there are too few to say.
    fn mean(&self) -> f64 {
        if self.count < COUNT_MIN { 0.0 } else { self.sum / self.count as f64 }
    }
}

/// Whether two that were computed from the same inputs differ by no more than both may, and what
/// is asked of them does.
pub(crate) fn judge_both(
    (exact, found): (&[Exact], &[f32]),
    (other_exact, other): (&[Exact], &[f32]),
) -> Result<(), String> {
    let pairs = exact.iter().zip(other_exact).zip(found.iter().zip(other));
    for (at, ((a, b), (&found, &other))) in pairs.enumerate() {
        let off = (f64::from(found) - f64::from(other)).abs();
        let allowed = a.allowed() + b.allowed() + (a.value - b.value).abs();
        if off.is_nan() || off > allowed {
            return Err(format!("value {at}: {found} here, {other} there"));
        }
    }
    Ok(())
}
