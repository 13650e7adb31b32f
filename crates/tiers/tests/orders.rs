//! Rare orders of disk operations, each made to happen.

mod support;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ignis_backend::{BLOCK_BYTES, Disk, DiskAction, DiskDone, DiskOp};
use ignis_sim::{SimDisk, SimPlatter};
use ignis_tiers::{Kind, NoPayload, Step, Tier, TierError, TierLimits, Tiers, disk_bytes};
use support::{State, copy, finish_out, get, head, put};

const WINDOW: u32 = 4096;
const WINDOWS: u32 = 6;
const LIMITS: TierLimits = TierLimits { window_bytes: WINDOW, ram_windows: 4 };

/// Operations wait until the test lets them go.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<VecDeque<DiskOp>>>);

struct Gated {
    gate: Gate,
    open: Arc<Mutex<bool>>,
    disk: SimDisk,
}

impl Disk for Gated {
    fn bytes(&self) -> u64 {
        self.disk.bytes()
    }
    fn describe(&self) -> String {
        "gated disk".into()
    }
    fn depth(&self) -> usize {
        self.disk.depth()
    }
    fn start(&mut self, op: DiskOp) {
        self.gate.0.lock().unwrap().push_back(op);
    }
    fn finished(&mut self, wait: Duration) -> Option<DiskDone> {
        if *self.open.lock().unwrap() {
            let op = self.gate.0.lock().unwrap().pop_front()?;
            self.disk.start(op);
            return self.disk.finished(wait.max(Duration::from_nanos(1)));
        }
        None
    }
}

/// Tiers over a gated disk, open at first, and what opens and closes it.
fn gated(platter: &SimPlatter) -> (Tiers, Gate, Arc<Mutex<bool>>) {
    let (gate, open) = (Gate::default(), Arc::new(Mutex::new(true)));
    let disk = SimDisk::new(platter, 1, 0);
    let disk = Gated { gate: gate.clone(), open: open.clone(), disk };
    (Tiers::new(LIMITS, 1, 2, Some(Box::new(disk))).unwrap(), gate, open)
}

fn opened(platter: &SimPlatter) -> Tiers {
    Tiers::new(LIMITS, 1, 3, Some(Box::new(SimDisk::new(platter, 1, 0)))).unwrap()
}

fn platter() -> SimPlatter {
    SimPlatter::new(disk_bytes(WINDOWS, WINDOW))
}

fn state(serial: u32, windows: usize) -> State {
    State::new(serial, 2, windows * (WINDOW as usize - 64))
}

#[test]
fn a_window_is_not_given_out_while_a_write_that_was_given_up_is_in_flight() {
    let (mut tiers, gate, open) = gated(&platter());
    let mut three = state(1, 3);
    tiers.begin_out(head(Kind::Live, 2, &three), Tier::Disk).unwrap();
    *open.lock().unwrap() = false;
    assert!(matches!(tiers.step_out(&mut three), Step::Advanced));
    assert!(matches!(tiers.step_out(&mut three), Step::Advanced));
    assert!(matches!(tiers.step_out(&mut three), Step::Waiting), "both buffers are with the disk");
    tiers.abandon_out();
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS - 2);
    let all = state(2, WINDOWS as usize);
    let refused = tiers.begin_out(head(Kind::Live, 2, &all), Tier::Disk);
    let no_room = TierError::NoRoom { tier: Tier::Disk, needed: WINDOWS, free: WINDOWS - 2 };
    assert_eq!(refused, Err(no_room));

    // A smaller image may begin, but waits for a buffer.
    let mut small = state(3, 1);
    let image = tiers.begin_out(head(Kind::Live, 2, &small), Tier::Disk).unwrap();
    assert!(matches!(tiers.step_out(&mut small), Step::Waiting));
    assert_eq!(gate.0.lock().unwrap().len(), 2);
    *open.lock().unwrap() = true;
    assert_eq!(finish_out(&mut tiers, &mut small), Ok(image));
    assert_eq!(get(&mut tiers, image), Ok(small));
    tiers.drop_image(image).unwrap();
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS);
}

#[test]
fn a_header_in_flight_that_was_given_up_is_zeroed_after_it() {
    let platter = platter();
    let (mut tiers, gate, open) = gated(&platter);
    let mut one = state(1, 1);
    tiers.begin_out(head(Kind::Prefix, 2, &one), Tier::Disk).unwrap();
    assert!(matches!(tiers.step_out(&mut one), Step::Advanced));
    assert!(matches!(tiers.step_out(&mut one), Step::Advanced), "the header is in flight");
    *open.lock().unwrap() = false;
    tiers.abandon_out();
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS);
    assert_eq!(gate.0.lock().unwrap().front().unwrap().offset, BLOCK_BYTES as u64);
    *open.lock().unwrap() = true;
    drop(tiers);
    let mut tiers = opened(&platter);
    assert_eq!((tiers.take_found().len(), tiers.removed_at_start()), (0, 0));
}

