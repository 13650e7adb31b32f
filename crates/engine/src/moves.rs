//! Sequences between lanes and images: one move out and one move in, some windows a step.

use std::time::Duration;

use ignis_backend::{Copied, CopyId, Device, Disk};
use ignis_pages::Holder;
use ignis_tiers::{Found, ImageHead, ImageId, Kind, NoPayload, Step, Tier, TierError, Tiers};
use ignis_types::{LaneId, PAGE_TOKENS, SlotId};

use crate::engine::{Admission, Engine};
use crate::error::EngineError;
use crate::lane::LaneState;
use crate::state::{Sections, State, StateMap, StatePayload};

/// Where images may lie.
pub struct Storage {
    /// Bytes of KV-RAM, taken and touched at load; whole windows of it are used.
    pub ram_bytes: u64,
    /// The disk of KV-disk, if it is on.
    pub disk: Option<Box<dyn Disk>>,
    /// Bytes of a window; `None` takes what suits the longest image.
    pub window_bytes: Option<u32>,
    /// Different in every process.
    pub nonce_seed: u64,
}

impl Storage {
    /// Neither KV-RAM nor KV-disk.
    pub fn none() -> Storage {
        Storage { ram_bytes: 0, disk: None, window_bytes: None, nonce_seed: 0 }
    }
}

/// How a move ended.
#[derive(Debug)]
pub struct MoveEvent {
    /// Out of a lane or slot, or into a lane.
    pub way: MoveWay,
    /// The image; gone if the move out failed, or if what was read is damaged.
    pub image: ImageId,
    /// Why it failed.
    pub failure: Option<TierError>,
}

/// Which of the two moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveWay {
    /// Down, to KV-RAM or KV-disk.
    Out,
    /// Into a lane.
    In,
}

/// What a move out is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Lane { lane: u32, resume: LaneState },
    Slot(SlotId),
    Image,
}

#[derive(Debug)]
pub(crate) struct Moves {
    pub(crate) map: StateMap,
    tiers: Tiers,
    reservations: u64,
    out: Option<Source>,
    /// The lane that is being filled.
    into: Option<u32>,
}

impl Moves {
    pub(crate) fn new(map: StateMap, tiers: Tiers) -> Moves {
        let reservations = tiers.reservations();
        Moves { map, tiers, reservations, out: None, into: None }
    }

    pub(crate) fn allocations_after_seal(&self) -> u64 {
        self.tiers.reservations() - self.reservations
    }
}

impl Engine {
    /// KV-RAM and KV-disk, to ask what they hold.
    pub fn tiers(&self) -> &Tiers {
        &self.moves.tiers
    }

    /// What an earlier process left on KV-disk, once.
    pub fn take_found(&mut self) -> Vec<Found> {
        self.moves.tiers.take_found()
    }

    /// Retained slots of both kinds.
    pub fn retained_slots(&self) -> u32 {
        self.slots.count()
    }

    /// Windows of the image of a sequence's first `tokens` tokens.
    pub fn windows_for(&self, tokens: u32) -> u32 {
        let pages = tokens.div_ceil(PAGE_TOKENS) as usize;
        self.moves.tiers.windows_for(self.moves.map.payload_bytes(tokens, pages))
    }

    /// Begins to move a lane out. It is in no round from now on, and keeps its pages until the
    /// last window has landed; should the move fail, it goes on as if nothing had been.
    ///
    /// Errors: the lane is neither in prefill nor in decode, has stored nothing or is in the round
    /// under way; a move out is under way; the tier has not the windows. Nothing changes then.
    pub fn move_out(&mut self, lane: u32, tier: Tier) -> Result<ImageId, EngineError> {
        self.expect_at_rest(lane)?;
        let seat = self.lane(lane)?;
        let (resume, position) = (seat.state, seat.position);
        if !matches!(resume, LaneState::Prefill | LaneState::Decode) || position == 0 {
            let expected = "in prefill or decode, with tokens stored";
            return Err(EngineError::LaneState { lane, found: resume.name(), expected });
        }
        let head = self.head(Kind::Live, 0, position);
        let image = self.moves.tiers.begin_out(head, tier)?;
        self.moves.out = Some(Source::Lane { lane, resume });
        self.lanes[lane as usize].state = LaneState::Leaving;
        Ok(image)
    }

