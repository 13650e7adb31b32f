//! The delta rule: some columns of a head's state over the rows of a segment.

use std::mem::MaybeUninit;

use ignis_ops::{HeadMap, Segment};

use super::State;
use crate::program::Place;
use crate::simd::Isa;
use crate::vector::{LANES, Vector, by_isa};

/// One delta rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delta {
    pub(super) qkv: Place,
    pub(super) a: Place,
    pub(super) b: Place,
    pub(super) y: Place,
    pub(super) state: State,
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) map: HeadMap,
}

/// Some columns of one head's state, and the rows that pass it.
#[derive(Clone, Copy)]
struct Tile {
    q: *const f32,
    k: *const f32,
    v: *const f32,
    qkv_width: usize,
    a: *const f32,
    b: *const f32,
    heads: usize,
    y: *mut f32,
    y_width: usize,
    rows: usize,
    state: *mut f32,
    key_dim: usize,
    value_dim: usize,
    is_fresh: bool,
}

/// Most values of a key head.
pub(super) const KEYS_MAX: usize = 512;

/// A tile whose rows lie together.
#[repr(align(64))]
struct Copied {
    _values: [[f32; 4 * LANES]; KEYS_MAX],
}

impl Delta {
    /// Columns `from..from + columns` of a head, as far as it goes.
    ///
    /// # Safety
    /// As `Scan::run`.
    pub(super) unsafe fn tile(
        &self,
        isa: Isa,
        segment: &Segment,
        head: usize,
        from: usize,
        columns: usize,
    ) {
        let key_head =
            self.map.key_head(head as u32, self.key_heads as u32, self.value_heads as u32) as usize;
        let row = segment.row as usize;
        let keys = self.key_heads * self.key_dim;
        let state = self.state.at.wrapping_add(segment.lane as usize * self.state.lane);
        let state = state.cast::<f32>().wrapping_add(head * self.key_dim * self.value_dim + from);
        let value = head * self.value_dim + from;
        let tile = Tile {
            q: self.qkv.row(row).wrapping_add(key_head * self.key_dim),
            k: self.qkv.row(row).wrapping_add(keys + key_head * self.key_dim),
            v: self.qkv.row(row).wrapping_add(2 * keys + value),
            qkv_width: self.qkv.width,
            a: self.a.row(row).wrapping_add(head),
            b: self.b.row(row).wrapping_add(head),
            heads: self.value_heads,
            y: self.y.row(row).wrapping_add(value),
            y_width: self.y.width,
            rows: segment.rows as usize,
            state,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            is_fresh: segment.position == 0,
        };
        // SAFETY: the caller's promises; columns behind the head's last are not touched.
        unsafe { delta_tile(isa, tile, columns.min(self.value_dim - from) / LANES) };
    }
}

#[inline(always)]
unsafe fn delta_columns<V: Vector>(tile: Tile, vectors: usize) {
    // SAFETY: the caller's promises; the state holds `vectors` vectors a key.
    unsafe {
        match vectors {
            4 if V::WIDE => delta_rows::<V, 4>(tile),
            2 if !V::WIDE => delta_rows::<V, 2>(tile),
            _ => {
                for i in 0..vectors {
                    let at = i * LANES;
                    let (v, y, state) = (tile.v.add(at), tile.y.add(at), tile.state.add(at));
                    delta_rows::<V, 1>(Tile { v, y, state, ..tile });
                }
            }
        }
    }
}

/// Many rows work on a copy of the tile that lies together: in the state its rows are a power of
/// two apart, and would share few sets of the first-level cache.
#[inline(always)]
unsafe fn delta_rows<V: Vector, const N: usize>(tile: Tile) {
    let Tile { state, key_dim, value_dim, is_fresh, .. } = tile;
    let mut copy = MaybeUninit::<Copied>::uninit();
    let near = copy.as_mut_ptr().cast::<f32>();
    // SAFETY: the state holds key_dim rows of at least N vectors, value_dim apart; so does the
    // copy, N vectors apart, since key_dim is at most `KEYS_MAX` and N at most 4.
    unsafe {
        if tile.rows == 1 {
            return delta_vectors::<V, N>(tile);
        }
        for i in 0..if is_fresh { 0 } else { key_dim } {
            for n in 0..N {
                let s = V::load(state.add(i * value_dim + n * LANES));
                s.store(near.add((i * N + n) * LANES));
            }
        }
        delta_vectors::<V, N>(Tile { state: near, value_dim: N * LANES, ..tile });
        for i in 0..key_dim {
            for n in 0..N {
                let s = V::load(near.add((i * N + n) * LANES));
                s.store(state.add(i * value_dim + n * LANES));
            }
        }
    }
}

/// With u = S^T k and o = S^T q of the state before a row, one walk over it serves both:
/// d = b (v - a u); S = a S + k d^T; y = a o + (k . q) d.
#[inline(always)]
unsafe fn delta_vectors<V: Vector, const N: usize>(tile: Tile) {
    let Tile { state, key_dim, value_dim, .. } = tile;
    // SAFETY: the state holds key_dim rows of at least N vectors, value_dim apart; q and k hold
    // key_dim floats, v and y N vectors, in rows of their widths.
    unsafe {
        if tile.is_fresh {
            for i in 0..key_dim {
                for n in 0..N {
                    V::splat(0.0).store(state.add(i * value_dim + n * LANES));
                }
            }
        }
        for row in 0..tile.rows {
            let q = tile.q.add(row * tile.qkv_width);
            let k = tile.k.add(row * tile.qkv_width);
            let (a, b) = (*tile.a.add(row * tile.heads), *tile.b.add(row * tile.heads));
            let (a, b) = (V::splat(a), V::splat(b));
            let mut product = V::splat(0.0);
            for i in (0..key_dim).step_by(LANES) {
                product = V::load(k.add(i)).mul_add(V::load(q.add(i)), product);
            }
            let product = V::splat(product.sum());

            let (mut u, mut o) = ([V::splat(0.0); N], [V::splat(0.0); N]);
            for i in 0..key_dim {
                let (k, q) = (V::splat(*k.add(i)), V::splat(*q.add(i)));
                for n in 0..N {
                    let s = V::load(state.add(i * value_dim + n * LANES));
                    u[n] = s.mul_add(k, u[n]);
                    o[n] = s.mul_add(q, o[n]);
                }
            }
            let mut d = u;
            for n in 0..N {
                let v = V::load(tile.v.add(row * tile.qkv_width + n * LANES));
                d[n] = b.mul(v.sub(a.mul(u[n])));
                let y = product.mul_add(d[n], a.mul(o[n]));
                y.store(tile.y.add(row * tile.y_width + n * LANES));
            }
            for i in 0..key_dim {
                let k = V::splat(*k.add(i));
                for n in 0..N {
                    let at = state.add(i * value_dim + n * LANES);
                    k.mul_add(d[n], a.mul(V::load(at))).store(at);
                }
            }
        }
    }
}
by_isa! {
    /// `DeltaRule` of some columns of one head over the rows of a segment.
    ///
    /// # Safety
    /// The pointers of `tile` are valid for its rows and `16 * vectors` columns.
    unsafe fn delta_tile(tile: Tile, vectors: usize) => delta_columns
}
