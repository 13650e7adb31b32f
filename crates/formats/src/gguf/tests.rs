use proptest::prelude::*;

use super::*;
use crate::test_folder::TestFolder;
use crate::writer::GgufWriter;

const F32: u32 = 0;
const Q4_0: u32 = 2;

fn sample() -> GgufWriter {
    let tokens: &[&str] = &["<s>", "a", "ä", ""];
    GgufWriter::default()
        .key("general.architecture", "llama")
        .key("llama.block_count", 2)
        .key("llama.rope.freq_base", 1e5)
        .key("tokenizer.ggml.add_bos_token", false)
        .key("tokenizer.ggml.tokens", tokens)
        .key("tokenizer.ggml.token_type", MetaArray::I64s(vec![3, 1, -1]))
        .f32s("norm", &[3], &[1.0, 2.0, 3.0])
        .tensor("weight", Q4_0, &[2, 64], vec![7; 72])
        .f32s("scalar", &[], &[4.0])
}

fn parse(bytes: &[u8]) -> Result<Gguf, FormatError> {
    Gguf::parse(Path::new("m.gguf"), bytes, Extent::Whole)
}

fn refusal(bytes: &[u8]) -> FormatError {
    parse(bytes).expect_err("the file is damaged")
}

/// `bytes` with `new` written `skip` bytes after the end of the first `needle`.
fn patched(mut bytes: Vec<u8>, needle: &str, skip: usize, new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(needle.len()).position(|w| w == needle.as_bytes()).unwrap();
    bytes[at + needle.len() + skip..][..new.len()].copy_from_slice(new);
    bytes
}

/// A file of one key of the given type id and value bytes.
fn one_key(type_id: u32, value: &[u8]) -> Vec<u8> {
    let empty = GgufWriter::default().key("k", true).header();
    let at = empty.windows(5).position(|w| w == [b'k', 7, 0, 0, 0]).unwrap();
    [&empty[..at + 1], &type_id.to_le_bytes(), value, &[0; 64]].concat()
}

macro_rules! assert_refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = refusal(&$bytes);
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        assert!(error.to_string().starts_with("m.gguf: "), "{error}");
    };
}

#[test]
fn file_reads_back() {
    for (version, alignment) in [(2, 32), (3, 32), (3, 1), (3, 256)] {
        let gguf = parse(&sample().version(version).alignment(alignment).bytes()).unwrap();
        assert_eq!(gguf.get_str("general.architecture").unwrap(), "llama");
        assert_eq!(gguf.get_u64("llama.block_count").unwrap(), 2);
        assert_eq!(gguf.get_f64("llama.rope.freq_base").unwrap(), 1e5);
        assert!(!gguf.get_bool("tokenizer.ggml.add_bos_token").unwrap());
        assert_eq!(gguf.get_strings("tokenizer.ggml.tokens").unwrap(), ["<s>", "a", "ä", ""]);
        assert_eq!(
            gguf.get_array("tokenizer.ggml.token_type").unwrap(),
            &MetaArray::I64s(vec![3, 1, -1])
        );
        assert_eq!(gguf.metadata().len(), if alignment == 32 { 6 } else { 7 });

        let names: Vec<_> = gguf.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["norm", "weight", "scalar"]);
        let weight = gguf.require("weight").unwrap();
        assert_eq!(weight.shape, [2, 64]);
        assert_eq!((weight.dtype.name(), weight.bytes, weight.elements()), ("Q4_0", 36 * 2, 128));
        assert_eq!(gguf.tensor("scalar").unwrap().elements(), 1);
        assert_eq!(gguf.tensor("none"), None);
        assert!(matches!(gguf.require("none"), Err(FormatError::TensorMissing { .. })));
    }
}

#[test]
fn data_is_the_stored_bytes() {
    let folder = TestFolder::new("gguf-data");
    let path = folder.write("m.gguf", sample().bytes());
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.data(gguf.tensor("weight").unwrap()).unwrap(), [7; 72]);
    assert_eq!(gguf.data(gguf.tensor("scalar").unwrap()).unwrap(), 4f32.to_le_bytes());
}