    /// Begins to copy a retained slot; the slot stays.
    pub fn spill(
        &mut self,
        slot: SlotId,
        tier: Tier,
        kind: Kind,
        class: u8,
    ) -> Result<ImageId, EngineError> {
        let tokens = self.slots.tokens(slot)?.len() as u32;
        if tokens == 0 {
            let (found, expected) = ("empty", "taken");
            return Err(EngineError::SlotState { slot: slot.0, found, expected });
        }
        let image = self.moves.tiers.begin_out(self.head(kind, class, tokens), tier)?;
        self.moves.out = Some(Source::Slot(slot));
        Ok(image)
    }

    /// Begins to copy an image from KV-RAM to KV-disk; the first one stays.
    pub fn copy_image(&mut self, image: ImageId, class: u8) -> Result<ImageId, EngineError> {
        let copy = self.moves.tiers.begin_copy(image, class)?;
        self.moves.out = Some(Source::Image);
        Ok(copy)
    }

    /// Begins to fill an empty lane from an image of the first of its tokens. The image stays.
    ///
    /// Errors: as of [`Engine::admit`]; a move in is under way; the image is unknown or as long as
    /// the sequence. Nothing changes then.
    pub fn move_in(
        &mut self,
        image: ImageId,
        lane: u32,
        admission: &Admission<'_>,
    ) -> Result<(), EngineError> {
        self.expect_no_round("move in")?;
        self.expect_state(lane, LaneState::Empty)?;
        self.check_admission(admission)?;
        let unknown = TierError::UnknownImage { image };
        let position = self.moves.tiers.head(image).ok_or(unknown)?.position;
        let tokens = admission.tokens.len() as u32;
        if position >= tokens {
            return Err(EngineError::ImageTooLong { found: position, tokens });
        }
        self.pages.reserve(LaneId(lane), admission.pages)?;
        if let Err(error) = self.moves.tiers.begin_in(image) {
            self.pages.release(Holder::Lane(LaneId(lane)));
            return Err(error.into());
        }
        if let Err(error) = self.take_seat(lane, admission) {
            self.moves.tiers.abandon_in();
            return Err(error);
        }
        let seat = &mut self.lanes[lane as usize];
        seat.position = position;
        seat.state = LaneState::Arriving;
        self.moves.into = Some(lane);
        Ok(())
    }

    /// Moves on each way by a window, or by those that have travelled beside the rounds, and tells
    /// which moves have ended. If neither can go on before a copy or the disk is done, it waits for
    /// the copy, or up to `wait` for the disk, first.
    pub fn advance(&mut self, wait: Duration) -> [Option<MoveEvent>; 2] {
        let steps = [self.advance_out(false), self.advance_in(false)];
        let waits = |step: &Step| matches!(step, Step::Idle | Step::Waiting);
        if wait.is_zero() || !steps.iter().all(waits) {
            return self.ended(steps);
        }
        let travelling = self.moves.tiers.is_travelling();
        if !travelling {
            self.moves.tiers.wait(wait);
        }
        let steps = [self.advance_out(travelling), self.advance_in(travelling)];
        self.ended(steps)
    }

    /// Whether a move out, and a move in, is under way.
    pub fn moving(&self) -> (bool, bool) {
        (self.moves.out.is_some(), self.moves.into.is_some())
    }

    /// Gives up the move out: its lane goes on, its image is gone.
    pub fn abandon_out(&mut self) {
        if let Some(source) = self.moves.out.take() {
            let device = &mut self.device;
            self.moves.tiers.settle_out(&mut |copies| over_now(&mut **device, copies));
            self.moves.tiers.abandon_out();
            self.stay(source);
        }
    }

    /// Gives up the move in: its lane is empty, its image stays.
    pub fn abandon_in(&mut self) {
        if let Some(lane) = self.moves.into.take() {
            let device = &mut self.device;
            self.moves.tiers.settle_in(&mut |copies| over_now(&mut **device, copies));
            self.moves.tiers.abandon_in();
            self.vacate(lane);
        }
    }

    /// Forgets an image, which no move may be using.
    pub fn drop_image(&mut self, image: ImageId) -> Result<(), EngineError> {
        Ok(self.moves.tiers.drop_image(image)?)
    }

    pub(crate) fn abandon_moves_of(&mut self, lane: u32) {
        if matches!(self.moves.out, Some(Source::Lane { lane: leaving, .. }) if leaving == lane) {
            self.abandon_out();
        }
        if self.moves.into == Some(lane) {
            self.abandon_in();
        }
    }

