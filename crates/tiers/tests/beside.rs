//! Moves whose windows travel beside the steps, to and from a device that is in no hurry.

mod support;

use std::ops::Range;
use std::time::Duration;

use ignis_backend::{Blocks, Copied, CopyId, DeviceError};
use ignis_sim::{SimDisk, SimPlatter};
use ignis_tiers::{
    ImageId, Kind, NoPayload, Payload, Step, Tier, TierError, TierLimits, Tiers, disk_bytes,
};
use support::{State, head};

const WINDOW: u32 = 4096;
const ROOM: usize = WINDOW as usize - 64;
const LIMITS: TierLimits = TierLimits { window_bytes: WINDOW, ram_windows: 6 };

/// A window on its way: out of the state, or into it.
struct Flight {
    inward: bool,
    at: usize,
    frame: Blocks,
    within: Range<usize>,
}

/// State on a device: a window arrives when the test says so, or when it is waited for.
struct Device {
    state: State,
    flight: Option<Flight>,
    arrives: bool,
    fails: bool,
}

impl Device {
    fn of(state: &State) -> Device {
        Device { state: state.clone(), flight: None, arrives: false, fails: false }
    }

    fn land(&mut self) -> Copied {
        let Flight { inward, at, mut frame, within } = self.flight.take().unwrap();
        if self.fails {
            match inward {
                true => self.state.0[at..at + within.len()].fill(0xBB),
                false => frame[within].fill(0xBB),
            }
            return Copied { host: frame, result: Err(DeviceError::Fault { what: "a copy" }) };
        }
        let state = &mut self.state.0[at..at + within.len()];
        match inward {
            true => state.copy_from_slice(&frame[within]),
            false => frame[within].copy_from_slice(state),
        }
        Copied { host: frame, result: Ok(()) }
    }

    fn begin(&mut self, inward: bool, at: u64, frame: Blocks, within: Range<usize>) -> CopyId {
        let before = self.flight.replace(Flight { inward, at: at as usize, frame, within });
        assert!(before.is_none(), "one window travels at a time");
        CopyId(3)
    }
}

impl Payload for Device {
    fn read(&mut self, _: u64, _: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("windows travel beside the steps")
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        unreachable!("windows travel beside the steps")
    }
    fn is_beside(&self) -> bool {
        true
    }
    fn begin_read(&mut self, at: u64, frame: Blocks, within: Range<usize>) -> CopyId {
        self.begin(false, at, frame, within)
    }
    fn begin_write(
        &mut self,
        at: u64,
        frame: Blocks,
        within: Range<usize>,
    ) -> Result<CopyId, Copied> {
        Ok(self.begin(true, at, frame, within))
    }
    fn end(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        assert_eq!(copies, CopyId(3));
        (self.arrives || wait).then(|| self.land())
    }
}

fn state(serial: u32, windows: usize) -> State {
    State::new(serial, 2, windows * ROOM - 7)
}

fn tiers(faults_ppm: u32) -> Tiers {
    let disk = SimDisk::new(&SimPlatter::new(disk_bytes(12, WINDOW)), 5, faults_ppm);
    Tiers::new(LIMITS, 1, 2, Some(Box::new(disk))).unwrap()
}

/// Steps out to the end, a window arriving at every `pace`th step.
fn finish_out(tiers: &mut Tiers, device: &mut Device, pace: usize) -> Result<ImageId, TierError> {
    for turn in 1.. {
        device.arrives = turn % pace == 0;
        match tiers.step_out(device) {
            Step::Idle => panic!("no move out is in flight"),
            Step::Waiting => tiers.wait(Duration::from_micros(1)),
            Step::Advanced => {}
            Step::Landed(image) => return Ok(image),
            Step::Failed(_, error) => return Err(error),
        }
    }
    unreachable!()
}

fn finish_in(tiers: &mut Tiers, device: &mut Device, pace: usize) -> Result<ImageId, TierError> {
    for turn in 1.. {
        device.arrives = turn % pace == 0;
        match tiers.step_in(device) {
            Step::Idle => panic!("no move in is in flight"),
            Step::Waiting => tiers.wait(Duration::from_micros(1)),
            Step::Advanced => {}
            Step::Landed(image) => return Ok(image),
            Step::Failed(_, error) => return Err(error),
        }
    }
    unreachable!()
}

#[test]
fn what_travelled_is_restored_byte_for_byte_from_either_tier() {
    for (tier, pace, windows) in [(Tier::Ram, 1, 1), (Tier::Ram, 3, 5), (Tier::Disk, 2, 5)] {
        let mut tiers = tiers(0);
        let state = state(1, windows);
        let image = tiers.begin_out(head(Kind::Live, 2, &state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut Device::of(&state), pace), Ok(image));
        // The same image as one that was read in pieces: a plain sink takes it.
        assert_eq!(support::get(&mut tiers, image).as_ref(), Ok(&state));
        let mut sink = Device::of(&State::sink(state.0.len() as u64));
        tiers.begin_in(image).unwrap();
        assert_eq!(finish_in(&mut tiers, &mut sink, pace), Ok(image));
        assert!(sink.state == state, "{tier} at pace {pace}");
        tiers.drop_image(image).unwrap();
        let total = tiers.windows_total(tier);
        assert_eq!(tiers.windows_free(tier), total);
    }
}

