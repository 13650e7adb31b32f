//! Dimensions and options of a model.

use ignis_ops::{GateFunction, RopeScaling, RopeTable};

use crate::error::ModelError;
use crate::family::Family;

/// The recurrent layers of a hybrid model.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaShape {
    /// Whether each layer is recurrent; the others attend.
    pub layers: Vec<bool>,
    /// Heads of q and k.
    pub key_heads: u32,
    /// Heads of v.
    pub value_heads: u32,
    /// Values of a head of q and k.
    pub key_dim: u32,
    /// Values of a head of v.
    pub value_dim: u32,
    /// Columns that the convolution sees.
    pub kernel: u32,
    /// What the output gate goes through.
    pub gate: GateFunction,
}

/// The experts of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertShape {
    /// How many there are.
    pub count: u32,
    /// How many a token uses.
    pub used: u32,
    /// Width inside each.
    pub inner: u32,
    /// Width inside the shared one; 0 without one.
    pub shared_inner: u32,
    /// Whether the weights of the used ones are made to add up to 1.
    pub renormalise: bool,
}

/// What the headers of a model say.
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
    /// Width inside the MLP; of one expert, in a layer that has them.
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
    /// Recurrent layers, if any.
    pub delta: Option<DeltaShape>,
    /// Experts, if any.
    pub experts: Option<ExpertShape>,
}

impl ModelShape {
    /// Refuses dimensions that no program can have, before anything is computed from them.
    pub fn check(&self) -> Result<(), ModelError> {
        range("layers", self.layers, 1024)?;
        range("hidden size", self.hidden, 1 << 17)?;
        range("intermediate size", self.ffn, 1 << 19)?;
        range("attention heads", self.heads, 1024)?;
        range("key/value heads", self.kv_heads, self.heads)?;
        range("head_dim", self.head_dim, 512)?;
        range("vocabulary", self.vocab, 1 << 20)?;
        range("context length", self.context_trained, 1 << 24)?;
        range("rotary dimensions", self.rotary_dim, self.head_dim)?;
        even("head_dim", self.head_dim, 16)?;
        even("rotary dimensions", self.rotary_dim, 2)?;
        even("attention heads", self.heads, self.kv_heads)?;
        if let Some(delta) = &self.delta {
            delta.check(self.layers)?;
        }
        if let Some(experts) = &self.experts {
            experts.check()?;
        }
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
}

impl DeltaShape {
    /// Layers that attend.
    pub fn attention_layers(&self) -> u32 {
        self.layers.iter().filter(|&&recurrent| !recurrent).count() as u32
    }

    /// Values of q, k and v in one row.
    pub fn channels(&self) -> u32 {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    fn check(&self, layers: u32) -> Result<(), ModelError> {
        range("linear key heads", self.key_heads, 1024)?;
        range("linear value heads", self.value_heads, 1024)?;
        range("linear key head dim", self.key_dim, 512)?;
        range("linear value head dim", self.value_dim, 512)?;
        range("linear conv kernel", self.kernel, 4)?;
        even("linear value heads", self.value_heads, self.key_heads)?;
        even("linear key head dim", self.key_dim, 16)?;
        even("linear value head dim", self.value_dim, 16)?;
        if self.layers.len() != layers as usize {
            return Err(ModelError::ValueOutOfRange {
                key: "layer_types",
                found: format!("{} entries", self.layers.len()),
                expected: format!("{layers}"),
            });
        }
        range("attention layers", self.attention_layers(), layers)
    }
}

impl ExpertShape {
    fn check(&self) -> Result<(), ModelError> {
        range("experts", self.count, 4096)?;
        range("experts used", self.used, self.count.min(64))?;
        range("expert intermediate size", self.inner, 1 << 17)?;
        range("shared expert intermediate size", self.shared_inner.max(1), 1 << 17)
    }
}

fn range(key: &'static str, found: u32, max: u32) -> Result<(), ModelError> {
    if (1..=max).contains(&found) {
        return Ok(());
    }
    let (found, expected) = (found.to_string(), format!("1 to {max}"));
    Err(ModelError::ValueOutOfRange { key, found, expected })
}

fn even(key: &'static str, found: u32, step: u32) -> Result<(), ModelError> {
    if found.is_multiple_of(step) {
        return Ok(());
    }
    let (found, expected) = (found.to_string(), format!("a multiple of {step}"));
    Err(ModelError::ValueOutOfRange { key, found, expected })
}
