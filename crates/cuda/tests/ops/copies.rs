//! Copies of pages and of sections: to the host, from it, and from place to place.

use ignis_backend::{Blocks, Copied, CopyPart, CopyWay};
use ignis_ops::{AddRows, KvShape, Op, RopeScaling, RopeTable};
use ignis_types::{Bytes, Limits};

use crate::bench::{Bench, LIMITS, Maker};
use crate::load::Load;
use crate::support::Dice;

/// Pages that are copied, of a pool of eight.
const PAGES: Limits = Limits { lanes_max: 4, pages: 8, ..LIMITS };

/// Bytes of one lane of a section: not a whole number of any unit of copying.
const SECTION_BYTES: u64 = 4 * 4_099;

/// A device with a pool of pages, whose rounds leave it alone.
fn bench(load: Load, kv: KvShape) -> Bench {
    let rope = RopeTable::new(1e4, 0, &RopeScaling::None);
    let mut maker = Maker::over(kv, rope);
    let idle = maker.rows("idle", 8);
    maker.push(Op::AddRows(AddRows { x: idle, y: idle }));
    let mut bench = Bench::new(load, &maker.finish(), PAGES);
    bench.poison();
    bench
}

fn random_bytes(count: u64, seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    (0..count).map(|_| dice.bits() as u8).collect()
}

/// Bytes of the pool as they should be, beside those on the device.
struct Pool {
    bench: Bench,
    expected: Vec<u8>,
}

impl Pool {
    fn at(&self, offset: u64) -> u64 {
        self.bench.addresses.kv_pool + offset
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.bench.device.write(self.at(offset), bytes).unwrap();
        self.expected[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn copy(&mut self, from: u64, to: u64, bytes: u64) {
        self.bench.device.copy(self.at(from), self.at(to), Bytes(bytes)).unwrap();
        self.expected.copy_within(from as usize..(from + bytes) as usize, to as usize);
    }

    /// Takes bytes out and puts them back elsewhere, beside the rounds where the device can.
    fn travel(&mut self, from: u64, to: u64, bytes: u64) {
        let (out, back) = (self.at(from), self.at(to));
        let device = &mut self.bench.device;
        if !device.copies_beside() {
            let mut held = vec![0; bytes as usize];
            device.read(out, &mut held).unwrap();
            device.write(back, &held).unwrap();
        } else {
            let mut host = device.host_memory(1, bytes as usize + 64).unwrap().remove(0);
            for (way, at) in [(CopyWay::Out, out), (CopyWay::In, back)] {
                let part = CopyPart { at, host: 64, bytes: bytes as usize };
                let copies = device.begin_copies(way, host, &mut std::iter::once(part), true);
                let Copied { host: given, result } = device.end_copies(copies, true).unwrap();
                result.unwrap();
                host = given;
            }
            let _: Blocks = host;
        }
        self.expected.copy_within(from as usize..(from + bytes) as usize, to as usize);
    }

    /// All of the pool, whatever was copied: so nothing was written beside it.
    fn check(&mut self, what: &str) {
        let mut found = vec![0; self.expected.len()];
        self.bench.device.read(self.at(0), &mut found).unwrap();
        let wrong = found.iter().zip(&self.expected).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{what}: byte");
    }
}

pub(crate) fn pages_and_sections(load: Load) {
    for (layers, kv_heads, head_dim) in [(1, 1, 8), (3, 2, 24), (4, 8, 128)] {
        let bench = bench(load, KvShape { layers, kv_heads, head_dim });
        let page = bench.page_bytes();
        let mut pool = Pool { expected: vec![0xff; 8 * page as usize], bench };
        let name = |what| format!("{load:?} {page} B a page, {what}");
        for i in [1, 2, 6] {
            pool.write(i * page, &random_bytes(page, i));
        }
        pool.check(&name("written"));
        pool.copy(page, 4 * page, page);
        pool.copy(6 * page, 0, page);
        pool.check(&name("copied"));
        pool.travel(2 * page, 7 * page, page);
        pool.check(&name("out and in"));
        // The part of a section: any length, at a start as sections have.
        let bytes = SECTION_BYTES.min(2 * page - 4);
        let start = (3 * page).next_multiple_of(256);
        pool.write(start, &random_bytes(bytes, 9));
        pool.copy(start, 256, bytes);
        pool.travel(start, 5 * page + 4, bytes.min(page));
        pool.check(&name("a section"));
    }
}
