//! Sampling parameters of one sequence.

use ignis_engine::Admission;
use pyo3::prelude::*;

/// How one sequence samples.
#[pyclass(frozen, module = "ignis._native")]
pub(crate) struct Sampling {
    pub(crate) params: ignis_ops::Sampling,
    pub(crate) logit_bias: Vec<(u32, f32)>,
}

#[pymethods]
impl Sampling {
    #[new]
    #[pyo3(signature = (
        *,
        temperature = 1.0,
        top_k = 0,
        top_p = 1.0,
        min_p = 0.0,
        repetition_penalty = 1.0,
        presence_penalty = 0.0,
        frequency_penalty = 0.0,
        seed = 0,
        logprobs = None,
        logit_bias = Vec::new(),
    ))]
    fn new(
        temperature: f32,
        top_k: u32,
        top_p: f32,
        min_p: f32,
        repetition_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        seed: u64,
        logprobs: Option<u32>,
        logit_bias: Vec<(u32, f32)>,
    ) -> Self {
        let params = ignis_ops::Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            logprobs,
        };
        Sampling { params, logit_bias }
    }
}

impl Sampling {
    /// A sequence that draws like this. Without a `prompt_tokens` all of it is the prompt.
    pub(crate) fn admission<'a>(
        &'a self,
        tokens: &'a [u32],
        prompt_tokens: Option<u32>,
        pages: u32,
    ) -> Admission<'a> {
        Admission {
            tokens,
            prompt_tokens: prompt_tokens.unwrap_or(tokens.len() as u32),
            pages,
            sampling: &self.params,
            logit_bias: &self.logit_bias,
        }
    }
}
