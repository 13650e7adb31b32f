//! A sequence's state as plain bytes, and moves run to their end.
#![allow(dead_code)]

use std::time::Duration;

use ignis_backend::DeviceError;
use ignis_tiers::{ImageHead, ImageId, Kind, NoPayload, Payload, Step, Tier, TierError, Tiers};

/// State that is a run of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State(pub(crate) Vec<u8>);

impl State {
    /// `bytes` of state, of which the first are `position` tokens; all follow from `serial`, which
    /// is also the first token.
    pub(crate) fn new(serial: u32, position: u32, bytes: usize) -> State {
        let mut state = u64::from(serial).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut content: Vec<u8> = (0..bytes)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        assert!(position > 0 && bytes >= 4 * position as usize);
        content[..4].copy_from_slice(&serial.to_le_bytes());
        State(content)
    }

    /// As much room, with other bytes in it.
    pub(crate) fn sink(bytes: u64) -> State {
        State(vec![0x55; bytes as usize])
    }

    pub(crate) fn tokens(&self, position: u32) -> Vec<u32> {
        let tokens = self.0.chunks_exact(4).take(position as usize);
        tokens.map(|token| u32::from_le_bytes(token.try_into().unwrap())).collect()
    }
}

impl Payload for State {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        out.copy_from_slice(&self.0[at as usize..][..out.len()]);
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

pub(crate) fn head(kind: Kind, position: u32, state: &State) -> ImageHead {
    ImageHead { kind, class: 1, position, payload_bytes: state.0.len() as u64 }
}

/// Steps the move out to its end.
pub(crate) fn finish_out(
    tiers: &mut Tiers,
    source: &mut dyn Payload,
) -> Result<ImageId, TierError> {
    loop {
        match tiers.step_out(source) {
            Step::Idle => panic!("no move out is in flight"),
            Step::Waiting => tiers.wait(Duration::from_secs(10)),
            Step::Advanced => {}
            Step::Landed(image) => return Ok(image),
            Step::Failed(_, error) => return Err(error),
        }
    }
}

/// Steps the move in to its end.
pub(crate) fn finish_in(tiers: &mut Tiers, sink: &mut dyn Payload) -> Result<ImageId, TierError> {
    loop {
        match tiers.step_in(sink) {
            Step::Idle => panic!("no move in is in flight"),
            Step::Waiting => tiers.wait(Duration::from_secs(10)),
            Step::Advanced => {}
            Step::Landed(image) => return Ok(image),
            Step::Failed(_, error) => return Err(error),
        }
    }
}

/// Makes an image.
pub(crate) fn put(tiers: &mut Tiers, head: ImageHead, tier: Tier, state: &State) -> ImageId {
    let image = tiers.begin_out(head, tier).unwrap();
    assert_eq!(finish_out(tiers, &mut state.clone()).unwrap(), image);
    image
}

/// Copies an image to KV-disk.
pub(crate) fn copy(tiers: &mut Tiers, image: ImageId) -> ImageId {
    let copy = tiers.begin_copy(image, 0).unwrap();
    assert_eq!(finish_out(tiers, &mut NoPayload).unwrap(), copy);
    copy
}

/// Restores an image.
pub(crate) fn get(tiers: &mut Tiers, image: ImageId) -> Result<State, TierError> {
    let mut sink = State::sink(tiers.head(image).unwrap().payload_bytes);
    tiers.begin_in(image)?;
    finish_in(tiers, &mut sink)?;
    Ok(sink)
}
