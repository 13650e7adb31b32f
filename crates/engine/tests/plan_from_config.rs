//! A `config.json` alone is enough for a plan, to the byte.

use std::path::PathBuf;

use ignis_backend::{
    Activations, DeviceLayout, KvFormat, StoredActivations, StoredLayout, StoredProducts,
};
use ignis_cpu::{CpuLayout, CpuOptions};
use ignis_engine::{Needs, needs};
use ignis_formats::{Checkpoint, FormatError};
use ignis_models::{Family, Model};
use ignis_types::{Bytes, Limits, PlanLine};

const STORED: StoredLayout = StoredLayout {
    kv_format: KvFormat::Bf16,
    activations: StoredActivations::Bf16,
    products: StoredProducts::Same,
    tables_on_host: false,
};

/// The text part of Qwen3.8-27B, which 3.5 and 3.6 share.
const QWEN_27B: &str = r#"{
  "architectures": ["Qwen3_5ForConditionalGeneration"],
  "model_type": "qwen3_5",
  "tie_word_embeddings": false,
  "text_config": {
    "model_type": "qwen3_5_text", "dtype": "bfloat16",
    "hidden_size": 5120, "num_hidden_layers": 64, "intermediate_size": 17408, "vocab_size": 248320,
    "rms_norm_eps": 1e-06, "hidden_act": "silu", "num_attention_heads": 24,
    "num_key_value_heads": 4, "head_dim": 256, "attention_bias": false, "attn_output_gate": true,
    "full_attention_interval": 4, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32", "output_gate_type": "swish", "max_position_embeddings": 262144,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
      "mrope_section": [11, 11, 10], "mrope_interleaved": true},
    "mtp_num_hidden_layers": 1, "eos_token_id": 248044
  },
  "vision_config": {"depth": 27, "hidden_size": 1152}
}"#;

/// A folder that holds `config` and nothing else.
fn folder(name: &str, config: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ignis-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    folder
}

fn line(needs: &Needs, wanted: PlanLine) -> u64 {
    needs.lines.iter().find(|(line, _)| *line == wanted).unwrap().1.0
}

#[test]
fn the_27b_is_priced_from_its_config() {
    let folder = folder("27b", QWEN_27B);
    let model = Model::of(&Checkpoint::open_header(&folder).unwrap()).unwrap();
    let whole = Checkpoint::open(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(matches!(whole, Err(FormatError::NoCheckpoint { .. })), "a load needs weights");

    assert_eq!(model.shape.family, Family::Qwen35);
    // The text part of the published count.
    assert_eq!(model.parameters() / 10_000_000, 2689, "{}", model.parameters());

    let options =
        CpuOptions { threads: 1, activations: Activations::Int8, kv_format: KvFormat::Bf16 };
    let layouts: [Box<dyn DeviceLayout>; 2] = [Box::new(CpuLayout::new(options)), Box::new(STORED)];
    for layout in layouts {
        let limits = |lanes_max| Limits {
            lanes_max,
            chunk_tokens_max: 512,
            context_tokens_max: 262_144,
            pages: 0,
            retained_device: 0,
            retained_host: 0,
        };
        let [one, three] = [1, 3].map(|n| needs(&model.program, &limits(n), &*layout).unwrap());
        let lane = line(&one, PlanLine::LaneState);
        let penalties = 4 * 248_320;
        assert_eq!(lane, 150_994_944 + 2_949_120 + penalties);
        assert_eq!(line(&three, PlanLine::LaneState), 3 * lane);
        assert_eq!(one.kv_page, Bytes(64 * 65_536));
        // Two bytes a value, vectors in four, rows of a matrix in panels of sixteen.
        let weights = line(&one, PlanLine::Weights);
        let stored = 2 * model.parameters();
        assert!((stored..stored + stored / 500).contains(&weights), "{weights} of {stored}");
    }
}

#[test]
fn a_table_on_the_host_moves_from_the_weights_to_what_is_pinned() {
    let limits = Limits {
        lanes_max: 2,
        chunk_tokens_max: 512,
        context_tokens_max: 4096,
        pages: 0,
        retained_device: 0,
        retained_host: 0,
    };
    let host = StoredLayout { tables_on_host: true, ..STORED };
    let table = 2 * 248_320 * 5120;
    for (tied, moved) in [(false, table), (true, 0)] {
        let config = QWEN_27B.replace(
            r#""tie_word_embeddings": false"#,
            &format!(r#""tie_word_embeddings": {tied}"#),
        );
        let folder = folder(&format!("27b-tied-{tied}"), &config);
        let model = Model::of(&Checkpoint::open_header(&folder).unwrap()).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let [on_device, on_host] =
            [STORED, host].map(|layout| needs(&model.program, &limits, &layout).unwrap());
        let weights = [&on_device, &on_host].map(|needs| line(needs, PlanLine::Weights));
        assert_eq!(weights[0] - weights[1], moved, "tied: {tied}");
        assert_eq!(on_host.pinned.0 - on_device.pinned.0, moved, "tied: {tied}");
        assert!(on_device.pinned.0 > 0, "a round's inputs and results are pinned");
    }
    let options =
        CpuOptions { threads: 1, activations: Activations::Int8, kv_format: KvFormat::Bf16 };
    let folder = folder("27b-cpu", QWEN_27B);
    let model = Model::of(&Checkpoint::open_header(&folder).unwrap()).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let cpu = needs(&model.program, &limits, &CpuLayout::new(options)).unwrap();
    assert_eq!(cpu.pinned, Bytes::ZERO);
}

#[test]
fn a_quantised_config_asks_for_headers() {
    let quantised =
        QWEN_27B.replacen('{', r#"{"quantization_config": {"quant_method": "fp8"},"#, 1);
    let folder = folder("27b-fp8", &quantised);
    let refused = Model::of(&Checkpoint::open_header(&folder).unwrap()).err().unwrap().to_string();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(refused.contains("quantization_config"), "{refused}");
}
