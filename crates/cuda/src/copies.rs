//! Copies beside the rounds: a stream each way, ordered by events.
//!
//! What is copied waits for everything that the compute stream was given before. A copy owns its
//! host memory from beginning to end, so that nothing is dropped or reused under it; the end is an
//! event that the host has seen, and that the compute stream passes before it goes on.

use ignis_backend::{Blocks, COPIES_MAX, Copied, CopyId, CopyPart, CopyWay, DeviceError};

use crate::driver::{Context, Event};
use crate::memory::Memory;

/// Both ways, and what is in flight.
pub(crate) struct Copies {
    out: Line,
    inward: Line,
}

/// One way.
struct Line {
    /// Passed when the compute stream has done what it was given before the copies.
    given: Event,
    /// Passed when the copies of each place are done.
    done: [Event; COPIES_MAX],
    flights: [Option<Flight>; COPIES_MAX],
}

/// Copies that belong together.
struct Flight {
    host: Blocks,
    /// Whether the driver took them.
    begun: Result<(), DeviceError>,
}

impl Line {
    fn new() -> Result<Line, DeviceError> {
        let done = [Event::new()?, Event::new()?, Event::new()?, Event::new()?];
        Ok(Line { given: Event::new()?, done, flights: [const { None }; COPIES_MAX] })
    }
}

impl Copies {
    /// Nothing in flight.
    pub(crate) fn new() -> Result<Copies, DeviceError> {
        Ok(Copies { out: Line::new()?, inward: Line::new()? })
    }

    fn line(&mut self, way: CopyWay) -> &mut Line {
        match way {
            CopyWay::Out => &mut self.out,
            CopyWay::In => &mut self.inward,
        }
    }

    /// Begins copies between the reservation and `host`.
    pub(crate) fn begin(
        &mut self,
        (context, memory): (&Context, &Memory),
        entered: Result<(), DeviceError>,
        way: CopyWay,
        host: Blocks,
        parts: &mut dyn Iterator<Item = CopyPart>,
    ) -> CopyId {
        let stream = &context.copy_streams[usize::from(way == CopyWay::In)];
        let line = self.line(way);
        let place = line.flights.iter().position(Option::is_none);
        let place = place.unwrap_or_else(|| panic!("more than {COPIES_MAX} copies in flight"));
        let flight = line.flights[place].insert(Flight { host, begun: Ok(()) });
        let mut begin = || {
            line.given.record(context)?;
            stream.wait_for(&line.given)?;
            for part in &mut *parts {
                let host = &mut flight.host[part.host..part.host + part.bytes];
                // SAFETY: the flight owns the bytes until `end` has seen its event pass.
                unsafe { memory.travel(stream, way, part.at, host)? };
            }
            Ok(())
        };
        let begun = entered.and_then(|()| begin());
        // Also behind what was begun before a failure. Without a mark, nothing may be in flight.
        let marked = line.done[place].record_on(stream).inspect_err(|_| {
            let _ = stream.wait();
        });
        flight.begun = begun.and(marked);
        CopyId(2 * place as u32 + u32::from(way == CopyWay::In))
    }

    /// Gives back the memory of copies that are over.
    pub(crate) fn end(
        &mut self,
        context: &Context,
        entered: Result<(), DeviceError>,
        copies: CopyId,
        wait: bool,
    ) -> Option<Copied> {
        let (place, inward) = (copies.0 as usize / 2, copies.0 % 2 == 1);
        let way = if inward { CopyWay::In } else { CopyWay::Out };
        let line = self.line(way);
        let done = &line.done[place];
        assert!(line.flights[place].is_some(), "copies end once");
        // An error is sticky: nothing of this context runs any more, copies neither.
        let over = entered.and_then(|()| match wait {
            true => done.wait().map(|()| true),
            false => done.is_over(),
        });
        let passed = match over {
            Ok(false) => return None,
            Ok(true) if inward => context.wait_for(done),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let Flight { host, begun } = line.flights[place].take()?;
        Some(Copied { host, result: begun.and(passed) })
    }

    /// Waits for what is in flight, so that its memory may go.
    pub(crate) fn settle(&self, context: &Context) {
        for stream in &context.copy_streams {
            let _ = stream.wait();
        }
    }
}
