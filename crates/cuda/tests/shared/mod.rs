//! Decode rounds with more runs than a card has CTAs for at a time: rows share them by their runs.

use ignis_types::{Limits, PAGE_TOKENS};

use crate::support::{LIMITS, Rig, Shape, llama, pages, prompt};
use crate::{BF16, Choice, WIDE, bits, card};

/// Eight KV heads: two long rows have more runs than a card runs at a time.
const SHAPE: Shape = Shape { heads: 8, kv_heads: 8, head_dim: 128, ..WIDE };
const LONGEST: u32 = 140 * PAGE_TOKENS;

fn rig(lanes: u32, tokens_max: u32) -> Rig<ignis_cuda::CudaDevice> {
    let program = llama(&SHAPE);
    let limits = Limits {
        lanes_max: lanes,
        context_tokens_max: tokens_max,
        pages: lanes * pages(tokens_max),
        chunk_tokens_max: 512,
        ..LIMITS
    };
    Rig::on(card(&program, BF16, Choice::default()), program, limits)
}

/// Computes a prompt in chunks.
fn fill(rig: &mut Rig<ignis_cuda::CudaDevice>, lane: u32, tokens: &[u32]) {
    for (i, chunk) in tokens.chunks(512).enumerate() {
        rig.round(&[(lane, 512 * i as u32, chunk)]);
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn rows_that_share_ctas_have_the_bits_of_one_alone() {
    // One row has 35 runs and others one to 32; then eight of about as many.
    let uneven: Vec<u32> =
        (0..72).map(|i| if i == 40 { LONGEST - 1 } else { 1 + 53 * i }).collect();
    let even: Vec<u32> = (0..16).map(|i| LONGEST - 1 - 64 * i).collect();
    for lens in [uneven, even] {
        let mut together = rig(lens.len() as u32, LONGEST);
        let mut alone = rig(1, LONGEST);
        let mut expected = vec![];
        for (lane, &len) in lens.iter().enumerate() {
            let tokens = prompt(len as usize, SHAPE.vocab, u64::from(len));
            fill(&mut together, lane as u32, &tokens);
            fill(&mut alone, 0, &tokens);
            expected.push(bits(&alone.round(&[(0, len, &[lane as u32])])[0]));
        }
        let next: Vec<[u32; 1]> = (0..lens.len()).map(|lane| [lane as u32]).collect();
        let every: Vec<(u32, u32, &[u32])> = lens
            .iter()
            .enumerate()
            .map(|(lane, &len)| (lane as u32, len, next[lane].as_slice()))
            .collect();
        // All rows, and fewer, whose runs are shared otherwise.
        for count in [every.len(), every.len() / 2, 8, 2] {
            let first = every.len() - count;
            let found = together.round(&every[first..]);
            for (logits, (expected, &len)) in
                found.iter().zip(expected[first..].iter().zip(&lens[first..]))
            {
                assert!(*expected == bits(logits), "{count} rows, the one at {len}");
            }
        }
    }
}
