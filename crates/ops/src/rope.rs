//! Rotary position embedding and its frequency scaling.

use crate::program::BufferId;

/// Rotates the first `rotary_dim` values of every head by its position (halves layout).
///
/// Math:    for i < rotary_dim / 2, with a = position * inv_freq[i]:
///          y[i]     = (x[i] * cos a - x[i + rotary_dim/2] * sin a)
///          y[i + rotary_dim/2] = (x[i + rotary_dim/2] * cos a + x[i] * sin a)
///          cos and sin are multiplied by `RopeTable::magnitude`; further values pass through
/// Shapes:  x [rows, heads * head_dim] f32, in place
/// Effects: overwrites x. Row-local. Scratch: none
/// Source:  arXiv 2104.09864; transformers `apply_rotary_pos_emb`
#[derive(Clone, Debug)]
pub struct Rope {
    /// Rotated in place, `[rows, heads * head_dim]`.
    pub x: BufferId,
    /// Values per head.
    pub head_dim: u32,
}

/// How a checkpoint stretches its rotary frequencies.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as trained.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, smooth in between.
    Llama3 {
        /// Stretch of the low frequencies.
        factor: f64,
        /// Below `original_context / low_freq_factor` wavelengths are kept.
        low_freq_factor: f64,
        /// Above it they are fully stretched.
        high_freq_factor: f64,
        /// Context of the original training.
        original_context: f64,
    },
    /// YaRN (arXiv 2309.00071), as transformers computes it.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Context of the original training.
        original_context: f64,
        /// Rotations above which a frequency is kept (32).
        beta_fast: f64,
        /// Rotations below which a frequency is fully stretched (1).
        beta_slow: f64,
        /// Multiplier of cos and sin; `None` is `0.1 ln(factor) + 1`.
        attention_factor: Option<f64>,
        /// Whether the correction range is floored and ceiled (transformers' `truncate`).
        truncate: bool,
    },
}

/// Inverse frequencies of one model, shared by all layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// `[rotary_dim / 2]` angles per position.
    pub inv_freq: Vec<f32>,
    /// Multiplier of cos and sin.
    pub magnitude: f32,
}

impl RopeTable {
    /// Frequencies `theta^(-2i / rotary_dim)`, stretched by `scaling`.
    ///
    /// Source: transformers `modeling_rope_utils` (behaviour), arXiv 2309.00071.
    pub fn new(theta: f64, rotary_dim: u32, scaling: &RopeScaling) -> RopeTable {
        let half = rotary_dim as usize / 2;
        let base: Vec<f64> =
            (0..half).map(|i| theta.powf(-2.0 * i as f64 / f64::from(rotary_dim))).collect();
        let mut magnitude = 1.0;
        let scaled: Vec<f64> = match *scaling {
            RopeScaling::None => base,
            RopeScaling::Linear { factor } => base.iter().map(|f| f / factor).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                base.iter()
                    .map(|&f| {
                        let turns = original_context * f / std::f64::consts::TAU;
                        let smooth =
                            (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        let keep = smooth.clamp(0.0, 1.0);
                        (1.0 - keep) * f / factor + keep * f
                    })
                    .collect()
            }
            RopeScaling::Yarn {
                factor,
                original_context,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate,
            } => {
                magnitude = attention_factor.unwrap_or(if factor > 1.0 {
                    0.1 * factor.ln() + 1.0
                } else {
                    1.0
                });
                let dim_of = |rotations: f64| {
                    f64::from(rotary_dim)
                        * (original_context / (rotations * std::f64::consts::TAU)).ln()
                        / (2.0 * theta.ln())
                };
                let (mut low, mut high) = (dim_of(beta_fast), dim_of(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let high = high.min(f64::from(rotary_dim) - 1.0);
                let span = if high == low { 0.001 } else { high - low };
                base.iter()
                    .enumerate()
                    .map(|(i, &f)| {
                        let ramp = ((i as f64 - low) / span).clamp(0.0, 1.0);
                        f / factor * ramp + f * (1.0 - ramp)
                    })
                    .collect()
            }
        };
        RopeTable {
            inv_freq: scaled.iter().map(|&f| f as f32).collect(),
            magnitude: magnitude as f32,
        }
    }

    /// Values of a head that rotate.
    pub fn rotary_dim(&self) -> usize {
        self.inv_freq.len() * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_fast_and_divides_slow_frequencies() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_context: 64.0,
        };
        let plain = RopeTable::new(5e5, 64, &RopeScaling::None);
        let table = RopeTable::new(5e5, 64, &scaling);
        assert_eq!(table.inv_freq[0], plain.inv_freq[0]);
        assert!((table.inv_freq[31] * 8.0 - plain.inv_freq[31]).abs() < 1e-12);
    }
}
