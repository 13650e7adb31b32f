//! A cursor over the bytes of a GGUF file that cannot leave them.

use std::path::{Path, PathBuf};

use crate::FormatError;

/// Longest name of a metadata key or tensor: GGUF's own limit for keys.
const NAME_BYTES_MAX: u64 = 65_535;

/// Reads little-endian fields from the front of `bytes`. `file` is for errors.
pub(super) struct Reader<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a Path, bytes: &'a [u8]) -> Reader<'a> {
        Reader { file, bytes, at: 0 }
    }

    /// Position in the file.
    pub(super) fn at(&self) -> u64 {
        self.at as u64
    }

    pub(super) fn path(&self) -> &'a Path {
        self.file
    }

    /// The file, owned, for an error.
    pub(super) fn file(&self) -> PathBuf {
        self.file.to_owned()
    }

    fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n` bytes, or `Truncated`. `what` names them.
    pub(super) fn take(&mut self, n: u64, what: &'static str) -> Result<&'a [u8], FormatError> {
        let remaining = self.remaining();
        match usize::try_from(n) {
            Ok(n) if n <= remaining => {
                let taken = &self.bytes[self.at..self.at + n];
                self.at += n;
                Ok(taken)
            }
            _ => Err(FormatError::Truncated {
                file: self.file(),
                what,
                at: self.at(),
                expected: n,
                found: remaining as u64,
            }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("take returns as many bytes as were asked for"))
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, FormatError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A count of things that take at least `bytes_each` bytes: `CountTooLarge` unless the rest of
    /// the file could hold them, so that the caller may reserve for it.
    pub(super) fn count(
        &mut self,
        what: &'static str,
        bytes_each: u64,
    ) -> Result<usize, FormatError> {
        let count = self.u64(what)?;
        self.check_count(count, what, bytes_each)
    }

    /// As `count`, for a count that was read already. No real count needs more than 32 bits.
    pub(super) fn check_count(
        &self,
        count: u64,
        what: &'static str,
        bytes_each: u64,
    ) -> Result<usize, FormatError> {
        let found = self.remaining() as u64;
        if count > (found / bytes_each).min(u32::MAX.into()) {
            return Err(FormatError::CountTooLarge { file: self.file(), what, count, found });
        }
        Ok(count as usize)
    }

    /// The name of a key or tensor.
    ///
    /// Errors: `NameLength`, `Truncated`, `NotUtf8`.
    pub(super) fn name(&mut self, what: &'static str) -> Result<&'a str, FormatError> {
        let at = self.at();
        let bytes = self.u64(what)?;
        if bytes == 0 || bytes > NAME_BYTES_MAX {
            let limit = NAME_BYTES_MAX;
            return Err(FormatError::NameLength {
                file: self.file(),
                what,
                at,
                found: bytes,
                limit,
            });
        }
        self.utf8(bytes, what, "")
    }

    /// A string value of `key`, of any length.
    pub(super) fn string(&mut self, key: &str) -> Result<&'a str, FormatError> {
        let bytes = self.u64("string length")?;
        self.utf8(bytes, "string", key)
    }

    fn utf8(&mut self, n: u64, what: &'static str, key: &str) -> Result<&'a str, FormatError> {
        let at = self.at();
        let taken = self.take(n, what)?;
        std::str::from_utf8(taken).map_err(|_| FormatError::NotUtf8 {
            file: self.file(),
            what,
            at,
            key: key.to_owned(),
        })
    }
}
