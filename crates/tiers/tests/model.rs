//! The tiers against a naive twin: a map from image to bytes.

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use ignis_sim::{SimDisk, SimPlatter};
use ignis_tiers::{
    Found, ImageHead, ImageId, Kind, Step, Tier, TierError, TierLimits, Tiers, disk_bytes,
};
use proptest::prelude::*;
use support::State;

const WINDOW: u32 = 4096;
const RAM_WINDOWS: u32 = 6;
const DISK_WINDOWS: u32 = 9;
const IDENTITY: u128 = 77;

#[derive(Clone, Debug)]
struct Known {
    head: ImageHead,
    tier: Tier,
    state: State,
}

/// The tiers under test, and all that they should hold.
struct Twin {
    tiers: Tiers,
    platter: SimPlatter,
    fault_ppm: u32,
    seed: u64,
    serial: u32,
    landed: BTreeMap<ImageId, Known>,
    out: Option<(ImageId, Known, Option<ImageId>)>,
    inward: Option<(ImageId, State)>,
    /// Every retained image that was ever begun on the disk, by its first token and class.
    ever: BTreeMap<(u32, u8), Known>,
}

fn open(platter: &SimPlatter, seed: u64, fault_ppm: u32) -> Result<Tiers, TierError> {
    let disk = SimDisk::new(platter, seed, fault_ppm);
    let limits = TierLimits { window_bytes: WINDOW, ram_windows: RAM_WINDOWS };
    Tiers::new(limits, IDENTITY, seed.wrapping_mul(0x1234_5678_9ABC_DEF1), Some(Box::new(disk)))
}

impl Twin {
    fn new(seed: u64, fault_ppm: u32) -> Twin {
        let platter = SimPlatter::new(disk_bytes(DISK_WINDOWS, WINDOW));
        let tiers = open(&platter, seed, 0).unwrap();
        let mut twin = Twin {
            tiers,
            platter,
            fault_ppm,
            seed,
            serial: 0,
            landed: BTreeMap::new(),
            out: None,
            inward: None,
            ever: BTreeMap::new(),
        };
        twin.restart(false);
        twin
    }

    fn pick(&self, arg: u32, wanted: impl Fn(&Known) -> bool) -> Option<ImageId> {
        let images: Vec<_> =
            self.landed.iter().filter(|(_, known)| wanted(known)).map(|(id, _)| *id).collect();
        (!images.is_empty()).then(|| images[arg as usize % images.len()])
    }

    fn held(&self, tier: Tier) -> u32 {
        let moving = self.out.iter().map(|(_, known, _)| known);
        let all = self.landed.values().chain(moving).filter(|known| known.tier == tier);
        all.map(|known| self.tiers.windows_for(known.head.payload_bytes)).sum()
    }

    fn note_begun(&mut self, known: &Known) {
        if known.tier == Tier::Disk && known.head.kind.is_retained() {
            let serial = known.state.tokens(1)[0];
            self.ever.insert((serial, known.head.class), known.clone());
        }
    }

    fn begin_out(&mut self, arg: u32) {
        self.serial += 1;
        let tier = if arg.is_multiple_of(2) { Tier::Ram } else { Tier::Disk };
        let kind = Kind::from_code((arg / 2 % 3) as u8).unwrap();
        let bytes = 8 + (arg / 6 % (4 * WINDOW)) as usize;
        let position = 1 + (arg / 64) % (bytes as u32 / 4);
        let state = State::new(self.serial, position, bytes);
        let head = support::head(kind, position, &state);
        let known = Known { head, tier, state };
        let needed = self.tiers.windows_for(head.payload_bytes);
        let total = self.tiers.windows_total(tier);
        let free = total - self.held(tier);
        match self.tiers.begin_out(head, tier) {
            Ok(image) => {
                assert!(self.out.is_none() && needed <= free);
                self.note_begun(&known);
                self.out = Some((image, known, None));
            }
            Err(TierError::Busy { .. }) => assert!(self.out.is_some()),
            Err(TierError::NoRoom { needed: told, free: rest, .. }) => {
                // Windows of an abandoned move may still be with the disk.
                assert!(told == needed && rest < needed && rest <= free);
                assert!(tier == Tier::Disk || rest == free);
            }
            Err(other) => panic!("{other}"),
        }
    }

