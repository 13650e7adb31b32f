use crate::program::BufferId;

/// Sum of two buffers.
///
/// Math:    y[t,i] = y[t,i] + x[t,i]
/// Shapes:  x, y [rows, width] f32
/// Effects: overwrites y. Row-local. Scratch: none
#[derive(Clone, Debug)]
pub struct AddRows {
    /// Added.
    pub x: BufferId,
    /// Added to.
    pub y: BufferId,
}
