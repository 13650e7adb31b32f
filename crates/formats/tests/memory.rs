//! Hostile headers cannot make a parser hold more than a small multiple of the bytes it was given.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ignis_formats::{Extent, Gguf, Safetensors};

/// Most bytes held per byte of input, the allocator's rounding not counted.
const MULTIPLE_MAX: usize = 16;
const INPUT_BYTES: usize = 1 << 20;

/// Counts the bytes held, and the most held since the last reset.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to `System`; the counters do not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(held, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `parse` over `input` and compares the most it held with the input's length.
fn assert_bounded(name: &str, input: &[u8], parse: impl Fn(&[u8])) {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    parse(input);
    let held = PEAK.load(Relaxed) - before;
    let limit = MULTIPLE_MAX * input.len();
    println!("{name}: {held} B for {} B of input", input.len());
    assert!(held <= limit, "{name}: held {held} B for {} B of input", input.len());
}

fn gguf_with(tensors: u64, keys: u64, body: &[u8]) -> Vec<u8> {
    [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &keys.to_le_bytes(), body].concat()
}

/// A GGUF file that is one array of `type_id` elements of `element` each.
fn gguf_array(type_id: u32, element: &[u8]) -> Vec<u8> {
    let count = INPUT_BYTES / element.len();
    let head =
        [&1u64.to_le_bytes()[..], b"k", &9u32.to_le_bytes(), &type_id.to_le_bytes()].concat();
    let elements = element.repeat(count);
    gguf_with(0, 1, &[&head[..], &(count as u64).to_le_bytes(), &elements].concat())
}

fn numbered(count: usize, entry: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count as u32).flat_map(entry).collect()
}

fn json_header(header: &str) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

/// One test, since the counters are shared.
#[test]
fn parsers_hold_a_small_multiple_of_their_input() {
    let gguf = |bytes: &[u8]| {
        let _ = Gguf::parse(Path::new("m"), bytes, Extent::Header);
    };
    assert_bounded("bytes", &gguf_array(0, &[1]), gguf);
    assert_bounded("i8", &gguf_array(1, &[1]), gguf);
    assert_bounded("u16", &gguf_array(2, &[1, 2]), gguf);
    assert_bounded("booleans", &gguf_array(7, &[1]), gguf);
    assert_bounded("empty strings", &gguf_array(8, &[0; 8]), gguf);
    assert_bounded("short strings", &gguf_array(8, &[1, 0, 0, 0, 0, 0, 0, 0, b'x']), gguf);

    let key = |n: u32| {
        let name = format!("{n:05x}");
        [&5u64.to_le_bytes()[..], name.as_bytes(), &[7, 0, 0, 0, 1]].concat()
    };
    let count = INPUT_BYTES / key(0).len();
    assert_bounded("keys", &gguf_with(0, count as u64, &numbered(count, key)), gguf);
    let tensor = |n: u32| {
        let name = format!("{n:05x}");
        [&5u64.to_le_bytes()[..], name.as_bytes(), &[0; 16]].concat()
    };
    let count = INPUT_BYTES / tensor(0).len();
    assert_bounded("scalars", &gguf_with(count as u64, 0, &numbered(count, tensor)), gguf);
    let huge = vec![0xff; INPUT_BYTES];
    assert_bounded("counts", &gguf_with(1 << 60, 1 << 60, &huge), gguf);

    let safetensors = |bytes: &[u8]| {
        let _ = Safetensors::parse(Path::new("m"), bytes, Extent::Header);
    };
    let entry =
        |n: u32| format!(r#""{n}":{{"dtype":"U8","shape":[],"data_offsets":[0,0]}},"#).into_bytes();
    let entries = String::from_utf8(numbered(INPUT_BYTES / 56, entry)).unwrap();
    let header = format!("{{{}}}", entries.trim_end_matches(','));
    assert_bounded("entries", &json_header(&header), safetensors);
    let shape = "1,".repeat(INPUT_BYTES / 2);
    let header = format!(r#"{{"t":{{"dtype":"F4","shape":[{shape}1],"data_offsets":[0,0]}}}}"#);
    assert_bounded("dimensions", &json_header(&header), safetensors);
    let nested = format!(r#"{{"__metadata__":{}"#, "[".repeat(INPUT_BYTES));
    assert_bounded("nesting", &json_header(&nested), safetensors);
    let index = |bytes: &[u8]| {
        let _ = Safetensors::parse_index(Path::new("i"), bytes);
    };
    let pair = |n: u32| format!(r#""{n}":"{n}.safetensors","#).into_bytes();
    let pairs = String::from_utf8(numbered(INPUT_BYTES / 28, pair)).unwrap();
    let map = format!(r#"{{"weight_map":{{{}}}}}"#, pairs.trim_end_matches(','));
    assert_bounded("index", map.as_bytes(), index);
}