    fn begin_copy(&mut self, arg: u32) {
        let Some(source) = self.pick(arg, |known| known.tier == Tier::Ram) else { return };
        let class = (arg % 3) as u8 + 2;
        match self.tiers.begin_copy(source, class) {
            Ok(image) => {
                assert!(self.out.is_none());
                let mut known = self.landed[&source].clone();
                known.head.class = class;
                known.tier = Tier::Disk;
                self.note_begun(&known);
                self.out = Some((image, known, Some(source)));
            }
            Err(TierError::Busy { .. }) => assert!(self.out.is_some()),
            Err(TierError::NoRoom { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn step_out(&mut self) {
        let mut source = match &self.out {
            Some((_, known, _)) => known.state.clone(),
            None => State(Vec::new()),
        };
        match self.tiers.step_out(&mut source) {
            Step::Idle => assert!(self.out.is_none()),
            Step::Waiting | Step::Advanced => assert!(self.out.is_some()),
            Step::Landed(image) => {
                let (expected, known, _) = self.out.take().unwrap();
                assert_eq!(image, expected);
                self.landed.insert(image, known);
            }
            Step::Failed(image, error) => {
                assert!(self.fault_ppm > 0, "{error}");
                assert!(matches!(error, TierError::Disk { .. }), "{error}");
                assert_eq!(image, self.out.take().unwrap().0);
            }
        }
    }

    fn begin_in(&mut self, arg: u32) {
        let Some(image) = self.pick(arg, |_| true) else { return };
        match self.tiers.begin_in(image) {
            Ok(()) => {
                assert!(self.inward.is_none());
                self.inward = Some((image, State::sink(self.landed[&image].head.payload_bytes)));
            }
            Err(TierError::Busy { .. }) => assert!(self.inward.is_some()),
            Err(other) => panic!("{other}"),
        }
    }

    fn step_in(&mut self) {
        let mut nothing = State(Vec::new());
        let sink = self.inward.as_mut().map_or(&mut nothing, |(_, sink)| sink);
        match self.tiers.step_in(sink) {
            Step::Idle => assert!(self.inward.is_none()),
            Step::Waiting | Step::Advanced => assert!(self.inward.is_some()),
            Step::Landed(image) => {
                let (expected, sink) = self.inward.take().unwrap();
                assert_eq!(image, expected);
                assert!(sink == self.landed[&image].state, "other bytes were restored");
            }
            Step::Failed(image, error) => {
                let (expected, _) = self.inward.take().unwrap();
                assert_eq!(image, expected);
                assert!(self.fault_ppm > 0 && self.landed[&image].tier == Tier::Disk, "{error}");
                assert_eq!(self.tiers.head(image).is_none(), error.is_damage());
                if error.is_damage() {
                    self.landed.remove(&image);
                }
            }
        }
    }

    fn drop_image(&mut self, arg: u32) {
        let Some(image) = self.pick(arg, |_| true) else { return };
        let read = self.inward.as_ref().is_some_and(|(read, _)| *read == image)
            || self.out.as_ref().is_some_and(|(_, _, source)| *source == Some(image));
        match self.tiers.drop_image(image) {
            Ok(()) => {
                assert!(!read);
                self.landed.remove(&image);
                assert_eq!(
                    self.tiers.drop_image(image),
                    Err(TierError::UnknownImage { image }),
                    "a stale id is refused"
                );
            }
            Err(TierError::InMove { .. }) => assert!(read),
            Err(other) => panic!("{other}"),
        }
    }

    fn abandon_out(&mut self) {
        self.tiers.abandon_out();
        self.out = None;
    }

    fn abandon_in(&mut self) {
        self.tiers.abandon_in();
        self.inward = None;
    }

    /// Ends the process, killed or not, and starts the next one over what its disk holds.
    fn restart(&mut self, killed: bool) {
        if killed {
            self.platter.cut_power();
        }
        let limits = TierLimits { window_bytes: WINDOW, ram_windows: 0 };
        self.tiers = Tiers::new(limits, IDENTITY, 0, None).unwrap();
        self.tiers = loop {
            self.seed = self.seed.wrapping_add(1);
            match open(&self.platter, self.seed, self.fault_ppm) {
                Ok(tiers) => break tiers,
                Err(error) => assert!(self.fault_ppm > 0, "{error}"),
            }
        };
        (self.out, self.inward) = (None, None);
        let before = std::mem::take(&mut self.landed);
        let mut expected: Vec<Known> = before
            .into_values()
            .filter(|known| known.tier == Tier::Disk && known.head.kind.is_retained())
            .collect();
        for Found { image, head, tokens } in self.tiers.take_found() {
            let known = self.ever[&(tokens[0], head.class)].clone();
            assert_eq!((head, &tokens), (known.head, &known.state.tokens(head.position)));
            expected.retain(|other| other.head != head || other.state != known.state);
            self.landed.insert(image, known);
        }
        assert!(self.fault_ppm > 0 || expected.is_empty(), "a whole image was not found again");
        self.forget_ghosts();
    }

    /// A dropped image may be found again after a kill, and then be overwritten in part by a write
    /// that was in flight: restored as it was or refused, it is dropped here.
    fn forget_ghosts(&mut self) {
        for image in self.landed.keys().copied().collect::<Vec<_>>() {
            match support::get(&mut self.tiers, image) {
                Ok(state) => assert!(state == self.landed[&image].state, "other bytes"),
                Err(error) if error.is_damage() => {
                    self.landed.remove(&image);
                }
                Err(error) => assert!(self.fault_ppm > 0, "{error}"),
            }
        }
    }

    fn check(&mut self) {
        let held = self.held(Tier::Ram);
        assert_eq!(self.tiers.windows_free(Tier::Ram), RAM_WINDOWS - held);
        assert!(self.tiers.windows_free(Tier::Disk) <= DISK_WINDOWS - self.held(Tier::Disk));
        for (image, known) in &self.landed {
            assert_eq!(self.tiers.head(*image), Some(&known.head));
            assert_eq!(self.tiers.tier(*image), Some(known.tier));
        }
    }

    /// Everything dropped: every window is free.
    fn finish(mut self) {
        self.abandon_out();
        self.abandon_in();
        for image in std::mem::take(&mut self.landed).into_keys() {
            self.tiers.drop_image(image).unwrap();
        }
        (0..100).for_each(|_| self.tiers.wait(Duration::from_secs(1)));
        assert_eq!(self.tiers.windows_free(Tier::Ram), RAM_WINDOWS);
        assert_eq!(self.tiers.windows_free(Tier::Disk), DISK_WINDOWS);
        assert_eq!(self.tiers.reservations(), 3);
        if self.fault_ppm == 0 {
            self.restart(false);
            assert!(self.landed.is_empty(), "a dropped image came back after a clean end");
        }
    }

    fn run(mut self, steps: &[(u8, u32)]) {
        for &(step, arg) in steps {
            match step {
                0..=11 => self.step_out(),
                12..=21 => self.step_in(),
                22..=27 => self.begin_out(arg),
                28..=29 => self.begin_copy(arg),
                30..=33 => self.begin_in(arg),
                34..=37 => self.drop_image(arg),
                38 if arg % 2 == 0 => self.abandon_out(),
                39 if arg % 2 == 0 => self.abandon_in(),
                40..=43 => self.tiers.wait(Duration::from_millis(u64::from(arg % 2))),
                44 if arg % 4 == 0 => self.restart(arg % 8 == 0),
                _ => {}
            }
            self.check();
        }
        self.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn an_image_is_restored_as_it_was(
        seed in any::<u64>(),
        steps in prop::collection::vec((0u8..45, any::<u32>()), 1..400),
    ) {
        Twin::new(seed, 0).run(&steps);
    }

    #[test]
    fn an_image_on_a_bad_disk_is_restored_as_it_was_or_refused(
        seed in any::<u64>(),
        fault_ppm in prop_oneof![Just(5_000u32), Just(50_000), Just(200_000)],
        steps in prop::collection::vec((0u8..45, any::<u32>()), 1..400),
    ) {
        Twin::new(seed, fault_ppm).run(&steps);
    }
}
