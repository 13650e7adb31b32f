//! Golden checkpoints in the other layouts that models are published in.

use std::path::Path;

use ignis_formats::writer::{GgufWriter, safetensors};
use ignis_formats::{Checkpoint, quant};

/// What a rewrite reads: a folder with a tensor for each expert.
pub(crate) struct Source {
    checkpoint: Checkpoint,
    config: serde_json::Value,
}

impl Source {
    pub(crate) fn open(folder: &Path) -> Source {
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(folder).unwrap();
        Source { checkpoint, config: serde_json::from_slice(&config).unwrap() }
    }

    fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{key} in the config")) as usize
    }

    fn has(&self, name: &str) -> bool {
        self.checkpoint.tensor(name).is_some()
    }

    fn shape(&self, name: &str) -> Vec<u64> {
        self.checkpoint.require(name).unwrap().shape.clone()
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.checkpoint.data(self.checkpoint.require(name).unwrap()).unwrap()
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let tensor = self.checkpoint.require(name).unwrap();
        let mut values = vec![0.0; tensor.elements() as usize];
        quant::dequantize(tensor.dtype, self.checkpoint.data(tensor).unwrap(), &mut values)
            .unwrap();
        values
    }

    /// As published with a vision tower beside: names under `model.language_model`, experts fused,
    /// the text's config inside another.
    pub(crate) fn multimodal(&self, folder: &Path) {
        std::fs::create_dir_all(folder).unwrap();
        let mut text = self.config.clone();
        let tied = text.as_object_mut().unwrap().remove("tie_word_embeddings").unwrap();
        let kind = text["model_type"].as_str().unwrap().trim_end_matches("_text");
        let config = serde_json::json!({
            "model_type": kind, "tie_word_embeddings": tied, "text_config": text,
        });
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();

        let inner = |name: &str| name.replacen("model.", "model.language_model.", 1);
        let mut out: Vec<(String, Vec<u64>, Vec<u8>)> = vec![];
        for tensor in self.checkpoint.tensors() {
            if !tensor.name.contains(".experts.") {
                let bytes = self.bytes(&tensor.name).to_vec();
                out.push((inner(&tensor.name), tensor.shape.clone(), bytes));
            }
        }
        out.push(("mtp.fc.weight".into(), vec![1, 2], vec![0; 4]));
        out.push(("model.visual.patch_embed.proj.weight".into(), vec![1, 2], vec![0; 4]));
        let experts =
            if self.has("model.layers.0.mlp.gate.weight") { self.size("num_experts") } else { 0 };
        for layer in 0..self.size("num_hidden_layers") {
            if experts == 0 {
                break;
            }
            let name = |e, part| format!("model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight");
            let (mut gate_up, mut down) = (vec![], vec![]);
            for e in 0..experts {
                gate_up.extend_from_slice(self.bytes(&name(e, "gate")));
                gate_up.extend_from_slice(self.bytes(&name(e, "up")));
                down.extend_from_slice(self.bytes(&name(e, "down")));
            }
            let shape = self.shape(&name(0, "gate"));
            let (e, i, h) = (experts as u64, shape[0], shape[1]);
            let at = |part| format!("model.language_model.layers.{layer}.mlp.experts.{part}");
            out.push((at("gate_up_proj"), vec![e, 2 * i, h], gate_up));
            out.push((at("down_proj"), vec![e, h, i], down));
        }
        let out: Vec<_> = out
            .iter()
            .map(|(name, shape, bytes)| (name.as_str(), "BF16", shape.as_slice(), bytes.clone()))
            .collect();
        std::fs::write(folder.join("model.safetensors"), safetensors(&out)).unwrap();
    }

    /// As llama.cpp's converter writes it, in f32.
    pub(crate) fn gguf(&self, arch: &str, file: &Path) {
        let mut gguf = Gguf { source: self, arch, out: GgufWriter::default() };
        gguf.keys();
        gguf.copy("model.embed_tokens.weight", "token_embd.weight");
        gguf.norm("model.norm.weight", "output_norm.weight");
        gguf.copy("lm_head.weight", "output.weight");
        for layer in 0..self.size("num_hidden_layers") {
            gguf.layer(layer);
        }
        gguf.out.write(file).unwrap();
    }
}

struct Gguf<'a> {
    source: &'a Source,
    arch: &'a str,
    out: GgufWriter,
}

