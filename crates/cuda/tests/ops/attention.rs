//! `PagedAttention`: rows of decode at the edges of pages, of runs and of their number; prompts at
//! the edges of pages and tiles; every width of heads that kernels are compiled for.
//!
//! By itself it writes f32; joined to the product behind it, encoded rows; and joined to the ops
//! before it, decode makes ready what it reads.

use ignis_backend::runs;
use ignis_ops::{BufferId, Linear, LinearPart, Op, PagedAttention};
use ignis_types::{Limits, PAGE_TOKENS};

use crate::attend::Query;
use crate::bench::{Bench, Made, Maker, Part, some_of, wide};
use crate::exact::{Exact, judge, judge_both};
use crate::heads::{
    Heads, LAYER, Ready, RopeKind, gains, places, positions, push_ready, ready_rows,
};
use crate::load::Load;
use crate::rows::picked;
use crate::support::Dice;

/// Lanes of a pool where each can have `context` tokens.
const fn limits(lanes_max: u32, context: u32) -> Limits {
    Limits {
        lanes_max,
        chunk_tokens_max: 264,
        context_tokens_max: context,
        pages: lanes_max * context.div_ceil(PAGE_TOKENS),
        retained_device: 0,
        retained_host: 0,
    }
}

/// Rounds that reach rows of one page to several runs, alone and beside prompts. Those of a tile
/// are as many as share its queries (128 or 192) with a group of heads.
const ROUNDS: [&[Part]; 7] = [
    &[(0, 0, 1)],
    &[(0, 62, 1), (1, 63, 1), (2, 64, 1), (3, 127, 1)],
    &[(3, 128, 1), (1, 191, 1), (2, 192, 1), (0, 383, 1)],
    &[(2, 0, 2)],
    &[(1, 0, 64), (3, 256, 1)],
    &[(0, 0, 65), (1, 100, 33), (2, 5, 1)],
    &[(3, 126, 140)],
];

/// Contexts of one row around the pages at which runs, their number and their length change: 8
/// pages are 4 runs, 32 are 16 (the kinds of recorded rounds), from 65 on a run has four, from 257
/// on eight.
const DECODE_LONG: [u32; 5] = [8, 32, 64, 256, 257];

/// Sizes of queries, by heads in turn: where scores are alike every key counts, and where they are
/// not the largest changes from page to page.
const QUERY_SIZES: [f32; 2] = [1.0, 6.0];

/// A value of the pool, which either format holds.
pub(crate) fn pool_value(lane: u32, position: u32, is_value: bool, at: u32) -> f32 {
    let seed = [lane, position, u32::from(is_value), at].iter().fold(7u64, |seed, &part| {
        (seed ^ u64::from(part)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    });
    (Dice(seed).bits() % 255) as f32 / 128.0 - 1.0
}

/// How attention stands in its program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Alone,
    Encoded,
    /// Behind norm, rotation and append.
    Fresh,
}

struct Program {
    made: Made,
    form: Form,
    q: BufferId,
    y: BufferId,
    ready: Option<Ready>,
    /// Columns of the result that `y` has.
    picks: Vec<u32>,
}

fn make(shape: &Heads, form: Form) -> Program {
    let mut maker = Maker::over(shape.kv(), shape.rope());
    let width = shape.q_width();
    let ready = (form == Form::Fresh).then(|| push_ready(&mut maker, shape));
    let q = ready.as_ref().map_or_else(|| maker.rows("q", width), |ready| ready.q);
    let o = maker.rows("o", width);
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    maker.push(Op::PagedAttention(PagedAttention { layer: LAYER, q, o, scale }));
    let all = (0..width).collect();
    if form == Form::Alone {
        let made = maker.finish();
        assert!(made.steps().ends_with(&["op"]));
        return Program { made, form, q, y: o, ready, picks: all };
    }
    let picks = some_of(width);
    let y = maker.rows("y", picks.len() as u32);
    let w = maker.picks(&picks, width);
    let parts = vec![LinearPart { w, bias: None, y }];
    maker.push(Op::Linear(Linear { x: o, parts, accumulate: false, precise: false }));
    let made = maker.finish();
    let joined = if form == Form::Fresh { "prepare and attention" } else { "attention, encoded" };
    assert_eq!(made.steps(), [joined, "products"]);
    Program { made, form, q, y, ready, picks }
}

