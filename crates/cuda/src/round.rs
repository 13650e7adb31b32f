//! A round's inputs, written where the card can fetch them, in one piece.
//!
//! Rounds that decode have a piece and all others have one. A recorded round reads its piece
//! itself; to others it is copied.

use ignis_backend::{DeviceError, StoredScratch, runs};
use ignis_ops::Round;
use ignis_types::{Limits, PAGE_TOKENS};

use crate::abi::Inputs;
use crate::driver::Context;
use crate::memory::{Memory, Pinned};
use crate::stream::Event;

/// What a round's launches need to know on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) rows: u32,
    pub(crate) logit_rows: u32,
    /// Tiles of rows that attention reduces whole; they come first.
    pub(crate) tiles: u32,
    /// Rows that it cuts into runs, and the most runs that one of them has.
    pub(crate) split: u32,
    pub(crate) runs: u32,
}

/// Where each array lies in a piece, in words.
#[derive(Clone, Copy, Debug)]
struct Map {
    positions: usize,
    lanes: usize,
    logit_rows: usize,
    tiles: usize,
    tables: usize,
    words: usize,
}

/// The two pieces and what they are sent to.
#[derive(Debug)]
pub(crate) struct RoundInputs {
    /// Of rounds that decode, and of others; each with a mark behind what reads it.
    pieces: [(Pinned, Event); 2],
    /// The piece that was written last.
    last: usize,
    map: Map,
    /// Start on the device.
    at: u64,
    /// Rows of a tile.
    tile_rows: u32,
    limits: Limits,
    vocab: u32,
}

impl RoundInputs {
    /// Pins both pieces. `scratch_at` is where the scratch starts, `group` how many query heads
    /// share a KV head, `vocab` below which ids the embedding accepts.
    pub(crate) fn new(
        scratch: &StoredScratch,
        scratch_at: u64,
        limits: &Limits,
        (group, tile_queries, vocab): (u32, u32, u32),
    ) -> Result<RoundInputs, DeviceError> {
        let word = |offset: u64| ((offset - scratch.tokens) / 4) as usize;
        let map = Map {
            positions: word(scratch.positions),
            lanes: word(scratch.lanes),
            logit_rows: word(scratch.logit_rows),
            tiles: word(scratch.tiles),
            tables: word(scratch.tables),
            words: word(scratch.inv_freq),
        };
        let piece = || Ok((Pinned::new(4 * map.words)?, Event::new()?));
        Ok(RoundInputs {
            pieces: [piece()?, piece()?],
            last: 0,
            map,
            at: scratch_at + scratch.tokens,
            tile_rows: (tile_queries / group).max(1),
            limits: *limits,
            vocab,
        })
    }

