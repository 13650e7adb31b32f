use crate::program::BufferId;

/// Stores the keys and values of this round's tokens in their slots of the KV pool.
///
/// Math:    pool[page(lane, pos), layer, K|V, head, offset(pos), :] = k|v[t, head, :]
/// Shapes:  k, v [rows, kv_heads * head_dim] f32; pool in the KV format of the load, rounded to
///          nearest even
/// Effects: overwrites one slot a row. Row-local. Scratch: none
/// Errors:  shape mismatch when the program is built; a position outside the block table asserts
#[derive(Clone, Debug)]
pub struct KvAppend {
    /// Attention layer, `0..KvShape::layers`.
    pub layer: u32,
    /// Keys after norm and rotation.
    pub k: BufferId,
    /// Values.
    pub v: BufferId,
}