/// Rows of random values in [-1, 1).
pub(crate) fn even_rows(rows: usize, width: u32, seed: u64) -> Vec<f32> {
    let mut dice = Dice(seed);
    (0..rows * width as usize).map(|_| dice.unit()).collect()
}

/// Keys and values of the round's sequences up to each row: of fresh rows, as the load stored them.
struct Kept {
    /// By row of the round: `[kv_heads * head_dim]`.
    fresh: Option<[Vec<Vec<f32>>; 2]>,
}

impl Kept {
    /// One head's keys or values, `[position + 1, head_dim]`, for row `at`.
    fn of(&self, shape: &Heads, parts: &[Part], at: usize, head: u32, is_value: bool) -> Vec<f64> {
        let places = places(parts);
        let (lane, position) = places[at];
        let dim = shape.head_dim;
        let mut out = Vec::with_capacity((position as usize + 1) * dim as usize);
        for p in 0..=position {
            let fresh = self.fresh.as_ref().and_then(|both| {
                let row = places.iter().position(|&place| place == (lane, p))?;
                Some(&both[usize::from(is_value)][row])
            });
            let first = head * dim;
            match fresh {
                Some(row) => out.extend(wide(&row[first as usize..(first + dim) as usize])),
                None => out.extend(
                    (first..first + dim).map(|d| f64::from(pool_value(lane, p, is_value, d))),
                ),
            }
        }
        out
    }
}

/// Runs a round; its results, and what it stored where it stores.
fn run(bench: &mut Bench, program: &Program, shape: &Heads, parts: &[Part]) -> (Vec<f32>, Kept) {
    let places = places(parts);
    bench.poison();
    for &(lane, position, rows) in parts {
        let tokens = if program.ready.is_some() { position } else { position + rows };
        bench.put_pool((lane, LAYER, tokens), |p, is_value, head, d| {
            pool_value(lane, p, is_value, head * shape.head_dim + d)
        });
    }
    let given = given(shape, places.len());
    bench.put(program.q, &given[0]);
    if let Some(ready) = &program.ready {
        bench.put(ready.k, &given[1]);
        bench.put(ready.v, &given[2]);
    }
    bench.round(parts, &[], &[]);
    let found = bench.take(program.y, places.len());
    let fresh = program.ready.is_some().then(|| {
        [false, true].map(|is_value| {
            places.iter().map(|&place| bench.take_slot(place, LAYER, is_value)).collect()
        })
    });
    (found, Kept { fresh })
}

/// Queries, keys and values of a round's rows.
fn given(shape: &Heads, rows: usize) -> [Vec<f32>; 3] {
    let mut q = even_rows(rows, shape.q_width(), 31);
    for (head, q) in q.chunks_mut(shape.head_dim as usize).enumerate() {
        q.iter_mut().for_each(|q| *q *= QUERY_SIZES[head % 2]);
    }
    [q, even_rows(rows, shape.kv_width(), 32), even_rows(rows, shape.kv_width(), 33)]
}

/// Rows of a round that are held against float64: of a long segment some, with its edges.
fn checked_rows(parts: &[Part]) -> Vec<usize> {
    let mut first = 0;
    let mut rows = vec![];
    for &(_, _, n) in parts {
        let n = n as usize;
        let some =
            (0..n).filter(|&i| n < 8 || i < 2 || i + 2 >= n || [17, 37, 63, 64].contains(&i));
        rows.extend(some.map(|i| first + i));
        first += n;
    }
    rows
}

/// The checked rows of a round in float64, `[rows, picks]`.
fn exact(load: Load, program: &Program, shape: &Heads, parts: &[Part], kept: &Kept) -> Vec<Exact> {
    let positions = positions(parts);
    let q = wide(&given(shape, positions.len())[0]);
    let q: Vec<Exact> = match &program.ready {
        Some(ready) => {
            let gain = gains(&program.made, ready);
            let q = &given(shape, positions.len())[0];
            ready_rows(q, gain[0].as_deref(), shape, &positions)
        }
        None => q.into_iter().map(Exact::new).collect(),
    };
    let (dim, width) = (shape.head_dim as usize, shape.q_width() as usize);
    let scale = f64::from(1.0 / (shape.head_dim as f32).sqrt());
    let group = shape.heads / shape.kv_heads;
    let mut out = vec![];
    for row in checked_rows(parts) {
        let mut o = vec![];
        for kv_head in 0..shape.kv_heads {
            let [keys, values] =
                [false, true].map(|is_value| kept.of(shape, parts, row, kv_head, is_value));
            for head in kv_head * group..(kv_head + 1) * group {
                let q = &q[row * width + head as usize * dim..][..dim];
                o.extend(Query { q, scale, load }.attend(&keys, &values));
            }
        }
        let value = |&pick: &u32| {
            let o = o[pick as usize];
            if program.form == Form::Alone { o } else { picked(load, o) }
        };
        out.extend(program.picks.iter().map(value));
    }
    out
}

