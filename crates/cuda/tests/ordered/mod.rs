//! What copies wait for: all rounds but the one under way, and whatever is behind it.
//!
//! A round here is long: it runs for milliseconds after the host has begun what comes next.

use ignis_backend::{CopyPart, CopyWay, Device};
use ignis_cuda::CudaDevice;
use ignis_ops::{Round, Segment};
use ignis_types::{Bytes, Limits, PAGE_TOKENS};

use crate::support::{LIMITS, Rig, Shape, prompt};
use crate::{SHAPE, WINDOW, alone, decode, pattern, rig_of, wait};

/// Attention of so many heads over a deep context is nearly all of a chunk: 4 layers of 1e12
/// operations each.
const LONG: Shape = Shape { layers: 4, heads: 32, kv_heads: 1, head_dim: 128, ..SHAPE };
/// Pages of a context, and rows of a chunk at its end.
const DEEP: u32 = 512;
const ROWS: u32 = 2_048;

/// Two lanes of deep contexts; those behind which a chunk is computed are zeros, like all of a new
/// reservation.
fn long_rig(bytes: usize) -> (Rig<CudaDevice>, u64) {
    let limits = Limits {
        lanes_max: 2,
        chunk_tokens_max: ROWS,
        context_tokens_max: DEEP * PAGE_TOKENS,
        pages: 2 * DEEP,
        ..LIMITS
    };
    rig_of(&LONG, limits, bytes)
}

/// Begins a long chunk of lane 1, which draws nothing. Nothing waits for it.
fn start_long_chunk(rig: &mut Rig<CudaDevice>, seed: u64) {
    let tokens = prompt(ROWS as usize, LONG.vocab, seed);
    let position = DEEP * PAGE_TOKENS - ROWS;
    let round = Round {
        tokens: &tokens,
        segments: &[Segment { lane: 1, row: 0, rows: ROWS, position }],
        logit_rows: &[],
        block_tables: &rig.tables,
        stride: rig.stride,
    };
    assert!(rig.device.start(&round, &[]).unwrap());
}

fn read(rig: &mut Rig<CudaDevice>, at: u64, bytes: usize) -> Vec<u8> {
    let mut found = vec![0; bytes];
    rig.device.read(at, &mut found).unwrap();
    found
}

/// Lane 1 leaves while lane 0 decodes, and what its last chunk writes has not been written yet.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_copy_out_sees_what_the_rounds_before_the_one_under_way_wrote() {
    let _alone = alone();
    let (mut rig, _) = long_rig(0);
    let page = rig.device.layout().kv_page_bytes(&rig.program.kv).unwrap().0;
    let count = ROWS / PAGE_TOKENS;
    let at = rig.addresses.kv_pool + u64::from(2 * DEEP - count) * page;
    let bytes = count as usize * page as usize;
    let mut frame = rig.device.host_memory(1, bytes).unwrap().pop();
    for seed in 0..4 {
        let before = read(&mut rig, at, bytes);
        start_long_chunk(&mut rig, seed);
        rig.device.collect(&mut []).unwrap();
        let mut copies = None;
        decode(&mut rig, (0, seed as u32, 5), |device| {
            let all = [CopyPart { at, host: 0, bytes }];
            let host = frame.take().unwrap();
            let begun = device.begin_copies(CopyWay::Out, host, &mut all.into_iter(), true);
            assert!(device.end_copies(begun, false).is_none(), "the chunk was too short");
            copies = Some(begun);
        });
        let host = wait(&mut rig.device, copies.unwrap());
        let found = read(&mut rig, at, bytes);
        assert!(found != before, "chunk {seed} wrote nothing");
        assert!(host[..bytes] == found[..], "chunk {seed}");
        frame = Some(host);
    }
}

/// The end of a round is that of a little copy which waits for it: it takes less time than the
/// window, so if both waited it would be over first.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_copy_beside_a_round_does_not_wait_for_it() {
    let _alone = alone();
    let (mut rig, unused) = long_rig(2 * WINDOW);
    let behind = unused + WINDOW as u64;
    let mut frame = rig.device.host_memory(1, WINDOW).unwrap().pop();
    let mut little = rig.device.host_memory(1, 64).unwrap().pop();
    let mut wanted = vec![0; WINDOW];
    for seed in 0..4 {
        pattern(seed, &mut wanted);
        rig.device.write(unused, &wanted).unwrap();
        start_long_chunk(&mut rig, seed.into());
        let window = [CopyPart { at: unused, host: 0, bytes: WINDOW }];
        let host = frame.take().unwrap();
        let beside = rig.device.begin_copies(CopyWay::Out, host, &mut window.into_iter(), true);
        rig.device.copy(behind, behind + 64, Bytes(64)).unwrap();
        let part = [CopyPart { at: behind, host: 0, bytes: 64 }];
        let host = little.take().unwrap();
        let end = rig.device.begin_copies(CopyWay::In, host, &mut part.into_iter(), false);
        let host = wait(&mut rig.device, beside);
        assert!(rig.device.end_copies(end, false).is_none(), "the round was over first");
        assert!(host[..] == wanted[..], "pattern {seed}");
        frame = Some(host);
        little = Some(wait(&mut rig.device, end));
        rig.device.collect(&mut []).unwrap();
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_copy_out_waits_for_what_was_copied_behind_the_round_under_way() {
    let _alone = alone();
    let (mut rig, unused) = long_rig(2 * WINDOW);
    let mut frame = rig.device.host_memory(1, WINDOW).unwrap().pop().unwrap();
    let (mut wanted, behind) = (vec![0; WINDOW], unused + WINDOW as u64);
    for seed in 0..4 {
        pattern(seed, &mut wanted);
        rig.device.write(unused, &wanted).unwrap();
        start_long_chunk(&mut rig, seed.into());
        rig.device.copy(unused, behind, Bytes(WINDOW as u64)).unwrap();
        let all = [CopyPart { at: behind, host: 0, bytes: WINDOW }];
        let copies = rig.device.begin_copies(CopyWay::Out, frame, &mut all.into_iter(), true);
        frame = wait(&mut rig.device, copies);
        rig.device.collect(&mut []).unwrap();
        assert!(frame[..] == wanted[..], "pattern {seed}");
    }
}
