//! Facts of this machine that using a card depends on. [`probe`] looks; it decides nothing, and
//! makes no context.

use std::path::PathBuf;

use ignis_backend::DeviceError;
use ignis_types::Bytes;

use crate::driver::{self, Card};
use crate::nvml::{self, Process};
use crate::nvrtc;
use crate::open::Libraries;

/// What was found. A fact that could not be learnt is `None` or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaFacts {
    /// The driver's library.
    pub driver: DriverFact,
    /// The driver's release, such as 580.159.04, from its management library.
    pub release: Option<String>,
    /// Cards that the driver shows.
    pub cards: u32,
    /// The first of them.
    pub card: Option<CardFacts>,
    /// The compiler.
    pub nvrtc: NvrtcFact,
}

/// The driver's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriverFact {
    /// There is none.
    Missing,
    /// It is there, and does not start.
    Failing {
        /// What it said.
        code: String,
    },
    /// It runs.
    Present {
        /// The CUDA version it is for: (13, 0).
        version: (u32, u32),
    },
}

/// The compiler's library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NvrtcFact {
    /// There is none.
    Missing,
    /// The one that was named cannot be loaded.
    Broken {
        /// Its file.
        path: PathBuf,
    },
    /// It can be used.
    Present {
        /// Its version.
        version: (u32, u32),
    },
}

/// Who may compute on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeMode {
    /// Any number of processes.
    Shared,
    /// One process at a time.
    Exclusive,
    /// None.
    Prohibited,
}

/// What a card and its driver say of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// As the driver names it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Who may compute.
    pub mode: ComputeMode,
    /// (total, free).
    pub memory: Option<(Bytes, Bytes)>,
    /// What of it this process holds already.
    pub own: Bytes,
    /// Others that compute on it: (process, bytes, name).
    pub others: Vec<(u32, Bytes, String)>,
}

/// Looks at everything that a load would need.
pub fn probe(libraries: &Libraries) -> CudaFacts {
    let (driver, cards) = probe_driver();
    let started = matches!(driver, DriverFact::Present { .. });
    let card = if started && cards > 0 { driver::card(0).ok() } else { None };
    CudaFacts {
        driver,
        release: nvml::driver_release(),
        cards,
        card: card.map(|card| card_facts(&card)),
        nvrtc: probe_nvrtc(libraries),
    }
}

fn probe_driver() -> (DriverFact, u32) {
    if !driver::is_present() {
        return (DriverFact::Missing, 0);
    }
    match driver::start() {
        Ok((version, cards)) => {
            (DriverFact::Present { version: (version / 1000, version % 1000 / 10) }, cards)
        }
        Err(DeviceError::Driver { code, .. }) => (DriverFact::Failing { code }, 0),
        Err(error) => (DriverFact::Failing { code: error.to_string() }, 0),
    }
}

fn probe_nvrtc(libraries: &Libraries) -> NvrtcFact {
    if let Some(path) = &libraries.nvrtc
        && !nvrtc::load_from(path)
    {
        return NvrtcFact::Broken { path: path.clone() };
    }
    if !nvrtc::is_present() {
        return NvrtcFact::Missing;
    }
    nvrtc::version().map_or(NvrtcFact::Missing, |version| NvrtcFact::Present { version })
}

fn card_facts(card: &Card) -> CardFacts {
    let known = nvml::processes(&card.pci_bus_id).unwrap_or_default();
    let (own, others): (Vec<Process>, Vec<Process>) =
        known.into_iter().partition(|one| one.pid == std::process::id());
    let mode = match driver::compute_mode(card) {
        2 => ComputeMode::Prohibited,
        1 | 3 => ComputeMode::Exclusive,
        _ => ComputeMode::Shared,
    };
    CardFacts {
        name: card.name.clone(),
        capability: card.capability,
        mode,
        memory: nvml::memory(&card.pci_bus_id).map(|(total, free)| (Bytes(total), Bytes(free))),
        own: Bytes(own.iter().map(|one| one.used).sum()),
        others: others.into_iter().map(|one| (one.pid, Bytes(one.used), one.name)).collect(),
    }
}
