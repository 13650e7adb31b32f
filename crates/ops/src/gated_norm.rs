use crate::program::{BufferId, WeightId};

/// What a gate goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateFunction {
    /// a / (1 + exp(-a))
    Silu,
    /// 1 / (1 + exp(-a))
    Sigmoid,
}

/// RMS norm over consecutive groups of `w` values of each row, then a gate.
///
/// Math:    y[t,g,i] = x[t,g,i] * w[i] / sqrt(mean_i(x[t,g,:]^2) + eps) * f(gate[t,g,i])
/// Shapes:  x, gate, y [rows, groups * width] f32; w [width] f32
/// Effects: overwrites y; y may be x. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 2412.06464; transformers `Qwen3_5RMSNormGated`, behaviour
#[derive(Clone, Debug)]
pub struct GatedNorm {
    /// Input.
    pub x: BufferId,
    /// Gain, `[width]`.
    pub w: WeightId,
    /// Goes through `f`.
    pub gate: BufferId,
    /// Result.
    pub y: BufferId,
    /// Added to the mean square.
    pub eps: f32,
    /// What the gate goes through.
    pub f: GateFunction,
}
