//! The two small matrix products of attention, keys and values alike: `c[q, :] += a[q, k] b[k, :]`.

use crate::vector::{LANES, Vector};

/// A stored element of `b`.
pub(super) trait Element: Copy {
    /// Sixteen of them as f32.
    ///
    /// # Safety
    /// As for [`Vector`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const f32) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load(from) }
    }
}

/// bf16 bits.
impl Element for u16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const u16) -> V {
        // SAFETY: the caller's contract.
        unsafe { V::load_bf16(from) }
    }
}

/// Queries that one pass over `b` serves.
pub(super) const QUERIES: usize = 6;

/// Operands of one product. Strides in elements.
#[derive(Clone, Copy)]
pub(super) struct Product<E> {
    /// `[queries, depth]`.
    pub(super) a: *const f32,
    pub(super) a_stride: usize,
    /// `[depth, columns]`.
    pub(super) b: *const E,
    pub(super) b_stride: usize,
    /// `[queries, columns]`.
    pub(super) c: *mut f32,
    pub(super) c_stride: usize,
    pub(super) queries: usize,
    pub(super) depth: usize,
    /// A multiple of sixteen.
    pub(super) columns: usize,
    /// Adds to `c` instead of overwriting it.
    pub(super) accumulate: bool,
}

impl<E: Element> Product<E> {
    /// Every value of `c` is one chain of fused multiply-adds over `depth`, in order.
    ///
    /// # Safety
    /// The pointers are valid for the shapes named; `c` overlaps neither operand.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector>(&self) {
        let mut query = 0;
        while query < self.queries {
            // SAFETY: the rows `query..` exist, as many as each arm names.
            unsafe {
                match self.queries - query {
                    1 => self.columns_of::<V, 1, 4, 4>(query),
                    2 => self.columns_of::<V, 2, 4, 2>(query),
                    3 => self.columns_of::<V, 3, 4, 2>(query),
                    4 => self.columns_of::<V, 4, 4, 1>(query),
                    5 => self.columns_of::<V, 5, 4, 1>(query),
                    _ => self.columns_of::<V, QUERIES, 4, 1>(query),
                }
            }
            query += QUERIES;
        }
    }

    /// Rows `query..query + R`, `WIDE` vectors of columns at a time, or `NARROW` where a vector
    /// takes two registers.
    #[inline(always)]
    unsafe fn columns_of<V: Vector, const R: usize, const WIDE: usize, const NARROW: usize>(
        &self,
        query: usize,
    ) {
        let mut column = 0;
        let step = if V::WIDE { WIDE } else { NARROW };
        while column < self.columns {
            // SAFETY: the block lies inside `c`.
            unsafe {
                if column + step * LANES > self.columns {
                    self.block::<V, R, 1>(query, column);
                    column += LANES;
                } else if V::WIDE {
                    self.block::<V, R, WIDE>(query, column);
                    column += WIDE * LANES;
                } else {
                    self.block::<V, R, NARROW>(query, column);
                    column += NARROW * LANES;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn block<V: Vector, const R: usize, const C: usize>(&self, query: usize, column: usize) {
        // SAFETY: rows query..query + R and columns column..column + 16 C exist in c, and the
        // matching parts of a and b.
        unsafe {
            let a = self.a.add(query * self.a_stride);
            let mut b = self.b.add(column);
            let c = self.c.add(query * self.c_stride + column);
            let mut sums = [[V::splat(0.0); C]; R];
            if self.accumulate {
                for r in 0..R {
                    for i in 0..C {
                        sums[r][i] = V::load(c.add(r * self.c_stride + i * LANES));
                    }
                }
            }
            for k in 0..self.depth {
                let mut row = [V::splat(0.0); C];
                for i in 0..C {
                    row[i] = E::load(b.add(i * LANES));
                }
                b = b.wrapping_add(self.b_stride);
                for r in 0..R {
                    let x = V::splat(*a.add(r * self.a_stride + k));
                    for i in 0..C {
                        sums[r][i] = x.mul_add(row[i], sums[r][i]);
                    }
                }
            }
            for r in 0..R {
                for i in 0..C {
                    sums[r][i].store(c.add(r * self.c_stride + i * LANES));
                }
            }
        }
    }
}
