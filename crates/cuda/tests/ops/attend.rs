//! Attention of one query in float64, and how far from it that of a load may be.

use ignis_backend::RUNS_MAX;

use crate::attention::{even_rows, pool_value};
use crate::bench::wide;
use crate::exact::{BF16, Exact, F32, F32_FUNCTION, judge};
use crate::load::{CARD, Load};
use crate::matrix::MMA;

/// What a query is multiplied with, and what it may be off by.
pub(crate) struct Query<'a> {
    pub(crate) q: &'a [Exact],
    pub(crate) scale: f64,
    pub(crate) load: Load,
}

impl Query<'_> {
    /// o = sum_j w_j v_j, w = softmax(scale q . k_j), over keys and values `[len, dim]`.
    ///
    /// To first order a change e_j of each score changes o by sum_j w_j e_j (v_j - o), and the sum
    /// of weights takes part: it is of the same weights. On tensor cores a query is rounded to
    /// bf16, which gives e_j = sum_d (bf16 q_d k_jd), each d a rounding of its own: their squares
    /// are at most those of q_d times sum_j w_j k_jd^2 sum_j w_j (v_j - o)^2, by Cauchy and
    /// Schwarz. Then each weight is rounded. All else is f32, or the sums of tensor cores: scores
    /// over dim, values over the keys of a run and over the runs.
    pub(crate) fn attend(&self, keys: &[f64], values: &[f64]) -> Vec<Exact> {
        let dim = self.q.len();
        let scale = self.scale;
        let score = |k: &[f64]| {
            let mut one = Score::default();
            for (q, k) in self.q.iter().zip(k) {
                one.value += scale * q.value * k;
                one.size += (scale * q.value * k).abs();
                one.slack += (scale * q.slack * k).abs();
            }
            one
        };
        let scores: Vec<Score> = keys.chunks(dim).map(score).collect();
        let largest = scores.iter().fold(f64::MIN, |most, one| most.max(one.value));
        let total: f64 = scores.iter().map(|one| (one.value - largest).exp()).sum();
        let weights: Vec<f64> = scores.iter().map(|s| (s.value - largest).exp() / total).collect();

        let mut o = vec![0.0; dim];
        let mut keys_square = vec![0.0; dim];
        for ((w, k), v) in weights.iter().zip(keys.chunks(dim)).zip(values.chunks(dim)) {
            for d in 0..dim {
                o[d] += w * v[d];
                keys_square[d] += w * k[d] * k[d];
            }
        }
        let query_square: f64 =
            self.q.iter().zip(&keys_square).map(|(q, k)| (scale * q.value).powi(2) * k).sum();
        let mut sums = vec![Sums::default(); dim];
        for ((w, v), score) in weights.iter().zip(values.chunks(dim)).zip(&scores) {
            for d in 0..dim {
                let off = (v[d] - o[d]).abs();
                sums[d].off += w * off;
                sums[d].off_square += w * off * off;
                sums[d].weight_square += (w * off).powi(2);
                sums[d].off_scores += w * score.size * off;
                sums[d].off_queries += w * score.slack * off;
                sums[d].size += w * v[d].abs();
            }
        }
        let size_max = scores.iter().fold(0.0, |most: f64, one| most.max(one.size));
        let result = |(&o, sums): (&f64, &Sums)| {
            let functions = sums.off_scores + sums.off + sums.size;
            let exact = Exact::new(o).within(sums.off_queries + F32_FUNCTION * functions);
            self.rounded(exact, sums, query_square, (weights.len(), size_max))
        };
        o.iter().zip(&sums).map(result).collect()
    }

    fn rounded(
        &self,
        o: Exact,
        sums: &Sums,
        query_square: f64,
        (keys, size_max): (usize, f64),
    ) -> Exact {
        let dim = self.q.len() as f64;
        if !self.load.attends_on_tensor_cores() {
            let each = F32 * sums.size;
            let sum = Exact { sum: keys as f64 * each, square: keys as f64 * each * each, ..o };
            return sum.within(2.0 * dim * F32 * sums.off_scores);
        }
        let second = (BF16 * size_max).powi(2) * sums.off;
        // Of a run of up to eight pages, and of as many runs as there are.
        let steps = 32.0 * MMA + RUNS_MAX as f64 * F32;
        Exact {
            sum: BF16 * (sums.off_scores + sums.off),
            square: BF16 * BF16 * (query_square * sums.off_square + sums.weight_square),
            ..o
        }
        .within(second + dim / 16.0 * MMA * sums.off_scores + steps * sums.size)
    }
}

/// Of one column: weighted sums over keys.
#[derive(Clone, Copy, Default)]
struct Sums {
    off: f64,
    off_square: f64,
    weight_square: f64,
    off_scores: f64,
    off_queries: f64,
    size: f64,
}

/// A score, the sizes of what was summed, and what queries that are off by their slack change.
#[derive(Clone, Copy, Default)]
struct Score {
    value: f64,
    size: f64,
    slack: f64,
}

/// The bounds of a card are near enough to tell one key too few of any of these contexts: the first
/// or the row's own.
pub(crate) fn bounds_of_bf16_see_a_dropped_key() {
    let q: Vec<Exact> = wide(&even_rows(1, 64, 3)).into_iter().map(Exact::new).collect();
    let of = |len: u32, is_value| -> Vec<f64> {
        let row = |p| (0..64).map(move |d| pool_value(0, p, is_value, d).into());
        (0..len).flat_map(row).collect()
    };
    let query = Query { q: &q, scale: 0.125, load: CARD };
    for len in [2, 63, 64, 65, 128, 384] {
        let (keys, values) = (of(len, false), of(len, true));
        let wanted = query.attend(&keys, &values);
        let found = |from: usize, to: usize| -> Vec<f32> {
            let at = from * 64..to * 64;
            let o = query.attend(&keys[at.clone()], &values[at]);
            o.iter().map(|o| o.value as f32).collect()
        };
        let len = len as usize;
        judge(&wanted, &found(0, len), 64).unwrap();
        assert!(judge(&wanted, &found(1, len), 64).is_err(), "the first of {len}");
        assert!(judge(&wanted, &found(0, len - 1), 64).is_err(), "the last of {len}");
    }
}
