//! What the engine does between rounds: retained slots, images, moves.

use std::time::Duration;

use ignis_engine::MoveWay;
use ignis_tiers::{ImageId, Kind};
use ignis_types::SlotId;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::engine::{Engine, unsigned};
use crate::errors::from_engine;
use crate::sampling::Sampling;
use crate::tiers::tier;

/// `(event, image, intact, text)`; see the stub.
type Event = (u32, u64, bool, String);

/// `(image, kind, class, tokens)`; see the stub.
type FoundImage = (u64, u32, u8, Vec<u32>);

fn kind(number: u32) -> PyResult<Kind> {
    u8::try_from(number).ok().and_then(Kind::from_code).ok_or_else(|| {
        PyValueError::new_err(format!("kind is {number}, expected 0 live, 1 checkpoint, 2 prefix"))
    })
}

#[pymethods]
impl Engine {
    #[getter]
    fn retained_slots(&self) -> PyResult<u32> {
        Ok(self.lock()?.retained_slots())
    }

    fn pages_held(&self, py: Python<'_>, lanes: &Bound<'_, PyAny>, count: usize) -> PyResult<u32> {
        if count == 0 {
            // An empty array has no aligned buffer to look at.
            return Ok(0);
        }
        let lanes = unsigned(py, &PyBuffer::get(lanes)?, count)?;
        self.lock()?.pages_held(&lanes).map_err(from_engine)
    }

    fn adopt(&self, py: Python<'_>, lane: u32, slot: u32) -> PyResult<()> {
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        py.detach(|| inner.adopt(lane, SlotId(slot))).map_err(from_engine)
    }

    fn capture(&self, py: Python<'_>, lane: u32, slot: u32) -> PyResult<()> {
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        py.detach(|| inner.capture(lane, SlotId(slot))).map_err(from_engine)
    }

    fn drop_slot(&self, slot: u32) -> PyResult<()> {
        self.lock()?.drop_slot(SlotId(slot)).map_err(from_engine)
    }

    fn windows_for(&self, position: u32) -> PyResult<u32> {
        Ok(self.lock()?.windows_for(position))
    }

    fn windows_free(&self, of: u32) -> PyResult<u32> {
        Ok(self.lock()?.tiers().windows_free(tier(of)?))
    }

    fn windows_total(&self, of: u32) -> PyResult<u32> {
        Ok(self.lock()?.tiers().windows_total(tier(of)?))
    }

    fn move_out(&self, lane: u32, to: u32) -> PyResult<u64> {
        Ok(self.lock()?.move_out(lane, tier(to)?).map_err(from_engine)?.0)
    }

    fn spill(&self, slot: u32, to: u32, of_kind: u32, class_: u8) -> PyResult<u64> {
        let (to, of_kind) = (tier(to)?, kind(of_kind)?);
        let image = self.lock()?.spill(SlotId(slot), to, of_kind, class_);
        Ok(image.map_err(from_engine)?.0)
    }

    fn copy_image(&self, image: u64, class_: u8) -> PyResult<u64> {
        Ok(self.lock()?.copy_image(ImageId(image), class_).map_err(from_engine)?.0)
    }

    #[pyo3(signature = (image, lane, tokens, pages, sampling, prompt_tokens = None))]
    fn move_in(
        &self,
        py: Python<'_>,
        image: u64,
        lane: u32,
        tokens: PyBuffer<u32>,
        pages: u32,
        sampling: &Sampling,
        prompt_tokens: Option<u32>,
    ) -> PyResult<()> {
        let tokens = unsigned(py, &tokens, tokens.item_count())?;
        let admission = sampling.admission(&tokens, prompt_tokens, pages);
        self.lock()?.move_in(ImageId(image), lane, &admission).map_err(from_engine)
    }

    fn advance(&self, py: Python<'_>, wait_us: u64) -> PyResult<Vec<Event>> {
        let mut guard = self.lock()?;
        let inner = &mut *guard;
        let events = py.detach(|| inner.advance(Duration::from_micros(wait_us)));
        let event = |ended: ignis_engine::MoveEvent| {
            let failed = ended.failure.is_some();
            let number = match ended.way {
                MoveWay::Out => u32::from(failed),
                MoveWay::In => 2 + u32::from(failed),
            };
            let damaged = ended.failure.as_ref().is_some_and(ignis_tiers::TierError::is_damage);
            let text = ended.failure.map(|error| error.to_string()).unwrap_or_default();
            (number, ended.image.0, !damaged, text)
        };
        Ok(events.into_iter().flatten().map(event).collect())
    }

    fn moving(&self) -> PyResult<(bool, bool)> {
        Ok(self.lock()?.moving())
    }

    fn abandon_out(&self) -> PyResult<()> {
        self.lock()?.abandon_out();
        Ok(())
    }

    fn abandon_in(&self) -> PyResult<()> {
        self.lock()?.abandon_in();
        Ok(())
    }

    fn drop_image(&self, image: u64) -> PyResult<()> {
        self.lock()?.drop_image(ImageId(image)).map_err(from_engine)
    }

    fn found_images(&self) -> PyResult<Vec<FoundImage>> {
        let found = self.lock()?.take_found().into_iter();
        Ok(found
            .map(|found| {
                let kind = u32::from(found.head.kind.code());
                (found.image.0, kind, found.head.class, found.tokens)
            })
            .collect())
    }

    fn disk_state(&self) -> PyResult<(u32, u64, u64, u64)> {
        let guard = self.lock()?;
        let disk = guard.tiers().disk_counts();
        Ok((guard.tiers().removed_at_start(), disk.bytes_read, disk.bytes_written, disk.failures))
    }
}
