//! Any bytes as a GGUF file: an error or a consistent header, never a panic.
#![no_main]

use std::path::Path;

use ignis_formats::{Extent, Gguf};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = Path::new("fuzz.gguf");
    let whole = Gguf::parse(path, bytes, Extent::Whole);
    let header = Gguf::parse(path, bytes, Extent::Header);
    assert!(whole.is_err() || header.is_ok(), "a whole file has a header");
    for gguf in whole.iter().chain(&header) {
        for (key, value) in gguf.metadata() {
            assert_eq!(gguf.get(key).map(|v| v.describe()), Some(value.describe()));
            let _ = (gguf.opt_u64(key), gguf.opt_f64(key), gguf.opt_strings(key));
        }
        for tensor in gguf.tensors() {
            assert_eq!(gguf.tensor(&tensor.name), Some(tensor));
            let _ = tensor.elements();
        }
    }
    if let Ok(gguf) = &whole {
        let bytes_claimed: u64 = gguf.tensors().iter().map(|tensor| tensor.bytes).sum();
        assert!(bytes_claimed <= bytes.len() as u64, "tensors lie in the file and apart");
    }
    if let (Err(whole), Err(header)) = (&whole, &header) {
        let _ = (whole.to_string(), header.to_string());
    }
});
