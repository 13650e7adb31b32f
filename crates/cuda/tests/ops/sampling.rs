//! Draws: every parameter of `Sampling` by itself and together, from logits that are given.
//!
//! The oracle sorts all ids and sums in float64. A device sums the same weights as rounded f32, so
//! a draw, or the end of a set, that falls as near a border between two ids as that rounding
//! reaches may go to either; what is kept is followed both ways.

use ignis_backend::LaneSampling;
use ignis_ops::{AddRows, Op, SampleOut, Sampling, uniform};
use ignis_types::Limits;

use crate::bench::{Bench, LIMITS, Maker};
use crate::load::Load;
use crate::support::{Dice, prompt};

/// What rounding may change of the mass up to an id, as a part of all. A weight is exp of an f32
/// difference d, whose rounding counts |d| times: 2^-24 of it for the difference, twice for the
/// scale and the product, and four for exp itself. Of all the mass the mean of |d| is at most
/// ln(vocab), which is ten; what is cut off below 2^-40 is less than a tenth of it.
const MASS: f64 = 64.0 / (1 << 24) as f64;

/// What rounding may change of a log-probability: as of a mass, and that of an f32 below 128.
const LOGPROB: f64 = MASS + 128.0 / (1 << 24) as f64;

const LANES: u32 = 8;

/// Around what CTAs take of the ids at a time: 2,048 (`SAMPLE_PART_IDS`) and 8,192; and more equal
/// ids than are sorted at once (`SORTED` of `sample.cuh`, 4,096).
const VOCABS: [u32; 6] = [75, 2_048, 2_049, 5_000, 8_193, 20_000];

/// Ids of a vocabulary that may be drawn; those behind pad it.
fn ids_of(vocab: u32) -> u32 {
    vocab - vocab / 500
}

fn kinds() -> [Sampling; 8] {
    let plain = Sampling::default();
    [
        Sampling { temperature: 0.0, logprobs: Some(20), ..plain.clone() },
        plain.clone(),
        Sampling { temperature: 0.7, top_k: 40, ..plain.clone() },
        Sampling { top_p: 0.9, logprobs: Some(3), ..plain.clone() },
        Sampling { min_p: 0.05, temperature: 1.3, ..plain.clone() },
        Sampling { top_k: 50, top_p: 0.95, min_p: 0.01, logprobs: Some(0), ..plain.clone() },
        Sampling { repetition_penalty: 1.2, presence_penalty: 0.5, ..plain.clone() },
        Sampling { frequency_penalty: 0.3, temperature: 0.0, logprobs: Some(5), ..plain },
    ]
}

/// What one lane has seen: whether in its prompt, and how often in its output, by id.
struct Seen(Vec<(bool, u32)>);

impl Seen {
    fn new(vocab: u32, prompt: &[u32], output: &[u32]) -> Seen {
        let mut seen = vec![(false, 0); vocab as usize];
        prompt.iter().for_each(|&id| seen[id as usize].0 = true);
        output.iter().for_each(|&id| seen[id as usize].1 += 1);
        Seen(seen)
    }

    /// Steps 1 to 3 of the contract, which is on f32.
    fn adjust(&self, logits: &[f32], lane: &LaneSampling<'_>) -> Vec<f32> {
        let mut adjusted = logits[..lane.ids as usize].to_vec();
        for &(id, bias) in lane.logit_bias {
            adjusted[id as usize] += bias;
        }
        let params = lane.params;
        for (l, &(in_prompt, times)) in adjusted.iter_mut().zip(&self.0) {
            if in_prompt || times > 0 {
                let by = params.repetition_penalty;
                *l = if *l > 0.0 { *l / by } else { *l * by };
            }
            if times > 0 {
                *l -= params.frequency_penalty * times as f32 + params.presence_penalty;
            }
        }
        adjusted
    }
}

/// Ids by falling logit, then by id; NaN are as minus infinity, and nothing is drawn of either.
fn sorted(adjusted: &[f32]) -> Vec<u32> {
    let of = |id: u32| adjusted[id as usize];
    let mut ids: Vec<u32> = (0..adjusted.len() as u32).filter(|&id| of(id) > f32::MIN).collect();
    ids.sort_by(|&a, &b| of(b).partial_cmp(&of(a)).unwrap().then(a.cmp(&b)));
    ids
}

/// Whether step 5 and 6 may draw `token`.
fn may_draw(adjusted: &[f32], params: &Sampling, position: u32, token: u32) -> bool {
    let ids = sorted(adjusted);
    let largest = f64::from(adjusted[ids[0] as usize]);
    let scale = 1.0 / f64::from(params.temperature);
    let weight = |&id: &u32| ((f64::from(adjusted[id as usize]) - largest) * scale).exp();
    let weights: Vec<f64> = ids.iter().map(weight).collect();
    // Mass up to and with each.
    let upto: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let Some(at) = ids.iter().position(|&id| id == token) else { return false };
    let top_k = if params.top_k == 0 { ids.len() } else { ids.len().min(params.top_k as usize) };
    let aim = uniform(params.seed, position);
    // The sets that borders as near as rounding reaches make of the rest.
    [-1.0, 0.0, 1.0].iter().any(|&off| {
        let mut kept = top_k;
        if params.top_p < 1.0 {
            let wanted = (f64::from(params.top_p) + off * MASS) * upto[top_k - 1];
            kept = kept.min(upto.partition_point(|&mass| mass < wanted) + 1);
        }
        if params.min_p > 0.0 {
            let floor = f64::from(params.min_p) * (1.0 + off * MASS);
            kept = kept.min(weights.partition_point(|&weight| weight >= floor).max(1));
        }
        let all = upto[kept - 1];
        let (from, to) = (upto[at] - weights[at], upto[at]);
        at < kept && aim * all >= from - MASS * all && aim * all <= to + MASS * all
    })
}

