//! Copies beside the rounds, on a card: the same bytes, the same rounds, and how fast.
//!
//! Ignored where `cargo test` runs without a card; `make gpu` runs them on one.

mod ordered;
mod summed;
#[path = "../../cpu/tests/support/mod.rs"]
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ignis_backend::{
    Blocks, COPIES_MAX, Copied, CopyId, CopyPart, CopyWay, Device, KvFormat, LaneSampling,
    StoredActivations, StoredProducts,
};
use ignis_cuda::{CudaDevice, CudaKernels, CudaOptions, Libraries, ModelFacts};
use ignis_ops::{
    Op, Program, Round, SampleOut, Sampling, Segment, WeightId, WeightKind, WeightSpec,
};
use ignis_types::{DType, Limits};
use support::{LIMITS, Rig, Shape, TINY, llama, prompt};

/// The card, for one test at a time: some time it, and all of them share its bus.
static CARD: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    CARD.lock().unwrap_or_else(PoisonError::into_inner)
}

const SHAPE: Shape = Shape { matrices: DType::BF16, table: DType::BF16, ..TINY };
/// Pages of an 8B model are as large as this window.
const WINDOW: usize = 8 << 20;
/// Windows that are timed: more than any cache holds.
const WINDOWS: usize = 64;

fn card(program: &Program, tables_on_host: bool) -> CudaDevice {
    let path = |name| std::env::var_os(name).map(Into::into);
    let nvrtc = path("CARD_NVRTC").into_iter().collect();
    let libraries = Libraries { nvrtc, cache: path("CARD_KERNELS") };
    CudaDevice::new(&CudaOptions {
        kv_format: KvFormat::Bf16,
        activations: StoredActivations::Bf16,
        products: StoredProducts::Same,
        tables_on_host,
        kernels: CudaKernels::Own,
        model: ModelFacts::of(program),
        libraries,
    })
    .unwrap()
}

/// A rig whose lanes use the first pages of the pool, and where at least `bytes` of it begin that
/// no round uses.
fn rig(bytes: usize) -> (Rig<CudaDevice>, u64) {
    rig_of(&SHAPE, LIMITS, bytes)
}

/// The same of another shape, with other limits.
fn rig_of(shape: &Shape, limits: Limits, bytes: usize) -> (Rig<CudaDevice>, u64) {
    let program = llama(shape);
    let device = card(&program, false);
    let page = device.layout().kv_page_bytes(&program.kv).unwrap().0;
    let pages = limits.pages + (bytes as u64).div_ceil(page) as u32;
    let mut rig = Rig::on(device, program, Limits { pages, ..limits });
    let (stride, share) = (rig.stride, (limits.pages / limits.lanes_max) as usize);
    for (at, page) in rig.tables.iter_mut().enumerate() {
        let (lane, i) = (at / stride, at % stride);
        *page = if i < share { (lane * share + i) as u32 } else { u32::MAX };
    }
    let unused = rig.addresses.kv_pool + u64::from(limits.pages) * page;
    (rig, unused)
}

/// The program with a table that is not the head's matrix.
fn untied(shape: &Shape) -> Program {
    let mut program = llama(shape);
    let matrix = WeightSpec { kind: WeightKind::Matrix, ..program.weights[0].clone() };
    program.weights[0].kind = WeightKind::Table;
    let id = WeightId(program.weights.len() as u32);
    program.weights.push(matrix);
    match program.ops.last_mut() {
        Some(Op::Linear(head)) => head.parts[0].w = id,
        op => panic!("the head ends in {op:?}"),
    }
    program
}

fn pattern(seed: u32, out: &mut [u8]) {
    for (i, four) in out.chunks_mut(4).enumerate() {
        let mixed = (i as u32 ^ seed).wrapping_mul(0x9e37_79b9);
        four.copy_from_slice(&mixed.to_le_bytes()[..four.len()]);
    }
}

/// A window in pieces of uneven sizes, as a sequence's pages are.
fn parts(at: u64) -> Vec<CopyPart> {
    let mut parts = vec![];
    let mut host = 64;
    for bytes in [4096, 100, (1 << 20) + 12].into_iter().cycle() {
        if host + bytes > WINDOW {
            return parts;
        }
        parts.push(CopyPart { at: at + host as u64, host, bytes });
        host += bytes;
    }
    parts
}

fn wait(device: &mut CudaDevice, copies: CopyId) -> Blocks {
    let Copied { host, result } = device.end_copies(copies, true).unwrap();
    result.unwrap();
    host
}

