//! What follows from the facts: a card that can be used, or one sentence that says why none can and
//! what to do. Looks at nothing itself.

use ignis_backend::DeviceError;
use ignis_types::Bytes;

use crate::found::{CardFacts, ComputeMode, CudaFacts, DriverFact, Holder};
use crate::nvrtc::NvrtcFile;
use crate::suits::judge_nvrtc;

/// The oldest compute capability that the kernels run on.
const CAPABILITY_MIN: (u32, u32) = (8, 0);
/// The oldest driver: what loads code of the oldest NVRTC that knows such cards.
const DRIVER_MIN: (u32, u32) = (12, 0);
/// Less is free only where something else holds the card: a context alone takes half of it.
const FREE_MIN: Bytes = Bytes(1 << 30);
/// What to do about an exclusive card that is taken.
const SHARE: &str = "end it, share the card with: sudo nvidia-smi -c DEFAULT, or use --device cpu";
/// Shares an exclusive card among processes.
const SHARING_SERVER: &str = "nvidia-cuda-mps-server";

/// A card that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaFound {
    /// As the driver names it.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Of the driver: (13, 0).
    pub driver: (u32, u32),
    /// The compiler.
    pub nvrtc: NvrtcFile,
    /// Its memory.
    pub total: Bytes,
}

pub(crate) fn unavailable(problem: impl Into<String>, remedy: impl Into<String>) -> DeviceError {
    DeviceError::Unavailable { problem: problem.into(), remedy: remedy.into() }
}

/// The first card, if a load can use it.
///
/// Errors: `Unavailable`, one sentence with its remedy: the first thing that is in the way.
pub fn judge(facts: &CudaFacts) -> Result<CudaFound, DeviceError> {
    let driver = judge_driver(facts)?;
    let card = facts.card.as_ref().filter(|_| facts.cards > 0).ok_or_else(no_card)?;
    let total = judge_card(card)?;
    let nvrtc = judge_nvrtc(&facts.nvrtc, card, driver)?.clone();
    let (name, capability) = (card.name.clone(), card.capability);
    Ok(CudaFound { name, capability, driver, nvrtc, total })
}

fn no_card() -> DeviceError {
    unavailable(
        "the NVIDIA driver shows no card",
        "see CUDA_VISIBLE_DEVICES and nvidia-smi, or use --device cpu",
    )
}

fn judge_driver(facts: &CudaFacts) -> Result<(u32, u32), DeviceError> {
    match &facts.driver {
        DriverFact::Missing => Err(unavailable(
            "no NVIDIA driver was found (libcuda.so.1)",
            "install it from https://www.nvidia.com/drivers, start a container with --gpus all, or \
             use --device cpu",
        )),
        DriverFact::Failing { code } => Err(driver_failing(code)),
        DriverFact::Present { version } if *version < DRIVER_MIN => {
            let (major, minor) = version;
            Err(unavailable(
                format!("the NVIDIA driver is for CUDA {major}.{minor}"),
                "install one for CUDA 12 or later from https://www.nvidia.com/drivers, or use \
                 --device cpu",
            ))
        }
        DriverFact::Present { version } => Ok(*version),
    }
}

/// What the driver's refusal to start means.
fn driver_failing(code: &str) -> DeviceError {
    match code {
        "CUDA_ERROR_NO_DEVICE" => no_card(),
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" => unavailable(
            "the NVIDIA driver's library and its kernel module are of different versions",
            "restart the machine, or use --device cpu",
        ),
        "CUDA_ERROR_SYSTEM_NOT_READY" => unavailable(
            format!("the NVIDIA driver waits for a service that does not run ({code})"),
            "start it, as with: sudo systemctl start nvidia-fabricmanager, or use --device cpu",
        ),
        "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE" => unavailable(
            format!("a library for later drivers, which this card may not use, was found ({code})"),
            "remove the package cuda-compat or its folder of LD_LIBRARY_PATH, or use --device cpu",
        ),
        code => unavailable(
            format!("the NVIDIA driver does not start ({code})"),
            "see what nvidia-smi says, or use --device cpu",
        ),
    }
}

