//! CRC-64/NVME of bytes that are summed apart, and joined by arithmetic.
//!
//! A remainder modulo the polynomial is a `u64` whose bit `63 - n` stands for `x^n`.

use crc_fast::{CrcAlgorithm, checksum};

/// x^64 modulo the polynomial.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
const ONE: u64 = 1 << 63;

/// x to the bits of `n * 16^i` bytes, `[i][n]`: a product a digit is quick beside squaring.
const POWERS: [[u64; 16]; 16] = powers();

/// The checksum of some bytes, and how many they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum {
    /// CRC-64/NVME.
    pub value: u64,
    /// How many bytes.
    pub bytes: u64,
}

impl Sum {
    /// Of no bytes.
    pub const NONE: Sum = Sum { value: 0, bytes: 0 };

    /// Of `bytes`.
    pub fn of(bytes: &[u8]) -> Sum {
        let value = checksum(CrcAlgorithm::Crc64Nvme, bytes);
        Sum { value, bytes: bytes.len() as u64 }
    }

    /// Of the same bytes and then those of `next`.
    pub fn then(self, next: Sum) -> Sum {
        let value = product(self.value, power(next.bytes)) ^ next.value;
        Sum { value, bytes: self.bytes + next.bytes }
    }

    /// From the remainder of `bytes` bytes, begun with zeros and not inverted, and divided by x to
    /// the bits of `divided` bytes. It is linear: parts can be summed apart.
    pub fn of_remainder(remainder: u64, divided: u64, bytes: u64) -> Sum {
        let remainder = product(remainder, power(divided));
        // A sum begins with ones, and is inverted at its end.
        Sum { value: remainder ^ !product(u64::MAX, power(bytes)), bytes }
    }
}

/// a b.
const fn product(mut a: u64, b: u64) -> u64 {
    let (mut sum, mut n) = (0, 0);
    while n < 64 {
        sum ^= a & 0_u64.wrapping_sub(b >> (63 - n) & 1);
        a = a >> 1 ^ POLYNOMIAL & 0_u64.wrapping_sub(a & 1);
        n += 1;
    }
    sum
}

/// x to the bits of so many bytes.
fn power(mut bytes: u64) -> u64 {
    let mut result = ONE;
    let mut digits = POWERS.iter();
    while bytes > 0
        && let Some(digit) = digits.next()
    {
        result = product(result, digit[bytes as usize % 16]);
        bytes /= 16;
    }
    result
}

const fn powers() -> [[u64; 16]; 16] {
    let mut all = [[ONE; 16]; 16];
    let (mut digit, mut i) = (ONE >> 8, 0);
    while i < 16 {
        let mut n = 1;
        while n < 16 {
            all[i][n] = product(all[i][n - 1], digit);
            n += 1;
        }
        digit = product(all[i][15], digit);
        i += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc_fast::checksum_combine;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    #[test]
    fn the_sum_is_that_of_the_catalogue() {
        assert_eq!(Sum::of(b"123456789"), Sum { value: 0xae8b_1486_0a79_9888, bytes: 9 });
        assert_eq!(Sum::of(b""), Sum::NONE);
    }

    #[test]
    fn sums_of_parts_join_to_the_sum_of_the_whole() {
        let all = bytes(70_000);
        for at in [0, 1, 7, 8, 55, 4096, 4097, 65_536, 69_999, 70_000] {
            let (front, back) = all.split_at(at);
            let joined = Sum::of(front).then(Sum::of(back));
            assert_eq!(joined, Sum::of(&all), "cut at {at}");
            let (front, back) = (Sum::of(front), Sum::of(back));
            let combined =
                checksum_combine(CrcAlgorithm::Crc64Nvme, front.value, back.value, back.bytes);
            assert_eq!(joined.value, combined, "cut at {at}");
        }
    }

    #[test]
    fn lengths_beyond_any_window_join_as_the_crate_does() {
        let (front, value) = (Sum::of(b"front"), Sum::of(b"back").value);
        for bytes in [1 << 31, (1 << 32) + 5, (1 << 40) - 1] {
            let combined = checksum_combine(CrcAlgorithm::Crc64Nvme, front.value, value, bytes);
            assert_eq!(front.then(Sum { value, bytes }).value, combined, "{bytes} bytes");
        }
    }

    #[test]
    fn a_remainder_gives_the_sum() {
        let all = bytes(300);
        let mut remainder = 0;
        for (n, &byte) in (0..).zip(&all) {
            let sum = Sum::of(&all[..n as usize]);
            assert_eq!(Sum::of_remainder(remainder, 0, n), sum);
            remainder ^= u64::from(byte);
            remainder = product(remainder, power(1));
        }
        // x^8 times its inverse is 1.
        let inverse = (0..8).fold(ONE, |a, _| match a >> 63 {
            0 => a << 1,
            _ => (a ^ POLYNOMIAL) << 1 | 1,
        });
        let divided = product(product(remainder, inverse), inverse);
        assert_eq!(Sum::of_remainder(divided, 2, 300), Sum::of(&all));
    }
}