    /// Bytes pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.pieces.iter().map(|(piece, _)| piece.bytes().len() as u64).sum()
    }

    /// Checks a round against the limits and writes it.
    ///
    /// The invariants of `Round` are the caller's: what breaks them is a bug, and asserts before
    /// any kernel trusts an index.
    pub(crate) fn write(&mut self, round: &Round<'_>) -> Result<Counts, DeviceError> {
        self.last = usize::from(round.segments.iter().any(|segment| segment.rows > 1));
        let Map { positions, lanes, logit_rows, tiles, tables, words: count } = self.map;
        let (piece, read) = &mut self.pieces[self.last];
        read.wait()?;
        let words = words_of(piece, count);
        assert!(round.tokens.len() <= self.limits.round_rows_max() as usize, "round too wide");
        let stride = self.limits.sequence_pages_max() as usize;
        let mut counts = Counts { rows: round.tokens.len() as u32, ..Counts::default() };
        let mut row = 0;
        for segment in round.segments {
            let (first, rows) = (segment.row as usize, segment.rows as usize);
            assert!(rows > 0 && first == row, "segments leave a gap");
            assert!(segment.lane < self.limits.lanes_max, "lane {} of a round", segment.lane);
            let last = segment.position as usize + rows - 1;
            assert!(last < self.limits.context_tokens_max as usize, "position {last} of a round");
            let pages = last / PAGE_TOKENS as usize + 1;
            assert!(pages <= round.stride, "position {last} is outside the block table");
            let from = &round.block_tables[segment.lane as usize * round.stride..][..pages];
            for (i, &page) in from.iter().enumerate() {
                assert!(page < self.limits.pages, "page {page} of {}", self.limits.pages);
                words[tables + segment.lane as usize * stride + i] = page;
            }
            for i in 0..rows {
                let id = round.tokens[first + i];
                assert!(id < self.vocab, "token {id} of {}", self.vocab);
                words[row + i] = id;
                words[positions + row + i] = segment.position + i as u32;
                words[lanes + row + i] = segment.lane;
            }
            row += rows;
        }
        assert_eq!(row, round.tokens.len(), "segments do not cover the tokens");
        for whole in [true, false] {
            for segment in round.segments.iter().filter(|s| (s.rows > 1) == whole) {
                let step = if whole { self.tile_rows } else { 1 };
                for at in (0..segment.rows).step_by(step as usize) {
                    let tile = tiles + 2 * (counts.tiles + counts.split) as usize;
                    words[tile] = segment.row + at;
                    words[tile + 1] = step.min(segment.rows - at);
                    if whole {
                        counts.tiles += 1;
                    } else {
                        let pages = segment.position / PAGE_TOKENS + 1;
                        counts.split += 1;
                        counts.runs = counts.runs.max(runs(pages));
                    }
                }
            }
        }
        counts.logit_rows = put_logit_rows(words, logit_rows, round, &self.limits, counts.rows);
        Ok(counts)
    }

    /// Writes other rows of logits of the round that was written last.
    pub(crate) fn write_logit_rows(
        &mut self,
        round: &Round<'_>,
        counts: &mut Counts,
    ) -> Result<(), DeviceError> {
        let Map { logit_rows, words: count, .. } = self.map;
        let (piece, read) = &mut self.pieces[self.last];
        read.wait()?;
        let words = words_of(piece, count);
        counts.logit_rows = put_logit_rows(words, logit_rows, round, &self.limits, counts.rows);
        Ok(())
    }

    /// Starts copying what was written last.
    pub(crate) fn send(&self, context: &Context, memory: &Memory) -> Result<(), DeviceError> {
        let (piece, _) = &self.pieces[self.last];
        piece.send(context, memory, self.at, 4 * self.map.words)?;
        self.mark_read(context)
    }

    /// Everything that reads what was written last is on the stream.
    pub(crate) fn mark_read(&self, context: &Context) -> Result<(), DeviceError> {
        self.pieces[self.last].1.record(context)
    }

    /// How a recorded round reads its piece, and the draws: from the host and to the card.
    pub(crate) fn fetched(&self, memory: &Memory, (draws, draws_to): (u64, u64)) -> Inputs {
        let Map { positions, lanes, logit_rows, tiles, tables, words } = self.map;
        let [positions, lanes, logit_rows, tiles, tables] =
            [positions, lanes, logit_rows, tiles, tables].map(|at| at as u32);
        Inputs {
            from: self.pieces[0].0.device_address(),
            to: memory.address(self.at, 4 * words as u64),
            positions,
            lanes,
            logit_rows,
            tiles,
            tables,
            stride: self.limits.sequence_pages_max(),
            draws,
            draws_to,
        }
    }
}

/// A piece as words.
fn words_of(piece: &mut Pinned, count: usize) -> &mut [u32] {
    let bytes = piece.bytes_mut();
    // SAFETY: pinned memory is aligned to a page, any bits are a word, and the piece has `count`.
    let (before, words, _) = unsafe { bytes.align_to_mut::<u32>() };
    assert!(before.is_empty() && words.len() >= count, "a piece holds whole words");
    &mut words[..count]
}

fn put_logit_rows(
    words: &mut [u32],
    at: usize,
    round: &Round<'_>,
    limits: &Limits,
    rows: u32,
) -> u32 {
    assert!(round.logit_rows.len() <= limits.lanes_max as usize, "too many logit rows");
    for (i, &row) in round.logit_rows.iter().enumerate() {
        assert!(row < rows, "logit row {row} of the round");
        words[at + i] = row;
    }
    round.logit_rows.len() as u32
}
