//! Row-local ops of gates and heads: kernels over [`Vector`], one row a call, as in `rows`.

use ignis_ops::{DeltaGates, GateFunction, Op};

use crate::program::{Compiler, Place, RowOp};
use crate::rows::{load, runs, store};
use crate::simd::Isa;
use crate::vector::{Vector, by_isa, exp};

/// A row-local op of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GateOp {
    Gate {
        gate: Place,
        y: Place,
    },
    AddScaled {
        x: Place,
        scale: Place,
        y: Place,
    },
    L2Norm {
        x: Place,
        first: usize,
        heads: usize,
        dim: usize,
        scale: f32,
        eps: f32,
    },
    Decay {
        a: Place,
        decay: *const f32,
        dt: *const f32,
    },
    Beta {
        b: Place,
    },
    GatedNorm {
        x: Place,
        w: *const f32,
        gate: Place,
        y: Place,
        width: usize,
        eps: f32,
        f: GateFunction,
    },
}

impl Compiler<'_> {
    /// Chains an op of this file.
    pub(crate) fn gate_op(&mut self, op: &Op) {
        if let Op::DeltaGates(op) = op {
            return self.delta_gates(op);
        }
        let rows = |id| self.program.buffer(id).rows;
        let (rows, reads, writes, op) = match op {
            Op::Gate(op) => {
                let gated = GateOp::Gate { gate: self.place(op.gate), y: self.place(op.y) };
                (rows(op.y), vec![op.gate], op.y, gated)
            }
            Op::AddScaled(op) => {
                let (x, scale, y) = (self.place(op.x), self.place(op.scale), self.place(op.y));
                (rows(op.y), vec![op.x, op.scale], op.y, GateOp::AddScaled { x, scale, y })
            }
            Op::L2NormHeads(op) => {
                let norm = GateOp::L2Norm {
                    x: self.place(op.x),
                    first: op.first as usize,
                    heads: op.heads as usize,
                    dim: op.dim as usize,
                    scale: op.scale,
                    eps: op.eps,
                };
                (rows(op.x), vec![], op.x, norm)
            }
            Op::GatedNorm(op) => {
                let norm = GateOp::GatedNorm {
                    x: self.place(op.x),
                    w: self.vector(op.w),
                    gate: self.place(op.gate),
                    y: self.place(op.y),
                    width: self.program.weight(op.w).cols as usize,
                    eps: op.eps,
                    f: op.f,
                };
                (rows(op.y), vec![op.x, op.gate], op.y, norm)
            }
            _ => unreachable!("the caller sends ops of this file"),
        };
        self.chain_op(rows, &reads, Some(writes), RowOp::Gate(op));
    }

    /// Two row ops, since a row op writes one buffer.
    fn delta_gates(&mut self, op: &DeltaGates) {
        let rows = self.program.buffer(op.a).rows;
        let (decay, dt) = (self.vector(op.decay), self.vector(op.dt));
        let gate = GateOp::Decay { a: self.place(op.a), decay, dt };
        self.chain_op(rows, &[], Some(op.a), RowOp::Gate(gate));
        let gate = GateOp::Beta { b: self.place(op.b) };
        self.chain_op(rows, &[], Some(op.b), RowOp::Gate(gate));
    }
}

impl GateOp {
    /// One row.
    ///
    /// # Safety
    /// The places hold the row and the vectors their widths; `isa` is available; nobody else has
    /// the row.
    pub(crate) unsafe fn run(&self, isa: Isa, row: usize) {
        // SAFETY: shapes were checked when the program was built; the rest is the caller's promise.
        unsafe {
            match *self {
                GateOp::Gate { gate, y } => gate_by(isa, gate.row(row), y.row(row), y.width),
                GateOp::AddScaled { x, scale, y } => {
                    add_scaled(isa, x.row(row), *scale.row(row), y.row(row), y.width);
                }
                GateOp::L2Norm { x, first, heads, dim, scale, eps } => {
                    l2_norm(isa, x.row(row).add(first), heads, dim, scale, eps);
                }
                GateOp::Decay { a, decay, dt } => decay_row(a.row(row), decay, dt, a.width),
                GateOp::Beta { b } => beta_row(b.row(row), b.width),
                GateOp::GatedNorm { x, w, gate, y, width, eps, f } => {
                    let norm = match f {
                        GateFunction::Silu => silu_norm,
                        GateFunction::Sigmoid => sigmoid_norm,
                    };
                    let groups = x.width / width;
                    norm(isa, x.row(row), w, gate.row(row), y.row(row), width, groups, eps);
                }
            }
        }
    }
}

/// 1 / (1 + e^-a)
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: Vector>(a: V) -> V {
    // SAFETY: the caller has the instruction set of `V`.
    unsafe {
        let one = V::splat(1.0);
        one.div(exp(V::splat(0.0).sub(a)).add(one))
    }
}

/// a / (1 + e^-a)
#[inline(always)]
pub(crate) unsafe fn silu<V: Vector>(a: V) -> V {
    // SAFETY: as above.
    unsafe { a.div(exp(V::splat(0.0).sub(a)).add(V::splat(1.0))) }
}

#[inline(always)]
unsafe fn gate_row<V: Vector>(gate: *const f32, y: *mut f32, width: usize) {
    // SAFETY: both hold width floats.
    unsafe {
        runs!(width, |at, n| {
            let open = sigmoid(load::<V>(gate.add(at), n));
            store(load::<V>(y.add(at), n).mul(open), y.add(at), n);
        });
    }
}
by_isa! {
    /// `Gate` of one row.
    ///
    /// # Safety
    /// Both `[width]`.
    unsafe fn gate_by(gate: *const f32, y: *mut f32, width: usize) => gate_row
}

