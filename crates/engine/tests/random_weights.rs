//! Random weights in a real geometry: planned, loaded and run as a checkpoint's are.

use std::path::Path;

use ignis_backend::{Activations, Device, KvFormat};
use ignis_cpu::{CpuDevice, CpuOptions};
use ignis_engine::{Admission, Engine, Progress, RoundPlan, Storage, lay_out, load_random};
use ignis_formats::ConfigJson;
use ignis_models::{Model, ModelError};
use ignis_ops::Sampling;
use ignis_types::{DType, Limits, PlanLine};

const SMALL: &str = r#"{
  "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000,
  "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 1e6,
  "tie_word_embeddings": TIED
}"#;

fn model(matrices: DType, tied: bool) -> Model {
    let text = SMALL.replace("TIED", &tied.to_string());
    let config = ConfigJson::parse(Path::new("config.json"), text.as_bytes()).unwrap();
    Model::of_config(&config, matrices).unwrap()
}

fn load(model: &Model) -> Engine {
    let options =
        CpuOptions { threads: 1, activations: Activations::F32, kv_format: KvFormat::Bf16 };
    let limits = Limits {
        lanes_max: 2,
        chunk_tokens_max: 64,
        context_tokens_max: 128,
        pages: 4,
        retained_device: 0,
        retained_host: 0,
    };
    let device = Box::new(CpuDevice::new(options).unwrap());
    let layout = lay_out(&model.program, &limits, device.layout()).unwrap().layout;
    let plan = PlanLine::ALL.map(|line| (line, layout.line_bytes(line)));
    let progress = Progress::default();
    load_random(model, &limits, device, &plan, Storage::none(), &progress).unwrap()
}

/// The first tokens of an answer, with their log-probabilities.
fn answer(engine: &mut Engine) -> (Vec<u32>, Vec<f32>) {
    let sampling = Sampling { temperature: 0.0, logprobs: Some(0), ..Sampling::default() };
    engine.admit(0, &Admission::new(&[5, 6, 7], 1, &sampling), None).unwrap();
    let mut found = (Vec::new(), Vec::new());
    for step in 0..8 {
        let (prefill, decode): (_, &[u32]) =
            if step == 0 { (Some((0, 3)), &[]) } else { (None, &[0]) };
        let results = engine.round(RoundPlan { prefill, decode }).unwrap();
        found.0.push(results[0].sample.token);
        found.1.push(results[0].sample.logprob);
    }
    engine.release(0).unwrap();
    found
}

#[test]
fn every_format_loads_and_gives_the_same_finite_answer_twice() {
    for matrices in [DType::BF16, DType::Q8_0, DType::Q4K] {
        for tied in [false, true] {
            let model = model(matrices, tied);
            let first = answer(&mut load(&model));
            assert!(first.1.iter().all(|logprob| logprob.is_finite()), "{matrices}: {first:?}");
            assert!(first.1.iter().all(|&logprob| logprob > -6.9), "{matrices}: {first:?}");
            assert_eq!(answer(&mut load(&model)), first, "{matrices}");
        }
    }
}

#[test]
fn rows_that_do_not_fill_blocks_are_refused() {
    let text = SMALL.replace("TIED", "true").replace("512", "96");
    let config = ConfigJson::parse(Path::new("config.json"), text.as_bytes()).unwrap();
    assert!(Model::of_config(&config, DType::Q8_0).is_ok());
    let error = Model::of_config(&config, DType::Q4K).unwrap_err();
    assert!(
        matches!(&error, ModelError::ValueOutOfRange { found, .. } if found == "96"),
        "{error}"
    );
}
