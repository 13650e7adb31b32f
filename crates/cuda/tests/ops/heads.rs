//! What is done to queries, keys and values before attention: `RmsNorm` of each head, `Rope`,
//! `KvAppend`. A card does all of it in one step.

use ignis_ops::{
    BufferId, KvAppend, KvShape, Op, RmsNorm, Rope, RopeScaling, RopeTable, WeightId, WeightKind,
};
use ignis_types::{DType, Limits};

use crate::bench::{Bench, Made, Maker, Part, random_rows, wide};
use crate::exact::{Exact, F32, judge, judge_both};
use crate::load::{CPU, Load};
use crate::matrix::Matrix;
use crate::rows::normed;

const EPS: f32 = 1e-5;

/// A pool small enough to be looked at whole, for contexts that turn the angles far.
const LIMITS: Limits = Limits {
    lanes_max: 4,
    chunk_tokens_max: 72,
    context_tokens_max: 4_160,
    pages: 4 * 65,
    retained_device: 0,
    retained_host: 0,
};

/// Rows at edges of pages, alone, and of several sequences; far positions for the angles.
const ROUNDS: [&[Part]; 4] = [
    &[(0, 0, 1)],
    &[(1, 63, 1), (0, 64, 1), (3, 4_159, 1)],
    &[(2, 60, 70)],
    &[(3, 127, 2), (1, 4_000, 1), (0, 5, 3)],
];

/// Shape of queries, keys and values, and how they rotate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) heads: u32,
    pub(crate) kv_heads: u32,
    pub(crate) head_dim: u32,
    /// Values of a head that rotate.
    pub(crate) rotary_dim: u32,
    pub(crate) scaling: RopeKind,
    /// Whether queries and keys have norms, as those of Qwen3.
    pub(crate) normed: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum RopeKind {
    None,
    Linear,
    Llama3,
    Yarn,
}

impl Heads {
    pub(crate) const fn new(heads: u32, kv_heads: u32, head_dim: u32) -> Heads {
        let normed = [true; 2];
        let (rotary_dim, scaling) = (head_dim, RopeKind::None);
        Heads { heads, kv_heads, head_dim, rotary_dim, scaling, normed }
    }

    pub(crate) fn rope(&self) -> RopeTable {
        let original_context = 2_048.0;
        let scaling = match self.scaling {
            RopeKind::None => RopeScaling::None,
            RopeKind::Linear => RopeScaling::Linear { factor: 4.0 },
            RopeKind::Llama3 => RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_context,
            },
            // Cosines and sines are multiplied too.
            RopeKind::Yarn => RopeScaling::Yarn {
                factor: 4.0,
                original_context,
                beta_fast: 32.0,
                beta_slow: 1.0,
                attention_factor: None,
                truncate: true,
            },
        };
        RopeTable::new(1e4, self.rotary_dim, &scaling)
    }

    pub(crate) fn kv(&self) -> KvShape {
        KvShape { layers: 2, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    pub(crate) fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    pub(crate) fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }
}

/// The layer of two whose slots are written.
pub(crate) const LAYER: u32 = 1;

/// Buffers and gains of the ops.
pub(crate) struct Ready {
    pub(crate) q: BufferId,
    pub(crate) k: BufferId,
    pub(crate) v: BufferId,
    gains: [Option<WeightId>; 2],
}

/// Pushes the ops.
pub(crate) fn push_ready(maker: &mut Maker, shape: &Heads) -> Ready {
    let head_dim = shape.head_dim;
    let q = maker.rows("q", shape.q_width());
    let [k, v] = ["k", "v"].map(|name| maker.rows(name, shape.kv_width()));
    let mut gains = [None; 2];
    for (i, x) in [q, k].into_iter().enumerate() {
        if shape.normed[i] {
            let w = maker.random(WeightKind::Vector, DType::F32, (1, head_dim));
            maker.push(Op::RmsNorm(RmsNorm { x, w, y: x, eps: EPS }));
            gains[i] = Some(w);
        }
        maker.push(Op::Rope(Rope { x, head_dim }));
    }
    maker.push(Op::KvAppend(KvAppend { layer: LAYER, k, v }));
    Ready { q, k, v, gains }
}

/// Gains of queries and of keys.
pub(crate) fn gains(made: &Made, ready: &Ready) -> [Option<Vec<f64>>; 2] {
    ready.gains.map(|id| id.map(|id| Matrix::new(CPU, made, id).row(0).to_vec()))
}

/// A head after its norm and its rotation.
///
/// The angle is rounded to f32: it is off by a part of itself, and what it rotates by that much of
/// its partner. Cosine and sine, two products and their sum add a few roundings.
pub(crate) fn ready(
    x: &[f64],
    gain: Option<&[f64]>,
    rope: &RopeTable,
    position: u32,
) -> Vec<Exact> {
    let plain = || x.iter().map(|&x| Exact::new(x)).collect();
    let mut y: Vec<Exact> = gain.map_or_else(plain, |gain| normed(x, gain, EPS));
    let half = rope.inv_freq.len();
    let magnitude = f64::from(rope.magnitude);
    for i in 0..half {
        let angle = f64::from(position) * f64::from(rope.inv_freq[i]);
        let (cos, sin) = (magnitude * angle.cos(), magnitude * angle.sin());
        let (a, b) = (y[i], y[i + half]);
        let size = magnitude * (a.value.abs() + b.value.abs());
        let slack = (angle + 8.0) * F32 * size + magnitude * (a.slack + b.slack);
        y[i] = Exact::new(a.value * cos - b.value * sin).within(slack);
        y[i + half] = Exact::new(b.value * cos + a.value * sin).within(slack);
    }
    y
}

