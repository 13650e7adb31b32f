use crate::program::{BufferId, WeightId};

/// Rows of an embedding table.
///
/// Math:    y[t,:] = table[token[t],:], dequantised to f32
/// Shapes:  table [vocab, hidden] any stored dtype; y [rows, hidden] f32; token ids < vocab
/// Effects: overwrites y. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built; an id outside the vocabulary is a bug of the
///          caller and asserts
#[derive(Clone, Debug)]
pub struct Embed {
    /// The table, `[vocab, hidden]`.
    pub table: WeightId,
    /// Result, `[rows, hidden]`.
    pub y: BufferId,
}