impl Gguf<'_> {
    fn is_hybrid(&self) -> bool {
        self.arch != "qwen3moe"
    }

    fn key(&mut self, key: &str, value: u64) {
        let key = format!("{}.{key}", self.arch);
        self.out = std::mem::take(&mut self.out).key(&key, value);
    }

    fn keys(&mut self) {
        let source = self.source;
        self.out = std::mem::take(&mut self.out).key("general.architecture", self.arch);
        for (key, from) in [
            ("embedding_length", "hidden_size"),
            ("block_count", "num_hidden_layers"),
            ("attention.head_count", "num_attention_heads"),
            ("attention.head_count_kv", "num_key_value_heads"),
            ("attention.key_length", "head_dim"),
            ("context_length", "max_position_embeddings"),
        ] {
            self.key(key, source.size(from) as u64);
        }
        let theta = source.config["rope_parameters"]["rope_theta"].as_f64().unwrap();
        let eps = source.config["rms_norm_eps"].as_f64().unwrap();
        let named = |key: &str| format!("{}.{key}", self.arch);
        self.out = std::mem::take(&mut self.out)
            .key(&named("rope.freq_base"), theta)
            .key(&named("attention.layer_norm_rms_epsilon"), eps);
        if self.is_hybrid() {
            let (heads, dim) =
                (source.size("linear_num_value_heads"), source.size("linear_value_head_dim"));
            self.key("rope.dimension_count", source.size("head_dim") as u64 / 4);
            self.key("ssm.conv_kernel", source.size("linear_conv_kernel_dim") as u64);
            self.key("ssm.state_size", source.size("linear_key_head_dim") as u64);
            self.key("ssm.group_count", source.size("linear_num_key_heads") as u64);
            self.key("ssm.time_step_rank", heads as u64);
            self.key("ssm.inner_size", (heads * dim) as u64);
            self.key("full_attention_interval", 4);
        }
        if source.has("model.layers.0.mlp.gate.weight") {
            self.key("expert_count", self.experts() as u64);
            self.key("expert_used_count", source.size("num_experts_per_tok") as u64);
            let inner = source.size("moe_intermediate_size") as u64;
            self.key("expert_feed_forward_length", inner);
            if self.is_hybrid() {
                let inner = source.size("shared_expert_intermediate_size") as u64;
                self.key("expert_shared_feed_forward_length", inner);
            }
        } else {
            self.key("feed_forward_length", source.size("intermediate_size") as u64);
        }
    }

    fn experts(&self) -> usize {
        let config = &self.source.config;
        config["num_experts"].as_u64().or(config["num_local_experts"].as_u64()).unwrap() as usize
    }

    fn put(&mut self, name: &str, shape: &[u64], values: &[f32]) {
        self.out = std::mem::take(&mut self.out).f32s(name, shape, values);
    }

    fn copy(&mut self, from: &str, to: &str) {
        let (shape, values) = (self.source.shape(from), self.source.values(from));
        self.put(to, &shape, &values);
    }

    /// Zero-centred gains become plain ones.
    fn norm(&mut self, from: &str, to: &str) {
        let mut values = self.source.values(from);
        if self.is_hybrid() {
            values.iter_mut().for_each(|w| *w += 1.0);
        }
        self.put(to, &[values.len() as u64], &values);
    }

    fn layer(&mut self, layer: usize) {
        let from = |name: &str| format!("model.layers.{layer}.{name}.weight");
        let to = |name: &str| format!("blk.{layer}.{name}.weight");
        let mlp_norm = if self.is_hybrid() { "post_attention_norm" } else { "ffn_norm" };
        self.norm(&from("input_layernorm"), &to("attn_norm"));
        self.norm(&from("post_attention_layernorm"), &to(mlp_norm));
        if self.source.has(&from("self_attn.q_proj")) {
            for (part, name) in [("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")] {
                self.copy(&from(&format!("self_attn.{part}_proj")), &to(&format!("attn_{name}")));
            }
            self.norm(&from("self_attn.q_norm"), &to("attn_q_norm"));
            self.norm(&from("self_attn.k_norm"), &to("attn_k_norm"));
        } else {
            self.delta(layer);
        }
        if !self.source.has(&from("mlp.gate")) {
            for part in ["gate", "up", "down"] {
                self.copy(&from(&format!("mlp.{part}_proj")), &to(&format!("ffn_{part}")));
            }
            return;
        }
        self.copy(&from("mlp.gate"), &to("ffn_gate_inp"));
        for part in ["gate", "up", "down"] {
            let one = |e| from(&format!("mlp.experts.{e}.{part}_proj"));
            let shape = self.source.shape(&one(0));
            let all: Vec<f32> =
                (0..self.experts()).flat_map(|e| self.source.values(&one(e))).collect();
            let shape = [self.experts() as u64, shape[0], shape[1]];
            self.put(&to(&format!("ffn_{part}_exps")), &shape, &all);
            if self.is_hybrid() {
                let shared = from(&format!("mlp.shared_expert.{part}_proj"));
                self.copy(&shared, &to(&format!("ffn_{part}_shexp")));
            }
        }
        if self.is_hybrid() {
            let scale = self.source.values(&from("mlp.shared_expert_gate"));
            self.put(&to("ffn_gate_inp_shexp"), &[scale.len() as u64], &scale);
        }
    }

    fn delta(&mut self, layer: usize) {
        let source = self.source;
        let size = |key: &str| source.size(&format!("linear_{key}"));
        let (key_heads, value_heads) = (size("num_key_heads"), size("num_value_heads"));
        let (key_dim, dim) = (size("key_head_dim"), size("value_head_dim"));
        let (keys, each) = (key_heads * key_dim, value_heads / key_heads);
        let hidden = source.size("hidden_size");
        let from = |name: &str| format!("model.layers.{layer}.linear_attn.{name}");
        let to = |name: &str| format!("blk.{layer}.{name}");
        // Value head j of the file is head j' of the model.
        let tiles = self.arch != "qwen3next";
        let head = move |j: usize| if tiles { j % key_heads * each + j / key_heads } else { j };
        // Rows of width `width`, `rows` to a value head.
        let heads_of = |values: &[f32], rows: usize, width: usize| -> Vec<f32> {
            let run = rows * width;
            (0..value_heads).flat_map(|j| values[head(j) * run..][..run].to_vec()).collect()
        };

        let (qkv, z) = if tiles {
            (source.values(&from("in_proj_qkv.weight")), source.values(&from("in_proj_z.weight")))
        } else {
            let fused = source.values(&from("in_proj_qkvz.weight"));
            let run = 2 * key_dim + 2 * each * dim;
            let part = |first: usize, rows: usize| -> Vec<f32> {
                let from = |k: usize| &fused[(k * run + first) * hidden..][..rows * hidden];
                (0..key_heads).flat_map(|k| from(k).to_vec()).collect()
            };
            let value = 2 * key_dim;
            let qkv = [part(0, key_dim), part(key_dim, key_dim), part(value, each * dim)];
            (qkv.concat(), part(value + each * dim, each * dim))
        };
        let (qk, v) = qkv.split_at(2 * keys * hidden);
        let rows = (2 * keys + value_heads * dim) as u64;
        let qkv = [qk, &heads_of(v, dim, hidden)].concat();
        self.put(&to("attn_qkv.weight"), &[rows, hidden as u64], &qkv);
        let width = (value_heads * dim) as u64;
        self.put(&to("attn_gate.weight"), &[width, hidden as u64], &heads_of(&z, dim, hidden));
        if tiles {
            for (part, name) in
                [("in_proj_b.weight", "ssm_beta.weight"), ("in_proj_a.weight", "ssm_alpha.weight")]
            {
                let values = heads_of(&source.values(&from(part)), 1, hidden);
                self.put(&to(name), &[value_heads as u64, hidden as u64], &values);
            }
        } else {
            self.copy(&from("in_proj_ba.weight"), &to("ssm_ba.weight"));
        }
        let kernel = size("conv_kernel_dim");
        let conv = source.values(&from("conv1d.weight"));
        let (qk, v) = conv.split_at(2 * keys * kernel);
        let conv = [qk, &heads_of(v, dim, kernel)].concat();
        self.put(&to("ssm_conv1d.weight"), &[rows, kernel as u64], &conv);
        let rates: Vec<f32> = source.values(&from("A_log")).iter().map(|a| -a.exp()).collect();
        self.put(&to("ssm_a"), &[value_heads as u64], &heads_of(&rates, 1, 1));
        let dt = heads_of(&source.values(&from("dt_bias")), 1, 1);
        self.put(&to("ssm_dt.bias"), &[value_heads as u64], &dt);
        self.copy(&from("norm.weight"), &to("ssm_norm.weight"));
        let out = source.values(&from("out_proj.weight"));
        let out: Vec<f32> =
            out.chunks_exact(value_heads * dim).flat_map(|row| heads_of(row, dim, 1)).collect();
        self.put(&to("ssm_out.weight"), &[hidden as u64, width], &out);
    }
}
