//! A file mapped for reading.
//!
//! The one place of this crate that needs `unsafe`. A mapping is a loan from the file system: bytes
//! past a file's end fault when touched. Lengths are therefore compared again before every slice
//! handed out, and loaders copy weights and drop the mapping, so nothing is mapped while serving.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::FormatError;

/// How a file begins whose content Git LFS has not fetched: a common slip when cloning a model.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A regular, non-empty file, mapped whole.
#[derive(Debug)]
pub(crate) struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
}

impl MappedFile {
    /// Maps `path`.
    ///
    /// Errors: `Io`, `NotAFile` (checked before opening, since opening a pipe would wait for a
    /// writer), `FileEmpty`, `FileChanged`, `LfsPointer`.
    pub(crate) fn open(path: &Path) -> Result<MappedFile, FormatError> {
        let io = |source| FormatError::Io { file: path.to_owned(), source };
        if !path.metadata().map_err(io)?.is_file() {
            return Err(FormatError::NotAFile { file: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes == 0 {
            return Err(FormatError::FileEmpty { file: path.to_owned() });
        }
        // SAFETY: the mapping is private and read-only, and all access goes through `bytes`. That
        // nobody else writes or shortens the file meanwhile cannot be proven; `check_length` turns
        // the common case, a download still running, into an error.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let mapped = MappedFile { path: path.to_owned(), file, map };
        mapped.check_length()?;
        if mapped.bytes().starts_with(LFS_POINTER) {
            return Err(FormatError::LfsPointer { file: mapped.path });
        }
        Ok(mapped)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Refuses with `FileChanged` when the file no longer has the length that was mapped.
    pub(crate) fn check_length(&self) -> Result<(), FormatError> {
        let io = |source| FormatError::Io { file: self.path.clone(), source };
        let found = self.file.metadata().map_err(io)?.len();
        let expected = self.map.len() as u64;
        if found != expected {
            return Err(FormatError::FileChanged { file: self.path.clone(), expected, found });
        }
        Ok(())
    }
}
