//! Row-local ops: norm, rotation, gate, addition. One row a call.
//!
//! Each kernel is written over [`Vector`], so every instruction set gives the same bits; tails
//! fill the vector with zeros, which leave sums as they are.

use crate::vector::{LANES, Vector, by_isa, exp};

/// Runs the body for each `n = 16` lanes from `at` on, then for the tail.
///
/// A macro, because a closure is compiled without the caller's instruction set when it is not
/// inlined, and then every intrinsic in it becomes a call.
macro_rules! runs {
    ($len:expr, |$at:ident, $n:ident| $body:block) => {{
        let len: usize = $len;
        let mut $at = 0;
        while $at + $crate::vector::LANES <= len {
            let $n = $crate::vector::LANES;
            $body
            $at += $crate::vector::LANES;
        }
        if $at < len {
            let $n = len - $at;
            $body
        }
    }};
}
pub(crate) use runs;

#[inline(always)]
pub(crate) unsafe fn load<V: Vector>(from: *const f32, n: usize) -> V {
    // SAFETY: the caller's contract: `n` readable floats.
    unsafe { if n == LANES { V::load(from) } else { V::load_first(from, n) } }
}

#[inline(always)]
pub(crate) unsafe fn store<V: Vector>(v: V, to: *mut f32, n: usize) {
    // SAFETY: the caller's contract: `n` writable floats.
    unsafe { if n == LANES { v.store(to) } else { v.store_first(to, n) } }
}

#[inline(always)]
unsafe fn rms_norm_row<V: Vector>(
    x: *const f32,
    w: *const f32,
    y: *mut f32,
    width: usize,
    groups: usize,
    eps: f32,
) {
    for group in 0..groups {
        // SAFETY: x and y hold groups * width floats, w holds width.
        unsafe {
            let (x, y) = (x.add(group * width), y.add(group * width));
            let mut squares = V::splat(0.0);
            runs!(width, |at, n| {
                let v = load::<V>(x.add(at), n);
                squares = v.mul_add(v, squares);
            });
            let scale = V::splat(1.0 / (squares.sum() / width as f32 + eps).sqrt());
            runs!(width, |at, n| {
                let normed = load::<V>(x.add(at), n).mul(scale);
                store(normed.mul(load::<V>(w.add(at), n)), y.add(at), n);
            });
        }
    }
}
by_isa! {
    /// `RmsNorm` of one row; `y` may be `x`.
    ///
    /// # Safety
    /// x and y `[groups * width]`, w `[width]`.
    pub(crate) unsafe fn rms_norm(
        x: *const f32, w: *const f32, y: *mut f32, width: usize, groups: usize, eps: f32,
    ) => rms_norm_row
}

#[inline(always)]
unsafe fn rope_row<V: Vector>(
    x: *mut f32,
    cos: *const f32,
    sin: *const f32,
    half: usize,
    head_dim: usize,
    heads: usize,
) {
    for head in 0..heads {
        // SAFETY: x holds heads * head_dim floats, head_dim >= 2 * half; cos and sin hold half.
        unsafe {
            let (low, high) = (x.add(head * head_dim), x.add(head * head_dim + half));
            runs!(half, |at, n| {
                let (c, s) = (load::<V>(cos.add(at), n), load::<V>(sin.add(at), n));
                let (a, b) = (load::<V>(low.add(at), n), load::<V>(high.add(at), n));
                let rotated = a.mul(c).sub(b.mul(s));
                store(rotated, low.add(at), n);
                store(b.mul(c).add(a.mul(s)), high.add(at), n);
            });
        }
    }
}
by_isa! {
    /// `Rope` of one row, in place.
    ///
    /// # Safety
    /// x `[heads * head_dim]`, cos and sin `[half]`, `2 * half <= head_dim`.
    pub(crate) unsafe fn rope(
        x: *mut f32, cos: *const f32, sin: *const f32, half: usize, head_dim: usize, heads: usize,
    ) => rope_row
}

#[inline(always)]
unsafe fn swiglu_row<V: Vector>(gate: *const f32, up: *const f32, y: *mut f32, width: usize) {
    // SAFETY: all three hold width floats; a run is read before it is written.
    unsafe {
        runs!(width, |at, n| {
            let a = load::<V>(gate.add(at), n);
            let e = exp(V::splat(0.0).sub(a));
            let silu = a.div(e.add(V::splat(1.0)));
            store(silu.mul(load::<V>(up.add(at), n)), y.add(at), n);
        });
    }
}
by_isa! {
    /// `SwiGlu` of one row; `y` may be `gate` or `up`.
    ///
    /// # Safety
    /// All `[width]`.
    pub(crate) unsafe fn swiglu(gate: *const f32, up: *const f32, y: *mut f32, width: usize)
        => swiglu_row
}

#[inline(always)]
unsafe fn add_row<V: Vector>(x: *const f32, y: *mut f32, width: usize) {
    // SAFETY: both hold width floats.
    unsafe {
        runs!(width, |at, n| {
            store(load::<V>(y.add(at), n).add(load::<V>(x.add(at), n)), y.add(at), n);
        });
    }
}
by_isa! {
    /// `AddRows` of one row.
    ///
    /// # Safety
    /// Both `[width]`.
    pub(crate) unsafe fn add(x: *const f32, y: *mut f32, width: usize) => add_row
}

/// Cosines and sines of one position, as transformers computes them: the angle is an f32 product,
/// its cosine is exact to the last place, then `magnitude` multiplies.
///
/// # Safety
/// cos and sin have room for `inv_freq.len()` floats.
pub(crate) unsafe fn angles(
    position: u32,
    inv_freq: &[f32],
    magnitude: f32,
    cos: *mut f32,
    sin: *mut f32,
) {
    for (i, &freq) in inv_freq.iter().enumerate() {
        let angle = position as f32 * freq;
        let (s, c) = f64::from(angle).sin_cos();
        // SAFETY: the caller's contract.
        unsafe {
            *cos.add(i) = c as f32 * magnitude;
            *sin.add(i) = s as f32 * magnitude;
        }
    }
}

#[cfg(test)]
mod tests;
