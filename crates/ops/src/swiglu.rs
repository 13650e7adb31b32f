use crate::program::BufferId;

/// Gated activation.
///
/// Math:    y[t,i] = silu(gate[t,i]) * up[t,i], silu(a) = a / (1 + exp(-a))
/// Shapes:  gate, up, y [rows, width] f32
/// Effects: overwrites y; y may be gate or up. Row-local. Scratch: none
/// Source:  arXiv 2002.05202
#[derive(Clone, Debug)]
pub struct SwiGlu {
    /// Goes through the sigmoid.
    pub gate: BufferId,
    /// Multiplies it.
    pub up: BufferId,
    /// Result.
    pub y: BufferId,
}
