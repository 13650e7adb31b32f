use crate::program::{BufferId, WeightId};

/// The two gates of the delta rule, in place.
///
/// Math:    a[t,h] = exp(decay[h] * softplus(a[t,h] + dt[h])); b[t,h] = sigmoid(b[t,h])
/// Shapes:  a, b [rows, heads] f32; decay (negative: -exp(A)), dt [heads] f32
/// Effects: overwrites a and b. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 2412.06464
#[derive(Clone, Debug)]
pub struct DeltaGates {
    /// In: the projection; out: what remains of the state.
    pub a: BufferId,
    /// In: the projection; out: how much of the new value is written.
    pub b: BufferId,
    /// Rate of each head.
    pub decay: WeightId,
    /// Offset of each head.
    pub dt: WeightId,
}
