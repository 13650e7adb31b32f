//! Safetensors: one file with a JSON header, or several with an index.
//!
//! Stricter than the format asks: no overlap and no duplicate names, also across files, and an
//! index names plain files only. More lenient where nothing depends on it: bytes that no tensor
//! claims are fine, and tensors of a dtype that is not read are an error only when asked for.

mod header;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::mmap::MappedFile;
use crate::tensor::{Place, StoredType, TensorTable};
use crate::{Extent, FormatError, TensorInfo, tensor};
use header::Index;

pub(crate) const SINGLE_NAME: &str = "model.safetensors";
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// The tensors of a checkpoint in safetensors.
#[derive(Debug)]
pub struct Safetensors {
    /// The folder, or the one file that was opened by itself.
    path: PathBuf,
    table: TensorTable,
    /// One a file; empty when only headers were opened.
    maps: Vec<MappedFile>,
}

impl Safetensors {
    /// Opens the checkpoint in `folder`: `model.safetensors`, or else what
    /// `model.safetensors.index.json` lists.
    ///
    /// Errors: those of the files themselves (`Io`, `NotAFile`, `FileEmpty`, `FileChanged`), and
    /// every variant of [`FormatError`] that tells of the content of a safetensors file or its
    /// index.
    pub fn open(folder: &Path) -> Result<Safetensors, FormatError> {
        open_folder(folder, Extent::Whole)
    }

    /// As [`Safetensors::open`], of files that may end anywhere after their headers. Has no data.
    pub fn open_header(folder: &Path) -> Result<Safetensors, FormatError> {
        open_folder(folder, Extent::Header)
    }

    /// Opens one file by itself.
    pub fn open_file(path: &Path) -> Result<Safetensors, FormatError> {
        open_files(path, vec![path.to_owned()], Extent::Whole)
    }

    /// Reads the header at the front of `bytes`. `path` is for errors; no file is touched, and the
    /// result has no data.
    pub fn parse(path: &Path, bytes: &[u8], extent: Extent) -> Result<Safetensors, FormatError> {
        let stored = header::parse(path, bytes, 0)?;
        let table = TensorTable::build(stored, &[(path, bytes.len() as u64)], extent)?;
        Ok(Safetensors { path: path.to_owned(), table, maps: Vec::new() })
    }

    /// Reads an index and returns the file names it lists. `path` is for errors.
    ///
    /// Errors: `FileTooLarge`, `Json`, `ShardName`.
    pub fn parse_index(path: &Path, bytes: &[u8]) -> Result<Vec<String>, FormatError> {
        Index::parse(path, bytes).map(|index| index.shards)
    }

    /// Every tensor of a dtype that is read, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.table.tensors()
    }

    /// The tensor of that name, if its dtype is read.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.table.get(name)
    }

    /// The tensor of that name, or why not: `TensorMissing`, `DTypeUnsupported`.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, FormatError> {
        self.table.require(&self.path, name)
    }

    /// Name and dtype, as spelt in the file, of each tensor whose dtype is not read.
    pub fn unread(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.table.unread().iter().map(|tensor| match &tensor.stored {
            StoredType::Other(dtype) => (tensor.name.as_str(), dtype.as_str()),
            StoredType::Known(dtype) => (tensor.name.as_str(), dtype.name()),
        })
    }

    /// The stored bytes of a tensor of this checkpoint. The format promises no alignment.
    ///
    /// Errors: `HeaderOnly`, `FileChanged`.
    pub fn data(&self, info: &TensorInfo) -> Result<&[u8], FormatError> {
        self.slice(&info.name, &info.place)
    }

    /// The stored bytes of the tensor `name`, whatever its dtype.
    ///
    /// Errors: `TensorMissing`, `HeaderOnly`, `FileChanged`.
    pub fn raw(&self, name: &str) -> Result<&[u8], FormatError> {
        match self.table.get_unread(name) {
            Some(tensor) => self.slice(name, &tensor.place),
            None => self.data(self.require(name)?),
        }
    }

    fn slice(&self, name: &str, place: &Place) -> Result<&[u8], FormatError> {
        let (file, tensor) = (self.path.clone(), name.to_owned());
        match self.maps.get(place.file as usize) {
            Some(map) => tensor::slice(map, place, name),
            None if self.maps.is_empty() => Err(FormatError::HeaderOnly { file, tensor }),
            None => Err(FormatError::TensorMissing { file, tensor }), // of another checkpoint
        }
    }
}

fn open_folder(folder: &Path, extent: Extent) -> Result<Safetensors, FormatError> {
    let (single, index_path) = (folder.join(SINGLE_NAME), folder.join(INDEX_NAME));
    if single.exists() || !index_path.exists() {
        return open_files(folder, vec![single], extent);
    }
    let index = Index::parse(&index_path, MappedFile::open(&index_path)?.bytes())?;
    let paths = index.shards.iter().map(|name| folder.join(name)).collect();
    let opened = open_files(folder, paths, extent)?;
    for (name, shard) in &index.tensors {
        let known = opened.table.get(name).map(|tensor| tensor.place);
        let place = known.or_else(|| opened.table.get_unread(name).map(|tensor| tensor.place));
        if place.is_none_or(|place| place.file != *shard) {
            return Err(FormatError::ShardLacksTensor {
                file: index_path,
                tensor: name.clone(),
                shard: index.shards[*shard as usize].clone(),
            });
        }
    }
    Ok(opened)
}

fn open_files(
    path: &Path,
    paths: Vec<PathBuf>,
    extent: Extent,
) -> Result<Safetensors, FormatError> {
    let mut stored = Vec::new();
    let mut maps = Vec::with_capacity(paths.len());
    for (shard, path) in paths.iter().enumerate() {
        let map = MappedFile::open(path)?;
        stored.append(&mut header::parse(path, map.bytes(), shard as u32)?);
        maps.push(map);
    }
    let files: Vec<_> = maps.iter().map(|map| (map.path(), map.bytes().len() as u64)).collect();
    let table = TensorTable::build(stored, &files, extent)?;
    if extent == Extent::Header {
        maps.clear();
    }
    Ok(Safetensors { path: path.to_owned(), table, maps })
}
