//! Moves take nothing from the heap once the tiers are made.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ignis_tiers::{FileDisk, ImageId, Kind, NoPayload, Tier, TierLimits, Tiers, disk_bytes};
use support::{State, finish_in, finish_out, head};

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

const WINDOW: u32 = 1 << 20;

/// One round through both tiers: out to each, a copy, back from each, given up, dropped.
fn rounds(tiers: &mut Tiers, state: &mut State, sink: &mut State, tiers_used: &[Tier]) {
    let live = head(Kind::Live, 10, state);
    let mut images: [Option<ImageId>; 3] = [None; 3];
    for (image, &tier) in images.iter_mut().zip(tiers_used) {
        *image = Some(tiers.begin_out(live, tier).unwrap());
        finish_out(tiers, state).unwrap();
    }
    if tiers_used.len() > 1 {
        images[2] = Some(tiers.begin_copy(images[0].unwrap(), 0).unwrap());
        finish_out(tiers, &mut NoPayload).unwrap();
    }
    for image in images.into_iter().flatten() {
        sink.0.fill(0);
        tiers.begin_in(image).unwrap();
        finish_in(tiers, sink).unwrap();
        assert!(sink == state);
        tiers.begin_in(image).unwrap();
        tiers.step_in(sink);
        tiers.abandon_in();
        tiers.drop_image(image).unwrap();
    }
    for &tier in tiers_used {
        tiers.begin_out(live, tier).unwrap();
        tiers.step_out(state);
        tiers.abandon_out();
    }
}

#[test]
fn moves_allocate_nothing() {
    let folder = std::env::temp_dir().join(format!("ignis-no-heap-{}", std::process::id()));
    let disk = FileDisk::open(&folder, disk_bytes(12, WINDOW), 0).unwrap();
    let limits = TierLimits { window_bytes: WINDOW, ram_windows: 6 };
    let mut tiers = Tiers::new(limits, 1, 2, Some(Box::new(disk))).unwrap();
    let reservations = tiers.reservations();
    assert_eq!(reservations, 3, "KV-RAM, buffers of KV-disk and that of a header");
    let (mut state, mut sink) = (State::new(1, 10, 5 << 19), State::sink(5 << 19));

    // The first wait of a thread on a channel makes that thread's place to wait.
    rounds(&mut tiers, &mut state, &mut sink, &[Tier::Ram, Tier::Disk]);
    for tiers_used in [&[Tier::Ram][..], &[Tier::Ram, Tier::Disk]] {
        ARMED.store(true, Ordering::SeqCst);
        (0..20).for_each(|_| rounds(&mut tiers, &mut state, &mut sink, tiers_used));
        ARMED.store(false, Ordering::SeqCst);
        assert_eq!(COUNT.load(Ordering::SeqCst), 0, "heap allocations of moves in {tiers_used:?}");
    }
    assert_eq!(tiers.reservations(), reservations);
    drop(tiers);
    std::fs::remove_dir_all(folder).unwrap();
}
