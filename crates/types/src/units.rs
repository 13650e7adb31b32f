//! Byte counts with checked arithmetic.

use std::fmt;

/// A sum or product left the range of `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a size is larger than 2^64 - 1 bytes")]
pub struct Overflow;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// `self + other`, or `Overflow`.
    pub fn plus(self, other: Bytes) -> Result<Bytes, Overflow> {
        self.0.checked_add(other.0).map(Bytes).ok_or(Overflow)
    }

    /// `self * count`, or `Overflow`.
    pub fn times(self, count: u64) -> Result<Bytes, Overflow> {
        self.0.checked_mul(count).map(Bytes).ok_or(Overflow)
    }

    /// Rounded up to a multiple of `align`, a power of two.
    pub fn aligned(self, align: u64) -> Result<Bytes, Overflow> {
        assert!(align.is_power_of_two(), "alignment {align} is not a power of two");
        self.0.checked_add(align - 1).map(|n| Bytes(n & !(align - 1))).ok_or(Overflow)
    }

    /// As an in-memory size.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).expect("ignis runs on 64-bit targets only")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alignment_rounds_up_and_never_wraps() {
        assert_eq!(Bytes(1).aligned(64), Ok(Bytes(64)));
        assert_eq!(Bytes(64).aligned(64), Ok(Bytes(64)));
        assert_eq!(Bytes(u64::MAX).aligned(64), Err(Overflow));
    }
}
