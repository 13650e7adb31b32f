//! The witness model: no weights, one number a slot, a running hash, and a hash for a head.

use ignis_ops::{
    BufferId, BufferSpec, KvShape, Program, RopeScaling, RopeTable, Rows, SectionFormat,
    SectionSpec,
};

/// Mixes one token into the running hash. All arithmetic is modulo 2^64.
fn mix(hash: u64, token: u32) -> u64 {
    let mut z = hash ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the running hash starts, for a witness seeded with `seed`.
pub(crate) fn running_start(seed: u64) -> u64 {
    seed ^ 0xd1b5_4a32_d192_ed03
}

/// The running hash behind one more token.
pub(crate) fn running_next(running: u64, token: u32) -> u64 {
    mix(running, token).rotate_left(7)
}

/// The token of a prefix that is read back token by token, beside the running hash behind it.
pub(crate) fn witness_token(
    prefix: impl IntoIterator<Item = u32>,
    running: u64,
    vocab: u32,
    seed: u64,
) -> u32 {
    let hash = prefix.into_iter().fold(seed, mix);
    ((hash ^ running) % u64::from(vocab)) as u32
}

/// The token that follows `prefix`, computed apart from pages and sections: two hashes are run over
/// it, one as the pages give it back and one as the section carries it.
pub fn witness_next(prefix: impl IntoIterator<Item = u32>, vocab: u32, seed: u64) -> u32 {
    let start = (seed, running_start(seed));
    let (hash, running) = prefix
        .into_iter()
        .fold(start, |(hash, running), token| (mix(hash, token), running_next(running, token)));
    ((hash ^ running) % u64::from(vocab)) as u32
}

/// The witness as a program: nothing but a row of logits, a pool of one slot a token, and a section
/// that holds the running hash.
pub fn witness_program(vocab: u32) -> Program {
    Program {
        weights: Vec::new(),
        buffers: vec![BufferSpec { name: "logits", rows: Rows::Logits, width: vocab }],
        sections: vec![SectionSpec {
            name: "running hash",
            layers: 1,
            elements: 2,
            format: SectionFormat::F32,
        }],
        ops: Vec::new(),
        head: 0,
        logits: BufferId(0),
        vocab,
        kv: KvShape { layers: 1, kv_heads: 1, head_dim: 1 },
        rope: RopeTable::new(10_000.0, 2, &RopeScaling::None),
    }
}
