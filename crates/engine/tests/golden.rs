//! Parity with transformers in float32 on tiny seeded checkpoints (`tests/golden`, made by
//! `make_goldens.py` beside them): every logit within 1e-3 and the same greedy tokens, in one chunk
//! or many.

mod support;

use ignis_backend::{Activations, KvFormat};
use ignis_engine::{Admission, RoundPlan};
use ignis_ops::Sampling;
use support::{Golden, load};

/// Largest difference of a logit that f32 arithmetic in another order may make.
const LOGIT_TOLERANCE: f32 = 1e-3;
const LENGTHS: [usize; 4] = [5, 64, 65, 200];

fn logits_agree(family: &str, chunk: u32, threads: usize) {
    let golden = Golden::open(family);
    let mut engine = load(&golden, chunk, threads, Activations::F32, KvFormat::F32);
    for n in LENGTHS {
        let prompt = golden.ids(n);
        let (rows, expected) = golden.logits(n);
        let vocab = engine.vocab() as usize;
        engine.admit(1, &Admission::new(&prompt, 4, &Sampling::default()), None).unwrap();
        let mut worst = 0.0f32;
        let mut seen = 0;
        while seen < n as u32 {
            let count = chunk.min(n as u32 - seen);
            engine
                .score_rows(1, count, |position, logits| {
                    let Some(row) = (position as usize + rows).checked_sub(n) else { return };
                    for (ours, theirs) in logits.iter().zip(&expected[row * vocab..]) {
                        assert!(ours.is_finite());
                        worst = worst.max((ours - theirs).abs());
                    }
                })
                .unwrap();
            seen += count;
        }
        engine.release(1).unwrap();
        assert!(worst <= LOGIT_TOLERANCE, "{family}, {n} tokens, chunk {chunk}: off by {worst}");
    }
}

fn tokens_agree(family: &str) {
    let golden = Golden::open(family);
    let mut engine = load(&golden, 64, 2, Activations::F32, KvFormat::F32);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    for n in LENGTHS {
        let prompt = golden.ids(n);
        engine.admit(0, &Admission::new(&prompt, 4, &greedy), None).unwrap();
        let mut tokens = Vec::new();
        let mut left = n as u32;
        while left > 0 {
            let count = left.min(64);
            let drawn = engine.round(RoundPlan { prefill: Some((0, count)), decode: &[] }).unwrap();
            tokens.extend(drawn.iter().map(|r| r.sample.token));
            left -= count;
        }
        while tokens.len() < 24 {
            let drawn = engine.round(RoundPlan { prefill: None, decode: &[0] }).unwrap();
            tokens.push(drawn[0].sample.token);
        }
        engine.release(0).unwrap();
        assert_eq!(tokens, golden.greedy(n), "{family}, {n} tokens");
    }
}

macro_rules! families {
    ($($name:ident: $folder:literal;)*) => {$(
        mod $name {
            #[test]
            fn logits_agree_in_one_chunk() {
                super::logits_agree($folder, 256, 1);
            }
            #[test]
            fn logits_agree_in_uneven_chunks() {
                super::logits_agree($folder, 7, 3);
            }
            #[test]
            fn greedy_tokens_agree() {
                super::tokens_agree($folder);
            }
        }
    )*};
}

families! {
    llama: "llama";
    llama3_rope: "llama-rope3";
    llama_yarn: "llama-yarn";
    qwen2: "qwen2";
    qwen3: "qwen3";
    qwen3_5: "qwen3_5";
    qwen3_moe: "qwen3-moe";
    qwen3_next: "qwen3-next";
    qwen3_5_moe: "qwen3_5-moe";
}
