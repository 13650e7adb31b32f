use crate::program::{BufferId, WeightId};

/// One matrix of a [`Linear`].
#[derive(Clone, Debug)]
pub struct LinearPart {
    /// Weight, `[out, in]`.
    pub w: WeightId,
    /// Optional bias, `[out]`.
    pub bias: Option<WeightId>,
    /// Result, `[rows, out]`.
    pub y: BufferId,
}

/// Products of one input with one or more matrices.
///
/// Math:    y_p[t,n] = (accumulate ? y_p[t,n] : 0) + bias_p[n] + sum_k x[t,k] * w_p[n,k]
/// Shapes:  x [rows, in] f32; w_p [out_p, in] any stored dtype; y_p [rows, out_p] f32
/// Effects: overwrites (or adds to) each y_p; no y_p may be x or another y. Scratch: the device's
///          encoding of x
/// Exact:   a row's result depends on nothing but that row and the weights: not on the number of
///          rows, their order, threads or the instruction set. A device that quantises x does so
///          per row and per 32 columns
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct Linear {
    /// Input, `[rows, in]`.
    pub x: BufferId,
    /// The matrices that share the input (q, k and v; gate and up; or one).
    pub parts: Vec<LinearPart>,
    /// Adds to `y` instead of overwriting it: the residual connection.
    pub accumulate: bool,
    /// The product decides logits directly: a device that rounds activations keeps more bits here.
    pub precise: bool,
}
