use crate::program::BufferId;

/// Weighted sum of what a row's experts gave.
///
/// Math:    y[t,:] = y[t,:] + sum_s weights[t,s] * x[t,s,:], s in order
/// Shapes:  x [rows, used * width] f32, from an [`ExpertLinear`](crate::ExpertLinear); weights
///          [rows, used] f32; y [rows, width] f32
/// Effects: overwrites y. Scratch: reads the device's grouping
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct ExpertSum {
    /// Results of the experts.
    pub x: BufferId,
    /// The experts of each row, as the products had them.
    pub ids: BufferId,
    /// What each counts.
    pub weights: BufferId,
    /// Added to: the residual stream.
    pub y: BufferId,
}
