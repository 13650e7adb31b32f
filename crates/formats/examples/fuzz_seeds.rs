//! Writes small valid files for the fuzzers to start from.
//!
//! usage: fuzz_seeds CORPUS: files go to CORPUS/gguf, CORPUS/safetensors and CORPUS/config_json

use std::path::PathBuf;

use ignis_formats::MetaArray;
use ignis_formats::writer::{self, GgufWriter};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let corpus = PathBuf::from(std::env::args().nth(1).ok_or("usage: fuzz_seeds CORPUS")?);
    let write = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join(name), bytes)
    };

    let tokens: &[&str] = &["<s>", "a", "ä"];
    let gguf = GgufWriter::default()
        .key("general.architecture", "llama")
        .key("llama.block_count", 2)
        .key("llama.rope.freq_base", 1e5)
        .key("tokenizer.ggml.add_bos_token", false)
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.token_type", MetaArray::I64s(vec![3, 1, -1]))
        .f32s("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("weight", 2, &[2, 64], vec![7; 72]);
    write("gguf", "v3", &gguf.bytes())?;
    write("gguf", "v2", &gguf.clone().version(2).bytes())?;
    write("gguf", "aligned", &gguf.alignment(64).bytes())?;

    let tensors = writer::safetensors(&[
        ("norm", "F32", &[2], vec![1; 8]),
        ("weight", "BF16", &[3, 2], vec![2; 12]),
        ("steps", "I64", &[1], vec![3; 8]),
    ]);
    write("safetensors", "file", &tensors)?;
    let index = br#"{"metadata": {}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}"#;
    write("safetensors", "index", index)?;

    let config = br#"{"model_type": "llama", "hidden_size": 64, "rms_norm_eps": 1e-05,
        "rope_scaling": {"factor": 8.0, "type": null},
        "layer_types": ["full_attention"], "t": true}"#;
    write("config_json", "llama", config)?;
    Ok(())
}