/// Rows of several heads.
pub(crate) fn ready_rows(
    x: &[f32],
    gain: Option<&[f64]>,
    shape: &Heads,
    positions: &[u32],
) -> Vec<Exact> {
    let (rope, width) = (shape.rope(), x.len() / positions.len());
    let rows = x.chunks(width).zip(positions);
    rows.flat_map(|(row, &position)| {
        let heads = row.chunks(shape.head_dim as usize);
        let heads = heads.map(|head| ready(&wide(head), gain, &rope, position));
        heads.collect::<Vec<_>>().concat()
    })
    .collect()
}

/// Positions of a round's rows.
pub(crate) fn positions(parts: &[Part]) -> Vec<u32> {
    parts.iter().flat_map(|&(_, at, rows)| at..at + rows).collect()
}

/// Lane and position of each of a round's rows.
pub(crate) fn places(parts: &[Part]) -> Vec<(u32, u32)> {
    parts.iter().flat_map(|&(lane, at, rows)| (at..at + rows).map(move |p| (lane, p))).collect()
}

fn shapes() -> [Heads; 7] {
    let partial = Heads { rotary_dim: 32, ..Heads::new(4, 2, 96) };
    [
        Heads { scaling: RopeKind::Llama3, normed: [false; 2], ..Heads::new(8, 2, 64) },
        Heads { scaling: RopeKind::None, ..Heads::new(7, 1, 128) },
        Heads { scaling: RopeKind::Linear, normed: [true, false], ..partial },
        Heads { scaling: RopeKind::Yarn, normed: [false, true], ..Heads::new(2, 2, 80) },
        Heads { scaling: RopeKind::Yarn, ..Heads::new(4, 1, 256) },
        Heads { normed: [false; 2], ..Heads::new(3, 3, 24) },
        Heads::new(16, 16, 8),
    ]
}

/// What a round is given: queries, keys, values.
fn given(shape: &Heads, rows: usize) -> [Vec<f32>; 3] {
    let widths = [shape.q_width(), shape.kv_width(), shape.kv_width()];
    [0, 1, 2].map(|i| random_rows(rows, widths[i] as usize, 40 + i as u64))
}

/// Queries and keys in their buffers, keys and values in the pool.
fn run(load: Load, (made, to): (&Made, &Ready), shape: &Heads) -> Vec<[Vec<f32>; 4]> {
    let mut bench = Bench::new(load, made, LIMITS);
    let rounds = ROUNDS.map(|parts| {
        let places = places(parts);
        bench.poison();
        for (id, values) in [to.q, to.k, to.v].into_iter().zip(given(shape, places.len())) {
            bench.put(id, &values);
        }
        bench.round(parts, &[], &[]);
        assert!(bench.wrote_only_slots_of(parts, LAYER), "{load:?} {shape:?} {parts:?}");
        let [q, k] = [to.q, to.k].map(|id| bench.take(id, places.len()));
        let [keys, values] = [false, true].map(|is_value| {
            places.iter().flat_map(|&at| bench.take_slot(at, LAYER, is_value)).collect()
        });
        [q, k, keys, values]
    });
    rounds.to_vec()
}

/// The same in float64. Values are rounded as the pool is, and else the same bits.
fn exact(
    load: Load,
    (made, to): (&Made, &Ready),
    shape: &Heads,
    parts: &[Part],
) -> [Vec<Exact>; 4] {
    let positions = positions(parts);
    let given = given(shape, positions.len());
    let gains = gains(made, to);
    let [q, k] = [0, 1].map(|i| ready_rows(&given[i], gains[i].as_deref(), shape, &positions));
    let stored = |y: &Exact| y.within(load.kv_rounding() * (y.value.abs() + y.slack));
    let keys = k.iter().map(stored).collect();
    let kept = |&v: &f32| Exact::new(load.kv_value(&load.kv_bytes(v)).into());
    let values = given[2].iter().map(kept).collect();
    [q, k, keys, values]
}

fn check(load: Load, shape: &Heads) {
    let mut maker = Maker::over(shape.kv(), shape.rope());
    let to = push_ready(&mut maker, shape);
    let of = (&maker.finish(), &to);
    assert_eq!(of.0.steps(), ["prepare"]);
    let found = run(load, of, shape);
    let other = load.other().map(|other| (other, run(other, of, shape)));
    for (round, parts) in ROUNDS.into_iter().enumerate() {
        let wanted = exact(load, of, shape, parts);
        let other = other.as_ref().map(|(other, found)| (exact(*other, of, shape, parts), found));
        for (i, what) in ["queries", "keys", "stored keys", "stored values"].iter().enumerate() {
            let name = format!("{load:?} {shape:?} {parts:?} {what}");
            let one = (&wanted[i][..], &found[round][i][..]);
            judge(one.0, one.1, shape.head_dim as usize).unwrap_or_else(|e| panic!("{name}: {e}"));
            let Some((wanted, found)) = &other else { continue };
            judge_both(one, (&wanted[i], &found[round][i]))
                .unwrap_or_else(|e| panic!("{name}, against the CPU: {e}"));
        }
    }
}

pub(crate) fn norm_rotation_and_slots(load: Load) {
    shapes().iter().for_each(|shape| check(load, shape));
}
