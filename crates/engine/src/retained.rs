//! Retained slots: what is kept of a prompt when its lane moves on.

use ignis_arena::FixedVec;
use ignis_backend::{Blocks, Device};
use ignis_pages::{Holder, TailCopy};
use ignis_types::{Bytes, LaneId, Limits, SlotId};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::lane::LaneState;
use crate::state::StateMap;

/// Every slot, and the host memory of those that the device does not hold.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Tokens that each slot covers; none: empty.
    tokens: Vec<FixedVec<u32>>,
    /// `[retained_host]` times all sections.
    host: Blocks,
}

impl Slots {
    /// Takes the host memory.
    pub(crate) fn new(
        limits: &Limits,
        map: &StateMap,
        device: &mut dyn Device,
    ) -> Result<Slots, EngineError> {
        let context = limits.context_tokens_max as usize;
        let bytes = Bytes(map.sections_bytes()).times(u64::from(limits.retained_host))?;
        let mut host = device.host_memory(1, bytes.as_usize())?;
        let host = host.pop().expect("one piece was asked for");
        let tokens = (0..limits.retained()).map(|_| FixedVec::new(context)).collect();
        Ok(Slots { tokens, host })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Tokens that a slot covers, none for an empty one.
    pub(crate) fn tokens(&self, slot: SlotId) -> Result<&[u32], EngineError> {
        let unknown = EngineError::SlotUnknown { slot: slot.0, slots: self.count() };
        self.tokens.get(slot.index()).map(|tokens| &**tokens).ok_or(unknown)
    }

    /// The sections of a host slot.
    pub(crate) fn host(&self, range: std::ops::Range<usize>) -> &[u8] {
        &self.host[range]
    }
}

impl Engine {
    /// Keeps the state of a lane in an empty slot: its pages by count, its sections by copy. The
    /// lane goes on, and its next tokens may share the slot's last page.
    ///
    /// Errors: the lane has stored nothing, is in a move or in the round under way; the slot is
    /// taken. Nothing changes.
    pub fn capture(&mut self, lane: u32, slot: SlotId) -> Result<(), EngineError> {
        self.expect_at_rest(lane)?;
        let seat = self.lane(lane)?;
        let (state, position) = (seat.state, seat.position);
        if !matches!(state, LaneState::Prefill | LaneState::Decode) || position == 0 {
            let expected = "in prefill or decode, with tokens stored";
            return Err(EngineError::LaneState { lane, found: state.name(), expected });
        }
        if !self.slots.tokens(slot)?.is_empty() {
            return Err(EngineError::SlotState { slot: slot.0, found: "taken", expected: "empty" });
        }
        self.pages.hold(slot, LaneId(lane), position)?;
        if let Err(error) = self.copy_sections(lane, slot, Way::ToSlot) {
            self.pages.release(Holder::Slot(slot));
            return Err(error);
        }
        let stored = &self.lanes[lane as usize].tokens[..position as usize];
        self.slots.tokens[slot.index()].assign(stored);
        Ok(())
    }

    /// Empties a slot; an image that is being made of it is abandoned. An empty one stays so.
    pub fn drop_slot(&mut self, slot: SlotId) -> Result<(), EngineError> {
        self.slots.tokens(slot)?;
        self.abandon_spill_of(slot);
        self.pages.release(Holder::Slot(slot));
        self.slots.tokens[slot.index()].clear();
        Ok(())
    }

    /// A lane that has computed nothing since it was seated starts behind a slot's state after all,
    /// or behind more than it was seated with; pages that it shares now replace its own.
    ///
    /// Errors: the lane has begun, or is in the round under way; the slot is empty, not a proper
    /// prefix of the lane's tokens, or no more than the lane has. Nothing changes then.
    pub fn adopt(&mut self, lane: u32, slot: SlotId) -> Result<(), EngineError> {
        self.expect_at_rest(lane)?;
        self.expect_state(lane, LaneState::Prefill)?;
        let seat = &self.lanes[lane as usize];
        if seat.begun {
            let (found, expected) = ("begun", "seated and not begun");
            return Err(EngineError::LaneState { lane, found, expected });
        }
        let position = seat.position;
        let tokens = self.check_slot(slot, &seat.tokens)?;
        if tokens <= position {
            let (found, expected) = ("no more than the lane has", "more than the lane has");
            return Err(EngineError::SlotState { slot: slot.0, found, expected });
        }
        let tail = self.pages.adopt(LaneId(lane), slot, tokens)?;
        let copied = self.copy_slot(slot, lane, tail);
        let seat = &mut self.lanes[lane as usize];
        match copied {
            Ok(()) => seat.stand_at(tokens),
            // It shares pages that it has not the sections for.
            Err(_) => seat.state = LaneState::Broken,
        }
        copied
    }

    /// Tokens of a slot whose state `tokens` may start from.
    pub(crate) fn check_slot(&self, slot: SlotId, tokens: &[u32]) -> Result<u32, EngineError> {
        let kept = self.slots.tokens(slot)?;
        let expected = "a proper prefix of the sequence";
        if kept.is_empty() {
            return Err(EngineError::SlotState { slot: slot.0, found: "empty", expected });
        }
        // The last token is always computed: its logits are what the sequence draws from.
        if kept.len() >= tokens.len() || kept != &tokens[..kept.len()] {
            return Err(EngineError::SlotState {
                slot: slot.0,
                found: "of other tokens",
                expected,
            });
        }
        Ok(kept.len() as u32)
    }

    /// Copies what a lane does not share with the slot that it starts from.
    pub(crate) fn copy_slot(
        &mut self,
        slot: SlotId,
        lane: u32,
        tail: Option<TailCopy>,
    ) -> Result<(), EngineError> {
        if let Some(TailCopy { from, to }) = tail {
            let map = &self.moves.map;
            self.device.copy(map.page(from.0), map.page(to.0), Bytes(map.page_bytes))?;
        }
        self.copy_sections(lane, slot, Way::ToLane)
    }

    fn copy_sections(&mut self, lane: u32, slot: SlotId, way: Way) -> Result<(), EngineError> {
        let map = &self.moves.map;
        let mut host = match slot.0 < map.slots_device {
            true => None,
            false => Some(&mut self.slots.host[map.host_slot(slot.0)]),
        };
        for section in &map.sections {
            let of_lane = section.lanes + u64::from(lane) * section.bytes;
            let Some(bytes) = host.take() else {
                let of_slot = section.slots + u64::from(slot.0) * section.bytes;
                let (from, to) = match way {
                    Way::ToSlot => (of_lane, of_slot),
                    Way::ToLane => (of_slot, of_lane),
                };
                self.device.copy(from, to, Bytes(section.bytes))?;
                continue;
            };
            let (piece, rest) = bytes.split_at_mut(Bytes(section.bytes).as_usize());
            match way {
                Way::ToSlot => self.device.read(of_lane, piece)?,
                Way::ToLane => self.device.write(of_lane, piece)?,
            }
            host = Some(rest);
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Way {
    ToSlot,
    ToLane,
}