#[test]
fn a_window_lands_when_its_bytes_have_arrived_and_not_before() {
    let mut tiers = tiers(0);
    let mut device = Device::of(&state(1, 2));
    tiers.begin_out(head(Kind::Live, 2, &device.state), Tier::Ram).unwrap();
    assert!(matches!(tiers.step_out(&mut device), Step::Advanced), "the first travels");
    assert!(tiers.is_travelling());
    for _ in 0..3 {
        assert!(matches!(tiers.step_out(&mut device), Step::Waiting));
    }
    device.arrives = true;
    assert!(matches!(tiers.step_out(&mut device), Step::Advanced), "the second travels");
    let image = match tiers.step_out(&mut device) {
        Step::Landed(image) => image,
        step => panic!("{step:?}"),
    };
    assert!(!tiers.is_travelling());
    // In: the next window is checked while one travels.
    let mut sink = Device::of(&State::sink(device.state.0.len() as u64));
    tiers.begin_in(image).unwrap();
    assert!(matches!(tiers.step_in(&mut sink), Step::Advanced), "checked and sent");
    assert!(matches!(tiers.step_in(&mut sink), Step::Advanced), "checked");
    assert!(matches!(tiers.step_in(&mut sink), Step::Waiting));
    sink.arrives = true;
    assert!(matches!(tiers.step_in(&mut sink), Step::Advanced), "sent");
    assert!(matches!(tiers.step_in(&mut sink), Step::Landed(_)));
    assert!(sink.state == device.state);
}

#[test]
fn a_move_given_up_while_a_window_travels_frees_its_windows_once_that_is_settled() {
    for tier in [Tier::Ram, Tier::Disk] {
        let mut tiers = tiers(0);
        let total = tiers.windows_total(tier);
        let mut device = Device::of(&state(1, 3));
        tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        tiers.step_out(&mut device);
        tiers.settle_out(&mut |_| device.land());
        tiers.abandon_out();
        assert_eq!(tiers.windows_free(tier), total);

        let image = tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut device, 1), Ok(image));
        tiers.begin_in(image).unwrap();
        device.arrives = false;
        while device.flight.is_none() {
            tiers.step_in(&mut device);
            tiers.wait(Duration::from_micros(1));
        }
        tiers.settle_in(&mut |_| device.land());
        tiers.abandon_in();
        tiers.drop_image(image).unwrap();
        assert_eq!(tiers.windows_free(tier), total);
    }
}

#[test]
#[should_panic(expected = "settled first")]
fn a_move_is_not_given_up_while_a_window_travels() {
    let mut tiers = tiers(0);
    let mut device = Device::of(&state(1, 3));
    tiers.begin_out(head(Kind::Live, 2, &device.state), Tier::Ram).unwrap();
    tiers.step_out(&mut device);
    tiers.abandon_out();
}

#[test]
fn a_copy_that_fails_ends_the_move_out_and_keeps_the_image_of_a_move_in() {
    for tier in [Tier::Ram, Tier::Disk] {
        let mut tiers = tiers(0);
        let total = tiers.windows_total(tier);
        let mut device = Device::of(&state(1, 3));
        device.fails = true;
        tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        let failed = finish_out(&mut tiers, &mut device, 2);
        assert!(matches!(failed, Err(TierError::Device(_))));
        assert_eq!(tiers.windows_free(tier), total);

        device.fails = false;
        let image = tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut device, 2), Ok(image));
        let mut sink = Device::of(&State::sink(device.state.0.len() as u64));
        sink.fails = true;
        tiers.begin_in(image).unwrap();
        assert!(matches!(finish_in(&mut tiers, &mut sink, 2), Err(TierError::Device(_))));
        sink.fails = false;
        tiers.begin_in(image).unwrap();
        assert_eq!(finish_in(&mut tiers, &mut sink, 2), Ok(image));
        assert!(sink.state == device.state);
    }
}

#[test]
fn a_copy_to_disk_waits_for_a_frame_that_travels() {
    let mut tiers = tiers(0);
    let mut device = Device::of(&state(1, 2));
    let image = tiers.begin_out(head(Kind::Prefix, 2, &device.state), Tier::Ram).unwrap();
    assert_eq!(finish_out(&mut tiers, &mut device, 1), Ok(image));
    device.arrives = false;
    tiers.begin_in(image).unwrap();
    tiers.step_in(&mut device);
    let copy = tiers.begin_copy(image, 0).unwrap();
    for _ in 0..3 {
        assert!(matches!(tiers.step_out(&mut NoPayload), Step::Waiting));
    }
    device.arrives = true;
    while tiers.is_moving_in() {
        tiers.step_in(&mut device);
    }
    assert_eq!(support::finish_out(&mut tiers, &mut NoPayload), Ok(copy));
    assert_eq!(support::get(&mut tiers, copy), Ok(device.state));
}

#[test]
fn a_disk_that_fails_meanwhile_loses_no_buffer() {
    let mut tiers = tiers(200_000);
    let state = state(1, 4);
    let (mut landed, mut failed) = (0, 0);
    for turn in 0..300 {
        let mut device = Device::of(&state);
        tiers.begin_out(head(Kind::Live, 2, &state), Tier::Disk).unwrap();
        match finish_out(&mut tiers, &mut device, 1 + turn % 4) {
            Err(_) => failed += 1,
            Ok(image) => {
                let mut sink = Device::of(&State::sink(state.0.len() as u64));
                tiers.begin_in(image).unwrap();
                match finish_in(&mut tiers, &mut sink, 1 + turn % 3) {
                    Ok(_) => assert!(sink.state == state),
                    Err(_) => failed += 1,
                }
                assert!(sink.flight.is_none());
                landed += 1;
                let _ = tiers.drop_image(image);
            }
        }
        assert!(device.flight.is_none());
        while tiers.windows_free(Tier::Disk) < 12 {
            tiers.wait(Duration::from_micros(1));
        }
    }
    assert!(landed > 20 && failed > 20, "{landed} landed, {failed} failed");
}
