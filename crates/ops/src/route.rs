use crate::program::BufferId;

/// Chooses the experts of each row.
///
/// Math:    p = softmax(scores[t,:]) over all experts; ids[t,s] = the s-th largest (of equals the
///          lowest id); weights[t,s] = p[ids[t,s]], divided by their sum if `renormalise`
/// Shapes:  scores [rows, experts] f32; ids [rows, used] f32 that hold whole numbers; weights
///          [rows, used] f32; used <= experts < 2^24
/// Effects: overwrites scores, ids and weights. Row-local. Scratch: the device's grouping of the
///          round's rows by expert, which the [`ExpertLinear`](crate::ExpertLinear)s after it read
/// Errors:  shape mismatch when the program is built; NaN scores still give ids of experts
/// Source:  arXiv 1701.06538; transformers `Qwen3MoeTopKRouter`, behaviour
#[derive(Clone, Debug)]
pub struct Route {
    /// In: the router's logits.
    pub scores: BufferId,
    /// The chosen experts.
    pub ids: BufferId,
    /// What each counts.
    pub weights: BufferId,
    /// The weights of a row add up to 1.
    pub renormalise: bool,
}
