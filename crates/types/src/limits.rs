//! The maxima from which every size of the plan follows.

/// Tokens of one KV page. Fixed: images, block tables and reservations all count in it.
pub const PAGE_TOKENS: u32 = 64;

/// Most decode seats that a load may have.
pub const LANES_MAX: usize = 256;

/// Most retained slots that a load may have, of both kinds together.
pub const RETAINED_MAX: u32 = 1 << 16;

/// What a load is sized for. Every byte of the plan is a function of these and the model's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Decode seats: the widest decode round.
    pub lanes_max: u32,
    /// Tokens of the longest prefill chunk.
    pub chunk_tokens_max: u32,
    /// Tokens of the longest sequence, prompt and completion together.
    pub context_tokens_max: u32,
    /// Pages of the KV pool.
    pub pages: u32,
    /// Retained slots whose sections lie in device memory.
    pub retained_device: u32,
    /// Retained slots whose sections lie in host memory.
    pub retained_host: u32,
}

/// A limit that no layout can be made from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// `name` is `found`; it must lie in `min..=max`.
    #[error("{name} is {found}; it must be from {min} to {max}")]
    OutOfRange {
        /// Which limit.
        name: &'static str,
        /// What was asked.
        found: u32,
        /// Smallest legal value.
        min: u32,
        /// Largest legal value.
        max: u32,
    },
}

impl Limits {
    /// Rows of the widest round: one prefill chunk and one decode token for every lane.
    pub fn round_rows_max(&self) -> u32 {
        self.chunk_tokens_max + self.lanes_max
    }

    /// Pages of one sequence at the longest context.
    pub fn sequence_pages_max(&self) -> u32 {
        self.context_tokens_max.div_ceil(PAGE_TOKENS)
    }

    /// Retained slots of both kinds: device slots come first.
    pub fn retained(&self) -> u32 {
        self.retained_device + self.retained_host
    }

    /// Checks each limit against the range that the code below can represent.
    pub fn check(&self) -> Result<(), LimitsError> {
        let range = |name, found, min, max| {
            if (min..=max).contains(&found) {
                Ok(())
            } else {
                Err(LimitsError::OutOfRange { name, found, min, max })
            }
        };
        range("lanes", self.lanes_max, 1, LANES_MAX as u32)?;
        range("prefill chunk", self.chunk_tokens_max, 1, 1 << 16)?;
        range("context", self.context_tokens_max, 1, 1 << 24)?;
        range("pages", self.pages, 1, u32::MAX / PAGE_TOKENS)?;
        range("device retained slots", self.retained_device, 0, RETAINED_MAX)?;
        range("host retained slots", self.retained_host, 0, RETAINED_MAX - self.retained_device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_lanes_are_refused_by_name() {
        let limits = Limits {
            lanes_max: 0,
            chunk_tokens_max: 64,
            context_tokens_max: 64,
            pages: 1,
            retained_device: 0,
            retained_host: 0,
        };
        assert!(matches!(limits.check(), Err(LimitsError::OutOfRange { name: "lanes", .. })));
    }
}
