use crate::program::BufferId;

/// The rows of the round that logits are wanted for.
///
/// Math:    y[i,:] = x[logit_rows[i],:]
/// Shapes:  x [round rows, width] f32; y [logit rows, width] f32
/// Effects: overwrites y. Scratch: none
#[derive(Clone, Debug)]
pub struct GatherRows {
    /// All rows.
    pub x: BufferId,
    /// The chosen ones, in order.
    pub y: BufferId,
}