#[test]
fn every_value_type_is_widened() {
    let cases: [(u32, &[u8], MetaValue); 12] = [
        (0, &[200], MetaValue::U64(200)),
        (1, &[0xff], MetaValue::I64(-1)),
        (2, &[1, 2], MetaValue::U64(0x201)),
        (3, &[0xfe, 0xff], MetaValue::I64(-2)),
        (4, &[1, 0, 0, 0x80], MetaValue::U64(0x8000_0001)),
        (5, &[0xfd, 0xff, 0xff, 0xff], MetaValue::I64(-3)),
        (6, &1.5f32.to_le_bytes(), MetaValue::F64(1.5)),
        (7, &[1], MetaValue::Bool(true)),
        (8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x'], MetaValue::Str("x".into())),
        (10, &u64::MAX.to_le_bytes(), MetaValue::U64(u64::MAX)),
        (11, &(-4i64).to_le_bytes(), MetaValue::I64(-4)),
        (12, &2.5f64.to_le_bytes(), MetaValue::F64(2.5)),
    ];
    for (type_id, bytes, expected) in cases {
        let gguf = parse(&one_key(type_id, bytes)).unwrap();
        assert_eq!(gguf.get("k"), Some(&expected));
        let array = [&type_id.to_le_bytes()[..], &2u64.to_le_bytes(), bytes, bytes].concat();
        let gguf = parse(&one_key(9, &array)).unwrap();
        assert_eq!(gguf.get_array("k").unwrap().len(), 2);
    }
}

#[test]
fn getters_name_file_key_expected_and_found() {
    let gguf = parse(&sample().bytes()).unwrap();
    let message = |error: FormatError| error.to_string();
    assert_eq!(
        message(gguf.get_u64("llama.context_length").unwrap_err()),
        r#"m.gguf: key "llama.context_length" is missing, expected an unsigned integer"#
    );
    assert_eq!(
        message(gguf.opt_u64("general.architecture").unwrap_err()),
        r#"m.gguf: key "general.architecture" is the string "llama", expected an unsigned integer"#
    );
    assert_eq!(
        message(gguf.get_strings("tokenizer.ggml.token_type").unwrap_err()),
        "m.gguf: key \"tokenizer.ggml.token_type\" is an array of 3 integers, \
         expected an array of strings"
    );
    assert_eq!(gguf.opt_u64("llama.context_length").unwrap(), None);
    assert_eq!(gguf.get_f64("llama.block_count").unwrap(), 2.0);
}

#[test]
fn cut_anywhere_is_refused_and_the_header_alone_is_enough() {
    let (bytes, padded) = (sample().bytes(), sample().header().len());
    let header = padded - 32..=padded; // the padding after the header is not needed
    let mut shortest = None;
    for cut in 0..bytes.len() {
        let whole = parse(&bytes[..cut]);
        // The padding after the last tensor may be missing.
        assert!(whole.is_err() || cut >= bytes.len() - 28, "cut at {cut}");
        if Gguf::parse(Path::new("m.gguf"), &bytes[..cut], Extent::Header).is_ok() {
            shortest.get_or_insert(cut);
        } else {
            assert_eq!(shortest, None, "cut at {cut}");
        }
    }
    assert!(header.contains(&shortest.unwrap()));
    assert_refused!(bytes[..0], FormatError::FileEmpty { .. });
    assert_refused!(bytes[..3], FormatError::Truncated { what: "magic", .. });
    assert_refused!(bytes[..4], FormatError::Truncated { what: "version", .. });
    assert_refused!(bytes[..24], FormatError::CountTooLarge { what: "metadata keys", .. });
    assert_refused!(bytes[..bytes.len() / 2], FormatError::Truncated { .. });
    assert_refused!(bytes[..padded], FormatError::TensorOutOfRange { .. });
    assert_refused!(bytes[..bytes.len() - 29], FormatError::TensorOutOfRange { .. });
}

#[test]
fn header_only_has_no_data() {
    let folder = TestFolder::new("gguf-header");
    let path = folder.write("m.gguf", sample().header());
    assert!(matches!(Gguf::open(&path), Err(FormatError::TensorOutOfRange { .. })));
    let gguf = Gguf::open_header(&path).unwrap();
    assert_eq!(gguf.tensors(), parse(&sample().bytes()).unwrap().tensors());
    let error = gguf.data(gguf.tensor("norm").unwrap()).unwrap_err();
    assert!(matches!(error, FormatError::HeaderOnly { tensor, .. } if tensor == "norm"));
}

#[test]
fn file_shortened_while_open_is_refused() {
    let folder = TestFolder::new("gguf-shortened");
    let path = folder.write("m.gguf", sample().bytes());
    let gguf = Gguf::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(10).unwrap();
    let error = gguf.data(gguf.tensor("norm").unwrap()).unwrap_err();
    assert!(matches!(error, FormatError::FileChanged { found: 10, .. }), "{error}");
}

#[test]
fn files_that_are_no_gguf_are_refused() {
    let folder = TestFolder::new("gguf-not");
    let open = |bytes: &[u8]| Gguf::open(&folder.write("m.gguf", bytes)).unwrap_err();
    assert!(matches!(open(b""), FormatError::FileEmpty { .. }));
    assert!(matches!(open(b"PK\x03\x04..."), FormatError::MagicWrong { .. }));
    assert!(matches!(open(b"version https://git-lfs..."), FormatError::LfsPointer { .. }));
    let missing = Gguf::open(&folder.path().join("none.gguf")).unwrap_err();
    assert!(matches!(missing, FormatError::Io { .. }));
    assert!(matches!(Gguf::open(folder.path()), Err(FormatError::NotAFile { .. })));
    if cfg!(unix) {
        let device = Gguf::open(Path::new("/dev/zero")).unwrap_err();
        assert!(matches!(device, FormatError::NotAFile { .. }));
    }
}

#[test]
fn versions_other_than_2_and_3_are_refused() {
    for version in [0, 1, 4, u32::MAX] {
        let bytes = sample().version(version).bytes();
        assert_refused!(bytes, FormatError::VersionUnsupported { found, .. } if *found == version);
    }
    for version in [0x0200_0000, 0x0300_0000] {
        let bytes = sample().version(version).bytes();
        assert_refused!(bytes, FormatError::BigEndian { .. });
        assert!(refusal(&bytes).to_string().contains("big-endian"));
    }
}

#[test]
fn counts_beyond_the_file_are_refused() {
    let huge = (1u64 << 60).to_le_bytes();
    for (at, expected) in [(8, "tensors"), (16, "metadata keys")] {
        for count in [huge, u64::MAX.to_le_bytes(), 1_000u64.to_le_bytes()] {
            let mut bytes = sample().bytes();
            bytes[at..at + 8].copy_from_slice(&count);
            assert_refused!(bytes, FormatError::CountTooLarge { what, .. } if *what == expected);
        }
    }
    let bytes = patched(sample().bytes(), "tokenizer.ggml.tokens", 8, &huge);
    assert_refused!(bytes, FormatError::CountTooLarge { what: "array elements", .. });
}

#[test]
fn lengths_beyond_the_file_are_refused() {
    let key_at = 24;
    for length in [0, 65_536, 1 << 60, u64::MAX] {
        let mut bytes = sample().bytes();
        bytes[key_at..key_at + 8].copy_from_slice(&length.to_le_bytes());
        assert_refused!(
            bytes,
            FormatError::NameLength { what: "key", found, .. } if *found == length
        );
    }
    let mut bytes = sample().bytes();
    bytes[key_at..key_at + 8].copy_from_slice(&65_535u64.to_le_bytes());
    assert_refused!(bytes, FormatError::Truncated { what: "key", .. });
    let bytes = patched(sample().bytes(), "general.architecture", 4, &u64::MAX.to_le_bytes());
    assert_refused!(bytes, FormatError::Truncated { what: "string", .. });
    assert_refused!(sample().f32s("", &[1], &[0.0]).bytes(), FormatError::NameLength { .. });
}

#[test]
fn damaged_values_are_refused() {
    assert_refused!(one_key(13, &[]), FormatError::ValueTypeUnknown { found: 13, .. });
    assert_refused!(one_key(7, &[2]), FormatError::BoolInvalid { found: 2, .. });
    assert_refused!(
        one_key(9, &[9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
        FormatError::ArrayNested { key, .. } if key == "k"
    );
    let invalid = [&2u64.to_le_bytes()[..], &[0xc0, 0xaf]].concat();
    assert_refused!(one_key(8, &invalid), FormatError::NotUtf8 { key, .. } if key == "k");
    let bytes = patched(sample().bytes(), "nor", 0, &[0xff]);
    assert_refused!(bytes, FormatError::NotUtf8 { what: "tensor name", .. });
}

#[test]
fn duplicates_are_refused() {
    let bytes = sample().key("llama.block_count", 3).bytes();
    assert_refused!(bytes, FormatError::KeyDuplicate { key, .. } if key == "llama.block_count");
    let bytes = sample().f32s("norm", &[1], &[0.0]).bytes();
    assert_refused!(bytes, FormatError::TensorDuplicate { tensor, .. } if tensor == "norm");
}

#[test]
fn damaged_alignment_is_refused() {
    for found in [0u64, 3, 48] {
        let bytes = sample().key("general.alignment", found).bytes();
        assert_refused!(bytes, FormatError::AlignmentValue { .. });
    }
    for value in [MetaValue::U64(1 << 40), MetaValue::I64(32), "32".into(), true.into()] {
        let bytes = sample().key("general.alignment", value).bytes();
        assert_refused!(bytes, FormatError::AlignmentType { .. });
    }
}

#[test]
fn damaged_shapes_are_refused() {
    let with = |shape: &[u64], type_id| GgufWriter::default().tensor("t", type_id, shape, vec![]);
    assert_refused!(with(&[1; 5], F32).bytes(), FormatError::DimensionCount { found: 5, .. });
    assert_refused!(
        patched(with(&[1], F32).bytes(), "t", 0, &u32::MAX.to_le_bytes()),
        FormatError::DimensionCount { .. }
    );
    for shape in [&[1 << 32, 1 << 32][..], &[u64::MAX, 2], &[1 << 62], &[0, u64::MAX, 2]] {
        let error = parse(&with(shape, F32).bytes());
        let zero = shape.contains(&0);
        assert!(zero || matches!(error, Err(FormatError::TensorTooLarge { .. })), "{shape:?}");
    }
    let bytes = with(&[64, 33], Q4_0).bytes();
    assert_refused!(bytes, FormatError::RowPartial { found: 33, expected: 32, .. });
}

#[test]
fn tensor_types_not_read_are_named() {
    let with = |type_id| GgufWriter::default().tensor("t", type_id, &[256], vec![]).bytes();
    assert_refused!(with(255), FormatError::TensorTypeUnknown { found: 255, name: "unknown", .. });
    assert_eq!(
        refusal(&with(20)).to_string(),
        "m.gguf: tensor \"t\" has type id 20 (IQ4_NL), which is not read"
    );
}

#[test]
fn damaged_offsets_are_refused() {
    let shape_and_type = 4 + 8 + 4; // of "norm", before its offset
    let with =
        |offset: u64| patched(sample().bytes(), "norm", shape_and_type, &offset.to_le_bytes());
    assert!(parse(&with(0)).is_ok());
    assert_refused!(with(4), FormatError::TensorMisaligned { found: 4, alignment: 32, .. });
    assert_refused!(with(1 << 40), FormatError::TensorOutOfRange { .. });
    assert_refused!(with(u64::MAX - 31), FormatError::TensorTooLarge { .. });
    assert_refused!(
        with(32),
        FormatError::TensorsOverlap { first, second, .. } if first != second
    );
}

#[test]
fn split_files_are_refused() {
    assert!(parse(&sample().key("split.count", 1).bytes()).is_ok());
    let bytes = sample().key("split.count", 3).bytes();
    assert_refused!(bytes, FormatError::SplitUnsupported { found: 3, .. });
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(
        damage in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6),
        cut in 0usize..1000,
    ) {
        let mut bytes = sample().bytes();
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if cut < bytes.len() {
            bytes.truncate(cut);
        }
        let _ = Gguf::parse(Path::new("m.gguf"), &bytes, Extent::Header);
        if let Ok(gguf) = parse(&bytes) {
            for tensor in gguf.tensors() {
                prop_assert!(tensor.place.end() <= bytes.len() as u64);
                prop_assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
            }
        }
    }

    #[test]
    fn metadata_reads_back(
        keys in proptest::collection::btree_map("[a-z.]{1,12}", value(), 0..8),
    ) {
        let mut writer = GgufWriter::default();
        for (key, value) in &keys {
            writer = writer.key(key, value.clone());
        }
        let gguf = parse(&writer.bytes()).unwrap();
        let read: BTreeMap<_, _> =
            gguf.metadata().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        prop_assert_eq!(read, keys);
    }
}

fn value() -> impl Strategy<Value = MetaValue> {
    let array = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(MetaArray::Bytes),
        proptest::collection::vec(any::<u64>(), 0..9).prop_map(MetaArray::U64s),
        proptest::collection::vec(any::<i64>(), 0..9).prop_map(MetaArray::I64s),
        proptest::collection::vec(-1e300..1e300, 0..9).prop_map(MetaArray::F64s),
        proptest::collection::vec(any::<bool>(), 0..9).prop_map(MetaArray::Bools),
        proptest::collection::vec(".{0,5}", 0..9).prop_map(MetaArray::Strings),
    ];
    prop_oneof![
        any::<u64>().prop_map(MetaValue::U64),
        any::<i64>().prop_map(MetaValue::I64),
        (-1e300..1e300).prop_map(MetaValue::F64),
        any::<bool>().prop_map(MetaValue::Bool),
        ".{0,20}".prop_map(MetaValue::Str),
        array.prop_map(MetaValue::Array),
    ]
}
