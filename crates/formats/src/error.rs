//! Everything that can be wrong with a checkpoint, one variant a cause.

use std::path::PathBuf;

use ignis_types::DType;

/// Why a checkpoint was refused. `file` is the file at fault, or the folder when no file is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are named in each variant's message
pub enum FormatError {
    /// The operating system would not open, read or map the file.
    #[error("{}: {source}", file.display())]
    Io { file: PathBuf, source: std::io::Error },

    /// The path is neither a regular file nor a folder: a pipe, a device, a socket.
    #[error("{}: not a regular file", file.display())]
    NotAFile { file: PathBuf },

    /// The folder holds neither safetensors nor a GGUF file.
    #[error(
        "{}: holds no model.safetensors, model.safetensors.index.json or .gguf file",
        file.display()
    )]
    NoCheckpoint { file: PathBuf },

    /// The folder holds several GGUF files, and only its user knows which one is meant.
    #[error("{}: holds {found} .gguf files: name the one to open", file.display())]
    ManyGguf { file: PathBuf, found: usize },

    /// The file has no bytes.
    #[error("{}: the file is empty", file.display())]
    FileEmpty { file: PathBuf },

    /// A JSON file is larger than any real one of its kind, so it is not read at all.
    #[error("{}: {found} B, where at most {limit} B are read", file.display())]
    FileTooLarge { file: PathBuf, found: u64, limit: u64 },

    /// The file's length changed while it was open: somebody is writing it.
    #[error("{}: was {expected} B when opened, is {found} B now", file.display())]
    FileChanged { file: PathBuf, expected: u64, found: u64 },

    /// The file is a Git LFS pointer: its content was never downloaded.
    #[error(
        "{}: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`",
        file.display()
    )]
    LfsPointer { file: PathBuf },

    /// The bytes of a tensor were asked for, but only headers were opened.
    #[error("{}: tensor {tensor:?} has no data: only the header was opened", file.display())]
    HeaderOnly { file: PathBuf, tensor: String },

    /// The file does not begin with `GGUF`.
    #[error("{}: not a GGUF file: begins with {found:02x?}, expected \"GGUF\"", file.display())]
    MagicWrong { file: PathBuf, found: Vec<u8> },

    /// A GGUF file written for a big-endian machine.
    #[error(
        "{}: a big-endian GGUF file (version {found:#010x}); only little-endian is read",
        file.display()
    )]
    BigEndian { file: PathBuf, found: u32 },

    /// A GGUF version other than 2 and 3.
    #[error("{}: GGUF version {found}; versions 2 and 3 are read", file.display())]
    VersionUnsupported { file: PathBuf, found: u32 },

    /// One part of a GGUF file that was split into several.
    #[error("{}: part of a GGUF split into {found} files; merge them first", file.display())]
    SplitUnsupported { file: PathBuf, found: u64 },

    /// The file ends inside its header.
    #[error(
        "{}: cut short: {what} at byte {at} needs {expected} B, {found} B remain",
        file.display()
    )]
    Truncated { file: PathBuf, what: &'static str, at: u64, expected: u64, found: u64 },

    /// More things are announced than the rest of the file could hold.
    #[error(
        "{}: announces {count} {what}, too many for the {found} B that remain: damaged or cut \
         short?",
        file.display()
    )]
    CountTooLarge { file: PathBuf, what: &'static str, count: u64, found: u64 },

    /// The name of a key or tensor has no bytes, or more than a name may have.
    #[error("{}: {what} at byte {at} is {found} B long, expected 1 to {limit} B", file.display())]
    NameLength { file: PathBuf, what: &'static str, at: u64, found: u64, limit: u64 },

    /// A string is not UTF-8. `key` is empty when the string is a name itself.
    #[error("{}: {what} at byte {at} is not UTF-8 (key {key:?})", file.display())]
    NotUtf8 { file: PathBuf, what: &'static str, at: u64, key: String },

    /// A metadata value has a type id that GGUF does not define.
    #[error("{}: key {key:?} has value type {found}, expected 0 to 12", file.display())]
    ValueTypeUnknown { file: PathBuf, key: String, found: u32 },

    /// A metadata array holds arrays. No known key needs that, and depth would be unbounded.
    #[error("{}: key {key:?} is an array of arrays, which is not read", file.display())]
    ArrayNested { file: PathBuf, key: String },

    /// A boolean is stored as something other than 0 and 1.
    #[error("{}: key {key:?} holds the boolean {found}, expected 0 or 1", file.display())]
    BoolInvalid { file: PathBuf, key: String, found: u8 },

    /// The same key appears twice.
    #[error("{}: key {key:?} appears twice", file.display())]
    KeyDuplicate { file: PathBuf, key: String },

    /// A key that the caller needs is not there.
    #[error("{}: key {key:?} is missing, expected {expected}", file.display())]
    KeyMissing { file: PathBuf, key: String, expected: &'static str },

    /// A key holds a value of another type than the caller needs.
    #[error("{}: key {key:?} is {found}, expected {expected}", file.display())]
    KeyType { file: PathBuf, key: String, expected: &'static str, found: String },

    /// `general.alignment` is not stored as a 32-bit unsigned integer.
    #[error("{}: general.alignment is stored as {found}, expected u32", file.display())]
    AlignmentType { file: PathBuf, found: &'static str },

    /// `general.alignment` is not a power of two.
    #[error("{}: general.alignment is {found}, expected a power of two", file.display())]
    AlignmentValue { file: PathBuf, found: u32 },

    /// A tensor has more dimensions than any reader knows.
    #[error(
        "{}: tensor {tensor:?} has {found} dimensions, expected at most {limit}",
        file.display()
    )]
    DimensionCount { file: PathBuf, tensor: String, found: u64, limit: u64 },

    /// The product of a tensor's dimensions, or its size in bytes, leaves 64 bits.
    #[error("{}: tensor {tensor:?} is larger than 2^64 - 1 B", file.display())]
    TensorTooLarge { file: PathBuf, tensor: String },

    /// A row of a quantised tensor does not fill whole blocks.
    #[error(
        "{}: tensor {tensor:?} has rows of {found} elements, {dtype} needs a multiple of \
         {expected}",
        file.display()
    )]
    RowPartial { file: PathBuf, tensor: String, dtype: DType, found: u64, expected: u64 },

    /// A GGUF tensor type id that is unknown, or known (then with its `name`) and not read.
    #[error(
        "{}: tensor {tensor:?} has type id {found} ({name}), which is not read",
        file.display()
    )]
    TensorTypeUnknown { file: PathBuf, tensor: String, found: u32, name: &'static str },

    /// A safetensors dtype that is not read; raised when such a tensor is asked for.
    #[error("{}: tensor {tensor:?} is stored as {found:?}, which is not read", file.display())]
    DTypeUnsupported { file: PathBuf, tensor: String, found: String },

    /// A tensor's offset is not a multiple of the file's alignment.
    #[error(
        "{}: tensor {tensor:?} is at offset {found}, not a multiple of {alignment} B",
        file.display()
    )]
    TensorMisaligned { file: PathBuf, tensor: String, found: u64, alignment: u64 },

    /// A tensor's offsets are in the wrong order.
    #[error("{}: tensor {tensor:?} begins at {begin} and ends before, at {end}", file.display())]
    OffsetsReversed { file: PathBuf, tensor: String, begin: u64, end: u64 },

    /// A tensor's offsets span other than what its shape and dtype need.
    #[error(
        "{}: tensor {tensor:?} spans {found} B, its shape and dtype need {expected} B",
        file.display()
    )]
    TensorSize { file: PathBuf, tensor: String, expected: u64, found: u64 },

    /// A tensor ends after the file does: a damaged offset, or a file cut short.
    #[error(
        "{}: tensor {tensor:?} ends at byte {expected}, the file at {found}: cut short?",
        file.display()
    )]
    TensorOutOfRange { file: PathBuf, tensor: String, expected: u64, found: u64 },

    /// Two tensors share bytes.
    #[error("{}: tensors {first:?} and {second:?} overlap", file.display())]
    TensorsOverlap { file: PathBuf, first: String, second: String },

    /// Two tensors have the same name, in one file or in two shards.
    #[error("{}: tensor {tensor:?} appears twice", file.display())]
    TensorDuplicate { file: PathBuf, tensor: String },

    /// A tensor that the caller needs is not there.
    #[error("{}: tensor {tensor:?} is missing", file.display())]
    TensorMissing { file: PathBuf, tensor: String },

    /// The file is not the JSON it should be: syntax, or a field of another type.
    #[error("{}: {source}", file.display())]
    Json { file: PathBuf, source: serde_json::Error },

    /// A safetensors header announces more bytes than the format allows.
    #[error("{}: a header of {found} B, where at most {limit} B are read", file.display())]
    HeaderTooLarge { file: PathBuf, found: u64, limit: u64 },

    /// An offset is negative, fractional or past 2^64.
    #[error(
        "{}: tensor {tensor:?} has the offset {found}, expected an unsigned integer",
        file.display()
    )]
    OffsetInvalid { file: PathBuf, tensor: String, found: String },

    /// The index names a shard by more than a file name in its own folder.
    #[error("{}: shard {found:?} is not a plain file name ending in .safetensors", file.display())]
    ShardName { file: PathBuf, found: String },

    /// The index says that a shard holds a tensor, and it does not.
    #[error("{}: tensor {tensor:?} should be in {shard:?}, which lacks it", file.display())]
    ShardLacksTensor { file: PathBuf, tensor: String, shard: String },
}
