//! What was found of a card and what drives it, whether or not it can be used.

use std::path::PathBuf;

use ignis_cuda::{ComputeMode, CudaFacts as Facts, DriverFact, Holder};
use pyo3::prelude::*;

/// Facts of this machine that using a card depends on.
#[pyclass(frozen, get_all, module = "ignis._native")]
pub(crate) struct CudaFacts {
    driver: Option<(u32, u32)>,
    driver_problem: Option<String>,
    release: Option<String>,
    cards: u32,
    name: Option<String>,
    capability: Option<(u32, u32)>,
    mode: Option<&'static str>,
    total_bytes: Option<u64>,
    free_bytes: Option<u64>,
    others: Vec<(u32, Option<u64>, String)>,
    nvrtc: Option<(u32, u32)>,
    nvrtc_file: Option<PathBuf>,
    nvrtc_found: Vec<((u32, u32), PathBuf)>,
    nvrtc_broken: Vec<PathBuf>,
    refusal: Option<String>,
}

impl From<Facts> for CudaFacts {
    fn from(facts: Facts) -> Self {
        let taken = ignis_cuda::suiting_nvrtc(&facts).cloned();
        let refusal = ignis_cuda::judge(&facts).err().map(|error| error.to_string());
        let (driver, driver_problem) = match facts.driver {
            DriverFact::Missing => (None, Some("not found".to_owned())),
            DriverFact::Failing { code } => (None, Some(format!("does not start: {code}"))),
            DriverFact::Present { version } => (Some(version), None),
        };
        let (card, files) = (facts.card, facts.nvrtc.files);
        let memory = card.as_ref().and_then(|card| card.memory);
        CudaFacts {
            driver,
            driver_problem,
            release: facts.release,
            cards: facts.cards,
            name: card.as_ref().map(|card| card.name.clone()),
            capability: card.as_ref().map(|card| card.capability),
            mode: card.as_ref().map(|card| match card.mode {
                ComputeMode::Shared => "shared",
                ComputeMode::Exclusive => "exclusive",
                ComputeMode::Prohibited => "prohibited",
            }),
            total_bytes: memory.map(|(total, _)| total.0),
            free_bytes: memory.map(|(_, free)| free.0),
            others: card.map_or_else(Vec::new, |card| {
                let of = |one: Holder| (one.pid, one.bytes.map(|bytes| bytes.0), one.name);
                card.others.into_iter().map(of).collect()
            }),
            nvrtc: taken.as_ref().map(|file| file.version),
            nvrtc_file: taken.map(|file| file.path),
            nvrtc_found: files.into_iter().map(|file| (file.version, file.path)).collect(),
            nvrtc_broken: facts.nvrtc.broken,
            refusal,
        }
    }
}
