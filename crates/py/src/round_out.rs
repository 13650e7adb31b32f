//! Preallocated results of a round, as `array.array`s that Python reads in place.

use ignis_engine::RoundResult;
use ignis_ops::TOP_LOGPROBS_MAX;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// Results of a round: entry `i` belongs to `lanes[i]`.
#[pyclass(frozen, get_all, module = "ignis._native")]
pub(crate) struct RoundOut {
    lanes: Py<PyAny>,
    tokens: Py<PyAny>,
    logprobs: Py<PyAny>,
    top_len: Py<PyAny>,
    top_ids: Py<PyAny>,
    top_logprobs: Py<PyAny>,
}

fn zeros(py: Python<'_>, typecode: &str, len: usize) -> PyResult<Py<PyAny>> {
    let bytes = pyo3::types::PyBytes::new(py, &vec![0; len * 4]);
    let array = py.import("array")?.getattr("array")?.call1((typecode, bytes))?;
    Ok(array.unbind())
}

#[pymethods]
impl RoundOut {
    #[new]
    fn new(py: Python<'_>, lanes_max: usize) -> PyResult<Self> {
        let len = lanes_max + 1;
        Ok(RoundOut {
            lanes: zeros(py, "I", len)?,
            tokens: zeros(py, "I", len)?,
            logprobs: zeros(py, "f", len)?,
            top_len: zeros(py, "I", len)?,
            top_ids: zeros(py, "I", len * TOP_LOGPROBS_MAX)?,
            top_logprobs: zeros(py, "f", len * TOP_LOGPROBS_MAX)?,
        })
    }
}

impl RoundOut {
    /// Copies the results of a round into the arrays.
    pub(crate) fn fill(&self, py: Python<'_>, results: &[RoundResult]) -> PyResult<()> {
        let ints = |array: &Py<PyAny>| PyBuffer::<u32>::get(array.bind(py));
        let floats = |array: &Py<PyAny>| PyBuffer::<f32>::get(array.bind(py));
        let (lanes, tokens, top_len) =
            (ints(&self.lanes)?, ints(&self.tokens)?, ints(&self.top_len)?);
        let (top_ids, top_logprobs) = (ints(&self.top_ids)?, floats(&self.top_logprobs)?);
        let logprobs = floats(&self.logprobs)?;
        let cells = "a fresh array is writable";
        for (i, result) in results.iter().enumerate() {
            lanes.as_mut_slice(py).expect(cells)[i].set(result.lane);
            tokens.as_mut_slice(py).expect(cells)[i].set(result.sample.token);
            logprobs.as_mut_slice(py).expect(cells)[i].set(result.sample.logprob);
            top_len.as_mut_slice(py).expect(cells)[i].set(result.sample.top_len);
            let at = i * TOP_LOGPROBS_MAX;
            for j in 0..result.sample.top_len as usize {
                top_ids.as_mut_slice(py).expect(cells)[at + j].set(result.sample.top_ids[j]);
                top_logprobs.as_mut_slice(py).expect(cells)[at + j]
                    .set(result.sample.top_logprobs[j]);
            }
        }
        Ok(())
    }
}
