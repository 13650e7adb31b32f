use proptest::prelude::*;

use super::*;
use crate::test_folder::TestFolder;
use crate::writer;

fn sample() -> Vec<u8> {
    writer::safetensors(&[
        ("norm", "F32", &[2], vec![1; 8]),
        ("weight", "BF16", &[3, 2], vec![2; 12]),
        ("steps", "I64", &[1], vec![3; 8]),
        ("empty", "F16", &[0, 4], vec![]),
    ])
}

fn parse(bytes: &[u8]) -> Result<Safetensors, FormatError> {
    Safetensors::parse(Path::new("m.safetensors"), bytes, Extent::Whole)
}

/// A file of this header and `data_bytes` zeros.
fn with_header(header: &str, data_bytes: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data_bytes]].concat()
}

fn one(entry: &str) -> Vec<u8> {
    with_header(&format!("{{\"t\": {entry}}}"), 16)
}

macro_rules! assert_refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {
        let error = parse(&$bytes).expect_err("the file is damaged");
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
        assert!(error.to_string().starts_with("m.safetensors: "), "{error}");
    };
}

#[test]
fn file_reads_back() {
    let folder = TestFolder::new("safetensors-single");
    folder.write("model.safetensors", sample());
    let opened = Safetensors::open(folder.path()).unwrap();
    let weight = opened.tensor("weight").unwrap();
    assert_eq!((weight.dtype.name(), &weight.shape[..], weight.bytes), ("BF16", &[3, 2][..], 12));
    assert_eq!(opened.data(weight).unwrap(), [2; 12]);
    assert!(opened.raw("empty").unwrap().is_empty());
    assert_eq!(opened.tensors().len(), 3);
}

#[test]
fn dtypes_not_read_are_an_error_only_when_asked_for() {
    let folder = TestFolder::new("safetensors-unread");
    let path = folder.write("other.safetensors", sample());
    let opened = Safetensors::open_file(&path).unwrap();
    assert_eq!(opened.tensor("steps"), None);
    assert_eq!(opened.unread().collect::<Vec<_>>(), [("steps", "I64")]);
    let error = opened.require("steps").unwrap_err();
    assert!(matches!(error, FormatError::DTypeUnsupported { found, .. } if found == "I64"));
    assert!(matches!(opened.require("none"), Err(FormatError::TensorMissing { .. })));
    assert_eq!(opened.raw("steps").unwrap(), [3; 8]);
    assert_eq!(opened.raw("norm").unwrap(), [1; 8]);
}

#[test]
fn cut_anywhere_is_refused_and_the_header_alone_is_enough() {
    let bytes = sample();
    let header = bytes.len() - 28;
    for cut in 0..bytes.len() {
        assert!(parse(&bytes[..cut]).is_err(), "cut at {cut}");
        let alone = Safetensors::parse(Path::new("m"), &bytes[..cut], Extent::Header);
        assert_eq!(alone.is_ok(), cut >= header, "cut at {cut}");
    }
    assert_refused!(bytes[..0], FormatError::FileEmpty { .. });
    assert_refused!(bytes[..7], FormatError::Truncated { what: "header length", .. });
    assert_refused!(bytes[..header - 1], FormatError::Truncated { what: "header", .. });
    assert_refused!(bytes[..header], FormatError::TensorOutOfRange { .. });

    let folder = TestFolder::new("safetensors-header");
    folder.write("model.safetensors", &bytes[..header]);
    let opened = Safetensors::open_header(folder.path()).unwrap();
    let error = opened.data(opened.tensor("norm").unwrap()).unwrap_err();
    assert!(matches!(error, FormatError::HeaderOnly { tensor, .. } if tensor == "norm"));
}

