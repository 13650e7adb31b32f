use crate::program::BufferId;

/// L2 norm of some heads of each row, in place.
///
/// Math:    x[t,first+h*dim+i] *= scale / sqrt(sum_i(x[t,first+h*dim+i]^2) + eps), h < heads
/// Shapes:  x [rows, width] f32; first + heads * dim <= width; other values are left alone
/// Effects: overwrites the heads. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 2412.06464; a sum and not a mean, with eps under the root
#[derive(Clone, Debug)]
pub struct L2NormHeads {
    /// Normed in place.
    pub x: BufferId,
    /// First value of the first head.
    pub first: u32,
    /// Heads.
    pub heads: u32,
    /// Values a head.
    pub dim: u32,
    /// Multiplies the normed values.
    pub scale: f32,
    /// Added to the sum of squares.
    pub eps: f32,
}
