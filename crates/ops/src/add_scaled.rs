use crate::program::BufferId;

/// Sum of two buffers, one of them gated by a value a row.
///
/// Math:    y[t,i] = y[t,i] + sigmoid(scale[t]) * x[t,i]
/// Shapes:  x, y [rows, width] f32; scale [rows, 1] f32
/// Effects: overwrites y. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct AddScaled {
    /// Added.
    pub x: BufferId,
    /// Goes through the sigmoid.
    pub scale: BufferId,
    /// Added to.
    pub y: BufferId,
}
