//! A round takes nothing from the heap and nothing from any plan space.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ignis_backend::{Activations, KvFormat};
use ignis_engine::{Admission, RoundPlan};
use ignis_ops::Sampling;
use support::{Golden, load};

/// Counts requests of every thread while armed.
struct Gate;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);

fn count() {
    if ARMED.load(Ordering::Relaxed) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system allocator unchanged.
unsafe impl GlobalAlloc for Gate {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static GATE: Gate = Gate;

#[test]
fn a_round_allocates_nothing() {
    for family in ["qwen3", "qwen3_5-moe"] {
        rounds_of(&Golden::open(family));
    }
}

fn rounds_of(golden: &Golden) {
    let mut engine = load(golden, 64, 2, Activations::Int8, KvFormat::Bf16);
    let drawn = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.01,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        logprobs: Some(20),
        ..Sampling::default()
    };
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let long = golden.ids(200);

    ARMED.store(true, Ordering::SeqCst);
    engine
        .admit(
            0,
            &Admission { logit_bias: &[(7, 1.0)], ..Admission::new(&long[..5], 2, &drawn) },
            None,
        )
        .unwrap();
    engine.round(RoundPlan { prefill: Some((0, 5)), decode: &[] }).unwrap();
    engine.admit(1, &Admission::new(&long, 6, &greedy), None).unwrap();
    for count in [64, 64, 64, 8] {
        engine.round(RoundPlan { prefill: Some((1, count)), decode: &[0] }).unwrap();
    }
    for _ in 0..40 {
        engine.round(RoundPlan { prefill: None, decode: &[0, 1] }).unwrap();
    }
    engine.release(0).unwrap();
    engine.release(1).unwrap();
    ARMED.store(false, Ordering::SeqCst);

    assert_eq!(COUNT.load(Ordering::SeqCst), 0, "heap allocations inside rounds");
    assert_eq!(engine.allocations_after_seal(), 0);
}
