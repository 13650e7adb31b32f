//! A checkpoint of either kind, opened by path.

use std::path::{Path, PathBuf};

use crate::safetensors::{INDEX_NAME, SINGLE_NAME};
use crate::{ConfigJson, Extent, FormatError, Gguf, Safetensors, TensorInfo};

/// A model's files. Each kind has its own names and conventions for tensors and metadata.
#[derive(Debug)]
pub enum Checkpoint {
    /// One GGUF file.
    Gguf(Gguf),
    /// A folder in the layout of `transformers`.
    Safetensors {
        /// `config.json`.
        config: ConfigJson,
        /// The weights.
        tensors: Safetensors,
    },
    /// `config.json` alone: enough to plan a load, not to do it.
    Config(ConfigJson),
}

impl Checkpoint {
    /// Opens a GGUF file, a folder with `config.json` and safetensors, or a folder with one GGUF
    /// file. A folder with both is taken for its safetensors.
    ///
    /// Errors: `NoCheckpoint`, `ManyGguf`; else those of [`Gguf::open`], [`ConfigJson::open`] and
    /// [`Safetensors::open`].
    pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
        Checkpoint::open_extent(path, Extent::Whole)
    }

    /// As [`Checkpoint::open`], of files that may end anywhere after their headers. Has no data. A
    /// folder may have no weights at all then, but `config.json`.
    pub fn open_header(path: &Path) -> Result<Checkpoint, FormatError> {
        Checkpoint::open_extent(path, Extent::Header)
    }

    fn open_extent(path: &Path, extent: Extent) -> Result<Checkpoint, FormatError> {
        if !path.is_dir() {
            return open_gguf(path, extent);
        }
        if !path.join(SINGLE_NAME).exists() && !path.join(INDEX_NAME).exists() {
            let config = path.join("config.json");
            return match only_gguf(path) {
                Err(FormatError::NoCheckpoint { .. })
                    if extent == Extent::Header && config.exists() =>
                {
                    Ok(Checkpoint::Config(ConfigJson::open(&config)?))
                }
                found => open_gguf(&found?, extent),
            };
        }
        let config = ConfigJson::open(&path.join("config.json"))?;
        let tensors = match extent {
            Extent::Whole => Safetensors::open(path)?,
            Extent::Header => Safetensors::open_header(path)?,
        };
        Ok(Checkpoint::Safetensors { config, tensors })
    }

    /// Every tensor of a dtype that is read, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        match self {
            Checkpoint::Gguf(gguf) => gguf.tensors(),
            Checkpoint::Safetensors { tensors, .. } => tensors.tensors(),
            Checkpoint::Config(_) => &[],
        }
    }

    /// The tensor of that name, if its dtype is read.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        match self {
            Checkpoint::Gguf(gguf) => gguf.tensor(name),
            Checkpoint::Safetensors { tensors, .. } => tensors.tensor(name),
            Checkpoint::Config(_) => None,
        }
    }

    /// The tensor of that name, or why not: `TensorMissing`, `DTypeUnsupported`.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, FormatError> {
        match self {
            Checkpoint::Gguf(gguf) => gguf.require(name),
            Checkpoint::Safetensors { tensors, .. } => tensors.require(name),
            Checkpoint::Config(config) => {
                let (file, tensor) = (config.path().to_owned(), name.to_owned());
                Err(FormatError::TensorMissing { file, tensor })
            }
        }
    }

    /// The stored bytes of a tensor of this checkpoint, in the mapped file. They may lie at any
    /// address. Copy and let go: a file that shrinks while it is mapped takes the process down.
    ///
    /// Errors: `HeaderOnly`, `FileChanged`.
    pub fn data(&self, info: &TensorInfo) -> Result<&[u8], FormatError> {
        match self {
            Checkpoint::Gguf(gguf) => gguf.data(info),
            Checkpoint::Safetensors { tensors, .. } => tensors.data(info),
            Checkpoint::Config(config) => {
                let (file, tensor) = (config.path().to_owned(), info.name.clone());
                Err(FormatError::HeaderOnly { file, tensor })
            }
        }
    }
}

fn open_gguf(path: &Path, extent: Extent) -> Result<Checkpoint, FormatError> {
    match extent {
        Extent::Whole => Gguf::open(path),
        Extent::Header => Gguf::open_header(path),
    }
    .map(Checkpoint::Gguf)
}

/// The one GGUF file in `folder`.
fn only_gguf(folder: &Path) -> Result<PathBuf, FormatError> {
    let io = |source| FormatError::Io { file: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
            files.push(path);
        }
    }
    let (file, found) = (folder.to_owned(), files.len());
    match files.pop() {
        None => Err(FormatError::NoCheckpoint { file }),
        Some(_) if found > 1 => Err(FormatError::ManyGguf { file, found }),
        Some(only) => Ok(only),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_folder::TestFolder;
    use crate::writer::{self, GgufWriter};

    fn gguf() -> Vec<u8> {
        GgufWriter::default().f32s("t", &[1], &[1.0]).bytes()
    }

    fn safetensors() -> Vec<u8> {
        writer::safetensors(&[("t", "F32", &[1], 1f32.to_le_bytes().to_vec())])
    }

    fn assert_opens(path: &Path) {
        let checkpoint = Checkpoint::open(path).unwrap();
        let tensor = checkpoint.require("t").unwrap();
        assert_eq!(checkpoint.tensor("t"), Some(tensor));
        assert_eq!(checkpoint.tensors(), std::slice::from_ref(tensor));
        assert_eq!(checkpoint.data(tensor).unwrap(), 1f32.to_le_bytes());
        let header = Checkpoint::open_header(path).unwrap();
        assert_eq!(header.tensors(), checkpoint.tensors());
        assert!(matches!(header.data(tensor), Err(FormatError::HeaderOnly { .. })));
    }

    #[test]
    fn a_gguf_opens_by_itself_and_in_its_folder() {
        let folder = TestFolder::new("checkpoint-gguf");
        let path = folder.write("m.gguf", gguf());
        folder.write("config.json", "{}");
        assert_opens(&path);
        assert_opens(folder.path());
        folder.write("n.GGUF", gguf());
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(error, FormatError::ManyGguf { found: 2, .. }), "{error}");
    }

    #[test]
    fn safetensors_open_with_their_config() {
        let folder = TestFolder::new("checkpoint-safetensors");
        folder.write("model.safetensors", safetensors());
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(&error, FormatError::Io { file, .. } if file.ends_with("config.json")));
        folder.write("config.json", "{\"model_type\": \"llama\"}");
        folder.write("m.gguf", gguf());
        assert_opens(folder.path());
    }

    #[test]
    fn a_folder_without_weights_is_refused() {
        let folder = TestFolder::new("checkpoint-none");
        folder.write("config.json", "{}");
        let error = Checkpoint::open(folder.path()).unwrap_err();
        assert!(matches!(error, FormatError::NoCheckpoint { .. }), "{error}");
        let header = Checkpoint::open_header(folder.path()).unwrap();
        assert!(matches!(&header, Checkpoint::Config(_)) && header.tensors().is_empty());
        let error = header.require("w").unwrap_err();
        assert!(matches!(error, FormatError::TensorMissing { .. }), "{error}");
        let error = Checkpoint::open(&folder.path().join("none")).unwrap_err();
        assert!(matches!(error, FormatError::Io { .. }), "{error}");
    }
}
