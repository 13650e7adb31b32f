use crate::program::{BufferId, WeightId};
use crate::section::SectionId;

/// Depthwise convolution over time, then silu.
///
/// Math:    y[t,c] = silu(sum_{j<K} w[j,c] * x'[t-K+1+j,c]), where x' is x rounded to the section's
///          format; columns before the sequence are zero
/// Shapes:  x, y [rows, channels] f32; w [K * channels] f32, tap-major, tap K-1 for the row itself
/// State:   `taps` [K-1, channels]: the last K-1 columns of x', oldest first
/// Effects: overwrites y and the lane's taps; y may be x. Scratch: none
/// Exact:   columns are rounded before any use, so the cut into chunks does not show
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 2412.06464; transformers `Qwen3_5GatedDeltaNet`, behaviour
#[derive(Clone, Debug)]
pub struct CausalConv {
    /// Input, `[rows, channels]`.
    pub x: BufferId,
    /// Taps of every channel, `[K * channels]`.
    pub w: WeightId,
    /// Result, same shape as `x`.
    pub y: BufferId,
    /// Columns that the next rows need.
    pub taps: SectionId,
    /// Layer of the section.
    pub layer: u32,
}
