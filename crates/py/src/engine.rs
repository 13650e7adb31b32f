//! The engine: load, rounds, release. What it does between rounds is in `moves`.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use arrayvec::ArrayVec;
use ignis_engine::{RoundPlan, load_random};
use ignis_formats::Checkpoint;
use ignis_sim::SimDevice;
use ignis_types::{Bytes, LANES_MAX, PlanLine, SlotId};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::devices::DeviceOptions;
use crate::errors::{DeviceFaultError, FileError, from_engine};
use crate::model::{Limits, Source};
use crate::round_out::RoundOut;
use crate::sampling::Sampling;
use crate::tiers::{TierOptions, simulated_storage};

/// Read from another thread while a load runs.
#[pyclass(frozen, module = "ignis._native")]
#[derive(Default)]
pub(crate) struct LoadProgress(Arc<ignis_engine::Progress>);

#[pymethods]
impl LoadProgress {
    #[new]
    fn new() -> Self {
        LoadProgress::default()
    }

    fn bytes_done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    fn bytes_total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }
}

/// The witness model's next token, for tests.
#[pyfunction]
pub(crate) fn witness_next(prefix: Vec<u32>, vocab: u32, seed: u64) -> u32 {
    ignis_sim::witness_next(prefix, vocab, seed)
}

/// One loaded model. Used by one thread at a time: a call while another runs is refused, and never
/// waits, because the running one needs the interpreter to end.
#[pyclass(frozen, module = "ignis._native")]
pub(crate) struct Engine {
    inner: Mutex<ignis_engine::Engine>,
}

impl Engine {
    fn new(inner: ignis_engine::Engine) -> Self {
        Engine { inner: Mutex::new(inner) }
    }

    pub(crate) fn lock(&self) -> PyResult<MutexGuard<'_, ignis_engine::Engine>> {
        self.inner.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => PyRuntimeError::new_err("the engine is busy in a round"),
            TryLockError::Poisoned(_) => DeviceFaultError::new_err("a round ended in a panic"),
        })
    }
}

pub(crate) fn unsigned(py: Python<'_>, buffer: &PyBuffer<u32>, count: usize) -> PyResult<Vec<u32>> {
    let cells =
        buffer.as_slice(py).ok_or_else(|| PyValueError::new_err("the array is not contiguous"))?;
    let cells = cells
        .get(..count)
        .ok_or_else(|| PyValueError::new_err("the array is shorter than its count"))?;
    Ok(cells.iter().map(|cell| cell.get()).collect())
}

#[pymethods]
impl Engine {
    #[staticmethod]
    #[pyo3(signature = (model, limits, options, plan, progress = None, ids = None, tiers = None))]
    fn load(
        py: Python<'_>,
        model: Source<'_>,
        limits: &Limits,
        options: &DeviceOptions,
        plan: Vec<(String, u64)>,
        progress: Option<&LoadProgress>,
        ids: Option<u32>,
        tiers: Option<&TierOptions>,
    ) -> PyResult<Self> {
        let plan = plan
            .iter()
            .map(|(name, bytes)| {
                PlanLine::ALL
                    .into_iter()
                    .find(|line| line.name() == name)
                    .map(|line| (line, Bytes(*bytes)))
                    .ok_or_else(|| PyValueError::new_err(format!("no plan line {name:?}")))
            })
            .collect::<PyResult<Vec<_>>>()?;
        let progress = progress.map(|p| Arc::clone(&p.0)).unwrap_or_default();
        let (limits, device) = (limits.native(), options.open(&model.model(py)?.program)?);
        let tiers = tiers.cloned().unwrap_or_default();
        let (random, path) = match model {
            Source::Random(random) => (Some(random.model()?), PathBuf::new()),
            Source::Path(path) => (None, path),
        };
        py.detach(|| {
            let storage = tiers.open()?;
            let loaded = match &random {
                Some(model) => load_random(model, &limits, device, &plan, storage, &progress),
                None => {
                    let checkpoint = Checkpoint::open(&path)
                        .map_err(|error| FileError::new_err(error.to_string()))?;
                    ignis_engine::load(&checkpoint, &limits, device, &plan, storage, &progress)
                }
            };
            let mut inner = loaded.map_err(from_engine)?;
            if let Some(ids) = ids {
                inner.draw_below(ids).map_err(from_engine)?;
            }
            Ok(Engine::new(inner))
        })
    }