    pub(crate) fn abandon_spill_of(&mut self, slot: SlotId) {
        if self.moves.out == Some(Source::Slot(slot)) {
            self.abandon_out();
        }
    }

    fn head(&self, kind: Kind, class: u8, position: u32) -> ImageHead {
        let pages = position.div_ceil(PAGE_TOKENS) as usize;
        let payload_bytes = self.moves.map.payload_bytes(position, pages);
        ImageHead { kind, class, position, payload_bytes }
    }

    fn advance_out(&mut self, wait: bool) -> Step {
        let Some(source) = self.moves.out else { return Step::Idle };
        let (tokens, sections, holder) = match source {
            Source::Lane { lane, .. } => {
                let seat = &self.lanes[lane as usize];
                let stored = &seat.tokens[..seat.position as usize];
                (stored, Sections::Lane(lane), Holder::Lane(LaneId(lane)))
            }
            Source::Slot(slot) => {
                let tokens = self.slots.tokens(slot).expect("a slot that moves exists");
                let map = &self.moves.map;
                let sections = match slot.0 < map.slots_device {
                    true => Sections::DeviceSlot(slot.0),
                    false => Sections::HostSlot(self.slots.host(map.host_slot(slot.0))),
                };
                (tokens, sections, Holder::Slot(slot))
            }
            Source::Image => return self.moves.tiers.step_out(&mut NoPayload),
        };
        let pages = &self.pages.pages(holder)[..tokens.len().div_ceil(PAGE_TOKENS as usize)];
        // A lane goes on in the last page of what was captured from it.
        let partly = !tokens.len().is_multiple_of(PAGE_TOKENS as usize);
        let tail_changes = partly && matches!(source, Source::Slot(_));
        let state = State { map: &self.moves.map, tokens, sections, pages, tail_changes };
        let mut payload = StatePayload { device: &mut *self.device, wait, state };
        self.moves.tiers.step_out(&mut payload)
    }

    fn advance_in(&mut self, wait: bool) -> Step {
        let Some(lane) = self.moves.into else { return Step::Idle };
        let seat = &self.lanes[lane as usize];
        let tokens = &seat.tokens[..seat.position as usize];
        let pages = self.pages.pages(Holder::Lane(LaneId(lane)));
        let pages = &pages[..tokens.len().div_ceil(PAGE_TOKENS as usize)];
        let (map, sections) = (&self.moves.map, Sections::Lane(lane));
        let state = State { map, tokens, sections, pages, tail_changes: false };
        let mut payload = StatePayload { device: &mut *self.device, wait, state };
        self.moves.tiers.step_in(&mut payload)
    }

    /// Ends what the steps, out and in, have ended.
    fn ended(&mut self, [out, into]: [Step; 2]) -> [Option<MoveEvent>; 2] {
        let out = over(out).map(|(image, failure)| {
            let source = self.moves.out.take().expect("a move out was under way");
            match (source, &failure) {
                (Source::Lane { lane, .. }, None) => self.vacate(lane),
                _ => self.stay(source),
            }
            MoveEvent { way: MoveWay::Out, image, failure }
        });
        let into = over(into).map(|(image, failure)| {
            let lane = self.moves.into.take().expect("a move in was under way");
            match failure {
                None => {
                    let seat = &mut self.lanes[lane as usize];
                    seat.stand_at(seat.position);
                }
                Some(_) => self.vacate(lane),
            }
            MoveEvent { way: MoveWay::In, image, failure }
        });
        [out, into]
    }

    /// What a move out that came to nothing leaves: a lane that goes on.
    fn stay(&mut self, source: Source) {
        if let Source::Lane { lane, resume } = source {
            self.lanes[lane as usize].state = resume;
        }
    }

    fn vacate(&mut self, lane: u32) {
        self.pages.release(Holder::Lane(LaneId(lane)));
        self.lanes[lane as usize].clear();
    }
}

/// What copies brought, waited for.
fn over_now(device: &mut dyn Device, copies: CopyId) -> Copied {
    device.end_copies(copies, true).expect("what was waited for is over")
}

/// The image and the failure of a move that is over.
fn over(step: Step) -> Option<(ImageId, Option<TierError>)> {
    match step {
        Step::Idle | Step::Waiting | Step::Advanced => None,
        Step::Landed(image) => Some((image, None)),
        Step::Failed(image, error) => Some((image, Some(error))),
    }
}
