//! Where images may lie, and the hashes of prompts.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use ignis_backend::Disk;
use ignis_engine::Storage;
use ignis_sim::{SimDisk, SimPlatter};
use ignis_tiers::{FileDisk, Tier};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::engine::unsigned;
use crate::errors::from_tier;

/// Where moved sequences and retained state go. Sizes are bytes; 0 turns a tier off.
#[pyclass(frozen, get_all, module = "ignis._native")]
#[derive(Clone, Default)]
pub(crate) struct TierOptions {
    ram_bytes: u64,
    disk_path: Option<PathBuf>,
    disk_bytes: u64,
    disk_margin_bytes: u64,
}

#[pymethods]
impl TierOptions {
    #[new]
    #[pyo3(signature = (ram_bytes = 0, disk_path = None, disk_bytes = 0, disk_margin_bytes = 0))]
    fn new(
        ram_bytes: u64,
        disk_path: Option<PathBuf>,
        disk_bytes: u64,
        disk_margin_bytes: u64,
    ) -> PyResult<Self> {
        if disk_bytes > 0 && disk_path.is_none() {
            return Err(PyValueError::new_err("disk_bytes is given without a disk_path"));
        }
        Ok(TierOptions { ram_bytes, disk_path, disk_bytes, disk_margin_bytes })
    }
}

impl TierOptions {
    /// Opens and reserves the file of KV-disk, if it is on.
    pub(crate) fn open(&self) -> PyResult<Storage> {
        let disk: Option<Box<dyn Disk>> = match &self.disk_path {
            Some(folder) if self.disk_bytes > 0 => {
                let disk = FileDisk::open(folder, self.disk_bytes, self.disk_margin_bytes)
                    .map_err(from_tier)?;
                Some(Box::new(disk))
            }
            _ => None,
        };
        let nonce_seed = RandomState::new().hash_one(std::process::id());
        Ok(Storage { ram_bytes: self.ram_bytes, disk, window_bytes: None, nonce_seed })
    }
}

/// KV-RAM and a simulated disk with faults, for tests.
pub(crate) fn simulated_storage(
    seed: u64,
    ram_windows: u32,
    disk_windows: u32,
    disk_fault_ppm: u32,
    window_bytes: u32,
) -> Storage {
    let disk: Option<Box<dyn Disk>> = (disk_windows > 0).then(|| {
        let platter = SimPlatter::new(ignis_tiers::disk_bytes(disk_windows, window_bytes));
        Box::new(SimDisk::new(&platter, seed, disk_fault_ppm)) as Box<dyn Disk>
    });
    Storage {
        ram_bytes: u64::from(ram_windows) * u64::from(window_bytes),
        disk,
        window_bytes: Some(window_bytes),
        nonce_seed: seed,
    }
}

/// 0 is KV-RAM, 1 is KV-disk.
pub(crate) fn tier(number: u32) -> PyResult<Tier> {
    match number {
        0 => Ok(Tier::Ram),
        1 => Ok(Tier::Disk),
        other => {
            Err(PyValueError::new_err(format!("tier is {other}, expected 0 (RAM) or 1 (disk)")))
        }
    }
}

/// A seeded 128-bit hash of every whole-page prefix.
#[pyfunction]
pub(crate) fn prefix_chain<'py>(
    py: Python<'py>,
    tokens: PyBuffer<u32>,
    seed: [u8; 16],
) -> PyResult<Bound<'py, PyBytes>> {
    let tokens = unsigned(py, &tokens, tokens.item_count())?;
    let chain = ignis_pages::prefix_chain(&tokens, &seed);
    Ok(PyBytes::new(py, chain.as_flattened()))
}

/// Bytes that a file of KV-disk in `folder` could have, or use again, on its volume.
#[pyfunction]
pub(crate) fn disk_available(folder: PathBuf) -> PyResult<u64> {
    ignis_tiers::file_room(&folder).map_err(from_tier)
}