#[test]
fn a_drop_during_a_given_up_read_is_safe() {
    let (mut tiers, gate, open) = gated(&platter());
    let (one, mut two) = (state(1, 2), state(2, 2));
    let image = put(&mut tiers, head(Kind::Live, 2, &one), Tier::Disk, &one);
    *open.lock().unwrap() = false;
    tiers.begin_in(image).unwrap();
    assert_eq!(tiers.drop_image(image), Err(TierError::InMove { image }));
    tiers.abandon_in();
    tiers.drop_image(image).unwrap();
    let next = tiers.begin_out(head(Kind::Live, 2, &two), Tier::Disk).unwrap();
    tiers.step_out(&mut two);
    let held: Vec<_> = gate.0.lock().unwrap().iter().map(|op| op.action).collect();
    let (read, write) = (DiskAction::Read, DiskAction::Write);
    assert_eq!(held, [read, read, write, write], "two reads, a zeroing, a window");
    *open.lock().unwrap() = true;
    finish_out(&mut tiers, &mut two).unwrap();
    assert_eq!(get(&mut tiers, next), Ok(two));
}

#[test]
fn a_header_that_outlived_one_of_its_frames_is_stale() {
    let platter = platter();
    let mut tiers = opened(&platter);
    let (long, short) = (state(1, 3), state(2, 1));
    let stale = put(&mut tiers, head(Kind::Prefix, 2, &long), Tier::Disk, &long);
    let before = platter.bytes();
    tiers.drop_image(stale).unwrap();
    let first = put(&mut tiers, head(Kind::Prefix, 2, &short), Tier::Disk, &short);
    let second = put(&mut tiers, head(Kind::Prefix, 2, &short), Tier::Disk, &short);
    tiers.drop_image(first).unwrap();
    drop(tiers);
    restore_first_window(&platter, &before);
    let mut tiers = opened(&platter);
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (1, 1));
    assert_eq!(found[0].tokens, short.tokens(2));
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS - 1);
    assert!(tiers.head(second).is_none(), "ids of another process mean nothing");
}

#[test]
fn of_two_copies_that_claim_a_window_one_is_kept() {
    let platter = platter();
    let mut tiers = opened(&platter);
    let (long, short) = (state(1, 3), state(2, 1));
    let source = put(&mut tiers, head(Kind::Prefix, 2, &long), Tier::Ram, &long);
    let old = copy(&mut tiers, source);
    let before = platter.bytes();
    tiers.drop_image(old).unwrap();
    // Order the free windows as 3, 1, 2: the next copy shares two frames with the one above.
    let fill = |tiers: &mut Tiers| put(tiers, head(Kind::Live, 2, &short), Tier::Disk, &short);
    let singles: Vec<_> = (0..4).map(|_| fill(&mut tiers)).collect();
    for index in [2, 1, 3] {
        tiers.drop_image(singles[index]).unwrap();
    }
    copy(&mut tiers, source);
    tiers.drop_image(singles[0]).unwrap();
    drop(tiers);
    restore_first_window(&platter, &before);
    let mut tiers = opened(&platter);
    let found = tiers.take_found();
    assert_eq!((found.len(), tiers.removed_at_start()), (1, 1));
    assert_eq!(get(&mut tiers, found[0].image), Ok(long));
    tiers.drop_image(found[0].image).unwrap();
    assert_eq!(tiers.windows_free(Tier::Disk), WINDOWS);
}

/// Puts back the header in slot 0 and window 0, as if zeroing the one had failed and nobody had
/// used the other.
fn restore_first_window(platter: &SimPlatter, before: &[u8]) {
    let window = (1 + WINDOWS as usize) * BLOCK_BYTES;
    for range in [BLOCK_BYTES..2 * BLOCK_BYTES, window..window + WINDOW as usize] {
        platter.damage(|bytes| bytes[range.clone()].copy_from_slice(&before[range]));
    }
}

#[test]
fn a_copy_reads_no_sequence_and_ends_before_its_source() {
    let mut tiers = opened(&platter());
    let two = state(1, 2);
    let source = put(&mut tiers, head(Kind::Live, 2, &two), Tier::Ram, &two);
    let target = tiers.begin_copy(source, 9).unwrap();
    assert_eq!(tiers.drop_image(source), Err(TierError::InMove { image: source }));
    assert_eq!(tiers.drop_image(target), Err(TierError::InMove { image: target }));
    assert_eq!(tiers.begin_in(target), Err(TierError::UnknownImage { image: target }));
    finish_out(&mut tiers, &mut NoPayload).unwrap();
    tiers.drop_image(source).unwrap();
    assert_eq!(tiers.head(target).unwrap().class, 9);
    assert_eq!(get(&mut tiers, target), Ok(two));
    assert_eq!(tiers.begin_copy(target, 0), Err(TierError::NotInRam { image: target }));
}