fn judge_card(card: &CardFacts) -> Result<Bytes, DeviceError> {
    let name = &card.name;
    if card.capability < CAPABILITY_MIN {
        let (major, minor) = card.capability;
        return Err(unavailable(
            format!("{name} has compute capability {major}.{minor}, the kernels need 8.0 or later"),
            "use a card of Ampere or later, or --device cpu",
        ));
    }
    let Some((total, free)) = card.memory else {
        return Err(unavailable(
            "the driver's management library (libnvidia-ml.so.1), which knows the free memory, \
             does not answer",
            "install the whole driver, set NVIDIA_DRIVER_CAPABILITIES=compute,utility in a \
             container, or use --device cpu",
        ));
    };
    let mut computing = card.others.iter().filter(|one| one.computes).peekable();
    let is_taken = computing.peek().is_some() && !computing.any(is_sharing);
    match card.mode {
        ComputeMode::Prohibited => {
            return Err(unavailable(
                format!("{name} is set to let no process compute (compute mode prohibited)"),
                "let it with: sudo nvidia-smi -c DEFAULT, or use --device cpu",
            ));
        }
        ComputeMode::Exclusive if is_taken => {
            let who = holders(card.others.iter().filter(|one| one.computes));
            return Err(unavailable(
                format!("{name} is set to serve one process, and {who} has it"),
                SHARE,
            ));
        }
        _ => {}
    }
    let available = free.0.saturating_add(card.own.0);
    if available < FREE_MIN.0 && total >= FREE_MIN {
        let who = if card.others.is_empty() { "others hold".into() } else { holders_hold(card) };
        return Err(unavailable(
            format!(
                "{name} is in use: {} of {} are free and at least {} are needed, {who} the rest",
                mib(Bytes(available)),
                mib(total),
                mib(FREE_MIN)
            ),
            "see nvidia-smi and end what holds it, or use --device cpu",
        ));
    }
    Ok(total)
}

fn mib(bytes: Bytes) -> String {
    format!("{} MiB", bytes.0 >> 20)
}

fn is_sharing(holder: &Holder) -> bool {
    holder.name.ends_with(SHARING_SERVER)
}

fn holders<'a>(who: impl Iterator<Item = &'a Holder>) -> String {
    let named = who.take(3).map(|one| {
        let short = one.name.rsplit('/').next().unwrap_or_default();
        let pid = one.pid;
        if short.is_empty() { format!("process {pid}") } else { format!("{short} ({pid})") }
    });
    named.collect::<Vec<_>>().join(", ")
}

fn holders_hold(card: &CardFacts) -> String {
    let verb = if card.others.len() == 1 { "holds" } else { "hold" };
    format!("{} {verb}", holders(card.others.iter()))
}

