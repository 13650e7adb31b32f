//! The plan, the seal, and what lanes refuse.

mod support;

use ignis_backend::{Activations, Device, KvFormat};
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_engine::{Admission, EngineError, Progress, RoundPlan, Storage, lay_out, needs};
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::Sampling;
use ignis_sim::{SimDevice, witness_next, witness_program};
use ignis_types::{Bytes, Limits, PlanLine};
use support::{Golden, load};

const LIMITS: Limits = Limits {
    lanes_max: 2,
    chunk_tokens_max: 32,
    context_tokens_max: 256,
    pages: 8,
    retained_device: 0,
    retained_host: 0,
};

fn cpu() -> Box<CpuDevice> {
    let options =
        CpuOptions { threads: 1, activations: Activations::Int8, kv_format: KvFormat::Bf16 };
    Box::new(CpuDevice::new(options).unwrap())
}

#[test]
fn needs_equal_what_the_load_reserves_line_by_line() {
    let golden = Golden::open("llama");
    let engine = load(&golden, 64, 1, Activations::Int8, KvFormat::Bf16);
    let program = Model::of(&Checkpoint::open(&golden.folder).unwrap()).unwrap().program;
    let needs = needs(&program, engine.limits(), cpu().layout()).unwrap();
    let mut reserved: Vec<_> = engine.reserved().collect();
    let pool = reserved.pop().unwrap();
    assert_eq!(needs.lines, reserved);
    assert_eq!(pool, (PlanLine::KvPool, Bytes(needs.kv_page.0 * 24)));
}

#[test]
fn a_plan_one_byte_off_is_refused_by_line() {
    let golden = Golden::open("llama");
    let checkpoint = Checkpoint::open(&golden.folder).unwrap();
    let program = Model::of(&checkpoint).unwrap().program;
    let mapped = lay_out(&program, &LIMITS, cpu().layout()).unwrap();
    for wrong in PlanLine::ALL {
        let plan = PlanLine::ALL.map(|line| {
            let bytes = mapped.layout.line_bytes(line).0;
            (line, Bytes(if line == wrong { bytes + 1 } else { bytes }))
        });
        let (storage, progress) = (Storage::none(), Progress::default());
        let refused = ignis_engine::load(&checkpoint, &LIMITS, cpu(), &plan, storage, &progress);
        let text = refused.err().expect("the plan differs").to_string();
        assert!(text.contains(wrong.name()), "{text}");
    }
}

#[test]
fn lanes_refuse_what_they_cannot_hold_and_keep_their_state() {
    let program = witness_program(97);
    let device = Box::new(SimDevice::new(3, 0));
    let mut engine =
        ignis_engine::simulated(&program, &LIMITS, device, Storage::none(), 3).unwrap();
    let greedy = Sampling::default();
    let refused = |error: Result<(), EngineError>| error.expect_err("must be refused").to_string();

    assert!(
        refused(engine.admit(2, &Admission::new(&[1], 1, &greedy), None))
            .contains("lane 2 does not exist")
    );
    assert!(
        refused(engine.admit(0, &Admission::new(&[], 1, &greedy), None)).contains("length is 0")
    );
    assert!(
        refused(engine.admit(0, &Admission::new(&[97], 1, &greedy), None)).contains("below 97")
    );
    let biased = Admission { logit_bias: &[(97, 1.0)], ..Admission::new(&[1], 1, &greedy) };
    assert!(refused(engine.admit(0, &biased, None)).contains("below 97"));
    assert!(
        refused(engine.admit(0, &Admission::new(&[1; 64], 1, &greedy), None)).contains("1 to 63")
    );
    assert!(
        refused(engine.admit(0, &Admission::new(&[1], 9, &greedy), None)).contains("need 9 pages")
    );
    assert_eq!(engine.pages_free(), 8);

    engine.admit(0, &Admission::new(&[1; 62], 1, &greedy), None).unwrap();
    assert!(
        refused(engine.admit(0, &Admission::new(&[1], 1, &greedy), None)).contains("in prefill")
    );
    let early = engine.round(RoundPlan { prefill: None, decode: &[0] }).err();
    assert!(early.expect("not decoding yet").to_string().contains("expected in decode"));
    for count in [32, 30] {
        engine.round(RoundPlan { prefill: Some((0, count)), decode: &[] }).unwrap();
    }
    engine.round(RoundPlan { prefill: None, decode: &[0] }).unwrap();
    let full = engine.round(RoundPlan { prefill: None, decode: &[0] }).err();
    assert!(matches!(full, Some(EngineError::LaneFull { tokens: 64, .. })));
    engine.release(0).unwrap();
    assert_eq!(engine.pages_free(), 8);
}

#[test]
fn the_witness_reads_its_prefix_through_shuffled_pages() {
    let program = witness_program(1009);
    let device = Box::new(SimDevice::new(5, 0));
    let mut engine =
        ignis_engine::simulated(&program, &LIMITS, device, Storage::none(), 5).unwrap();
    let mut text: Vec<u32> = (0..150).collect();
    engine.admit(1, &Admission::new(&text, 4, &Sampling::default()), None).unwrap();
    for count in [32, 32, 32, 32, 22] {
        let results =
            engine.round(RoundPlan { prefill: Some((1, count)), decode: &[] }).unwrap().to_vec();
        text.extend(results.iter().map(|r| r.sample.token));
    }
    while text.len() < 256 {
        text.push(engine.round(RoundPlan { prefill: None, decode: &[1] }).unwrap()[0].sample.token);
    }
    for at in 150..256 {
        assert_eq!(text[at], witness_next(text[..at].iter().copied(), 1009, 5));
    }
}

#[test]
fn a_fault_breaks_the_lanes_of_its_round_until_they_are_released() {
    let program = witness_program(97);
    let device = Box::new(SimDevice::new(1, 1_000_000));
    let mut engine =
        ignis_engine::simulated(&program, &LIMITS, device, Storage::none(), 1).unwrap();
    engine.admit(0, &Admission::new(&[1, 2], 1, &Sampling::default()), None).unwrap();
    assert!(engine.round(RoundPlan { prefill: Some((0, 2)), decode: &[] }).is_err());
    let broken = engine.round(RoundPlan { prefill: Some((0, 2)), decode: &[] }).err();
    assert!(broken.expect("the lane is broken").to_string().contains("broken by a device fault"));
    engine.release(0).unwrap();
    assert_eq!(engine.pages_free(), LIMITS.pages);
}

#[test]
fn rows_that_pad_the_vocabulary_are_never_drawn() {
    let golden = Golden::open("llama");
    let mut engine = load(&golden, 64, 1, Activations::Int8, KvFormat::Bf16);
    assert!(engine.draw_below(513).unwrap_err().to_string().contains("513"));
    engine.draw_below(10).unwrap();
    let wild = Sampling { temperature: 5.0, logprobs: Some(20), ..Sampling::default() };
    engine.admit(0, &Admission::new(&golden.ids(5), 4, &wild), None).unwrap();
    let mut drawn = engine.round(RoundPlan { prefill: Some((0, 5)), decode: &[] }).unwrap()[0];
    for _ in 0..100 {
        assert!(drawn.sample.token < 10);
        assert!(drawn.sample.top_ids[..drawn.sample.top_len as usize].iter().all(|&id| id < 10));
        drawn = engine.round(RoundPlan { prefill: None, decode: &[0] }).unwrap()[0];
    }
}
