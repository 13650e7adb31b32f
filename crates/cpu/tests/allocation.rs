//! After `bind` and the weights, a round touches no heap.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use ignis_backend::{Device, LaneSampling};
use ignis_cpu::simd::Isa;
use ignis_ops::{Round, SampleOut, Sampling, Segment};
use support::{LIMITS, Rig, TINY, options, prompt};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        CALLS.fetch_add(1, SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        CALLS.fetch_add(1, SeqCst);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn rounds_allocate_nothing() {
    let mut rig = Rig::new(&TINY, LIMITS, options(3), Isa::detect());
    let tokens = prompt(604, TINY.vocab, 1);
    let wide = [
        Segment { lane: 0, row: 0, rows: 600, position: 0 },
        Segment { lane: 1, row: 600, rows: 4, position: 0 },
    ];
    let narrow: Vec<Segment> =
        (0..2).map(|i| Segment { lane: i, row: i, rows: 1, position: 600 }).collect();
    // Lane 1 has no keys behind its first four; what it reads is zero, which does no harm here.
    let params = [
        Sampling { temperature: 0.0, ..Sampling::default() },
        Sampling { top_p: 0.9, logprobs: Some(20), ..Sampling::default() },
    ];
    let mut out = [SampleOut::default(); 2];
    let bias = [(3, 0.5)];
    let lanes: Vec<LaneSampling<'_>> = (0..2)
        .map(|i| LaneSampling {
            ids: u32::MAX,
            lane: i,
            logit_row: i,
            position: 9,
            params: &params[i as usize],
            logit_bias: &bias,
        })
        .collect();
    let before = CALLS.load(SeqCst);
    for _ in 0..3 {
        let wide = Round {
            tokens: &tokens,
            segments: &wide,
            logit_rows: &[599, 603],
            block_tables: &rig.tables,
            stride: rig.stride,
        };
        rig.device.reset_penalties(0, &tokens, &[]).unwrap();
        rig.device.run(&wide).unwrap();
        rig.device.sample(&lanes, &mut out).unwrap();
        let narrow = Round { tokens: &tokens[..2], segments: &narrow, logit_rows: &[0, 1], ..wide };
        rig.device.run(&narrow).unwrap();
        rig.device.run_head(&narrow).unwrap();
        rig.device.sample(&lanes[..1], &mut out[..1]).unwrap();
    }
    assert_eq!(CALLS.load(SeqCst) - before, 0);
    assert_eq!(rig.device.reservations(), 1);
}