/// A decode round of one lane, begun and finished as in service; the bits of its logits.
fn decode(
    rig: &mut Rig<CudaDevice>,
    (lane, position, token): (u32, u32, u32),
    beside: impl FnOnce(&mut CudaDevice),
) -> Vec<u32> {
    let params = Sampling { temperature: 0.0, ..Sampling::default() };
    let (ids, logit_bias) = (SHAPE.vocab, &[][..]);
    let draw = LaneSampling {
        lane,
        logit_row: 0,
        position: position + 1,
        ids,
        params: &params,
        logit_bias,
    };
    let round = Round {
        tokens: &[token],
        segments: &[Segment { lane, row: 0, rows: 1, position }],
        logit_rows: &[0],
        block_tables: &rig.tables,
        stride: rig.stride,
    };
    assert!(rig.device.start(&round, &[draw]).unwrap());
    beside(&mut rig.device);
    rig.device.collect(&mut [SampleOut::default()]).unwrap();
    rig.device.logits(0).unwrap().iter().map(|l| l.to_bits()).collect()
}

fn logits(
    rig: &mut Rig<CudaDevice>,
    rounds: u32,
    mut beside: impl FnMut(&mut CudaDevice),
) -> Vec<u32> {
    let tokens = prompt(40, SHAPE.vocab, 3);
    rig.round(&[(1, 0, &tokens)]);
    let one = |i| decode(rig, (1, 40 + i, 5 + i), &mut beside);
    (0..rounds).flat_map(one).collect()
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn windows_travel_while_rounds_run_and_neither_disturbs_the_other() {
    let _alone = alone();
    let (mut rig, unused) = rig(4 * WINDOW);
    let place = |i: u32| unused + u64::from(i) * WINDOW as u64;
    let alone = logits(&mut rig, 60, |_| {});
    let mut frames = rig.device.host_memory(4, WINDOW).unwrap();
    assert_eq!(frames.len(), 4);
    assert!(frames.iter().all(|frame| frame.len() == WINDOW && frame.iter().all(|&b| b == 0)));
    let patterned = |seed| {
        let mut bytes = vec![0; WINDOW];
        pattern(seed, &mut bytes);
        bytes
    };
    let (mut seed, mut moved, mut early) = (0, 0, 0);
    let mut last: Option<(CopyId, CopyId)> = None;
    rig.device.write(place(2), &patterned(0)).unwrap();
    let beside = logits(&mut rig, 60, |device| {
        // While the round runs: into one of two places, and out of one of two others.
        let (mut inward, mut out) = (frames.pop().unwrap(), frames.pop().unwrap());
        inward.copy_from_slice(&patterned(seed));
        out.fill(0xEE);
        let (to, from) = (parts(place(seed % 2)), parts(place(2 + seed % 2)));
        let out = device.begin_copies(CopyWay::Out, out, &mut from.into_iter(), true);
        let inward = device.begin_copies(CopyWay::In, inward, &mut to.into_iter(), true);
        if let Some((inward, out)) = last.replace((inward, out)) {
            // A round has run meanwhile; it may have been the shorter.
            let polled = device.end_copies(inward, false);
            early += u32::from(polled.is_some());
            let was_in = polled.map_or_else(|| wait(device, inward), |copied| copied.host);
            let was_out = wait(device, out);
            let (mut found, wanted) = (vec![0; WINDOW], patterned(seed - 1));
            device.read(place((seed - 1) % 2), &mut found).unwrap();
            for part in parts(0) {
                let span = part.host..part.host + part.bytes;
                assert!(found[span.clone()] == wanted[span.clone()], "in, window {seed}");
                assert!(was_out[span.clone()] == wanted[span], "out, window {seed}");
            }
            frames.extend([was_in, was_out]);
            moved += 1;
        }
        seed += 1;
        device.write(place(2 + seed % 2), &patterned(seed)).unwrap();
    });
    assert_eq!(alone, beside, "rounds with copies beside them");
    println!("{moved} windows each way, {early} of them over when they were looked at");
    assert_eq!(moved, 59);
    let (inward, out) = last.unwrap();
    wait(&mut rig.device, inward);
    wait(&mut rig.device, out);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn loads_on_other_threads_run_no_rounds_but_their_own() {
    let _alone = alone();
    let load = || logits(&mut rig(0).0, 20, |_| {});
    let wanted = load();
    let again = || (0..3).for_each(|_| assert_eq!(load(), wanted));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(again);
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_card_that_was_closed_takes_no_memory_and_is_opened_again() {
    let _alone = alone();
    let load = || logits(&mut rig(0).0, 5, |_| {});
    let taken = || ignis_cuda::process_bytes(std::process::id()).map_or(0, |bytes| bytes.0);
    let wanted = load();
    let before = taken();
    // Closed under a device in use, which keeps it.
    let (mut used, _) = rig(0);
    ignis_cuda::close();
    assert_eq!(logits(&mut used, 5, |_| {}), wanted);
    drop(used);
    let after = taken();
    println!("the driver counts {before} B to an open card, {after} B to a closed one");
    // A context takes hundreds of MiB; where the driver does not say, nothing is compared.
    assert!(before == 0 || after + (64 << 20) < before);
    assert_eq!(load(), wanted);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn what_is_in_flight_when_a_device_goes_keeps_its_memory() {
    let _alone = alone();
    for _ in 0..3 {
        let (mut rig, unused) = rig(COPIES_MAX * WINDOW);
        let frames = rig.device.host_memory(COPIES_MAX, WINDOW).unwrap();
        for (i, frame) in (0..).zip(frames) {
            let at = unused + i * WINDOW as u64;
            let all = [CopyPart { at, host: 0, bytes: WINDOW }];
            rig.device.begin_copies(CopyWay::In, frame, &mut all.into_iter(), true);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_table_on_the_host_gives_the_same_bits() {
    let _alone = alone();
    let shapes = [DType::BF16, DType::Q8_0, DType::Q4K, DType::Q6K].map(|table| Shape {
        hidden: 256,
        inner: 512,
        head_dim: 64,
        table,
        ..SHAPE
    });
    for shape in shapes {
        let tokens = prompt(130, shape.vocab, 4);
        let bits = [false, true].map(|tables_on_host| {
            let program = untied(&shape);
            let mut rig = Rig::on(card(&program, tables_on_host), program, LIMITS);
            let pinned = rig.device.pinned().0;
            let logits = rig.round(&[(0, 0, &tokens)]).remove(0);
            (pinned, logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>())
        });
        assert!(bits[0].0 < bits[1].0, "the table is pinned");
        assert_eq!(bits[0].1, bits[1].1, "{:?}", shape.table);
    }
}

/// Seconds of the fastest of some runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let times = (0..5).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed()
    });
    times.min().unwrap_or(Duration::MAX).as_secs_f64()
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn pages_travel_at_the_rate_of_one_pinned_copy() {
    let _alone = alone();
    let all = WINDOWS * WINDOW;
    let (mut rig, unused) = rig(all);
    let device = &mut rig.device;
    for way in [CopyWay::Out, CopyWay::In] {
        let mut whole = device.host_memory(1, all).unwrap().pop();
        let raw = fastest(|| {
            let part = [CopyPart { at: unused, host: 0, bytes: all }];
            let host = whole.take().unwrap();
            let copies = device.begin_copies(way, host, &mut part.into_iter(), false);
            whole = Some(wait(device, copies));
        });
        drop(whole);
        for ahead in [1, 2, COPIES_MAX] {
            let mut frames = device.host_memory(WINDOWS, WINDOW).unwrap();
            let windows = fastest(|| {
                let mut flights = std::collections::VecDeque::new();
                let mut back = vec![];
                for (i, frame) in (0..).zip(frames.drain(..)) {
                    if flights.len() == ahead {
                        back.push(wait(device, flights.pop_front().unwrap()));
                    }
                    // A frame begins with its header, behind which the page lies in one piece.
                    let at = unused + i * WINDOW as u64;
                    let part = [CopyPart { at, host: 64, bytes: WINDOW - 64 }];
                    let copies = device.begin_copies(way, frame, &mut part.into_iter(), true);
                    flights.push_back(copies);
                }
                back.extend(flights.drain(..).map(|copies| wait(device, copies)));
                frames = back;
            });
            let (rate, of) = (all as f64 / windows / 1e9, all as f64 / raw / 1e9);
            println!(
                "{way:?}: windows of {} MiB, {ahead} in flight: {rate:.1} GB/s, {:.1} % of {of:.1}",
                WINDOW >> 20,
                100.0 * rate / of
            );
            // With one in flight the next begins only when the host has seen the end of the last.
            assert!(ahead == 1 || rate > 0.85 * of, "{rate:.1} GB/s of {of:.1}");
        }
    }
}
