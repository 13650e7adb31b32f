//! Where the state of a sequence lies, and the same state as one run of bytes.

use std::ops::Range;

use ignis_backend::{Blocks, Copied, CopyId, CopyPart, CopyWay, Device, DeviceError};
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
    /// Whether to wait for the first window that is asked for.
    pub(crate) wait: bool,
    pub(crate) state: State<'a>,
}

/// Where that state lies.
pub(crate) struct State<'a> {
    pub(crate) map: &'a StateMap,
    /// As many as the image has.
    pub(crate) tokens: &'a [u32],
    pub(crate) sections: Sections<'a>,
    /// As many as hold `tokens`.
    pub(crate) pages: &'a [u32],
    /// Whether a lane may write behind `tokens` meanwhile, into the last page.
    pub(crate) tail_changes: bool,
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

impl State<'_> {
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

    /// The pieces that the payload's bytes from `at` on lie in, for a frame where they lie
    /// `within`: each with its bytes in the frame.
    fn pieces(
        &self,
        mut at: u64,
        within: Range<usize>,
    ) -> impl Iterator<Item = (Place, Range<usize>)> {
        let Range { mut start, end } = within;
        std::iter::from_fn(move || {
            if start == end {
                return None;
            }
            let (place, left) = self.locate(at);
            let piece = start..end.min(start.saturating_add(Bytes(left).as_usize()));
            at += piece.len() as u64;
            start = piece.end;
            Some((place, piece))
        })
    }

    /// Those of them that lie on the device.
    fn parts(&self, at: u64, within: Range<usize>) -> impl Iterator<Item = CopyPart> {
        self.pieces(at, within).filter_map(|(place, piece)| match place {
            Place::Device(at) => Some(CopyPart { at, host: piece.start, bytes: piece.len() }),
            Place::Token(_) | Place::Host(_) => None,
        })
    }

    /// Whether nobody writes to bytes of the payload before `end` meanwhile.
    fn is_still(&self, end: u64) -> bool {
        let whole = self.map.payload_bytes(self.tokens.len() as u32, self.pages.len());
        !self.tail_changes || end <= whole - self.map.page_bytes
    }

    /// The bytes of the tokens.
    fn token_bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.tokens)
    }

    /// The host slot that the sections lie in.
    fn host_slot(&self) -> &[u8] {
        match self.sections {
            Sections::HostSlot(bytes) => bytes,
            _ => unreachable!("only a host slot has places on the host"),
        }
    }

    /// Compares tokens with the state's own, from byte `to` of them.
    fn check_tokens(&self, to: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        match bytes == &self.token_bytes()[to..to + bytes.len()] {
            true => Ok(()),
            false => Err(DeviceError::Fault { what: "an image of other tokens" }),
        }
    }
}

impl Payload for StatePayload<'_> {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        for (place, piece) in self.state.pieces(at, 0..out.len()) {
            let out = &mut out[piece];
            match place {
                Place::Token(from) => {
                    out.copy_from_slice(&self.state.token_bytes()[from..from + out.len()]);
                }
                Place::Device(from) => self.device.read(from, out)?,
                Place::Host(from) => {
                    out.copy_from_slice(&self.state.host_slot()[from..from + out.len()]);
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        for (place, piece) in self.state.pieces(at, 0..bytes.len()) {
            match place {
                Place::Token(to) => self.state.check_tokens(to, &bytes[piece])?,
                Place::Device(to) => self.device.write(to, &bytes[piece])?,
                Place::Host(_) => unreachable!("images are restored into lanes"),
            }
        }
        Ok(())
    }

    fn is_beside(&self) -> bool {
        self.device.copies_beside()
    }

    fn begin_read(&mut self, at: u64, mut frame: Blocks, within: Range<usize>) -> CopyId {
        for (place, piece) in self.state.pieces(at, within.clone()) {
            let (from, source) = match place {
                Place::Token(from) => (from, self.state.token_bytes()),
                Place::Host(from) => (from, self.state.host_slot()),
                Place::Device(_) => continue,
            };
            let bytes = &source[from..from + piece.len()];
            frame[piece].copy_from_slice(bytes);
        }
        let still = self.state.is_still(at + within.len() as u64);
        self.device.begin_copies(CopyWay::Out, frame, &mut self.state.parts(at, within), still)
    }

    fn begin_write(
        &mut self,
        at: u64,
        frame: Blocks,
        within: Range<usize>,
    ) -> Result<CopyId, (Blocks, DeviceError)> {
        for (place, piece) in self.state.pieces(at, within.clone()) {
            let result = match place {
                Place::Token(to) => self.state.check_tokens(to, &frame[piece]),
                Place::Device(_) => Ok(()),
                Place::Host(_) => unreachable!("images are restored into lanes"),
            };
            if let Err(error) = result {
                return Err((frame, error));
            }
        }
        Ok(self.device.begin_copies(CopyWay::In, frame, &mut self.state.parts(at, within), true))
    }

    fn end(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        self.device.end_copies(copies, wait || std::mem::take(&mut self.wait))
    }
}

// Tokens travel as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "images hold little-endian tokens");
