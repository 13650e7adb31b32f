//! The same request gives the same bits whatever its chunking, its batch mates, its pages or the
//! number of threads.

mod support;

use ignis_backend::{Activations, KvFormat};
use ignis_engine::{Admission, Engine, RoundPlan, RoundResult};
use ignis_ops::Sampling;
use support::{Golden, load};

fn drawn() -> Sampling {
    Sampling { temperature: 0.9, seed: 7, logprobs: Some(5), ..Sampling::default() }
}

/// Prefills `prompt` on `lane` in chunks of `chunk` beside whatever else decodes.
fn prefill(engine: &mut Engine, lane: u32, len: u32, chunk: u32, decode: &[u32]) -> RoundResult {
    let mut left = len;
    loop {
        let count = left.min(chunk);
        left -= count;
        let results = engine.round(RoundPlan { prefill: Some((lane, count)), decode }).unwrap();
        if left == 0 {
            return results[0];
        }
    }
}

/// The request alone: 30 tokens with their log-probabilities.
fn alone(golden: &Golden, chunk: u32, threads: usize, kv: KvFormat) -> Vec<RoundResult> {
    let mut engine = load(golden, 128, threads, Activations::Int8, kv);
    let prompt = golden.ids(200);
    engine.admit(0, &Admission::new(&prompt, 4, &drawn()), None).unwrap();
    let mut out = vec![prefill(&mut engine, 0, 200, chunk, &[])];
    while out.len() < 30 {
        out.push(engine.round(RoundPlan { prefill: None, decode: &[0] }).unwrap()[0]);
    }
    out
}

#[test]
fn chunking_and_threads_change_no_bit() {
    for family in ["llama", "qwen3", "qwen3_5", "qwen3_5-moe"] {
        let golden = Golden::open(family);
        for kv in [KvFormat::Bf16, KvFormat::F32] {
            let reference = alone(&golden, 128, 1, kv);
            for (chunk, threads) in [(128, 2), (64, 3), (7, 2), (1, 1)] {
                let other = alone(&golden, chunk, threads, kv);
                assert_eq!(reference, other, "{family}: chunk {chunk}, {threads} threads");
            }
        }
    }
}

#[test]
fn batch_mates_and_pages_change_no_bit() {
    for family in ["qwen2", "qwen3_5", "qwen3_5-moe"] {
        same_beside_others(&Golden::open(family));
    }
}

fn same_beside_others(golden: &Golden) {
    let reference = alone(golden, 128, 2, KvFormat::Bf16);
    let mut engine = load(golden, 128, 2, Activations::Int8, KvFormat::Bf16);
    let prompt = golden.ids(200);
    // Two neighbours first, so that the request gets other pages and another lane.
    engine.admit(2, &Admission::new(&prompt[3..70], 3, &Sampling::default()), None).unwrap();
    prefill(&mut engine, 2, 67, 33, &[]);
    engine.admit(0, &Admission::new(&prompt[..64], 3, &drawn()), None).unwrap();
    prefill(&mut engine, 0, 64, 64, &[2]);
    engine.admit(1, &Admission::new(&prompt, 4, &drawn()), None).unwrap();
    let mut out = vec![prefill(&mut engine, 1, 200, 50, &[0, 2])];
    while out.len() < 30 {
        let mates: &[u32] = if out.len() % 3 == 0 { &[2, 1, 0] } else { &[1, 2] };
        let results = engine.round(RoundPlan { prefill: None, decode: mates }).unwrap();
        out.push(*results.iter().find(|r| r.lane == 1).unwrap());
    }
    for (ours, theirs) in out.iter().zip(&reference) {
        assert_eq!(ours.sample, theirs.sample);
    }
}
