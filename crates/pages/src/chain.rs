//! A hash of every whole-page prefix of a prompt.

use std::hash::Hasher;

use ignis_types::PAGE_TOKENS;
use siphasher::sip128::{Hasher128, SipHasher13};

/// Bytes of one link.
pub const CHAIN_BYTES: usize = 16;

/// `H_1, H_2, ...`: link `k` hashes `tokens[..64 k]`, each from the one before, with a 128-bit key.
///
/// `H_k = SipHash-1-3-128(key, H_{k-1} | tokens[64 (k-1)..64 k])`, `H_0` empty, tokens as u32 in
/// little-endian order. A key of the process's own keeps clients from making prefixes collide; who
/// finds an equal link compares the tokens all the same.
pub fn prefix_chain(tokens: &[u32], key: &[u8; 16]) -> Vec<[u8; CHAIN_BYTES]> {
    let mut chain: Vec<[u8; CHAIN_BYTES]> = Vec::with_capacity(tokens.len() / 64);
    for page in tokens.chunks_exact(PAGE_TOKENS as usize) {
        let mut hasher = SipHasher13::new_with_key(key);
        if let Some(before) = chain.last() {
            hasher.write(before);
        }
        for token in page {
            hasher.write(&token.to_le_bytes());
        }
        chain.push(hasher.finish128().as_bytes());
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_depends_on_the_whole_prefix_and_on_nothing_behind_it() {
        let tokens: Vec<u32> = (0..200).collect();
        let chain = prefix_chain(&tokens, &[7; 16]);
        assert_eq!(chain.len(), 3);
        assert_eq!(chain[..2], prefix_chain(&tokens[..130], &[7; 16])[..]);
        let mut other = tokens.clone();
        other[0] += 1;
        let changed = prefix_chain(&other, &[7; 16]);
        assert!(chain.iter().zip(&changed).all(|(a, b)| a != b));
        assert_ne!(chain[0], prefix_chain(&tokens, &[8; 16])[0]);
    }
}
