use crate::program::{BufferId, WeightId};

/// One matrix of an [`ExpertLinear`].
#[derive(Clone, Debug)]
pub struct ExpertPart {
    /// Weight of every expert, `[experts, out, in]`.
    pub w: WeightId,
    /// Result, `[rows, used, out]`.
    pub y: BufferId,
}

/// Products of each row with the matrices of the experts that it was routed to.
///
/// Math:    y_p[t,s,n] = sum_k x[t,s,k] * w_p[ids[t,s],n,k]; an x of one row a token serves
///          every s
/// Shapes:  x [rows, in] or [rows, used * in] f32; ids [rows, used]; w_p [experts * out_p, in] any
///          stored dtype; y_p [rows, used * out_p] f32
/// Order:   a device may keep the pairs (t, s) of y_p, and of an x of pairs, in its own order,
///          the same for all until the next `Route`. Elementwise ops between two of them do not
///          notice; nothing else but [`ExpertSum`](crate::ExpertSum) may read them
/// Effects: overwrites each y_p; no y_p may be x or another y. Scratch: the device's encoding of x
/// Exact:   as [`Linear`](crate::Linear): which rows share an expert does not show
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct ExpertLinear {
    /// Input.
    pub x: BufferId,
    /// The experts of each row, from the last [`Route`](crate::Route).
    pub ids: BufferId,
    /// The matrices that share the input.
    pub parts: Vec<ExpertPart>,
}