/// What the driver's refusal of a context means: the card was taken after it was looked at.
pub(crate) fn context_refused(card: &str, error: DeviceError) -> DeviceError {
    match &error {
        DeviceError::Driver { code, .. } if code == "CUDA_ERROR_DEVICE_UNAVAILABLE" => {
            unavailable(format!("{card} is set to serve one process, and another has it"), SHARE)
        }
        DeviceError::Driver { code, .. } if code == "CUDA_ERROR_OUT_OF_MEMORY" => unavailable(
            format!("{card} is in use: the driver has no memory for a context"),
            "see nvidia-smi and end what holds it, or use --device cpu",
        ),
        DeviceError::Driver { what, code } => unavailable(
            format!("{card} gives this process no context ({what}: {code})"),
            "see what nvidia-smi says, or use --device cpu",
        ),
        _ => error,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::suits::tests::files;

    pub(crate) fn facts() -> CudaFacts {
        CudaFacts {
            driver: DriverFact::Present { version: (13, 0) },
            release: Some("580.1".into()),
            cards: 1,
            card: Some(CardFacts {
                name: "A card".into(),
                capability: (9, 0),
                mode: ComputeMode::Shared,
                memory: Some((Bytes(80 << 30), Bytes(79 << 30))),
                own: Bytes(0),
                others: Vec::new(),
            }),
            nvrtc: files(&[(12, 8)]),
        }
    }

    fn holder(name: &str, computes: bool) -> Holder {
        Holder { pid: 7, bytes: Some(Bytes(1 << 30)), name: name.into(), computes }
    }

    pub(crate) fn with(change: impl FnOnce(&mut CudaFacts)) -> CudaFacts {
        let mut facts = facts();
        change(&mut facts);
        facts
    }

    pub(crate) fn with_card(change: impl FnOnce(&mut CardFacts)) -> CudaFacts {
        with(|facts| change(facts.card.as_mut().unwrap()))
    }

    pub(crate) fn refusal(facts: &CudaFacts) -> (String, String) {
        match judge(facts) {
            Err(DeviceError::Unavailable { problem, remedy }) => (problem, remedy),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_card_that_can_be_used_is_found() {
        let found = judge(&facts()).unwrap();
        assert_eq!((found.name.as_str(), found.capability), ("A card", (9, 0)));
        assert_eq!((found.driver, found.total), ((13, 0), Bytes(80 << 30)));
        assert_eq!(found.nvrtc.version, (12, 8));
        let oldest = with(|facts| {
            facts.driver = DriverFact::Present { version: (12, 0) };
            facts.card.as_mut().unwrap().capability = (8, 0);
        });
        assert!(judge(&oldest).is_ok());
    }

    #[test]
    fn each_refusal_says_what_is_in_the_way_and_what_to_do() {
        let failing = |code: &str| with(|f| f.driver = DriverFact::Failing { code: code.into() });
        let full = |others: Vec<Holder>| {
            with_card(|card| {
                card.memory = Some((Bytes(80 << 30), Bytes(1 << 20)));
                card.others = others;
            })
        };
        let cases = [
            (with(|f| f.driver = DriverFact::Missing), "no NVIDIA driver", "nvidia.com/drivers"),
            (failing("CUDA_ERROR_UNKNOWN"), "does not start (CUDA_ERROR_UNKNOWN)", "nvidia-smi"),
            (failing("CUDA_ERROR_NO_DEVICE"), "shows no card", "CUDA_VISIBLE_DEVICES"),
            (failing("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "different versions", "restart"),
            (failing("CUDA_ERROR_SYSTEM_NOT_READY"), "a service", "nvidia-fabricmanager"),
            (
                failing("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
                "for later drivers",
                "cuda-compat",
            ),
            (
                with(|f| f.driver = DriverFact::Present { version: (11, 8) }),
                "for CUDA 11.8",
                "CUDA 12 or later",
            ),
            (with(|f| f.cards = 0), "shows no card", "CUDA_VISIBLE_DEVICES"),
            (with_card(|c| c.capability = (7, 5)), "capability 7.5", "Ampere"),
            (with_card(|c| c.memory = None), "libnvidia-ml.so.1", "=compute,utility"),
            (with_card(|c| c.mode = ComputeMode::Prohibited), "no process", "-c DEFAULT"),
            (
                with_card(|c| {
                    c.mode = ComputeMode::Exclusive;
                    c.others = vec![holder("/usr/bin/X", false), holder("/usr/bin/trainer", true)];
                }),
                "trainer (7) has it",
                "end it",
            ),
            (full(vec![holder("", true)]), "process 7 holds the rest", "end what holds it"),
            (full(vec![holder("/bin/game", false)]), "game (7) holds the rest", "end what"),
            (
                full(Vec::new()),
                "1 MiB of 81920 MiB are free and at least 1024 MiB are needed, others hold the",
                "--device cpu",
            ),
            (with(|f| f.nvrtc = files(&[])), "NVRTC", "pip install \"ignis[cuda]\""),
        ];
        for (facts, problem, remedy) in cases {
            let said = refusal(&facts);
            assert!(said.0.contains(problem), "{said:?}");
            assert!(said.1.contains(remedy), "{said:?}");
            let sentence = format!("{}; {}", said.0, said.1);
            assert!(!sentence.contains('\n') && !sentence.ends_with('.'), "{sentence}");
            // One mark between what was found and what to do, none inside either.
            assert_eq!(sentence.matches(';').count(), 1, "{sentence}");
        }
    }

    #[test]
    fn an_exclusive_card_can_be_used_while_nobody_has_it_or_a_server_shares_it() {
        let alone = with_card(|card| card.mode = ComputeMode::Exclusive);
        assert!(judge(&alone).is_ok());
        let shared = with_card(|card| {
            card.mode = ComputeMode::Exclusive;
            card.others = vec![holder(&format!("/usr/bin/{SHARING_SERVER}"), true)];
        });
        assert!(judge(&shared).is_ok());
        let drawn_on = with_card(|card| {
            card.mode = ComputeMode::Exclusive;
            card.others = vec![holder("/usr/lib/Xorg", false)];
        });
        assert!(judge(&drawn_on).is_ok());
    }

    #[test]
    fn what_this_process_holds_itself_keeps_nothing_from_it() {
        let mine = with_card(|card| {
            card.memory = Some((Bytes(80 << 30), Bytes(1 << 20)));
            card.own = Bytes(79 << 30);
        });
        assert!(judge(&mine).is_ok());
    }

    #[test]
    fn a_context_that_is_refused_is_explained() {
        let of = |code: &str| {
            let error = DeviceError::Driver { what: "cuDevicePrimaryCtxRetain", code: code.into() };
            context_refused("A card", error).to_string()
        };
        assert!(of("CUDA_ERROR_DEVICE_UNAVAILABLE").contains("one process, and another has it"));
        assert!(of("CUDA_ERROR_OUT_OF_MEMORY").contains("no memory for a context"));
        assert!(
            of("CUDA_ERROR_UNKNOWN").contains("(cuDevicePrimaryCtxRetain: CUDA_ERROR_UNKNOWN)")
        );
    }
}
