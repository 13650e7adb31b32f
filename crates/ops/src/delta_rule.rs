use crate::program::BufferId;
use crate::section::SectionId;

/// Which key head a value head reads, with `r` value heads a key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadMap {
    /// Value head `j` reads key head `j / r`.
    Grouped,
    /// Value head `j` reads key head `j % key_heads`.
    Tiled,
}

impl HeadMap {
    /// The key head of value head `j`.
    pub fn key_head(self, j: u32, key_heads: u32, value_heads: u32) -> u32 {
        match self {
            HeadMap::Grouped => j / (value_heads / key_heads),
            HeadMap::Tiled => j % key_heads,
        }
    }
}

/// Gated delta rule: a linear recurrence over the rows of each sequence.
///
/// Math:    for each row t and value head j, q and k of its key head, S [key_dim, value_dim]:
///          S = a[t,j] S;  u = b[t,j] (v - S^T k);  S = S + k u^T;  y[t,j,:] = S^T q
/// Shapes:  qkv [rows, q | k | v] f32, q and k [key_heads, key_dim], v [value_heads, value_dim];
///          a, b [rows, value_heads] f32; y [rows, value_heads * value_dim] f32
/// State:   `state` [value_heads, key_dim, value_dim] f32
/// Effects: overwrites y and the lane's state. Scratch: none
/// Exact:   rows are taken one by one in order of position, so the cut into chunks does not show;
///          the sums over key_dim run in order
/// Errors:  shape mismatch when the program is built
/// Source:  arXiv 2412.06464
#[derive(Clone, Debug)]
pub struct DeltaRule {
    /// Queries, keys (both normed) and values.
    pub qkv: BufferId,
    /// What remains of the state at each row.
    pub a: BufferId,
    /// How much of each new value is written.
    pub b: BufferId,
    /// Result.
    pub y: BufferId,
    /// The recurrence.
    pub state: SectionId,
    /// Layer of the section.
    pub layer: u32,
    /// Heads of q and k.
    pub key_heads: u32,
    /// Heads of v and y; a multiple of `key_heads`.
    pub value_heads: u32,
    /// Values of a head of q and k.
    pub key_dim: u32,
    /// Values of a head of v and y.
    pub value_dim: u32,
    /// Which key head a value head reads.
    pub map: HeadMap,
}
