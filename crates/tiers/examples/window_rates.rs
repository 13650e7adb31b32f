//! How fast windows move, beside a plain copy and plain unbuffered I/O of the same bytes.
//!
//! `cargo run --release -p ignis-tiers --example window_rates -- BYTES FOLDER [WINDOW [PASSES]]`
//!
//! Prints one JSON object: GB/s, the median of the passes, each pass over all of BYTES so that
//! nothing stays in a cache. `memcpy` copies window by window, as a move must; a copy of all BYTES
//! in one call, which the C library writes past the caches, stands beside it. The raw rates are
//! those of whole windows at the better of one and two in flight. Needs three times BYTES of memory
//! and twice of disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use ignis_backend::{BLOCK_BYTES, Blocks, DeviceError};
use ignis_tiers::{
    FRAME_HEADER_BYTES, FileDisk, IMAGE_WINDOWS_MAX, ImageHead, ImageId, Kind, Payload, Step, Tier,
    TierLimits, Tiers, disk_bytes,
};

/// All sequences' state, of which one is moved at a time.
struct States {
    source: Vec<u8>,
    sink: Vec<u8>,
    start: usize,
}

impl Payload for States {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        out.copy_from_slice(&self.source[self.start + at as usize..][..out.len()]);
        Ok(())
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.sink[self.start + at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, otherwise: u64| {
        args.get(index).map_or(otherwise, |arg| arg.parse().expect("a number"))
    };
    let window_bytes = number(2, 1 << 20) as u32;
    let windows = (number(0, 1 << 28) / u64::from(window_bytes)).max(1) as u32;
    let folder = args.get(1).map_or_else(std::env::temp_dir, Into::into).join("window-rates");
    let passes = number(3, 5) as usize;

    let room = window_bytes as usize - FRAME_HEADER_BYTES;
    let bytes = windows as usize * room;
    let source = (0..bytes).map(|i| (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u8).collect();
    let mut states = States { source, sink: vec![1; bytes], start: 0 };
    let disk = FileDisk::open(&folder, disk_bytes(windows, window_bytes), 0).expect("a disk");
    let direct = disk.is_direct();
    let limits = TierLimits { window_bytes, ram_windows: windows };
    let mut tiers = Tiers::new(limits, 1, 2, Some(Box::new(disk))).expect("memory and a disk");
    let file = raw_file(&folder, u64::from(windows) * u64::from(window_bytes)).expect("a file");

    let mut rates = [const { Vec::new() }; 8];
    for pass in 0..=passes {
        let mut buffers = [(); 2].map(|()| Blocks::zeroed(window_bytes as usize / BLOCK_BYTES));
        buffers.iter_mut().flatten().for_each(|buffer| buffer.fill(3));
        let mut raw = |write, in_flight| {
            time(|| transfer(&file, &mut buffers[..in_flight], windows, write).expect("raw I/O"))
        };
        let whole = time(|| states.sink.copy_from_slice(&states.source));
        let copy = time(|| {
            let (sink, source) = (&mut states.sink, &states.source);
            for (sink, source) in sink.chunks_mut(room).zip(source.chunks(room)) {
                sink.copy_from_slice(source);
            }
        });
        let (ram_out, ram_in) = move_all(&mut tiers, &mut states, Tier::Ram, room);
        let write = raw(true, 1).min(raw(true, 2));
        let read = raw(false, 1).min(raw(false, 2));
        let (disk_out, disk_in) = move_all(&mut tiers, &mut states, Tier::Disk, room);
        if pass > 0 {
            let times = [whole, copy, ram_out, ram_in, write, read, disk_out, disk_in];
            for (rate, time) in rates.iter_mut().zip(times) {
                rate.push(bytes as f64 / time / 1e9);
            }
        }
    }
    let [whole, copy, ram_out, ram_in, write, read, disk_out, disk_in] = rates.map(median);
    let places = |value: f64| (value * 1000.0).round() / 1000.0;
    let report = serde_json::json!({
        "bytes": bytes, "window_bytes": window_bytes, "passes": passes, "direct": direct,
        "memcpy_gb_s": places(copy), "memcpy_in_one_call_gb_s": places(whole),
        "ram_out_gb_s": places(ram_out), "ram_in_gb_s": places(ram_in),
        "raw_write_gb_s": places(write), "raw_read_gb_s": places(read),
        "disk_out_gb_s": places(disk_out), "disk_in_gb_s": places(disk_in),
        "ram_out_to_memcpy": places(ram_out / copy), "ram_in_to_memcpy": places(ram_in / copy),
        "ram_out_to_one_call": places(ram_out / whole),
        "ram_in_to_one_call": places(ram_in / whole),
        "disk_out_to_raw": places(disk_out / write), "disk_in_to_raw": places(disk_in / read),
    });
    println!("{report}");
    drop((tiers, file));
    std::fs::remove_dir_all(&folder).expect("the folder was made above");
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn time(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Seconds to make images of all states in a tier, and to restore them.
fn move_all(tiers: &mut Tiers, states: &mut States, tier: Tier, room: usize) -> (f64, f64) {
    let image_bytes = room * IMAGE_WINDOWS_MAX as usize;
    let bytes = states.source.len();
    let starts: Vec<usize> = (0..bytes).step_by(image_bytes).collect();
    let mut images = Vec::new();
    let out = time(|| {
        for &start in &starts {
            states.start = start;
            let payload_bytes = image_bytes.min(bytes - start) as u64;
            let head = ImageHead { kind: Kind::Live, class: 0, position: 1, payload_bytes };
            tiers.begin_out(head, tier).expect("as many windows as bytes");
            images.push(run(tiers, states, Tiers::step_out));
        }
    });
    states.sink.fill(0);
    let inward = time(|| {
        for (&image, &start) in images.iter().zip(&starts) {
            states.start = start;
            tiers.begin_in(image).expect("an image that landed");
            run(tiers, states, Tiers::step_in);
        }
    });
    assert!(states.sink == states.source, "other bytes came back");
    images.into_iter().for_each(|image| tiers.drop_image(image).expect("an image that landed"));
    (out, inward)
}

fn run(
    tiers: &mut Tiers,
    states: &mut States,
    step: fn(&mut Tiers, &mut dyn Payload) -> Step,
) -> ImageId {
    loop {
        match step(tiers, states) {
            Step::Landed(image) => return image,
            Step::Waiting => tiers.wait(Duration::from_secs(1)),
            Step::Advanced => {}
            Step::Idle => panic!("no move is in flight"),
            Step::Failed(_, error) => panic!("{error}"),
        }
    }
}

fn raw_file(folder: &Path, bytes: u64) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    #[cfg(target_os = "linux")]
    options.custom_flags(rustix::fs::OFlags::DIRECT.bits().cast_signed());
    let file = options.open(folder.join("raw"))?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    Ok(file)
}

/// Reads or writes every window of a file, with a thread for each buffer.
fn transfer(
    file: &File,
    buffers: &mut [Option<Blocks>],
    windows: u32,
    write: bool,
) -> io::Result<()> {
    let threads = buffers.len();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(buffers)
            .map(|(first, buffer)| {
                scope.spawn(move || {
                    let buffer = buffer.as_mut().expect("memory for a window");
                    (first..windows).step_by(threads).try_for_each(|window| {
                        let at = u64::from(window) * buffer.len() as u64;
                        match write {
                            true => file.write_all_at(buffer, at),
                            false => file.read_exact_at(buffer, at),
                        }
                    })
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a thread that ends"))
    })
}
