//! Which library of NVRTC suits the driver and the card that were found, or what would.

use ignis_backend::DeviceError;

use crate::found::{CardFacts, CudaFacts, DriverFact};
use crate::judge::unavailable;
use crate::nvrtc::{NvrtcFacts, NvrtcFile};

/// The library that suits driver and card best, of those that do: the newest that is no newer than
/// the driver, else the oldest of its major version.
pub(crate) fn judge_nvrtc<'a>(
    found: &'a NvrtcFacts,
    card: &CardFacts,
    driver: (u32, u32),
) -> Result<&'a NvrtcFile, DeviceError> {
    let suits = |file: &&NvrtcFile| {
        file.version.0 <= driver.0 && file.capabilities.contains(&card.capability)
    };
    let older = found.files.iter().filter(suits).filter(|file| file.version <= driver);
    let newer = found.files.iter().filter(suits).filter(|file| file.version > driver);
    // Of equals the first, which an environment brings and not the system.
    let newest = older.rev().max_by_key(|file| file.version);
    newest
        .or_else(|| newer.min_by_key(|file| file.version))
        .ok_or_else(|| no_nvrtc(found, card, driver))
}

/// The library of NVRTC that would be taken, whatever else may be missing; `None` where none suits.
pub fn suiting_nvrtc(facts: &CudaFacts) -> Option<&NvrtcFile> {
    let (DriverFact::Present { version }, Some(card)) = (&facts.driver, &facts.card) else {
        return None;
    };
    judge_nvrtc(&facts.nvrtc, card, *version).ok()
}

/// The first NVRTC that makes code for a compute capability.
fn nvrtc_min(capability: (u32, u32)) -> Option<(u32, u32)> {
    Some(match capability {
        (8, _) => (11, 8),
        (9, 0) => (12, 0),
        (10, 0) | (12, 0) => (12, 8),
        (10, 3) | (12, 1) => (12, 9),
        (11, 0) => (13, 0),
        _ => return None,
    })
}