#[inline(always)]
unsafe fn add_scaled_row<V: Vector>(x: *const f32, scale: f32, y: *mut f32, width: usize) {
    // SAFETY: both hold width floats.
    unsafe {
        let scale = sigmoid(V::splat(scale));
        runs!(width, |at, n| {
            let sum = load::<V>(x.add(at), n).mul_add(scale, load::<V>(y.add(at), n));
            store(sum, y.add(at), n);
        });
    }
}
by_isa! {
    /// `AddScaled` of one row.
    ///
    /// # Safety
    /// Both `[width]`.
    unsafe fn add_scaled(x: *const f32, scale: f32, y: *mut f32, width: usize) => add_scaled_row
}

#[inline(always)]
unsafe fn l2_norm_row<V: Vector>(x: *mut f32, heads: usize, dim: usize, scale: f32, eps: f32) {
    for head in 0..heads {
        // SAFETY: x holds heads * dim floats.
        unsafe {
            let x = x.add(head * dim);
            let mut squares = V::splat(0.0);
            runs!(dim, |at, n| {
                let v = load::<V>(x.add(at), n);
                squares = v.mul_add(v, squares);
            });
            let scale = V::splat(scale / (squares.sum() + eps).sqrt());
            runs!(dim, |at, n| {
                store(load::<V>(x.add(at), n).mul(scale), x.add(at), n);
            });
        }
    }
}
by_isa! {
    /// `L2NormHeads` of one row.
    ///
    /// # Safety
    /// x `[heads * dim]`.
    unsafe fn l2_norm(x: *mut f32, heads: usize, dim: usize, scale: f32, eps: f32) => l2_norm_row
}

/// The first half of `DeltaGates`. A few values a layer, in f64, so no vectors.
///
/// # Safety
/// All `[heads]`.
unsafe fn decay_row(a: *mut f32, decay: *const f32, dt: *const f32, heads: usize) {
    for h in 0..heads {
        // SAFETY: all three hold `heads` floats.
        unsafe {
            let x = f64::from(*a.add(h) + *dt.add(h));
            let softplus = if x > 30.0 { x } else { x.exp().ln_1p() };
            *a.add(h) = (f64::from(*decay.add(h)) * softplus).exp() as f32;
        }
    }
}

/// The second half of `DeltaGates`.
///
/// # Safety
/// b `[heads]`.
unsafe fn beta_row(b: *mut f32, heads: usize) {
    for h in 0..heads {
        // SAFETY: b holds `heads` floats.
        unsafe { *b.add(h) = (1.0 / (1.0 + (-f64::from(*b.add(h))).exp())) as f32 };
    }
}

#[inline(always)]
unsafe fn gated_norm_row<V: Vector, const SILU: bool>(
    x: *const f32,
    w: *const f32,
    gate: *const f32,
    y: *mut f32,
    width: usize,
    groups: usize,
    eps: f32,
) {
    for group in 0..groups {
        // SAFETY: x, gate and y hold groups * width floats, w holds width.
        unsafe {
            let from = group * width;
            let (x, gate, y) = (x.add(from), gate.add(from), y.add(from));
            let mut squares = V::splat(0.0);
            runs!(width, |at, n| {
                let v = load::<V>(x.add(at), n);
                squares = v.mul_add(v, squares);
            });
            let scale = V::splat(1.0 / (squares.sum() / width as f32 + eps).sqrt());
            runs!(width, |at, n| {
                let normed = load::<V>(x.add(at), n).mul(scale).mul(load::<V>(w.add(at), n));
                let gate = load::<V>(gate.add(at), n);
                let gate = if SILU { silu(gate) } else { sigmoid(gate) };
                store(normed.mul(gate), y.add(at), n);
            });
        }
    }
}

#[inline(always)]
unsafe fn silu_norm_row<V: Vector>(
    x: *const f32,
    w: *const f32,
    gate: *const f32,
    y: *mut f32,
    width: usize,
    groups: usize,
    eps: f32,
) {
    // SAFETY: the caller's promises.
    unsafe { gated_norm_row::<V, true>(x, w, gate, y, width, groups, eps) }
}

#[inline(always)]
unsafe fn sigmoid_norm_row<V: Vector>(
    x: *const f32,
    w: *const f32,
    gate: *const f32,
    y: *mut f32,
    width: usize,
    groups: usize,
    eps: f32,
) {
    // SAFETY: the caller's promises.
    unsafe { gated_norm_row::<V, false>(x, w, gate, y, width, groups, eps) }
}
by_isa! {
    /// `GatedNorm` of one row through silu; `y` may be `x`.
    ///
    /// # Safety
    /// x, gate and y `[groups * width]`, w `[width]`.
    unsafe fn silu_norm(
        x: *const f32, w: *const f32, gate: *const f32, y: *mut f32, width: usize, groups: usize,
        eps: f32,
    ) => silu_norm_row
}
by_isa! {
    /// As [`silu_norm`], through the sigmoid.
    ///
    /// # Safety
    /// As [`silu_norm`].
    unsafe fn sigmoid_norm(
        x: *const f32, w: *const f32, gate: *const f32, y: *mut f32, width: usize, groups: usize,
        eps: f32,
    ) => sigmoid_norm_row
}
