//! Decode rounds with more runs than a card has CTAs for at a time: rows share them by their runs.

use ignis_backend::{Device, GRAPH_LANES_MAX, Recorded, runs};
use ignis_types::{Limits, PAGE_TOKENS};

use crate::recorded::{Part, draw};
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

/// Lanes that decode in a round: the first, and how many. Of each kind of recording a narrow and a
/// wide one; then the lane whose table is longer than one turn of those that fetch it, alone and
/// beside others; then rounds that are too wide to be recorded.
const ROUNDS: [(usize, usize); 12] = [
    (0, 1),
    (0, 9),
    (16, 2),
    (0, 33),
    (40, 1),
    (39, 2),
    (36, 8),
    (8, 63),
    (0, 64),
    (7, 65),
    (0, 72),
    (40, 1),
];

#[test]
#[ignore = "needs an NVIDIA card"]
fn recorded_rounds_over_long_contexts_have_the_bits_of_launched_ones() {
    const LANES: u32 = 72;
    // One lane of as many pages as the limits allow, and others of 1 to 59.
    let last = LONGEST - ROUNDS.len() as u32;
    let mut places: Vec<u32> =
        (0..LANES).map(|i| if i == 40 { last } else { 1 + 53 * i }).collect();
    // Rounds run whole, and rounds begun.
    let mut rigs = [rig(LANES, LONGEST), rig(LANES, LONGEST)];
    let Recorded { kept, kinds, .. } = rigs[1].device.recorded().unwrap();
    assert_eq!((kept, kinds), (3 * GRAPH_LANES_MAX, 3 * GRAPH_LANES_MAX));
    for (lane, &len) in places.iter().enumerate() {
        let tokens = prompt(len as usize, SHAPE.vocab, u64::from(len));
        rigs.iter_mut().for_each(|rig| fill(rig, lane as u32, &tokens));
    }
    let mut next: Vec<[u32; 1]> = (0..LANES).map(|lane| [lane]).collect();
    let mut most = vec![];
    for (first, width) in ROUNDS {
        let lanes = first..first + width;
        let parts: Vec<Part<'_>> =
            lanes.clone().map(|lane| (lane as u32, places[lane], &next[lane][..])).collect();
        let of = |&(_, position, _): &Part<'_>| runs(position / PAGE_TOKENS + 1);
        most.push(parts.iter().map(of).max().unwrap());
        let [whole, begun] = [false, true].map(|b| draw(&mut rigs[usize::from(b)], &parts, b));
        assert_eq!(whole, begun, "{width} lanes from {first}");
        for row in 0..width as u32 {
            let [a, b] = [0, 1].map(|i| bits(rigs[i].device.logits(row).unwrap()));
            assert!(a == b, "{width} lanes from {first}, row {row}");
        }
        for (lane, drawn) in lanes.zip(&whole) {
            places[lane] += 1;
            next[lane] = [drawn.token];
        }
    }
    // The kinds of recordings: up to 4 runs, 16 and 64.
    assert_eq!(most, [1, 4, 8, 14, 35, 35, 35, 35, 35, 35, 35, 35]);
}
