//! What a program keeps of a sequence beside its pages.

/// A section of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectionId(pub u32);

/// How the elements of a section are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionFormat {
    /// 4 bytes a value: what errors would grow in.
    F32,
    /// As keys and values are stored under this load.
    AsKv,
}

/// Fixed state of one sequence, addressed by lane: `[lanes_max, layers, elements]`.
///
/// At position 0 a section counts as zeros, whatever it holds: an op that reads one looks at the
/// position of the segment, and nothing is cleared when a lane changes hands. After a round it is
/// the state behind the segment's last row. Running the head again leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionSpec {
    /// For plans, errors and images.
    pub name: &'static str,
    /// Layers that have one.
    pub layers: u32,
    /// Values of one lane and layer.
    pub elements: u32,
    /// How they are stored.
    pub format: SectionFormat,
}
