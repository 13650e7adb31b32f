//! Moves whose windows travel beside the steps, to and from a device that is in no hurry.

#[path = "support/device.rs"]
mod device;
mod support;

use std::time::Duration;

use device::{Device, TOKENS, sink};
use ignis_backend::COPIES_MAX;
use ignis_sim::{SimDisk, SimPlatter};
use ignis_tiers::{ImageId, Kind, NoPayload, Step, Tier, TierError, TierLimits, Tiers, disk_bytes};
use support::{State, head};

const WINDOW: u32 = 4096;
const ROOM: usize = WINDOW as usize - 64;
const LIMITS: TierLimits = TierLimits { window_bytes: WINDOW, ram_windows: 6 };

fn state(serial: u32, windows: usize) -> State {
    State::new(serial, 2, windows * ROOM - 7)
}

fn tiers(faults_ppm: u32) -> Tiers {
    let disk = SimDisk::new(&SimPlatter::new(disk_bytes(12, WINDOW)), 5, faults_ppm);
    Tiers::new(LIMITS, 1, 2, Some(Box::new(disk))).unwrap()
}

/// Steps out to the end, some windows arriving at every `pace`th step.
fn finish_out(tiers: &mut Tiers, device: &mut Device, pace: usize) -> Result<ImageId, TierError> {
    for turn in 1.. {
        device.arrivals = usize::from(turn % pace == 0) * (1 + turn % 3);
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
        device.arrivals = usize::from(turn % pace == 0) * (1 + turn % 3);
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
    for (tier, pace, windows) in [(Tier::Ram, 1, 1), (Tier::Ram, 3, 6), (Tier::Disk, 2, 6)] {
        let mut tiers = tiers(0);
        let state = state(1, windows);
        let image = tiers.begin_out(head(Kind::Live, 2, &state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut Device::of(&state), pace), Ok(image));
        // The same image as one that was read in pieces: a plain sink takes it.
        assert_eq!(support::get(&mut tiers, image).as_ref(), Ok(&state));
        let mut sink = sink(&state);
        tiers.begin_in(image).unwrap();
        assert_eq!(finish_in(&mut tiers, &mut sink, pace), Ok(image));
        assert!(sink.state == state, "{tier} at pace {pace}");
        tiers.drop_image(image).unwrap();
        let total = tiers.windows_total(tier);
        assert_eq!(tiers.windows_free(tier), total);
    }
}

#[test]
fn an_image_that_was_read_in_pieces_travels_in() {
    for tier in [Tier::Ram, Tier::Disk] {
        let (mut tiers, state) = (tiers(0), state(1, 4));
        let image = support::put(&mut tiers, head(Kind::Live, 2, &state), tier, &state);
        let mut sink = sink(&state);
        tiers.begin_in(image).unwrap();
        assert_eq!(finish_in(&mut tiers, &mut sink, 2), Ok(image));
        assert!(sink.state == state, "{tier}");
    }
}

#[test]
fn windows_travel_together_and_land_when_all_bytes_have_arrived_and_not_before() {
    let mut tiers = tiers(0);
    let mut device = Device::of(&state(1, 6));
    tiers.begin_out(head(Kind::Live, 2, &device.state), Tier::Ram).unwrap();
    assert!(matches!(tiers.step_out(&mut device), Step::Advanced), "four travel");
    assert!(tiers.is_travelling());
    assert_eq!(device.flights.len(), COPIES_MAX);
    for _ in 0..3 {
        assert!(matches!(tiers.step_out(&mut device), Step::Waiting));
    }
    for travelling in [4, 4, 3, 2, 1] {
        device.arrivals = 1;
        assert!(matches!(tiers.step_out(&mut device), Step::Advanced));
        assert_eq!(device.flights.len(), travelling);
    }
    device.arrivals = 1;
    let image = match tiers.step_out(&mut device) {
        Step::Landed(image) => image,
        step => panic!("{step:?}"),
    };
    assert!(!tiers.is_travelling());

    let mut sink = sink(&device.state);
    tiers.begin_in(image).unwrap();
    assert!(matches!(tiers.step_in(&mut sink), Step::Advanced), "four travel");
    assert!(matches!(tiers.step_in(&mut sink), Step::Waiting));
    sink.arrivals = 3;
    assert!(matches!(tiers.step_in(&mut sink), Step::Advanced), "three arrived, two more left");
    assert_eq!(sink.flights.len(), 3);
    sink.arrivals = 3;
    assert!(matches!(tiers.step_in(&mut sink), Step::Landed(_)));
    assert!(sink.state == device.state);
}

#[test]
fn a_move_given_up_while_windows_travel_frees_them_once_that_is_settled() {
    for tier in [Tier::Ram, Tier::Disk] {
        let mut tiers = tiers(0);
        let total = tiers.windows_total(tier);
        let mut device = Device::of(&state(1, 5));
        tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        tiers.step_out(&mut device);
        assert!(device.flights.len() > 1);
        tiers.settle_out(&mut |id| device.land(id));
        tiers.abandon_out();
        assert_eq!((tiers.windows_free(tier), device.flights.len()), (total, 0));

        let image = tiers.begin_out(head(Kind::Live, 2, &device.state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut device, 1), Ok(image));
        tiers.begin_in(image).unwrap();
        device.arrivals = 0;
        while device.flights.len() < 2 {
            tiers.step_in(&mut device);
            tiers.wait(Duration::from_micros(1));
        }
        tiers.settle_in(&mut |id| device.land(id));
        tiers.abandon_in();
        assert!(device.flights.is_empty());
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
    for (tier, failing) in [Tier::Ram, Tier::Disk].into_iter().flat_map(|tier| {
        // Alone, with others behind it, and behind others.
        [0, 1, 4].map(|failing| (tier, failing))
    }) {
        let mut tiers = tiers(0);
        let total = tiers.windows_total(tier);
        let state = state(1, 5);
        let mut device = Device { fails: Some(failing), ..Device::of(&state) };
        tiers.begin_out(head(Kind::Live, 2, &state), tier).unwrap();
        let failed = finish_out(&mut tiers, &mut device, 2);
        assert!(matches!(failed, Err(TierError::Device(_))));
        assert!(device.flights.is_empty() && !tiers.is_travelling());
        while tiers.windows_free(tier) < total {
            tiers.wait(Duration::from_micros(1));
        }

        let mut device = Device::of(&state);
        let image = tiers.begin_out(head(Kind::Live, 2, &state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut device, 2), Ok(image));
        let mut refusing = Device { fails: Some(failing), ..sink(&state) };
        tiers.begin_in(image).unwrap();
        assert!(matches!(finish_in(&mut tiers, &mut refusing, 2), Err(TierError::Device(_))));
        assert!(refusing.flights.is_empty() && !tiers.is_travelling());
        let mut sink = sink(&state);
        tiers.begin_in(image).unwrap();
        assert_eq!(finish_in(&mut tiers, &mut sink, 2), Ok(image));
        assert!(sink.state == state);
    }
}

/// Whether an error is of this window's checksum, in this tier.
fn is_sum(error: &TierError, window: u32, tier: Tier) -> bool {
    match error {
        TierError::Damaged { place, window: found, what, .. } => {
            let named = (place == "KV-RAM") == (tier == Tier::Ram);
            named && (*found, *what) == (window, "its checksum")
        }
        _ => false,
    }
}

#[test]
fn a_bit_that_flips_is_found_when_its_window_has_arrived_and_the_image_is_gone() {
    let places = [(0, TOKENS), (1, 0), (4, ROOM - 8)];
    for (tier, (window, byte), inward) in [Tier::Ram, Tier::Disk].into_iter().flat_map(|tier| {
        places.into_iter().flat_map(move |at| [false, true].map(|inward| (tier, at, inward)))
    }) {
        let mut tiers = tiers(0);
        let state = state(1, 5);
        let flips = Some((window, byte));
        // On the way out the frame has other bytes than were summed.
        let mut device = Device { flips: flips.filter(|_| !inward), ..Device::of(&state) };
        let image = tiers.begin_out(head(Kind::Live, 2, &state), tier).unwrap();
        assert_eq!(finish_out(&mut tiers, &mut device, 2), Ok(image));
        let mut sink = Device { flips: flips.filter(|_| inward), ..sink(&state) };
        tiers.begin_in(image).unwrap();
        let error = finish_in(&mut tiers, &mut sink, 3).unwrap_err();
        assert!(is_sum(&error, window, tier), "{tier}: {error}");
        assert!(sink.flights.is_empty() && !tiers.is_travelling());
        assert_eq!(tiers.head(image), None);
        while tiers.windows_free(tier) < tiers.windows_total(tier) {
            tiers.wait(Duration::from_micros(1));
        }
    }
}

#[test]
fn tokens_that_are_refused_are_damage_if_their_sum_says_so_and_another_image_if_not() {
    for tier in [Tier::Ram, Tier::Disk] {
        let (mut tiers, state) = (tiers(0), state(1, 3));
        let image = support::put(&mut tiers, head(Kind::Live, 2, &state), tier, &state);
        let mut other = sink(&state);
        other.state.0[3] ^= 1;
        tiers.begin_in(image).unwrap();
        assert!(matches!(finish_in(&mut tiers, &mut other, 2), Err(TierError::Device(_))));
        assert!(tiers.head(image).is_some());

        let mut sink = Device { tokens_flip: true, ..sink(&state) };
        tiers.begin_in(image).unwrap();
        let error = finish_in(&mut tiers, &mut sink, 2).unwrap_err();
        assert!(is_sum(&error, 0, tier), "{tier}: {error}");
        assert_eq!(tiers.head(image), None);
    }
}

#[test]
fn a_copy_to_disk_waits_for_a_frame_that_travels() {
    let mut tiers = tiers(0);
    let mut device = Device::of(&state(1, 2));
    let image = tiers.begin_out(head(Kind::Prefix, 2, &device.state), Tier::Ram).unwrap();
    assert_eq!(finish_out(&mut tiers, &mut device, 1), Ok(image));
    device.arrivals = 0;
    tiers.begin_in(image).unwrap();
    tiers.step_in(&mut device);
    let copy = tiers.begin_copy(image, 0).unwrap();
    for _ in 0..3 {
        assert!(matches!(tiers.step_out(&mut NoPayload), Step::Waiting));
    }
    device.arrivals = 2;
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
                let mut sink = sink(&state);
                tiers.begin_in(image).unwrap();
                match finish_in(&mut tiers, &mut sink, 1 + turn % 3) {
                    Ok(_) => assert!(sink.state == state),
                    Err(_) => failed += 1,
                }
                assert!(sink.flights.is_empty());
                landed += 1;
                let _ = tiers.drop_image(image);
            }
        }
        assert!(device.flights.is_empty());
        while tiers.windows_free(Tier::Disk) < 12 {
            tiers.wait(Duration::from_micros(1));
        }
    }
    assert!(landed > 20 && failed > 20, "{landed} landed, {failed} failed");
}
