//! Facts of this machine that using a card depends on. [`probe`] looks; it decides nothing, and
//! makes no context.

use ignis_backend::DeviceError;
use ignis_types::Bytes;

use crate::card::{self, Card};
use crate::nvml::{self, Process};
use crate::nvrtc::{self, NvrtcFacts};
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
    /// The compiler: every library of it.
    pub nvrtc: NvrtcFacts,
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
    /// What of it this process holds already, as far as the driver counts it.
    pub own: Bytes,
    /// Other processes on it, those with most memory first.
    pub others: Vec<Holder>,
}

/// Another process on a card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Bytes of the card that are counted to it; `None` where the driver does not say.
    pub bytes: Option<Bytes>,
    /// Its program's file, or nothing where that is not told.
    pub name: String,
    /// Whether it computes; others draw.
    pub computes: bool,
}

/// Looks at everything that a load would need.
pub fn probe(libraries: &Libraries) -> CudaFacts {
    let (driver, cards) = probe_driver();
    let started = matches!(driver, DriverFact::Present { .. });
    let card = if started && cards > 0 { card::card(0).ok() } else { None };
    CudaFacts {
        driver,
        release: nvml::driver_release(),
        cards,
        card: card.map(|card| card_facts(&card)),
        nvrtc: nvrtc::probe(&libraries.nvrtc),
    }
}

fn probe_driver() -> (DriverFact, u32) {
    if !card::is_present() {
        return (DriverFact::Missing, 0);
    }
    match card::start() {
        Ok((version, cards)) => {
            (DriverFact::Present { version: (version / 1000, version % 1000 / 10) }, cards)
        }
        Err(DeviceError::Driver { code, .. }) => (DriverFact::Failing { code }, 0),
        Err(error) => (DriverFact::Failing { code: error.to_string() }, 0),
    }
}

/// (total, free) of a card, before any context: of the driver's management library, but no more
/// than the device has, which may be a slice of the card. One that shares the host's memory has
/// what the host has.
pub(crate) fn card_memory(card: &Card) -> Option<(Bytes, Bytes)> {
    memory_of(card.total, card.is_integrated, nvml::memory(&card.id), host_available)
}

fn memory_of(
    total: u64,
    is_integrated: bool,
    counted: Option<(u64, u64)>,
    host: impl FnOnce() -> Option<u64>,
) -> Option<(Bytes, Bytes)> {
    let (whole, free) = match counted {
        None if is_integrated => (total, host()?),
        counted => counted?,
    };
    let total = total.min(whole);
    Some((Bytes(total), Bytes(free.min(total))))
}

/// Memory of the host that a process could have now.
fn host_available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn card_facts(card: &Card) -> CardFacts {
    let known = nvml::processes(&card.id).unwrap_or_default();
    let (own, others): (Vec<Process>, Vec<Process>) =
        known.into_iter().partition(|one| one.pid == std::process::id());
    let mode = match card::compute_mode(card) {
        2 => ComputeMode::Prohibited,
        1 | 3 => ComputeMode::Exclusive,
        _ => ComputeMode::Shared,
    };
    CardFacts {
        name: card.name.clone(),
        capability: card.capability,
        mode,
        memory: card_memory(card),
        own: Bytes(own.iter().filter_map(|one| one.used).sum()),
        others: holders(others),
    }
}

fn holders(processes: Vec<Process>) -> Vec<Holder> {
    let mut holders: Vec<Holder> = processes
        .into_iter()
        .map(|Process { pid, used, name, computes }| Holder {
            pid,
            bytes: used.map(Bytes),
            name,
            computes,
        })
        .collect();
    holders.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_a_card_has_its_own_size() {
        let none = || -> Option<u64> { panic!("the host is not asked") };
        let of = |total, counted| memory_of(total, false, counted, none);
        assert_eq!(of(10, Some((80, 79))), Some((Bytes(10), Bytes(10))));
        assert_eq!(of(10, Some((80, 7))), Some((Bytes(10), Bytes(7))));
        assert_eq!(of(81, Some((80, 79))), Some((Bytes(80), Bytes(79))));
        assert_eq!(of(80, None), None);
    }

    #[test]
    fn a_card_that_shares_memory_has_what_the_host_has() {
        assert_eq!(memory_of(80, true, None, || Some(60)), Some((Bytes(80), Bytes(60))));
        assert_eq!(memory_of(80, true, Some((70, 50)), || None), Some((Bytes(70), Bytes(50))));
        assert!(host_available().is_some_and(|bytes| bytes > 1 << 20));
    }

    #[test]
    fn who_holds_most_is_named_first() {
        let one = |pid, used| Process { pid, used, name: String::new(), computes: true };
        let found = holders(vec![one(1, None), one(2, Some(5)), one(3, Some(9))]);
        assert_eq!(found.iter().map(|holder| holder.pid).collect::<Vec<_>>(), [3, 2, 1]);
    }
}
