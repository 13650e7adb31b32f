//! The witness model: no weights, one number a slot, and a hash for a head.

use ignis_ops::{BufferId, BufferSpec, KvShape, Program, RopeScaling, RopeTable, Rows};

/// Mixes one token into the running hash. All arithmetic is modulo 2^64.
fn mix(hash: u64, token: u32) -> u64 {
    let mut z = hash ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The token that follows `prefix`: `h` starts as `seed`; every token is mixed in, in order; the
/// answer is `h mod vocab`.
pub fn witness_next(prefix: impl IntoIterator<Item = u32>, vocab: u32, seed: u64) -> u32 {
    let hash = prefix.into_iter().fold(seed, mix);
    (hash % u64::from(vocab)) as u32
}

/// The witness as a program: nothing but a row of logits, and a pool of one slot a token.
pub fn witness_program(vocab: u32) -> Program {
    Program {
        weights: Vec::new(),
        buffers: vec![BufferSpec { name: "logits", rows: Rows::Logits, width: vocab }],
        sections: Vec::new(),
        ops: Vec::new(),
        head: 0,
        logits: BufferId(0),
        vocab,
        kv: KvShape { layers: 1, kv_heads: 1, head_dim: 1 },
        rope: RopeTable::new(10_000.0, 2, &RopeScaling::None),
    }
}
