//! Times products on the shapes of a 135 M parameter model, beside two probes of the machine.
//!
//! `cargo run --release -p ignis-cpu --example linear_bench [quick] [isa ...]`
//!
//! - read: one pass over 96 MiB that were not used since: the limit of decode.
//! - int8: multiply-adds of bytes from registers, the limit of prefill; an operation is a multiply
//!   or an add.
//!
//! Every number is the best of many passes. Decode walks over several copies of a matrix, together
//! beyond any cache that could hold them, as a token walks over layers.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ignis_cpu::linear::{
    Encoding, Isa, Matrix, encode_row_on, encoded_row_bytes, pack, packed_bytes, panels, run,
};
use ignis_types::DType;

#[path = "linear_bench/probes.rs"]
mod probes;

/// Rows, columns, dtype.
const SHAPES: [(u32, u32, DType); 5] = [
    (576, 576, DType::Q4_1),
    (192, 576, DType::Q4_1),
    (1536, 576, DType::Q4_1),
    (576, 1536, DType::Q4_1),
    (49152, 576, DType::Q8_0),
];
/// Memory of the copies that decode walks over.
const COLD_BYTES: usize = 96 << 20;

/// Memory that asks for large pages.
struct Memory {
    bytes: Vec<u8>,
    from: usize,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Memory {
        const HUGE: usize = 2 << 20;
        let bytes: Vec<u8> = Vec::with_capacity(len + HUGE);
        let from = bytes.as_ptr().align_offset(HUGE);
        let mut memory = Memory { bytes, from, len };
        let start = memory.bytes.as_mut_ptr().wrapping_add(from);
        // SAFETY: the range lies in the vector's reservation; advice changes no content.
        let _ =
            unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxHugepage) };
        memory.bytes.resize(len + HUGE, 1);
        memory
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.from..][..self.len]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..][..self.len]
    }
}

struct Bench {
    budget: Duration,
    isa: Isa,
    threads: usize,
}

impl Bench {
    /// Best seconds of one pass of `body(thread)` on every thread at once.
    fn best(&self, body: impl Fn(usize) + Sync) -> f64 {
        let mut best = f64::INFINITY;
        let start = Instant::now();
        let barrier = SpinBarrier::default();
        while start.elapsed() < self.budget {
            let slowest = std::thread::scope(|scope| {
                let passes: Vec<_> = (0..self.threads)
                    .map(|thread| {
                        let (body, barrier) = (&body, &barrier);
                        scope.spawn(move || {
                            let mut best = Vec::new();
                            for _ in 0..8 {
                                barrier.wait(self.threads);
                                let start = Instant::now();
                                body(thread);
                                best.push(start.elapsed().as_secs_f64());
                            }
                            best
                        })
                    })
                    .collect();
                let passes: Vec<Vec<f64>> =
                    passes.into_iter().map(|pass| pass.join().expect("no panics")).collect();
                (0..8)
                    .map(|at| passes.iter().map(|pass| pass[at]).fold(0.0, f64::max))
                    .fold(f64::INFINITY, f64::min)
            });
            best = best.min(slowest);
        }
        best
    }

    fn product(&self, shape: (u32, u32, DType), m: usize, encoding: Encoding) -> (f64, f64) {
        let (rows, cols, dtype) = shape;
        let bytes = packed_bytes(dtype, rows, cols).unwrap().as_usize();
        let copies = if m <= 8 { COLD_BYTES.div_ceil(bytes) } else { 1 };
        let mut memory = Memory::new(bytes * copies);
        let stored =
            vec![
                17u8;
                dtype.bytes_of(u64::from(rows) * u64::from(cols)).unwrap().unwrap().as_usize()
            ];
        for out in memory.get_mut().chunks_exact_mut(bytes) {
            pack(dtype, rows, cols, None, &stored, out).unwrap();
        }
        let stride = encoded_row_bytes(cols, encoding);
        let mut enc = Memory::new(stride * m);
        let x: Vec<f32> = (0..cols).map(|at| (at * 37 % 101) as f32 - 50.0).collect();
        for out in enc.get_mut().chunks_exact_mut(stride) {
            encode_row_on(self.isa, &x, encoding, out);
        }
        let y = vec![0.0f32; rows as usize * m];
        let y = SharedPointer(y.as_ptr().cast_mut());
        let all = panels(rows);
        let seconds = self.best(|thread| {
            let y = &y;
            let (start, end) = (
                all * thread as u32 / self.threads as u32,
                all * (thread as u32 + 1) / self.threads as u32,
            );
            for w in memory.get().chunks_exact(bytes) {
                // SAFETY: packed bytes of this shape; threads write disjoint columns of `y`.
                unsafe {
                    let w = Matrix::new(dtype, rows, cols, w.as_ptr());
                    let enc = enc.get().as_ptr();
                    run(
                        self.isa,
                        &w,
                        encoding,
                        enc,
                        m,
                        y.0,
                        rows as usize,
                        None,
                        false,
                        start..end,
                    );
                }
            }
        });
        black_box(&y);
        let seconds = seconds / copies as f64;
        let ops = 2.0 * f64::from(rows) * f64::from(cols) * m as f64;
        (ops / seconds / 1e9, bytes as f64 / seconds / 1e9)
    }
}

struct SharedPointer(*mut f32);
// SAFETY: the threads of the bench write disjoint parts.
unsafe impl Sync for SharedPointer {}

#[derive(Default)]
struct SpinBarrier {
    count: std::sync::atomic::AtomicUsize,
}

impl SpinBarrier {
    fn wait(&self, threads: usize) {
        use std::sync::atomic::Ordering::SeqCst;
        let ticket = self.count.fetch_add(1, SeqCst);
        let full = (ticket / threads + 1) * threads;
        while self.count.load(SeqCst) < full {
            std::thread::yield_now();
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "quick");
    let budget = Duration::from_millis(if quick { 60 } else { 700 });
    let chosen = |isa: Isa| {
        let mut names = args.iter().filter(|arg| *arg != "quick").peekable();
        names.peek().is_none() || names.any(|name| name == isa.name())
    };
    let cold = Memory::new(COLD_BYTES);
    for threads in [1, 2] {
        for isa in Isa::available().filter(|&isa| chosen(isa)) {
            let bench = Bench { budget, isa, threads };
            let read = bench.best(|thread| {
                let part = COLD_BYTES / threads;
                black_box(probes::read(&cold.get()[part * thread..][..part]));
            });
            let read = COLD_BYTES as f64 / read / 1e9;
            let peak = threads as f64 * probes::INT8_OPS / bench.best(|_| probes::int8(isa)) / 1e9;
            println!("{threads} threads, {isa}: read {read:.1} GB/s, int8 {peak:.0} Gop/s");
            println!("  dtype  rows x cols   encoding     m     Gop/s   peak     GB/s   read");
            for shape in SHAPES {
                for encoding in [Encoding::Int8, Encoding::Int16] {
                    for m in [1, 8, 64, 512] {
                        let slow = isa == Isa::Scalar && m > 8;
                        if slow || (m > 8 && shape.0 > 10_000) {
                            continue;
                        }
                        let (gops, gbs) = bench.product(shape, m, encoding);
                        println!(
                            "  {:<6} {:>5} x {:<5} {:>8} {m:>5} {gops:>9.1} {:>5.0}% {gbs:>8.1} \
                             {:>5.0}%",
                            shape.2.name(),
                            shape.0,
                            shape.1,
                            format!("{encoding:?}"),
                            100.0 * gops / peak,
                            100.0 * gbs / read,
                        );
                    }
                }
            }
        }
    }
}
