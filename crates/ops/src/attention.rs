use crate::program::BufferId;

/// Causal grouped-query attention over the pages of each row's sequence.
///
/// Math:    o[t,h,:] = sum_{j <= pos(t)} softmax_j(scale * q[t,h,:] . K[j, h/(H/G), :]) V[j, ..]
/// Shapes:  q, o [rows, heads * head_dim] f32; K and V read in place from the pool
/// Effects: overwrites o; o may be q. Scratch: the partial sums of long rows
/// Exact:   a row is reduced page by page in position order, and long rows by runs of a fixed
///          number of pages joined in order, so that neither chunking nor batch mates nor threads
///          change a bit
/// Errors:  shape mismatch when the program is built
#[derive(Clone, Debug)]
pub struct PagedAttention {
    /// Attention layer, `0..KvShape::layers`.
    pub layer: u32,
    /// Queries after norm and rotation.
    pub q: BufferId,
    /// Result.
    pub o: BufferId,
    /// Multiplies the scores, usually `head_dim^-0.5`.
    pub scale: f32,
}
