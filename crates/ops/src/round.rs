//! What one run of a program works on.

/// Consecutive tokens of one sequence inside a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Row of the block-table array.
    pub lane: u32,
    /// First row of the round.
    pub row: u32,
    /// Rows, at least one.
    pub rows: u32,
    /// Position of the first row in its sequence.
    pub position: u32,
}

/// The inputs of one run: flat arrays that the caller owns.
///
/// Invariants: segments lie one after another from row 0 and cover `tokens`; no lane appears twice;
/// `block_tables[lane * stride + i]` names the page of positions `i * PAGE_TOKENS ..` for every
/// position up to the segment's last; pages that a segment writes belong to its lane alone.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// Token ids, one a row.
    pub tokens: &'a [u32],
    /// The sequences that the rows belong to.
    pub segments: &'a [Segment],
    /// Rows whose logits are wanted, ascending; at most `lanes_max`.
    pub logit_rows: &'a [u32],
    /// Page ids, `[lanes_max, stride]`.
    pub block_tables: &'a [u32],
    /// Entries a lane has in `block_tables`.
    pub stride: usize,
}
