use crate::program::{BufferId, WeightId};

/// RMS norm over consecutive groups of `w` values of each row.
///
/// Math:    y[t,g,i] = x[t,g,i] * w[i] / sqrt(mean_i(x[t,g,:]^2) + eps), sums in f32
/// Shapes:  x, y [rows, groups * width] f32; w [width] f32. groups = 1 is the ordinary norm of a
///          row; groups = heads with width = head_dim is the per-head norm of Qwen3
/// Effects: overwrites y; y may be x. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 1910.07467; transformers Qwen3RMSNorm
#[derive(Clone, Debug)]
pub struct RmsNorm {
    /// Input, `[rows, groups * width]`.
    pub x: BufferId,
    /// Gain, `[width]`.
    pub w: WeightId,
    /// Result, same shape as `x`.
    pub y: BufferId,
    /// Added to the mean square.
    pub eps: f32,
}
