use crate::program::BufferId;

/// Gate of each value.
///
/// Math:    y[t,i] = y[t,i] * sigmoid(gate[t,i])
/// Shapes:  gate, y [rows, width] f32
/// Effects: overwrites y. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct Gate {
    /// Goes through the sigmoid.
    pub gate: BufferId,
    /// Multiplied.
    pub y: BufferId,
}
