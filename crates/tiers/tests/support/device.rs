//! State on a device that copies windows beside the steps.

use std::ops::Range;

use ignis_backend::{Blocks, COPIES_MAX, Copied, CopyId, DeviceError, Sum};
use ignis_tiers::Payload;

use crate::support::State;

/// Bytes of the tokens, which the host has.
pub(crate) const TOKENS: usize = 8;

/// A window on its way: out of the state, or into it.
pub(crate) struct Flight {
    id: CopyId,
    inward: bool,
    at: usize,
    frame: Blocks,
    within: Range<usize>,
}

/// State on a device, but for its tokens: windows arrive when the test says so, or when they are
/// waited for.
pub(crate) struct Device {
    pub(crate) state: State,
    pub(crate) flights: Vec<Flight>,
    /// Windows that were begun so far.
    pub(crate) begun: u32,
    /// Windows that may arrive without being waited for.
    pub(crate) arrivals: usize,
    /// The window, as they are begun, whose copies fail.
    pub(crate) fails: Option<u32>,
    /// The window of which a byte is another one when it has arrived.
    pub(crate) flips: Option<(u32, usize)>,
    /// Whether a token is another one when its window is about to travel in.
    pub(crate) tokens_flip: bool,
}

impl Device {
    pub(crate) fn of(state: &State) -> Device {
        let state = state.clone();
        Device {
            state,
            flights: vec![],
            begun: 0,
            arrivals: 0,
            fails: None,
            flips: None,
            tokens_flip: false,
        }
    }

    pub(crate) fn land(&mut self, id: CopyId) -> Copied {
        let at = self.flights.iter().position(|flight| flight.id == id).unwrap();
        let Flight { inward, at, mut frame, within, .. } = self.flights.remove(at);
        let (bytes, payload) = (at..at + within.len(), &mut self.state.0);
        if self.fails == Some(id.0) {
            match inward {
                true => payload[bytes].fill(0xBB),
                false => frame[within].fill(0xBB),
            }
            return Copied { host: frame, result: Err(DeviceError::Fault { what: "a copy" }) };
        }
        let on_host = TOKENS.saturating_sub(at);
        let lies = bytes.start + on_host..bytes.end;
        // What is summed is what the device has: after the way in, before the way out.
        let out = Sum::of(&payload[lies.clone()]);
        match inward {
            true => payload[bytes.clone()].copy_from_slice(&frame[within.clone()]),
            false => frame[within.clone()].copy_from_slice(&payload[bytes.clone()]),
        }
        if let Some((window, byte)) = self.flips
            && window == id.0
        {
            match inward {
                true => payload[bytes.start + byte] ^= 4,
                false => frame[within.start + byte] ^= 4,
            }
        }
        let result = Ok(if inward { Sum::of(&payload[lies]) } else { out });
        Copied { host: frame, result }
    }

    fn begin(&mut self, inward: bool, at: u64, frame: Blocks, within: Range<usize>) -> CopyId {
        let (id, at) = (CopyId(self.begun), at as usize);
        self.begun += 1;
        self.flights.push(Flight { id, inward, at, frame, within });
        assert!(self.flights.len() <= COPIES_MAX);
        id
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
        mut frame: Blocks,
        within: Range<usize>,
    ) -> Result<CopyId, (Blocks, DeviceError)> {
        frame[within.start] ^= u8::from(self.tokens_flip);
        let tokens = TOKENS.saturating_sub(at as usize);
        if frame[within.clone()][..tokens] != self.state.0[at as usize..][..tokens] {
            return Err((frame, DeviceError::Fault { what: "other tokens" }));
        }
        Ok(self.begin(true, at, frame, within))
    }
    fn end(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        if !wait {
            self.arrivals = self.arrivals.checked_sub(1)?;
        }
        Some(self.land(copies))
    }
}

/// Room for what a move in brings, of the same tokens.
pub(crate) fn sink(of: &State) -> Device {
    let mut device = Device::of(&State::sink(of.0.len() as u64));
    device.state.0[..TOKENS].copy_from_slice(&of.0[..TOKENS]);
    device
}