#[test]
fn damaged_headers_are_refused() {
    for length in [u64::MAX, 1 << 60, HEADER_LIMIT + 1] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        assert_refused!(bytes, FormatError::HeaderTooLarge { found, .. } if *found == length);
    }
    for header in
        ["", "[]", "{", "{}{}", "{\"t\": 3}", "{\"t\": {}}", "{\"t\": {\"dtype\": \"F32\"}}"]
    {
        assert_refused!(with_header(header, 0), FormatError::Json { .. });
    }
    let deep = with_header(&format!("{{\"t\": {}", "[".repeat(100_000)), 0);
    assert_refused!(deep, FormatError::Json { .. });
    let twice = one(r#"{"dtype": "F32", "dtype": "F16", "shape": [1], "data_offsets": [0, 4]}"#);
    assert_refused!(twice, FormatError::Json { .. });
    assert!(parse(&with_header("{\"__metadata__\": {\"a\": \"b\"}}  ", 0)).is_ok());
}

const HEADER_LIMIT: u64 = header::HEADER_BYTES_MAX;

#[test]
fn damaged_offsets_are_refused() {
    let with = |offsets: &str| {
        one(&format!(r#"{{"dtype": "F32", "shape": [2], "data_offsets": {offsets}}}"#))
    };
    assert!(parse(&with("[8, 16]")).is_ok());
    for offsets in ["[-8, 0]", "[0, 8.5]", "[0, 1e300]", "[18446744073709551616, 0]"] {
        assert_refused!(with(offsets), FormatError::OffsetInvalid { tensor, .. } if tensor == "t");
    }
    assert_refused!(with("[8, 0]"), FormatError::OffsetsReversed { begin: 8, end: 0, .. });
    assert_refused!(with("[0, 4]"), FormatError::TensorSize { expected: 8, found: 4, .. });
    assert_refused!(with("[12, 20]"), FormatError::TensorOutOfRange { .. });
    assert_refused!(
        with("[18446744073709551600, 18446744073709551608]"),
        FormatError::TensorTooLarge { .. }
    );
    for offsets in ["[0]", "[0, 8, 8]", "[\"0\", 8]", "{}", "null"] {
        assert_refused!(with(offsets), FormatError::Json { .. });
    }
}

#[test]
fn damaged_shapes_are_refused() {
    let with = |shape: &str| {
        one(&format!(r#"{{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 8]}}"#))
    };
    for shape in ["[-2]", "[2.0]", "[18446744073709551616]", "2"] {
        assert_refused!(with(shape), FormatError::Json { .. });
    }
    assert_refused!(with("[4294967296, 4294967296]"), FormatError::TensorTooLarge { .. });
    assert_refused!(with("[4611686018427387904]"), FormatError::TensorTooLarge { .. });
    assert_refused!(with("[3]"), FormatError::TensorSize { .. });
}

#[test]
fn overlap_and_duplicates_are_refused() {
    let two = |a: &str, b: &str, dtype: &str| {
        let entry = |name, offsets| {
            format!(r#""{name}": {{"dtype": "{dtype}", "shape": [1], "data_offsets": {offsets}}}"#)
        };
        with_header(&format!("{{{}, {}}}", entry(a, "[0, 4]"), entry(b, "[2, 6]")), 6)
    };
    assert_refused!(two("a", "b", "F32"), FormatError::TensorsOverlap { .. });
    assert_refused!(two("a", "b", "F4"), FormatError::TensorsOverlap { .. });
    let twice = with_header(
        r#"{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]},
            "a": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]}}"#,
        0,
    );
    assert_refused!(twice, FormatError::TensorDuplicate { tensor, .. } if tensor == "a");
}

/// A folder of two shards, with the index's `weight_map` as given.
fn sharded(test: &str, weight_map: &str) -> TestFolder {
    let folder = TestFolder::new(test);
    let shard = |name: &str, byte| writer::safetensors(&[(name, "F32", &[1], vec![byte; 4])]);
    folder.write("a.safetensors", shard("x", 1));
    folder.write("b.safetensors", shard("y", 2));
    let index = format!("{{\"metadata\": {{}}, \"weight_map\": {weight_map}}}");
    folder.write("model.safetensors.index.json", index);
    folder
}

#[test]
fn shards_read_as_one_checkpoint() {
    let folder = sharded("shards", r#"{"y": "b.safetensors", "x": "a.safetensors"}"#);
    let opened = Safetensors::open(folder.path()).unwrap();
    for (name, byte) in [("x", 1), ("y", 2)] {
        assert_eq!(opened.data(opened.tensor(name).unwrap()).unwrap(), [byte; 4]);
    }
    assert!(Safetensors::open_header(folder.path()).unwrap().tensor("x").is_some());
}

#[test]
fn index_and_shards_must_agree() {
    let folder = sharded("shards-swapped", r#"{"y": "a.safetensors", "x": "b.safetensors"}"#);
    let error = Safetensors::open(folder.path()).unwrap_err();
    assert!(matches!(error, FormatError::ShardLacksTensor { .. }), "{error}");

    let folder = sharded("shards-missing", r#"{"x": "a.safetensors", "y": "c.safetensors"}"#);
    let error = Safetensors::open(folder.path()).unwrap_err();
    assert!(matches!(error, FormatError::Io { .. }), "{error}");

    let folder = sharded("shards-twice", r#"{"x": "a.safetensors", "y": "b.safetensors"}"#);
    std::fs::copy(folder.path().join("a.safetensors"), folder.path().join("b.safetensors"))
        .unwrap();
    let error = Safetensors::open(folder.path()).unwrap_err();
    assert!(matches!(error, FormatError::TensorDuplicate { .. }), "{error}");
}

#[test]
fn index_names_files_of_its_folder_only() {
    let index = |shard: &str| {
        let text = serde_json::json!({"weight_map": {"x": shard}}).to_string();
        Safetensors::parse_index(Path::new("i.json"), text.as_bytes())
    };
    assert_eq!(index("a.safetensors").unwrap(), ["a.safetensors"]);
    for shard in ["../a.safetensors", "/etc/a.safetensors", "b/a.safetensors", "..", "", "a.bin"] {
        assert!(matches!(index(shard), Err(FormatError::ShardName { .. })), "{shard}");
    }
    for text in
        ["{}", "[]", r#"{"weight_map": {"x": 3}}"#, r#"{"weight_map": {}, "weight_map": {}}"#]
    {
        let error = Safetensors::parse_index(Path::new("i.json"), text.as_bytes()).unwrap_err();
        assert!(matches!(error, FormatError::Json { .. }), "{text}");
    }
}

proptest! {
    #[test]
    fn damaged_bytes_never_panic(
        damage in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6),
        cut in 0usize..1000,
    ) {
        let mut bytes = sample();
        for (at, byte) in damage {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if cut < bytes.len() {
            bytes.truncate(cut);
        }
        let _ = Safetensors::parse(Path::new("m"), &bytes, Extent::Header);
        if let Ok(opened) = parse(&bytes) {
            for tensor in opened.tensors() {
                prop_assert!(tensor.place.end() <= bytes.len() as u64);
                prop_assert_eq!(opened.tensor(&tensor.name), Some(tensor));
            }
        }
    }

    #[test]
    fn tensors_read_back(
        shapes in proptest::collection::btree_map(
            "[a-z.]{1,8}", proptest::collection::vec(0u64..5, 0..4), 0..6,
        ),
    ) {
        let tensors: Vec<_> = shapes.iter().map(|(name, shape)| {
            let bytes = vec![9; shape.iter().product::<u64>() as usize * 4];
            (name.as_str(), "F32", shape.as_slice(), bytes)
        }).collect();
        let opened = parse(&writer::safetensors(&tensors)).unwrap();
        for (name, _, shape, bytes) in &tensors {
            let tensor = opened.tensor(name).unwrap();
            prop_assert_eq!(&tensor.shape[..], *shape);
            prop_assert_eq!(tensor.bytes, bytes.len() as u64);
        }
    }
}
