//! One reservation, and the moment after which nothing grows.

use std::marker::PhantomData;

use ignis_types::{Bytes, PlanLine};

use crate::layout::Layout;

/// What a reservation is taken from: a device's memory.
pub trait Space {
    /// Why memory was not given.
    type Error;
    /// Takes `bytes` as one block.
    fn reserve(&mut self, bytes: Bytes) -> Result<(), Self::Error>;
    /// How often memory was asked for so far, refused or not.
    fn reservations(&self) -> u64;
}

/// Why an arena could not be sealed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// A line of the plan and what was laid out for it differ.
    #[error("plan line {line} is {planned} B, but the load reserved {reserved} B")]
    LineDiffers {
        /// Name of the line.
        line: &'static str,
        /// Bytes in the plan that was printed.
        planned: u64,
        /// Bytes of its regions.
        reserved: u64,
    },
}

/// State of an arena that is being loaded.
#[derive(Debug)]
pub struct Building(());

/// State of an arena that serves: it has no method that takes memory.
#[derive(Debug)]
pub struct Sealed(());

/// A layout and the reservation that holds it.
#[derive(Debug)]
pub struct Arena<State> {
    layout: Layout,
    reservations: u64,
    state: PhantomData<State>,
}

impl Arena<Building> {
    /// Reserves the layout's bytes from `space`, as one block.
    pub fn map<S: Space>(layout: Layout, space: &mut S) -> Result<Self, S::Error> {
        space.reserve(layout.total())?;
        Ok(Arena { layout, reservations: 0, state: PhantomData })
    }

    /// Compares every line with `plan` and ends the load. Refuses on the first difference.
    pub fn seal<S: Space>(
        self,
        plan: &[(PlanLine, Bytes)],
        space: &S,
    ) -> Result<Arena<Sealed>, ArenaError> {
        for line in PlanLine::ALL {
            let planned =
                plan.iter().filter(|(name, _)| *name == line).map(|(_, bytes)| bytes.0).sum();
            let reserved = self.layout.line_bytes(line).0;
            if planned != reserved {
                return Err(ArenaError::LineDiffers { line: line.name(), planned, reserved });
            }
        }
        Ok(Arena { layout: self.layout, reservations: space.reservations(), state: PhantomData })
    }
}

impl Arena<Sealed> {
    /// Requests for memory since the seal; anything but 0 is a bug.
    pub fn allocations_after_seal<S: Space>(&self, space: &S) -> u64 {
        space.reservations() - self.reservations
    }
}

impl<State> Arena<State> {
    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Heap(u64);
    impl Space for Heap {
        type Error = ();
        fn reserve(&mut self, _: Bytes) -> Result<(), ()> {
            self.0 += 1;
            Ok(())
        }
        fn reservations(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn a_plan_that_differs_by_a_byte_is_refused_by_line() {
        let mut layout = Layout::new(64);
        layout.region(PlanLine::Weights, "w", Bytes(64)).unwrap();
        let mut heap = Heap(0);
        let arena = Arena::map(layout.clone(), &mut heap).unwrap();
        let refused = arena.seal(&[(PlanLine::Weights, Bytes(63))], &heap).unwrap_err();
        assert_eq!(refused, ArenaError::LineDiffers { line: "weights", planned: 63, reserved: 64 });

        let arena = Arena::map(layout, &mut heap).unwrap();
        let sealed = arena.seal(&[(PlanLine::Weights, Bytes(64))], &heap).unwrap();
        assert_eq!(sealed.allocations_after_seal(&heap), 0);
        heap.reserve(Bytes(1)).unwrap();
        assert_eq!(sealed.allocations_after_seal(&heap), 1);
    }
}
