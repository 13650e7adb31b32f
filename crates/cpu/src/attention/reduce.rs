//! The reduction of one item: scores, weights, weighted values, page by page.

use half::bf16;
use ignis_backend::KvFormat;

use super::join::{Stats, finish, join, keep};
use super::plan::Sizes;
use super::product::{Element, Product, QUERIES};
use super::{Item, NO_SPLIT, RUN_PAGES};
use crate::kv::{KvPool, TOKENS};
use crate::vector::{LANES, Vector, by_isa, exp};

/// One attention op in one round, as one worker sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Start of the reservation.
    pub(crate) base: *mut u8,
    pub(crate) pool: KvPool,
    pub(crate) sizes: Sizes,
    pub(crate) layer: u32,
    /// Query heads of this layer.
    pub(crate) heads: usize,
    pub(crate) scale: f32,
    /// `[rows, heads * head_dim]`.
    pub(crate) q: *const f32,
    /// `[rows, heads * head_dim]`; may be `q`.
    pub(crate) o: *mut f32,
    /// `[lanes, stride]`.
    pub(crate) block_tables: *const u32,
    pub(crate) stride: usize,
    /// This worker's scratch, `Sizes::worker_bytes`.
    pub(crate) scratch: *mut f32,
    /// `[slots, heads, partial_head]`.
    pub(crate) partials: *mut f32,
}

/// The parts of a worker's scratch.
pub(super) struct Scratch {
    q: *mut f32,                 // [queries, width], scaled
    sums: *mut f32,              // [queries, width], of the present run
    pub(super) totals: *mut f32, // [queries, width], of the runs before
    scores: *mut f32,            // [queries, TOKENS], then the weights
    run: *mut Stats,             // [queries]
    all: *mut Stats,             // [queries]
    k: *mut f32,                 // [head_dim, TOKENS]
    v: *mut f32,                 // [TOKENS, width]
}

impl Scratch {
    pub(super) fn new(call: &Call) -> Scratch {
        let (queries, width) = (call.sizes.queries(), call.sizes.width);
        let mut at = call.scratch;
        let mut take = |floats: usize| {
            let part = at;
            at = at.wrapping_add(floats);
            part
        };
        Scratch {
            q: take(queries * width),
            sums: take(queries * width),
            totals: take(queries * width),
            scores: take(queries * TOKENS),
            run: take(queries * 2).cast(),
            all: take(queries * 2).cast(),
            k: take(width * TOKENS),
            v: take(width * TOKENS),
        }
    }
}

by_isa! {
    /// Reduces an item for one KV head: writes its rows of `o`, or its slot of the partial sums.
    ///
    /// # Safety
    /// The call's pointers are valid for the shapes named, the pages of the item's rows are filled
    /// up to their positions, and nobody else touches this worker's scratch or the item's outputs.
    pub(crate) unsafe fn run_item(call: &Call, item: &Item, kv_head: usize) => reduce_item
}

#[inline(always)]
unsafe fn reduce_item<V: Vector>(call: &Call, item: &Item, kv_head: usize) {
    let group = call.heads / call.pool.heads;
    let (head_dim, width) = (call.sizes.head_dim, call.sizes.width);
    let queries = item.rows as usize * group;
    let scratch = Scratch::new(call);
    let last = item.position as usize + item.rows as usize - 1;
    let row_width = call.heads * head_dim;
    // SAFETY: the scratch holds `Sizes::queries` >= `queries` of everything; rows, pages and slots
    // exist by the caller's contract.
    unsafe {
        let table = call.block_tables.add(item.lane as usize * call.stride);
        for query in 0..queries {
            let (row, head) = (item.row as usize + query / group, kv_head * group + query % group);
            let from = call.q.add(row * row_width + head * head_dim);
            let to = scratch.q.add(query * width);
            for d in 0..head_dim {
                *to.add(d) = *from.add(d) * call.scale;
            }
        }
        for run in item.run_from as usize..item.run_to as usize {
            for query in 0..queries {
                *scratch.run.add(query) = Stats { largest: f32::NEG_INFINITY, sum: 0.0 };
            }
            let pages = run * RUN_PAGES..((run + 1) * RUN_PAGES).min(last / TOKENS + 1);
            for index in pages {
                let page = *table.add(index);
                let k = call.base.add(call.pool.k_plane(page, call.layer, kv_head));
                let v = call.base.add(call.pool.v_plane(page, call.layer, kv_head));
                let first = index == run * RUN_PAGES;
                let span = Span { item, group, queries, index, first };
                match call.pool.format {
                    KvFormat::Bf16 => {
                        reduce_page::<V, u16>(call, &scratch, &span, k.cast(), v.cast())
                    }
                    KvFormat::F32 => {
                        reduce_page::<V, f32>(call, &scratch, &span, k.cast(), v.cast())
                    }
                }
            }
            for query in 0..queries {
                let sums = scratch.sums.add(query * width);
                let stats = *scratch.run.add(query);
                if item.slot != NO_SPLIT {
                    let head = kv_head * group + query;
                    keep::<V>(call, item.slot as usize, head, sums, stats);
                } else if stats.sum != 0.0 {
                    let totals = scratch.totals.add(query * width);
                    join::<V>(run == 0, totals, &mut *scratch.all.add(query), sums, stats, width);
                }
            }
        }
        if item.slot != NO_SPLIT {
            return;
        }
        for query in 0..queries {
            let (row, head) = (item.row as usize + query / group, kv_head * group + query % group);
            let to = call.o.add(row * row_width + head * head_dim);
            let stats = *scratch.all.add(query);
            finish::<V>(scratch.totals.add(query * width), stats.sum, to, head_dim);
        }
    }
}

