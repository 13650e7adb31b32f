//! Dimensions and options of a model.

use ignis_ops::{RopeScaling, RopeTable};

use crate::error::ModelError;

/// A family of architectures that share a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM2, Mistral without a window.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on each head of q and k.
    Qwen3,
}

impl Family {
    /// Names that a file may use.
    pub const SUPPORTED: &'static str = "llama, qwen2, qwen3";

    /// The family of an architecture's name in a file.
    pub fn of(name: &str) -> Option<Family> {
        match name {
            "llama" => Some(Family::Llama),
            "qwen2" => Some(Family::Qwen2),
            "qwen3" => Some(Family::Qwen3),
            _ => None,
        }
    }

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
        }
    }
}

/// What the headers of a dense model say.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Which program.
    pub family: Family,
    /// `general.name`, or empty.
    pub name: String,
    /// Transformer layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width inside the MLP.
    pub ffn: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads.
    pub kv_heads: u32,
    /// Values a head.
    pub head_dim: u32,
    /// Rows of the embedding table.
    pub vocab: u32,
    /// Tokens that the model was trained for.
    pub context_trained: u32,
    /// Added to the mean square in every norm.
    pub rms_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Values of a head that rotate.
    pub rotary_dim: u32,
    /// How the frequencies are stretched.
    pub rope_scaling: RopeScaling,
    /// Divisors of each frequency that a GGUF carries (`rope_freqs.weight`), or empty.
    pub rope_factors: Vec<f32>,
    /// Attention projections have biases where the file has them.
    pub attention_bias: bool,
    /// The head is the embedding table.
    pub tied: bool,
}

impl ModelShape {
    /// Refuses dimensions that no program can have, before anything is computed from them.
    pub fn check(&self) -> Result<(), ModelError> {
        let range = |key, found: u32, max: u32| {
            if (1..=max).contains(&found) {
                Ok(())
            } else {
                Err(ModelError::ValueOutOfRange {
                    key,
                    found: found.to_string(),
                    expected: format!("1 to {max}"),
                })
            }
        };
        range("layers", self.layers, 1024)?;
        range("hidden size", self.hidden, 1 << 17)?;
        range("intermediate size", self.ffn, 1 << 19)?;
        range("attention heads", self.heads, 1024)?;
        range("key/value heads", self.kv_heads, self.heads)?;
        range("head_dim", self.head_dim, 512)?;
        range("vocabulary", self.vocab, 1 << 20)?;
        range("context length", self.context_trained, 1 << 24)?;
        range("rotary dimensions", self.rotary_dim, self.head_dim)?;
        let even = |key, found: u32, step: u32| {
            if found.is_multiple_of(step) {
                Ok(())
            } else {
                Err(ModelError::ValueOutOfRange {
                    key,
                    found: found.to_string(),
                    expected: format!("a multiple of {step}"),
                })
            }
        };
        even("head_dim", self.head_dim, 16)?;
        even("rotary dimensions", self.rotary_dim, 2)?;
        even("attention heads", self.heads, self.kv_heads)?;
        let positive = |key, found: f64| {
            if found.is_finite() && found > 0.0 {
                Ok(())
            } else {
                let expected = "a positive number".into();
                Err(ModelError::ValueOutOfRange { key, found: found.to_string(), expected })
            }
        };
        positive("rms norm epsilon", f64::from(self.rms_eps))?;
        positive("rope theta", self.rope_theta)?;
        if let RopeScaling::Linear { factor }
        | RopeScaling::Llama3 { factor, .. }
        | RopeScaling::Yarn { factor, .. } = self.rope_scaling
        {
            positive("rope scaling factor", factor)?;
        }
        if self.rope_factors.is_empty() || self.rope_factors.len() == self.rotary_dim as usize / 2 {
            Ok(())
        } else {
            Err(ModelError::ValueOutOfRange {
                key: "rope_freqs.weight",
                found: format!("{} values", self.rope_factors.len()),
                expected: format!("{} values", self.rotary_dim / 2),
            })
        }
    }

    /// Rotary frequencies of every layer.
    pub fn rope_table(&self) -> RopeTable {
        let mut table = RopeTable::new(self.rope_theta, self.rotary_dim, &self.rope_scaling);
        for (frequency, factor) in table.inv_freq.iter_mut().zip(&self.rope_factors) {
            *frequency /= factor;
        }
        table
    }

    /// Values in all matrices and vectors of the program.
    pub fn parameters(&self) -> u64 {
        let [hidden, ffn, vocab] = [self.hidden, self.ffn, self.vocab].map(u64::from);
        let q = u64::from(self.heads) * u64::from(self.head_dim);
        let kv = u64::from(self.kv_heads) * u64::from(self.head_dim);
        let layer = hidden * (2 * q + 2 * kv + 3 * ffn + 2);
        let heads = if self.tied { 1 } else { 2 };
        u64::from(self.layers) * layer + heads * vocab * hidden + hidden
    }
}