/// The checked rows of what a round gave; all others are numbers too.
fn checked(found: &[f32], parts: &[Part], width: usize) -> Vec<f32> {
    assert!(found.iter().all(|value| value.is_finite()), "{parts:?}: not a number");
    checked_rows(parts).iter().flat_map(|row| found[row * width..][..width].to_vec()).collect()
}

fn check(load: Load, shape: &Heads, form: Form, rounds: &[&[Part]], limits: Limits) {
    let program = make(shape, form);
    let width = program.picks.len();
    let mut bench = Bench::new(load, &program.made, limits);
    let mut other = load.other().map(|other| Bench::new(other, &program.made, limits));
    for parts in rounds {
        let name = format!("{load:?} {shape:?} {form:?} {parts:?}");
        let of = |bench: &mut Bench| {
            let (found, kept) = run(bench, &program, shape, parts);
            let wanted = exact(bench.load, &program, shape, parts, &kept);
            (wanted, checked(&found, parts, width))
        };
        let (wanted, found) = of(&mut bench);
        // By heads, where all their columns are there.
        let row = if form == Form::Alone { shape.head_dim as usize } else { width };
        judge(&wanted, &found, row).unwrap_or_else(|error| panic!("{name}: {error}"));
        if let Some((other_wanted, other)) = other.as_mut().map(of) {
            judge_both((&wanted, &found), (&other_wanted, &other))
                .unwrap_or_else(|error| panic!("{name}, against the CPU: {error}"));
        }
    }
}

/// Groups of one to more heads than a CTA of decode has (`SPLIT_HEADS`, 16), and widths that take
/// the next compiled one.
fn shapes() -> [Heads; 8] {
    [
        Heads::new(4, 4, 8),
        Heads::new(6, 2, 24),
        Heads::new(8, 2, 64),
        Heads::new(7, 1, 64),
        Heads::new(6, 2, 96),
        Heads::new(8, 2, 128),
        Heads::new(20, 1, 128),
        Heads::new(4, 1, 256),
    ]
}

pub(crate) fn attention(load: Load) {
    for shape in shapes() {
        check(load, &shape, Form::Alone, &ROUNDS, limits(4, 384));
        check(load, &shape, Form::Encoded, &ROUNDS[1..], limits(4, 384));
    }
}

pub(crate) fn attention_of_fresh_rows(load: Load) {
    for shape in shapes() {
        let plain = Heads { normed: [false; 2], scaling: RopeKind::Yarn, ..shape };
        check(load, &shape, Form::Fresh, &ROUNDS, limits(4, 384));
        check(load, &plain, Form::Fresh, &ROUNDS[..3], limits(4, 384));
    }
}

pub(crate) fn attention_over_long_contexts(load: Load) {
    assert_eq!([8, 9, 32, 33, 64, 65, 256, 257].map(runs), [4, 5, 16, 17, 32, 17, 64, 33]);
    let ends = DECODE_LONG.iter().flat_map(|pages| [pages * PAGE_TOKENS - 1, pages * PAGE_TOKENS]);
    let alone: Vec<[Part; 1]> = ends.map(|position| [(0, position, 1)]).collect();
    let mut rounds: Vec<&[Part]> = alone.iter().map(|part| &part[..]).collect();
    // Rows of many runs beside one of one; prompts that cross to longer runs, of four pages and of
    // eight; and one whose rows all see those of four, and end in the first page of one and the
    // next.
    rounds.push(&[(1, 4_100, 1), (0, 70, 1)]);
    rounds.push(&[(1, 4_090, 20)]);
    rounds.push(&[(1, 16_380, 8)]);
    rounds.push(&[(0, 4_270, 90)]);
    // Two widths: heads of 65 to 128 values have a kernel of their own for prompts.
    for shape in [Heads::new(2, 1, 64), Heads::new(2, 1, 128)] {
        for form in [Form::Alone, Form::Fresh] {
            check(load, &shape, form, &rounds, limits(2, 258 * PAGE_TOKENS));
        }
    }
}
