//! What was found of a card and what drives it, whether or not it can be used.

use ignis_cuda::{ComputeMode, CudaFacts as Facts, DriverFact, NvrtcFact};
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
    others: Vec<(u32, u64, String)>,
    nvrtc: Option<(u32, u32)>,
    nvrtc_problem: Option<String>,
    refusal: Option<String>,
}

impl From<Facts> for CudaFacts {
    fn from(facts: Facts) -> Self {
        let refusal = ignis_cuda::judge(&facts).err().map(|error| error.to_string());
        let (driver, driver_problem) = match facts.driver {
            DriverFact::Missing => (None, Some("not found".to_owned())),
            DriverFact::Failing { code } => (None, Some(format!("does not start: {code}"))),
            DriverFact::Present { version } => (Some(version), None),
        };
        let (nvrtc, nvrtc_problem) = match facts.nvrtc {
            NvrtcFact::Missing => (None, Some("not found".to_owned())),
            NvrtcFact::Broken { path } => {
                (None, Some(format!("{} cannot be loaded", path.display())))
            }
            NvrtcFact::Present { version } => (Some(version), None),
        };
        let card = facts.card;
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
                card.others.into_iter().map(|(pid, used, name)| (pid, used.0, name)).collect()
            }),
            nvrtc,
            nvrtc_problem,
            refusal,
        }
    }
}
