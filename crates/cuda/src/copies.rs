//! Copies beside the rounds: a stream each way, and one for the sums of what it copied, ordered by
//! events.
//!
//! What is copied waits for everything that the compute stream was given before, but for a round
//! under way, which touches none of it: so windows travel while the round runs, and the bus is free
//! when the next one's inputs want it. No round ever waits for a copy: its end is an event that the
//! host has seen. A copy owns its host memory until then, so that nothing is dropped or reused
//! under it. Sums are made of the reservation's bytes once they have been copied, while the next
//! copies run.

use arrayvec::ArrayVec;
use ignis_backend::{Blocks, COPIES_MAX, Copied, CopyId, CopyPart, CopyWay, DeviceError, Sum};

use crate::abi::SUM_PARTS;
use crate::driver::Context;
use crate::memory::Memory;
use crate::stream::Event;
use crate::sums::Sums;

/// Both ways, and what is in flight.
pub(crate) struct Copies {
    /// Out, in.
    lines: [Line; 2],
    /// Passed when the compute stream has done what copies wait for.
    given: Event,
    /// Whether all that the stream was given since the mark is a round that is under way.
    is_marked: bool,
    /// Once there is a reservation.
    sums: Option<Sums>,
}

/// One way.
struct Line {
    /// Passed when the copies are done that are summed next.
    copied: Event,
    /// Passed when the copies of each place are done, and their sum.
    done: [Event; COPIES_MAX],
    flights: [Option<Flight>; COPIES_MAX],
}

/// Copies that belong together.
struct Flight {
    host: Blocks,
    /// Whether the driver took them, and how many bytes are summed.
    begun: Result<u64, DeviceError>,
}

impl Line {
    fn new() -> Result<Line, DeviceError> {
        let done = [Event::new()?, Event::new()?, Event::new()?, Event::new()?];
        Ok(Line { copied: Event::new()?, done, flights: [const { None }; COPIES_MAX] })
    }
}

impl Copies {
    /// Nothing in flight.
    pub(crate) fn new() -> Result<Copies, DeviceError> {
        let lines = [Line::new()?, Line::new()?];
        Ok(Copies { lines, given: Event::new()?, is_marked: false, sums: None })
    }

    /// Marks what copies that begin beside the next round wait for: what the compute stream was
    /// given so far.
    pub(crate) fn mark(&self, context: &Context) -> Result<(), DeviceError> {
        self.given.record(context)
    }

    /// Tells whether the mark stands: behind it, the compute stream has a round that is under way,
    /// and nothing else.
    pub(crate) fn set_marked(&mut self, is_marked: bool) {
        self.is_marked = is_marked;
    }

    /// Has what travels be summed from now on.
    pub(crate) fn place_sums(&mut self, sums: Sums) {
        self.sums = Some(sums);
    }

    /// Bytes pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.sums.as_ref().map_or(0, Sums::pinned_bytes)
    }

    /// Begins copies between the reservation and `host`; they are summed if they are `still`.
    pub(crate) fn begin(
        &mut self,
        (context, memory): (&Context, &Memory),
        entered: Result<(), DeviceError>,
        (way, still): (CopyWay, bool),
        host: Blocks,
        parts: &mut dyn Iterator<Item = CopyPart>,
    ) -> CopyId {
        let side = usize::from(way == CopyWay::In);
        let (stream, summing) = (&context.copy_streams[side], &context.sum_streams[side]);
        let Line { copied, done, flights } = &mut self.lines[side];
        let place = flights.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| panic!("more than {COPIES_MAX} copies in flight"));
        let slot = 2 * place + side;
        let sums = self.sums.as_ref().filter(|_| still);
        let flight = flights[place].insert(Flight { host, begun: Ok(0) });
        let mut begin = || {
            if !self.is_marked {
                self.given.record(context)?;
            }
            stream.wait_for(&self.given)?;
            if let Some(sums) = sums {
                sums.clear(memory, summing, slot)?;
            }
            let mut summed = 0;
            loop {
                let batch: ArrayVec<CopyPart, SUM_PARTS> = parts.take(SUM_PARTS).collect();
                if batch.is_empty() {
                    return Ok(summed);
                }
                for part in &batch {
                    let host = &mut flight.host[part.host..part.host + part.bytes];
                    // SAFETY: the flight owns the bytes until `end` has seen its event pass.
                    unsafe { memory.travel(stream, way, part.at, host)? };
                }
                if let Some(sums) = sums {
                    copied.record_on(stream)?;
                    summing.wait_for(copied)?;
                    summed = sums.add((context, memory), summing, slot, &batch, summed)?;
                }
            }
        };
        let begun = entered.and_then(|()| begin());
        let mark = || {
            copied.record_on(stream)?;
            summing.wait_for(copied)?;
            done[place].record_on(summing)
        };
        // Also behind what was begun before a failure. Without a mark, nothing may be in flight.
        let marked = mark().inspect_err(|_| {
            let _ = (stream.wait(), summing.wait());
        });
        flight.begun = begun.and_then(|summed| marked.map(|()| summed));
        CopyId(slot as u32)
    }

    /// Gives back the memory of copies that are over.
    pub(crate) fn end(
        &mut self,
        entered: Result<(), DeviceError>,
        copies: CopyId,
        wait: bool,
    ) -> Option<Copied> {
        let slot = copies.0 as usize;
        let place = slot / 2;
        let line = &mut self.lines[slot % 2];
        let done = &line.done[place];
        assert!(line.flights[place].is_some(), "copies end once");
        // An error is sticky: nothing of this context runs any more, copies neither.
        let over = entered.and_then(|()| match wait {
            true => done.wait().map(|()| true),
            false => done.is_over(),
        });
        if matches!(over, Ok(false)) {
            return None;
        }
        let Flight { host, begun } = line.flights[place].take()?;
        let sum = |bytes| self.sums.as_ref().map_or(Sum::NONE, |sums| sums.result(slot, bytes));
        let result = over.and(begun).map(sum);
        Some(Copied { host, result })
    }

    /// Waits for what is in flight, so that its memory may go.
    pub(crate) fn settle(&self, context: &Context) {
        for stream in context.copy_streams.iter().chain(&context.sum_streams) {
            let _ = stream.wait();
        }
    }
}
