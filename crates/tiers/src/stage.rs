//! Buffers between a mover and the disk, and whose the operation in flight is.

use ignis_backend::{Blocks, Disk, DiskAction, DiskDone, DiskError, DiskOp};

/// Where a buffer and its operation are.
#[derive(Debug)]
enum State {
    /// The buffer is here and nobody waits for it.
    Idle,
    /// The buffer is with the disk. `wanted` is false once its move was given up.
    InFlight { id: u64, wanted: bool },
    /// The operation is over, and its move has not looked yet.
    Over(Result<(), DiskError>),
}

/// One buffer of a mover.
#[derive(Debug)]
pub(crate) struct Stage {
    buffer: Option<Blocks>,
    state: State,
    /// The window on the disk that a write in flight goes to; a caller's note.
    pub(crate) window: u32,
}

impl Stage {
    pub(crate) fn new(buffer: Blocks) -> Stage {
        Stage { buffer: Some(buffer), state: State::Idle, window: 0 }
    }

    /// The buffer is here, and no operation's result waits.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, State::Idle) && self.buffer.is_some()
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        matches!(self.state, State::InFlight { .. })
    }

    /// The buffer, which must be here.
    pub(crate) fn buffer(&mut self) -> &mut [u8] {
        self.buffer.as_mut().expect("no operation has the buffer")
    }

    /// Hands the buffer of an idle stage out, to travel.
    pub(crate) fn lend(&mut self) -> Blocks {
        assert!(self.is_idle(), "a buffer travels while no operation has it");
        self.buffer.take().expect("an idle stage has its buffer")
    }

    /// Takes a buffer that travelled back.
    pub(crate) fn return_buffer(&mut self, buffer: Blocks) {
        let before = self.buffer.replace(buffer);
        assert!(before.is_none() && matches!(self.state, State::Idle), "the buffer was lent");
    }

    /// Begins an operation with the first `bytes` of the buffer.
    pub(crate) fn start(
        &mut self,
        disk: &mut dyn Disk,
        id: u64,
        action: DiskAction,
        offset: u64,
        bytes: usize,
    ) {
        assert!(self.is_idle(), "a buffer serves one operation at a time");
        let buffer = self.buffer.take().expect("no operation has the buffer");
        self.state = State::InFlight { id, wanted: true };
        disk.start(DiskOp { id, action, offset, bytes, buffer });
    }

    /// Takes the operation's buffer and result back if it is this one's.
    pub(crate) fn take_back(&mut self, done: DiskDone) -> Result<Returned, DiskDone> {
        match self.state {
            State::InFlight { id, wanted } if id == done.op.id => {
                self.buffer = Some(done.op.buffer);
                self.state = if wanted { State::Over(done.result) } else { State::Idle };
                Ok(if wanted { Returned::Wanted } else { Returned::GivenUp })
            }
            _ => Err(done),
        }
    }

    /// The result of an operation that is over; leaves the buffer idle.
    pub(crate) fn result(&mut self) -> Option<Result<(), DiskError>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Over(result) => Some(result),
            other => {
                self.state = other;
                None
            }
        }
    }

    /// Forgets the operation; one in flight comes back unnoticed. True if one is in flight.
    pub(crate) fn give_up(&mut self) -> bool {
        match &mut self.state {
            State::InFlight { wanted, .. } => {
                *wanted = false;
                true
            }
            state => {
                *state = State::Idle;
                false
            }
        }
    }
}

/// What became of an operation that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    /// Its move waits for it.
    Wanted,
    /// Its move was given up.
    GivenUp,
}
