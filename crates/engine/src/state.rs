//! Where the state of a sequence lies, and the same state as one run of bytes.

use std::ops::Range;

use ignis_backend::{Device, DeviceError};
use ignis_tiers::Payload;
use ignis_types::Bytes;

/// One section: its bytes a lane, and where lanes and device slots have theirs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// Start of `[lanes_max]`.
    pub(crate) lanes: u64,
    /// Start of `[retained_device]`.
    pub(crate) slots: u64,
    /// Of one lane or slot.
    pub(crate) bytes: u64,
}

/// Offsets from the device base of all that an image holds.
#[derive(Debug)]
pub(crate) struct StateMap {
    pub(crate) sections: Vec<Section>,
    pub(crate) pool: u64,
    pub(crate) page_bytes: u64,
    /// Slots below this are the device's, the others the host's.
    pub(crate) slots_device: u32,
}

impl StateMap {
    /// Start of a page.
    pub(crate) fn page(&self, page: u32) -> u64 {
        self.pool + u64::from(page) * self.page_bytes
    }

    /// Bytes of all sections together.
    pub(crate) fn sections_bytes(&self) -> u64 {
        self.sections.iter().map(|section| section.bytes).sum()
    }

    /// Bytes of an image of `tokens` tokens in `pages` pages.
    pub(crate) fn payload_bytes(&self, tokens: u32, pages: usize) -> u64 {
        4 * u64::from(tokens) + self.sections_bytes() + pages as u64 * self.page_bytes
    }

    /// Where a host slot lies in the block of all host slots.
    pub(crate) fn host_slot(&self, slot: u32) -> Range<usize> {
        let bytes = Bytes(self.sections_bytes()).as_usize();
        let at = (slot - self.slots_device) as usize * bytes;
        at..at + bytes
    }
}

/// Whose sections.
pub(crate) enum Sections<'a> {
    Lane(u32),
    DeviceSlot(u32),
    /// One behind the other.
    HostSlot(&'a [u8]),
}

/// The state of one sequence: its tokens as u32 in little-endian order, its sections, its pages.
///
/// Written to, it checks the tokens against those that it has: an image of other tokens fails.
pub(crate) struct StatePayload<'a> {
    pub(crate) device: &'a mut dyn Device,
    pub(crate) map: &'a StateMap,
    /// As many as the image has.
    pub(crate) tokens: &'a [u32],
    pub(crate) sections: Sections<'a>,
    /// As many as hold `tokens`.
    pub(crate) pages: &'a [u32],
}

/// Where a byte of the payload lies.
enum Place {
    /// Byte of the tokens.
    Token(usize),
    /// Offset from the device base.
    Device(u64),
    /// Byte of a host slot.
    Host(usize),
}

impl StatePayload<'_> {
    /// Where the bytes from `at` on lie, and how many of them lie in one piece.
    fn locate(&self, at: u64) -> (Place, u64) {
        let tokens = 4 * self.tokens.len() as u64;
        if at < tokens {
            return (Place::Token(Bytes(at).as_usize()), tokens - at);
        }
        let mut offset = at - tokens;
        let mut before = 0;
        for section in &self.map.sections {
            if offset >= section.bytes {
                offset -= section.bytes;
                before += section.bytes;
                continue;
            }
            let place = match self.sections {
                Sections::Lane(lane) => {
                    Place::Device(section.lanes + u64::from(lane) * section.bytes + offset)
                }
                Sections::DeviceSlot(slot) => {
                    Place::Device(section.slots + u64::from(slot) * section.bytes + offset)
                }
                Sections::HostSlot(_) => Place::Host(Bytes(before + offset).as_usize()),
            };
            return (place, section.bytes - offset);
        }
        let page = self.pages[Bytes(offset / self.map.page_bytes).as_usize()];
        let inside = offset % self.map.page_bytes;
        (Place::Device(self.map.page(page) + inside), self.map.page_bytes - inside)
    }
}

impl Payload for StatePayload<'_> {
    fn read(&mut self, mut at: u64, mut out: &mut [u8]) -> Result<(), DeviceError> {
        while !out.is_empty() {
            let (place, left) = self.locate(at);
            let (piece, rest) = out.split_at_mut(Bytes(left).as_usize().min(out.len()));
            match place {
                Place::Token(from) => {
                    let bytes: &[u8] = bytemuck::cast_slice(self.tokens);
                    piece.copy_from_slice(&bytes[from..from + piece.len()]);
                }
                Place::Device(from) => self.device.read(from, piece)?,
                Place::Host(from) => {
                    let Sections::HostSlot(bytes) = self.sections else {
                        unreachable!("only a host slot has places on the host")
                    };
                    piece.copy_from_slice(&bytes[from..from + piece.len()]);
                }
            }
            at += piece.len() as u64;
            out = rest;
        }
        Ok(())
    }

    fn write(&mut self, mut at: u64, mut bytes: &[u8]) -> Result<(), DeviceError> {
        while !bytes.is_empty() {
            let (place, left) = self.locate(at);
            let (piece, rest) = bytes.split_at(Bytes(left).as_usize().min(bytes.len()));
            match place {
                Place::Token(to) => {
                    let own: &[u8] = bytemuck::cast_slice(self.tokens);
                    if piece != &own[to..to + piece.len()] {
                        return Err(DeviceError::Fault { what: "an image of other tokens" });
                    }
                }
                Place::Device(to) => self.device.write(to, piece)?,
                Place::Host(_) => unreachable!("images are restored into lanes"),
            }
            at += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }
}

// Tokens travel as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "images hold little-endian tokens");