/// One page of one item.
struct Span<'a> {
    item: &'a Item,
    group: usize,
    queries: usize,
    /// Which page of the sequence.
    index: usize,
    /// The first of its run.
    first: bool,
}

impl Span<'_> {
    /// Tokens of the page that a query sees.
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        let behind = self.item.position as usize + query / self.group + 1;
        behind.saturating_sub(self.index * TOKENS).min(TOKENS)
    }
}

#[inline(always)]
unsafe fn reduce_page<V: Vector, E: Stored>(
    call: &Call,
    scratch: &Scratch,
    span: &Span<'_>,
    k: *const E,
    v: *const E,
) {
    let (head_dim, width, queries) = (call.sizes.head_dim, call.sizes.width, span.queries);
    let tokens = span.visible(queries - 1);
    let scores = Product {
        a: scratch.q.cast_const(),
        a_stride: width,
        b: scratch.k.cast_const(),
        b_stride: TOKENS,
        c: scratch.scores,
        c_stride: TOKENS,
        queries,
        depth: head_dim,
        columns: TOKENS,
        accumulate: false,
    };
    let values = Product {
        a: scratch.scores.cast_const(),
        a_stride: TOKENS,
        b: scratch.v.cast_const(),
        b_stride: width,
        c: scratch.sums,
        c_stride: width,
        queries,
        depth: tokens,
        columns: width,
        accumulate: !span.first,
    };
    // SAFETY: a page holds head_dim * TOKENS elements of each; scratch parts have the shapes named.
    unsafe {
        // Converting pays when several passes read the page; a value that is not a whole number of
        // vectors wide is padded on the way.
        let many = E::CONVERTS && queries > QUERIES;
        if many {
            for at in (0..head_dim * TOKENS).step_by(LANES) {
                E::load::<V>(k.add(at)).store(scratch.k.add(at));
            }
            scores.run::<V>();
        } else {
            retyped(scores, k).run::<V>();
        }
        for query in 0..queries {
            weigh::<V>(
                scratch.scores.add(query * TOKENS),
                span.visible(query),
                &mut *scratch.run.add(query),
                if span.first { None } else { Some(scratch.sums.add(query * width)) },
                width,
            );
        }
        if width != head_dim {
            for token in 0..tokens {
                for d in 0..head_dim {
                    *scratch.v.add(token * width + d) = (*v.add(token * head_dim + d)).widened();
                }
            }
            values.run::<V>();
        } else if many {
            for at in (0..tokens * width).step_by(LANES) {
                E::load::<V>(v.add(at)).store(scratch.v.add(at));
            }
            values.run::<V>();
        } else {
            retyped(values, v).run::<V>();
        }
    }
}

/// The same product over another `b`.
#[inline(always)]
fn retyped<E>(p: Product<f32>, b: *const E) -> Product<E> {
    Product {
        a: p.a,
        a_stride: p.a_stride,
        b,
        b_stride: p.b_stride,
        c: p.c,
        c_stride: p.c_stride,
        queries: p.queries,
        depth: p.depth,
        columns: p.columns,
        accumulate: p.accumulate,
    }
}

/// An element as the pool stores it.
trait Stored: Element {
    /// Loading costs more than a move.
    const CONVERTS: bool;
    fn widened(self) -> f32;
}

impl Stored for u16 {
    const CONVERTS: bool = true;
    #[inline(always)]
    fn widened(self) -> f32 {
        bf16::from_bits(self).to_f32()
    }
}

impl Stored for f32 {
    const CONVERTS: bool = false;
    #[inline(always)]
    fn widened(self) -> f32 {
        self
    }
}

/// Turns the first `visible` scores into weights relative to the largest so far, the others into
/// zeros, and rescales what the run has summed before.
#[inline(always)]
unsafe fn weigh<V: Vector>(
    scores: *mut f32,
    visible: usize,
    stats: &mut Stats,
    sums: Option<*mut f32>,
    width: usize,
) {
    const VECTORS: usize = TOKENS / LANES;
    // SAFETY: TOKENS scores and `width` sums, by the caller.
    unsafe {
        if visible == 0 {
            for i in 0..VECTORS {
                V::splat(0.0).store(scores.add(i * LANES));
            }
            return;
        }
        let mut v = [V::splat(f32::NEG_INFINITY); VECTORS];
        for i in 0..VECTORS {
            let seen = V::load(scores.add(i * LANES));
            v[i] = seen.first(visible.saturating_sub(i * LANES).min(LANES), v[i]);
        }
        let largest = v[0].max(v[1]).max(v[2].max(v[3])).largest();
        if largest > stats.largest {
            if let Some(sums) = sums {
                let scale = exp(V::splat(stats.largest - largest));
                for at in (0..width).step_by(LANES) {
                    V::load(sums.add(at)).mul(scale).store(sums.add(at));
                }
                stats.sum *= scale.lane0();
            }
            stats.largest = largest;
        }
        let mut sum = V::splat(0.0);
        for i in 0..VECTORS {
            let weight = exp(v[i].sub(V::splat(stats.largest)));
            weight.store(scores.add(i * LANES));
            sum = sum.add(weight);
        }
        stats.sum += sum.sum();
    }
}
