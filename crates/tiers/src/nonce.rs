//! Numbers that tell one image's frames from those of any other.

/// Another number for each image of this process; those of other processes differ as good as
/// surely.
#[derive(Debug)]
pub(crate) struct Nonces {
    state: u64,
}

impl Nonces {
    /// `seed` must be another one in each process.
    pub(crate) fn new(seed: u64) -> Nonces {
        Nonces { state: seed }
    }

    /// The next number (splitmix64, which repeats none in 2^64).
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
