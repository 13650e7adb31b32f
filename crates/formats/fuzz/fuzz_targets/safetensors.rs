//! Any bytes as a safetensors file, and as the index of several: never a panic.
#![no_main]

use std::path::Path;

use ignis_formats::{Extent, Safetensors};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz.safetensors");
    let whole = Safetensors::parse(path, bytes, Extent::Whole);
    let header = Safetensors::parse(path, bytes, Extent::Header);
    assert!(whole.is_err() || header.is_ok(), "a whole file has a header");
    for opened in whole.iter().chain(&header) {
        for tensor in opened.tensors() {
            assert_eq!(opened.tensor(&tensor.name), Some(tensor));
            assert!(opened.data(tensor).is_err(), "bytes that were parsed only have no data");
            let _ = tensor.elements();
        }
        for (name, _) in opened.unread() {
            assert!(opened.tensor(name).is_none() && opened.require(name).is_err());
        }
    }
    if let Ok(opened) = &whole {
        let bytes_claimed: u64 = opened.tensors().iter().map(|tensor| tensor.bytes).sum();
        assert!(bytes_claimed <= bytes.len() as u64, "tensors lie in the file and apart");
    }
    for shard in Safetensors::parse_index(path, bytes).unwrap_or_default() {
        let joined = Path::new("folder").join(&shard);
        assert_eq!(joined.parent(), Some(Path::new("folder")), "shards stay in their folder");
    }
});
