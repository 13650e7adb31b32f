//! Choosing a token from a row of logits.

/// Alternatives that `logprobs` can report.
pub const TOP_LOGPROBS_MAX: usize = 20;

/// Entries of `logit_bias` that a request may carry.
pub const LOGIT_BIAS_MAX: usize = 1024;

/// How one sequence samples. Fixed for its life.
///
/// Math, in this order, on f32 logits `l` over the real vocabulary (padding ids never win):
/// 1. `l[i] += bias[i]`
/// 2. for every id seen in prompt or output: `l = l > 0 ? l / repetition : l * repetition`
/// 3. for every id of the output, seen `n` times: `l -= frequency * n + presence`
/// 4. temperature 0: the largest, the lowest id among equals. Log-probabilities are of these logits
/// 5. else `p = softmax(l / temperature)`; keep the `top_k` largest (0: all) and renormalise; then
///    the smallest set whose sum reaches `top_p`; then those of at least `min_p` times the largest;
///    renormalise
/// 6. draw by inverse CDF over the kept ids (largest first) at `uniform(seed, position)`
///
/// Log-probabilities reported are `log_softmax` of the logits after steps 1 to 3, before
/// temperature, as OpenAI's and vLLM's are.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// 1 changes nothing.
    pub repetition_penalty: f32,
    /// 0 changes nothing.
    pub presence_penalty: f32,
    /// 0 changes nothing.
    pub frequency_penalty: f32,
    /// With the position, the only source of randomness.
    pub seed: u64,
    /// Alternatives to report, at most [`TOP_LOGPROBS_MAX`]; `None`: no log-probability at all.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Whether tokens seen earlier change the logits.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// What sampling one row gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleOut {
    /// The chosen id.
    pub token: u32,
    /// Its log-probability; 0 when not asked for.
    pub logprob: f32,
    /// Alternatives filled in `top_ids` and `top_logprobs`.
    pub top_len: u32,
    /// Ids, most likely first.
    pub top_ids: [u32; TOP_LOGPROBS_MAX],
    /// Their log-probabilities.
    pub top_logprobs: [f32; TOP_LOGPROBS_MAX],
}

impl Default for SampleOut {
    fn default() -> Self {
        SampleOut {
            token: 0,
            logprob: 0.0,
            top_len: 0,
            top_ids: [0; TOP_LOGPROBS_MAX],
            top_logprobs: [0.0; TOP_LOGPROBS_MAX],
        }
    }
}

/// The random number of a draw: uniform in `[0, 1)`, a function of seed and position only.
///
/// Two rounds of a 64-bit finaliser over both words; 53 bits of the result are used.
pub fn uniform(seed: u64, position: u32) -> f64 {
    fn mix(mut z: u64) -> u64 {
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    let word = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ mix(u64::from(position) + 1));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ_by_seed_and_position_and_fill_the_interval() {
        let mut sum = 0.0;
        for position in 0..10_000 {
            let u = uniform(7, position);
            assert!((0.0..1.0).contains(&u));
            sum += u;
        }
        assert!((sum / 10_000.0 - 0.5).abs() < 0.02);
        assert_ne!(uniform(7, 1), uniform(8, 1));
        assert_ne!(uniform(7, 1), uniform(7, 2));
    }
}