/// Logits of a turn: all equal, close, apart, far apart; with what is no number.
fn logits(vocab: u32, turn: u32, lane: u32) -> Vec<f32> {
    let spread = [0.0, 0.5, 4.0, 30.0][turn as usize % 4];
    let mut dice = Dice(u64::from(vocab * 1_000 + turn * 10 + lane));
    let mut logits: Vec<f32> = (0..vocab).map(|_| spread * (dice.unit() + dice.unit())).collect();
    logits[17] = f32::NAN;
    logits[18] = f32::NEG_INFINITY;
    // Largest of all, where nothing may be drawn.
    logits[ids_of(vocab) as usize..].fill(100.0);
    logits
}

fn check_logprobs(adjusted: &[f32], params: &Sampling, out: &SampleOut, name: &str) {
    let Some(wanted) = params.logprobs else {
        assert_eq!((out.logprob, out.top_len), (0.0, 0), "{name}");
        return;
    };
    let ids = sorted(adjusted);
    let largest = f64::from(adjusted[ids[0] as usize]);
    let sum: f64 = ids.iter().map(|&id| (f64::from(adjusted[id as usize]) - largest).exp()).sum();
    let logprob = |id: u32| f64::from(adjusted[id as usize]) - largest - sum.ln();
    let is_near = |found: f32, id: u32| (f64::from(found) - logprob(id)).abs() <= LOGPROB;
    assert!(is_near(out.logprob, out.token), "{name}: {} {}", out.logprob, logprob(out.token));
    let top = &out.top_ids[..out.top_len as usize];
    assert_eq!(top, &ids[..wanted as usize], "{name}: the likeliest");
    for (&id, &found) in top.iter().zip(&out.top_logprobs) {
        assert!(is_near(found, id), "{name}: of {id} {found} {}", logprob(id));
    }
}

/// A device whose logits are given.
fn bench(load: Load, vocab: u32) -> Bench {
    let mut maker = Maker::new();
    let idle = maker.rows("idle", 8);
    maker.push(Op::AddRows(AddRows { x: idle, y: idle }));
    maker.begin_head();
    let [x, y] = ["other", "logits"].map(|name| maker.logits(name, vocab));
    maker.push(Op::AddRows(AddRows { x, y }));
    let limits = Limits { chunk_tokens_max: 8, lanes_max: LANES, pages: 8, ..LIMITS };
    Bench::new(load, &maker.finish_at(y), limits)
}

/// Every lane draws, of rows in another order, and counts what it drew for the next turn.
fn turns(load: Load, vocab: u32) {
    let mut benches = vec![bench(load, vocab)];
    benches.extend(load.other().map(|other| bench(other, vocab)));
    let kinds = kinds();
    let mut seen: Vec<Vec<Seen>> = vec![];
    for bench in &mut benches {
        bench.poison();
        seen.push((0..LANES).map(|lane| reset(bench, vocab, lane)).collect());
    }
    for turn in 0..16 {
        let rows: Vec<Vec<f32>> = (0..LANES).map(|row| logits(vocab, turn, row)).collect();
        let mut dice = Dice(u64::from(turn));
        let bias: Vec<(u32, f32)> = (0..50).map(|i| (i, 3.0 * dice.unit())).collect();
        let seed = |lane: usize| 1_000 * u64::from(turn) + 77 * lane as u64;
        let params: Vec<Sampling> =
            (0..8).map(|lane| Sampling { seed: seed(lane), ..kinds[lane].clone() }).collect();
        let lane = |lane: u32| LaneSampling {
            lane,
            logit_row: LANES - 1 - lane,
            position: 1_000 * turn + lane,
            ids: ids_of(vocab),
            params: &params[lane as usize],
            logit_bias: if turn % 3 == 0 { &bias } else { &[] },
        };
        let lanes: Vec<LaneSampling<'_>> = (0..LANES).map(lane).collect();
        let drawn: Vec<_> = benches.iter_mut().map(|bench| draw(bench, &rows, &lanes)).collect();
        for (seen, drawn) in seen.iter_mut().zip(&drawn) {
            for ((lane, out), seen) in lanes.iter().zip(drawn).zip(seen) {
                let name = format!("{load:?} {vocab}, turn {turn}: {lane:?} {out:?}");
                let adjusted = seen.adjust(&rows[lane.logit_row as usize], lane);
                let is_right = match lane.params.temperature > 0.0 {
                    true => may_draw(&adjusted, lane.params, lane.position, out.token),
                    false => out.token == sorted(&adjusted)[0],
                };
                assert!(is_right, "{name}");
                check_logprobs(&adjusted, lane.params, out, &name);
                seen.0[out.token as usize].1 += 1;
            }
        }
    }
}

/// Sets a lane's counts.
fn reset(bench: &mut Bench, vocab: u32, lane: u32) -> Seen {
    let ids = prompt(300, vocab, u64::from(lane));
    bench.device.reset_penalties(lane, &ids[..200], &ids[200..]).unwrap();
    Seen::new(vocab, &ids[..200], &ids[200..])
}

fn draw(bench: &mut Bench, rows: &[Vec<f32>], lanes: &[LaneSampling<'_>]) -> Vec<SampleOut> {
    bench.put(bench.program.logits, &rows.concat());
    let mut out = vec![SampleOut::default(); lanes.len()];
    bench.device.sample(lanes, &mut out).unwrap();
    out
}

pub(crate) fn sampling(load: Load) {
    VOCABS.into_iter().for_each(|vocab| turns(load, vocab));
}