/// Why no library of NVRTC can be used.
fn no_nvrtc(found: &NvrtcFacts, card: &CardFacts, driver: (u32, u32)) -> DeviceError {
    let text = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    let least = nvrtc_min(card.capability);
    if let Some(least) = least.filter(|least| least.0 > driver.0) {
        return unavailable(
            format!(
                "the NVIDIA driver is for CUDA {}, {} needs one for CUDA {} or later",
                text(driver),
                card.name,
                text(least)
            ),
            "install it from https://www.nvidia.com/drivers, or use --device cpu",
        );
    }
    // The extras, and the least version that each brings.
    let (extra, package, brings) = match driver.0 {
        12 => ("cuda12", "nvidia-cuda-nvrtc-cu12", (12, 8)),
        _ => ("cuda", "nvidia-cuda-nvrtc", (13, 0)),
    };
    let install = match least {
        Some(least) if least > brings => format!("pip install \"{package}>={}\"", text(least)),
        _ => format!("pip install \"ignis[{extra}]\""),
    };
    if found.files.is_empty() {
        return match found.broken.first() {
            Some(path) => unavailable(
                format!("{}, the NVRTC that was found, cannot be loaded", path.display()),
                format!("install it again with: pip install --force-reinstall {package}"),
            ),
            None => unavailable(
                "NVRTC, which compiles the kernels for this card, was not found",
                format!("install it with: {install}"),
            ),
        };
    }
    let versions: Vec<String> = found.files.iter().map(|file| text(file.version)).collect();
    let needed = match least {
        Some(least) => format!("{} to {}.x", text(least), driver.0),
        None => "a later one".into(),
    };
    unavailable(
        format!(
            "NVRTC {} {} not suit {} (compute capability {}) under a driver for CUDA {}: needed is \
             {needed}",
            versions.join(" and "),
            if versions.len() == 1 { "does" } else { "do" },
            card.name,
            text(card.capability),
            text(driver)
        ),
        format!("install it with: {install}"),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::judge::judge;
    use crate::judge::tests::{refusal, with, with_card};

    /// Libraries as of the wheels: what each makes code for.
    pub(crate) fn files(versions: &[(u32, u32)]) -> NvrtcFacts {
        let all = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)];
        let file = |&version: &(u32, u32)| NvrtcFile {
            path: format!("/x/libnvrtc.so.{}.{}", version.0, version.1).into(),
            version,
            capabilities: all
                .into_iter()
                .filter(|&one| nvrtc_min(one).is_some_and(|least| least <= version))
                .collect(),
        };
        NvrtcFacts { files: versions.iter().map(file).collect(), broken: vec![] }
    }

    fn blackwell(driver: (u32, u32), nvrtc: &[(u32, u32)]) -> CudaFacts {
        with(|f| {
            f.driver = DriverFact::Present { version: driver };
            f.card.as_mut().unwrap().capability = (12, 0);
            f.nvrtc = files(nvrtc);
        })
    }

    #[test]
    fn of_several_compilers_the_one_that_fits_is_taken() {
        let taken = |driver, nvrtc: &[_]| judge(&blackwell(driver, nvrtc)).unwrap().nvrtc.version;
        // As of an environment with an old and a new wheel.
        assert_eq!(taken((13, 0), &[(12, 4), (13, 0)]), (13, 0));
        assert_eq!(taken((13, 0), &[(13, 0), (12, 4)]), (13, 0));
        assert_eq!(taken((12, 8), &[(13, 0), (12, 4), (12, 8)]), (12, 8));
        // Made for the driver before made for a later one of its major version.
        assert_eq!(taken((13, 0), &[(13, 5), (13, 0), (12, 9)]), (13, 0));
        assert_eq!(taken((13, 0), &[(13, 5), (12, 9)]), (12, 9));
        assert_eq!(taken((12, 8), &[(13, 0), (12, 9)]), (12, 9));
        let mut two = blackwell((13, 0), &[(13, 0), (13, 0)]);
        two.nvrtc.files[0].path = "/environment".into();
        assert_eq!(judge(&two).unwrap().nvrtc.path.to_str(), Some("/environment"));
    }

    #[test]
    fn what_does_not_suit_is_named_with_what_would() {
        let cases = [
            (with(|f| f.nvrtc = files(&[])), "NVRTC", "pip install \"ignis[cuda]\""),
            (
                with(|f| {
                    f.nvrtc = files(&[]);
                    f.nvrtc.broken = vec!["/x/libnvrtc.so".into()];
                }),
                "/x/libnvrtc.so, the NVRTC that was found, cannot be loaded",
                "--force-reinstall",
            ),
            (
                with(|f| {
                    f.driver = DriverFact::Present { version: (12, 8) };
                    f.nvrtc = files(&[(13, 0)]);
                }),
                "NVRTC 13.0 does not suit A card (compute capability 9.0) under a driver for CUDA \
                 12.8: needed is 12.0 to 12.x",
                "pip install \"ignis[cuda12]\"",
            ),
            (
                blackwell((12, 8), &[(13, 0), (12, 4)]),
                "NVRTC 13.0 and 12.4 do not suit A card (compute capability 12.0) under a \
                 driver for CUDA 12.8: needed is 12.8 to 12.x",
                "pip install \"ignis[cuda12]\"",
            ),
            (blackwell((13, 0), &[(12, 4)]), "12.8 to 13.x", "pip install \"ignis[cuda]\""),
            (
                with(|f| {
                    *f = blackwell((12, 9), &[(12, 8)]);
                    f.card.as_mut().unwrap().capability = (12, 1);
                }),
                "12.9 to 12.x",
                "pip install \"nvidia-cuda-nvrtc-cu12>=12.9\"",
            ),
            (with_card(|card| card.capability = (13, 7)), "needed is a later one", "ignis[cuda]"),
            (
                with(|f| {
                    f.driver = DriverFact::Present { version: (12, 9) };
                    f.card.as_mut().unwrap().capability = (11, 0);
                }),
                "for CUDA 12.9, A card needs one for CUDA 13.0 or later",
                "nvidia.com/drivers",
            ),
        ];
        for (facts, problem, remedy) in cases {
            let said = refusal(&facts);
            assert!(said.0.contains(problem), "{said:?}");
            assert!(said.1.contains(remedy), "{said:?}");
        }
    }
}
