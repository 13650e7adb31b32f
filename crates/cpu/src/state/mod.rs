//! Ops that carry state from row to row: the causal convolution and the delta rule.
//!
//! Workers share (segment, part of the state); each takes all rows of its segment in order of
//! position. So the state is read and written once a round, and the cut of a prompt into chunks
//! does not show in a bit. Tiles of the recurrence fit the first-level cache.

mod conv;
mod delta;

use ignis_backend::{DeviceError, KvFormat};
use ignis_ops::{CausalConv, DeltaRule, Op, Program, SectionFormat, SectionId, Segment};
use ignis_types::Bytes;

use crate::program::{Compiler, Place, Step};
use crate::simd::Isa;
use crate::vector::LANES;
use conv::{conv2, conv3, conv4};
use delta::{Delta, KEYS_MAX};

/// Channels that a worker convolves at a time.
const CHANNELS: usize = 256;
/// Vectors of a tile of the recurrence.
const WIDE_TILE: usize = 4;
const NARROW_TILE: usize = 2;

/// Where the state of a layer lies: lanes are `lane` bytes apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct State {
    at: *mut u8,
    lane: usize,
}

/// A step of this file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scan {
    Conv { x: Place, w: *const f32, y: Place, taps: State, kernel: usize, format: KvFormat },
    Delta(Delta),
}

/// Refuses shapes that the kernels cannot serve.
pub(crate) fn check(program: &Program) -> Result<(), DeviceError> {
    let whole = |what, found: u32| {
        if found.is_multiple_of(LANES as u32) {
            return Ok(());
        }
        let (found, expected) = (u64::from(found), "a multiple of 16");
        Err(DeviceError::ShapeUnsupported { what, found, expected })
    };
    for op in &program.ops {
        match op {
            Op::CausalConv(op) => {
                let channels = program.buffer(op.x).width;
                whole("channels of a convolution", channels)?;
                let found = u64::from(program.weight(op.w).cols / channels);
                if !(2..=4).contains(&found) {
                    let (what, expected) = ("taps of a convolution", "2 to 4");
                    return Err(DeviceError::ShapeUnsupported { what, found, expected });
                }
            }
            Op::DeltaRule(op) => {
                whole("values of a key head", op.key_dim)?;
                whole("values of a value head", op.value_dim)?;
                if op.key_dim as usize > KEYS_MAX {
                    let (what, found) = ("values of a key head", u64::from(op.key_dim));
                    let expected = "at most 512";
                    return Err(DeviceError::ShapeUnsupported { what, found, expected });
                }
            }
            _ => {}
        }
    }
    Ok(())
}

impl Compiler<'_> {
    fn state(&self, id: SectionId, layer: u32) -> (State, KvFormat) {
        let section = &self.program.sections[id.0 as usize];
        let format = match section.format {
            SectionFormat::F32 => KvFormat::F32,
            SectionFormat::AsKv => self.layout.options().kv_format,
        };
        let bytes = format.dtype().block_bytes() as usize * section.elements as usize;
        let start = Bytes(self.addresses.sections[id.0 as usize]).as_usize();
        let at = self.base.wrapping_add(start + layer as usize * bytes);
        (State { at, lane: section.layers as usize * bytes }, format)
    }

    /// A step of its own: it reads rows that other workers have written.
    pub(crate) fn conv(&mut self, op: &CausalConv) -> Result<(), DeviceError> {
        self.needs_round_rows(op.x)?;
        self.end_chain();
        let (x, y) = (self.place(op.x), self.place(op.y));
        let (taps, format) = self.state(op.taps, op.layer);
        let kernel = self.program.weight(op.w).cols as usize / x.width;
        let conv = Scan::Conv { x, w: self.vector(op.w), y, taps, kernel, format };
        self.out.steps.push(Step::Scan(conv));
        Ok(())
    }

    /// As [`Compiler::conv`].
    pub(crate) fn delta(&mut self, op: &DeltaRule) -> Result<(), DeviceError> {
        self.needs_round_rows(op.qkv)?;
        self.end_chain();
        let delta = Delta {
            qkv: self.place(op.qkv),
            a: self.place(op.a),
            b: self.place(op.b),
            y: self.place(op.y),
            state: self.state(op.state, op.layer).0,
            key_heads: op.key_heads as usize,
            value_heads: op.value_heads as usize,
            key_dim: op.key_dim as usize,
            value_dim: op.value_dim as usize,
            map: op.map,
        };
        self.out.steps.push(Step::Scan(Scan::Delta(delta)));
        Ok(())
    }
}

impl Scan {
    /// Parts of one segment that workers claim.
    pub(crate) fn parts(&self, isa: Isa) -> usize {
        match self {
            Scan::Conv { x, .. } => x.width.div_ceil(CHANNELS),
            Scan::Delta(delta) => {
                delta.value_heads * delta.value_dim.div_ceil(tile_vectors(isa) * LANES)
            }
        }
    }

    /// Part `part` of a segment.
    ///
    /// # Safety
    /// The places hold the segment's rows, written before the last barrier; the section holds its
    /// lane; `isa` is available; nobody else has this part of the segment.
    pub(crate) unsafe fn run(&self, isa: Isa, segment: &Segment, part: usize) {
        let (first, rows) = (segment.row as usize, segment.rows as usize);
        let is_fresh = segment.position == 0;
        match *self {
            Scan::Conv { x, w, y, taps, kernel, format } => {
                let channels = part * CHANNELS..x.width.min((part + 1) * CHANNELS);
                let taps = taps.at.wrapping_add(segment.lane as usize * taps.lane);
                let conv = match kernel {
                    2 => conv2,
                    3 => conv3,
                    _ => conv4,
                };
                let is_bf16 = format == KvFormat::Bf16;
                for at in channels.step_by(LANES) {
                    // SAFETY: the caller's promises; `at` is below the width, a multiple of 16.
                    unsafe {
                        let (x, y) = (x.row(first).add(at), y.row(first).add(at));
                        conv(isa, x, w.add(at), y, taps, at, self.width(), rows, is_fresh, is_bf16);
                    }
                }
            }
            Scan::Delta(ref delta) => {
                let tile = tile_vectors(isa) * LANES;
                let tiles = delta.value_dim.div_ceil(tile);
                // SAFETY: the caller's promises.
                unsafe { delta.tile(isa, segment, part / tiles, part % tiles * tile, tile) };
            }
        }
    }

    fn width(&self) -> usize {
        match self {
            Scan::Conv { x, .. } => x.width,
            Scan::Delta(delta) => delta.qkv.width,
        }
    }
}

/// A tile takes as many accumulators as hide the latency of an addition.
fn tile_vectors(isa: Isa) -> usize {
    if isa == Isa::Avx512Vnni { WIDE_TILE } else { NARROW_TILE }
}
