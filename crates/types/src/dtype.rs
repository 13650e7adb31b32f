//! Element types of stored tensors, GGML block quantisations included.

use crate::units::{Bytes, Overflow};

/// How the elements of a tensor are stored.
///
/// Quantised types come in blocks: `block_elements` values share `block_bytes` bytes. Sizes are the
/// GGML ones (`ggml-quants`; checked against `gguf` 0.19 in `formats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F16,
    BF16,
    I32,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

impl DType {
    /// Every dtype, in declaration order.
    pub const ALL: [DType; 14] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
    ];

    /// Elements that share one block; 1 for plain types.
    pub const fn block_elements(self) -> u64 {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 256,
        }
    }

    /// Bytes of one block; the element size for plain types.
    pub const fn block_bytes(self) -> u64 {
        match self {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q2K => 84,
            DType::Q3K => 110,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
        }
    }

    /// True for the block quantisations.
    pub const fn is_quantised(self) -> bool {
        self.block_elements() > 1
    }

    /// Bytes of `elements` values.
    ///
    /// `elements` must be a multiple of `block_elements`; `None` otherwise.
    pub fn bytes_of(self, elements: u64) -> Result<Option<Bytes>, Overflow> {
        if !elements.is_multiple_of(self.block_elements()) {
            return Ok(None);
        }
        Bytes(self.block_bytes()).times(elements / self.block_elements()).map(Some)
    }

    /// The name used in tables and errors: GGML's spelling.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I32 => "I32",
            DType::Q4_0 => "Q4_0",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q8_0 => "Q8_0",
            DType::Q2K => "Q2_K",
            DType::Q3K => "Q3_K",
            DType::Q4K => "Q4_K",
            DType::Q5K => "Q5_K",
            DType::Q6K => "Q6_K",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_whole_blocks_only() {
        assert_eq!(DType::Q4_1.bytes_of(64), Ok(Some(Bytes(40))));
        assert_eq!(DType::Q4_1.bytes_of(33), Ok(None));
        assert_eq!(DType::F32.bytes_of(u64::MAX), Err(Overflow));
    }
}