    #[staticmethod]
    #[pyo3(signature = (
        limits,
        vocab,
        seed,
        fault_ppm = 0,
        ram_windows = 0,
        disk_windows = 0,
        disk_fault_ppm = 0,
        window_bytes = 4096,
    ))]
    fn simulated(
        limits: &Limits,
        vocab: u32,
        seed: u64,
        fault_ppm: u32,
        ram_windows: u32,
        disk_windows: u32,
        disk_fault_ppm: u32,
        window_bytes: u32,
    ) -> PyResult<Self> {
        if vocab == 0 {
            return Err(PyValueError::new_err("vocab is 0, expected at least 1"));
        }
        let program = ignis_sim::witness_program(vocab);
        let device = SimDevice::new(seed, fault_ppm);
        // With a disk, moves have times of their own anyhow: those of copies join them.
        let device = match disk_windows {
            0 => device,
            _ => device.copying_beside(disk_fault_ppm),
        };
        let storage =
            simulated_storage(seed, ram_windows, disk_windows, disk_fault_ppm, window_bytes);
        let device = Box::new(device);
        let inner = ignis_engine::simulated(&program, &limits.native(), device, storage, seed)
            .map_err(from_engine)?;
        Ok(Engine::new(inner))
    }

    #[getter]
    fn page_tokens(&self) -> u32 {
        ignis_types::PAGE_TOKENS
    }

    #[getter]
    fn lanes_max(&self) -> PyResult<u32> {
        Ok(self.lock()?.limits().lanes_max)
    }

    #[getter]
    fn pages_total(&self) -> PyResult<u32> {
        Ok(self.lock()?.limits().pages)
    }

    #[getter]
    fn vocab(&self) -> PyResult<u32> {
        Ok(self.lock()?.vocab())
    }

    #[getter]
    fn description(&self) -> PyResult<String> {
        Ok(self.lock()?.describe())
    }

    #[getter]
    fn recorded_rounds(&self) -> PyResult<Option<(u32, u32, u64)>> {
        let recorded = self.lock()?.recorded();
        Ok(recorded.map(|found| (found.kept, found.kinds, found.bytes.0)))
    }

    fn pages_free(&self) -> PyResult<u32> {
        Ok(self.lock()?.pages_free())
    }

    fn reserved(&self) -> PyResult<Vec<(&'static str, u64)>> {
        Ok(self.lock()?.reserved().map(|(line, bytes)| (line.name(), bytes.0)).collect())
    }

    #[getter]
    fn pinned_bytes(&self) -> PyResult<u64> {
        Ok(self.lock()?.pinned().0)
    }

    fn plan_allocations_after_seal(&self) -> PyResult<u64> {
        Ok(self.lock()?.allocations_after_seal())
    }

    #[pyo3(signature = (lane, tokens, pages, sampling, prompt_tokens = None, slot = -1))]
    fn admit(
        &self,
        py: Python<'_>,
        lane: u32,
        tokens: PyBuffer<u32>,
        pages: u32,
        sampling: &Sampling,
        prompt_tokens: Option<u32>,
        slot: i64,
    ) -> PyResult<()> {
        let tokens = unsigned(py, &tokens, tokens.item_count())?;
        let slot = u32::try_from(slot).ok().map(SlotId);
        let admission = sampling.admission(&tokens, prompt_tokens, pages);
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        py.detach(|| inner.admit(lane, &admission, slot)).map_err(from_engine)
    }

    fn round(
        &self,
        py: Python<'_>,
        prefill_lane: i64,
        prefill_tokens: u32,
        decode_lanes: &Bound<'_, PyAny>,
        decode_count: usize,
        out: &RoundOut,
    ) -> PyResult<usize> {
        self.begin_round(py, prefill_lane, prefill_tokens, decode_lanes, decode_count)?;
        self.finish_round(py, out)
    }

    fn begin_round(
        &self,
        py: Python<'_>,
        prefill_lane: i64,
        prefill_tokens: u32,
        decode_lanes: &Bound<'_, PyAny>,
        decode_count: usize,
    ) -> PyResult<bool> {
        let mut decode: ArrayVec<u32, LANES_MAX> = ArrayVec::new();
        if decode_count > 0 {
            // An empty array has no aligned buffer to look at.
            let buffer = PyBuffer::<u32>::get(decode_lanes)?;
            let cells = buffer
                .as_slice(py)
                .and_then(|cells| cells.get(..decode_count))
                .filter(|cells| cells.len() <= LANES_MAX)
                .ok_or_else(|| PyValueError::new_err("decode_lanes is shorter than its count"))?;
            decode.extend(cells.iter().map(|cell| cell.get()));
        }
        let prefill = u32::try_from(prefill_lane).ok().map(|lane| (lane, prefill_tokens));
        let plan = RoundPlan { prefill, decode: &decode };
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        // Beginning a decode round takes less time than getting the interpreter back may take.
        let begun = match prefill {
            Some(_) => py.detach(|| inner.begin_round(plan)),
            None => inner.begin_round(plan),
        };
        begun.map_err(from_engine)
    }

    fn finish_round(&self, py: Python<'_>, out: &RoundOut) -> PyResult<usize> {
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        let results = py.detach(|| inner.finish_round()).map_err(from_engine)?;
        out.fill(py, results)?;
        Ok(results.len())
    }

    fn score(
        &self,
        py: Python<'_>,
        lane: u32,
        tokens: u32,
        logprobs: PyBuffer<f32>,
    ) -> PyResult<usize> {
        let mut values = vec![0.0; logprobs.item_count()];
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        let written = py.detach(|| inner.score(lane, tokens, &mut values)).map_err(from_engine)?;
        let cells = logprobs
            .as_mut_slice(py)
            .ok_or_else(|| PyValueError::new_err("logprobs is not writable"))?;
        cells[..written].iter().zip(&values).for_each(|(cell, &value)| cell.set(value));
        Ok(written)
    }

    fn release(&self, lane: u32) -> PyResult<()> {
        self.lock()?.release(lane).map_err(from_engine)
    }

    fn position(&self, lane: u32) -> PyResult<u32> {
        self.lock()?.position(lane).map_err(from_engine)
    }
}
