//! Named regions, counted before anything is reserved.

use ignis_types::{Bytes, Overflow, PlanLine};

/// One region of a [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionId(usize);

/// A named run of bytes that belongs to one plan line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The line that pays for it.
    pub line: PlanLine,
    /// For errors and tables.
    pub name: String,
    /// Offset from the start of the reservation.
    pub offset: u64,
    /// Size, rounded up to the layout's alignment.
    pub bytes: Bytes,
}

/// Regions one after another, without gaps: the sum of the lines is the reservation and what was
/// counted outside it.
#[derive(Clone, Debug)]
pub struct Layout {
    align: u64,
    regions: Vec<Region>,
    outside: Vec<(PlanLine, Bytes)>,
    total: Bytes,
}

impl Layout {
    /// An empty layout whose regions start and end on multiples of `align`, a power of two.
    pub fn new(align: u64) -> Self {
        Layout { align, regions: Vec::new(), outside: Vec::new(), total: Bytes::ZERO }
    }

    /// Appends a region of at least `bytes`.
    pub fn region(
        &mut self,
        line: PlanLine,
        name: impl Into<String>,
        bytes: Bytes,
    ) -> Result<RegionId, Overflow> {
        let bytes = bytes.aligned(self.align)?;
        let offset = self.total.0;
        self.total = self.total.plus(bytes)?;
        self.regions.push(Region { line, name: name.into(), offset, bytes });
        Ok(RegionId(self.regions.len() - 1))
    }

    /// Counts bytes that a line has outside the reservation, such as a driver's own.
    pub fn outside(&mut self, line: PlanLine, bytes: Bytes) {
        self.outside.push((line, bytes));
    }

    /// A region's place and size.
    pub fn get(&self, id: RegionId) -> &Region {
        &self.regions[id.0]
    }

    /// Every region, in order.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Bytes of one line: the sum of its regions, and what it has outside.
    pub fn line_bytes(&self, line: PlanLine) -> Bytes {
        let regions = self.regions.iter().map(|r| (r.line, r.bytes));
        let all = regions.chain(self.outside.iter().copied());
        Bytes(all.filter(|(of, _)| *of == line).map(|(_, bytes)| bytes.0).sum())
    }

    /// Bytes of the reservation: all regions.
    pub fn total(&self) -> Bytes {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_sum_to_the_total_and_regions_never_overlap() {
        let mut layout = Layout::new(64);
        for (line, bytes) in
            [(PlanLine::Weights, 100), (PlanLine::KvPool, 64), (PlanLine::Weights, 1)]
        {
            layout.region(line, "r", Bytes(bytes)).unwrap();
        }
        assert_eq!(layout.line_bytes(PlanLine::Weights), Bytes(128 + 64));
        let sum: u64 = PlanLine::ALL.iter().map(|&line| layout.line_bytes(line).0).sum();
        assert_eq!(sum, layout.total().0);
        for pair in layout.regions().windows(2) {
            assert_eq!(pair[0].offset + pair[0].bytes.0, pair[1].offset);
        }
    }
}
