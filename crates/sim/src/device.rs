//! Device memory whose pages hold the tokens stored there, and whose section a running hash.

use ignis_backend::{
    Addresses, Blocks, COPIES_MAX, Copied, CopyId, CopyPart, CopyWay, Device, DeviceError,
    DeviceLayout, LaneSampling, Sum,
};
use ignis_ops::{Program, Round, SampleOut, Segment, WeightId};
use ignis_types::{Bytes, Limits, PAGE_TOKENS};

use crate::layout::{PAGE_BYTES, SimLayout};
use crate::witness::{running_next, running_start, witness_next, witness_token};

/// When a round runs that is begun now and finished later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Rounds are only run whole.
    Whole,
    /// All of it before `start` returns.
    Early,
    /// All of it in `collect`.
    Late,
}

/// What a round that was started needs to be run, or to be drawn from.
#[derive(Debug)]
struct Started {
    tokens: Vec<u32>,
    segments: Vec<Segment>,
    logit_rows: Vec<u32>,
    block_tables: Vec<u32>,
    stride: usize,
    draws: usize,
    /// It is to fail in `collect`.
    fails: bool,
}

/// Most polls that copies take.
const COPY_POLLS_MAX: u32 = 3;

/// Copies in flight.
#[derive(Debug)]
struct Flight {
    way: CopyWay,
    host: Blocks,
    parts: Vec<CopyPart>,
    polls: u32,
    /// Of what is copied out, at the beginning; none if it may change.
    sum: Sum,
    fails: bool,
}

/// Runs the witness over real block tables.
#[derive(Debug)]
pub struct SimDevice {
    pace: Pace,
    started: Option<Started>,
    seed: u64,
    fault_ppm: u32,
    copies_fault_ppm: u32,
    draws: u64,
    reservations: u64,
    vocab: u32,
    memory: Vec<u8>,
    /// Start of `[pages, PAGE_TOKENS]` stored tokens.
    pool: usize,
    /// Start of `[lanes_max]` running hashes.
    running: usize,
    /// `[lanes_max, vocab]`, one hot.
    logits: Vec<f32>,
    /// Out, then in.
    flights: [Option<Flight>; 2 * COPIES_MAX],
    copies: u32,
    beside: bool,
}

impl SimDevice {
    /// A device whose witness hashes with `seed` and whose runs fail `fault_ppm` times in a
    /// million. Its pace is drawn from the seed.
    pub fn new(seed: u64, fault_ppm: u32) -> Self {
        let pace = match witness_next([u32::MAX], 3, seed) {
            0 => Pace::Whole,
            1 => Pace::Early,
            _ => Pace::Late,
        };
        SimDevice {
            pace,
            started: None,
            seed,
            fault_ppm,
            copies_fault_ppm: 0,
            draws: 0,
            reservations: 0,
            vocab: 0,
            memory: Vec::new(),
            pool: 0,
            running: 0,
            logits: Vec::new(),
            flights: [const { None }; 2 * COPIES_MAX],
            copies: 0,
            beside: false,
        }
    }

    /// The same at this pace.
    pub fn at(self, pace: Pace) -> Self {
        SimDevice { pace, ..self }
    }

    /// The device with copies beside its rounds, which are made when they end: as late as can be,
    /// after some polls. What is copied out is summed when it is asked for, and half of what is
    /// copied in is made then too: as early as can be, before a round that was started. They fail
    /// `fault_ppm` times in a million.
    pub fn copying_beside(self, fault_ppm: u32) -> Self {
        SimDevice { beside: true, copies_fault_ppm: fault_ppm, ..self }
    }

    fn compute(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        for segment in round.segments {
            for i in 0..segment.rows {
                let token = round.tokens[(segment.row + i) as usize];
                self.append(round, segment.lane, segment.position + i, token);
            }
        }
        self.run_head(round)
    }

    fn draw(&self, logit_row: u32) -> SampleOut {
        let token = self.row(logit_row).iter().position(|&l| l == 1.0);
        let token = token.expect("logits are one hot") as u32;
        SampleOut { token, ..SampleOut::default() }
    }

    /// Where the token of a lane's position lies.
    fn slot(&self, round: &Round<'_>, lane: u32, position: u32) -> usize {
        let entry = lane as usize * round.stride + (position / PAGE_TOKENS) as usize;
        let page = round.block_tables[entry] as usize;
        self.pool + page * PAGE_BYTES + 4 * (position % PAGE_TOKENS) as usize
    }

    fn token(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.memory[at..at + 4].try_into().expect("four bytes"))
    }

    fn hash(&self, lane: u32) -> u64 {
        let at = self.running + 8 * lane as usize;
        u64::from_le_bytes(self.memory[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Stores one token of a lane, and moves its running hash on.
    fn append(&mut self, round: &Round<'_>, lane: u32, position: u32, token: u32) {
        let slot = self.slot(round, lane, position);
        self.memory[slot..slot + 4].copy_from_slice(&token.to_le_bytes());
        let before = if position == 0 { running_start(self.seed) } else { self.hash(lane) };
        let at = self.running + 8 * lane as usize;
        self.memory[at..at + 8].copy_from_slice(&running_next(before, token).to_le_bytes());
    }

    /// The sum of parts where they lie.
    fn sum(&self, parts: &[CopyPart]) -> Sum {
        let each = parts.iter().map(|part| Sum::of(&self.memory[self.span(part.at, part.bytes)]));
        each.fold(Sum::NONE, Sum::then)
    }

    fn span(&self, at: u64, len: usize) -> std::ops::Range<usize> {
        let at = Bytes(at).as_usize();
        at..at + len
    }

    fn row(&self, row: u32) -> &[f32] {
        let vocab = self.vocab as usize;
        &self.logits[row as usize * vocab..][..vocab]
    }

    fn faulty(&mut self) -> bool {
        self.draws += 1;
        let draw =
            witness_next([self.draws as u32, (self.draws >> 32) as u32], 1_000_000, self.seed);
        draw < self.fault_ppm
    }
}

impl Device for SimDevice {
    fn layout(&self) -> &dyn DeviceLayout {
        &SimLayout
    }

    fn describe(&self) -> String {
        format!("simulated (seed {})", self.seed)
    }

    /// The witness hashes with the seed.
    fn arithmetic(&self) -> String {
        self.seed.to_string()
    }

    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError> {
        self.reservations += 1;
        // What was never stored is no token.
        self.memory = vec![u8::MAX; bytes.as_usize()];
        Ok(())
    }

    fn reservations(&self) -> u64 {
        self.reservations
    }

    fn bind(
        &mut self,
        program: &Program,
        addresses: &Addresses,
        limits: &Limits,
    ) -> Result<(), DeviceError> {
        self.vocab = program.vocab;
        self.pool = Bytes(addresses.kv_pool).as_usize();
        self.running = Bytes(addresses.sections[0]).as_usize();
        self.logits = vec![0.0; limits.lanes_max as usize * program.vocab as usize];
        Ok(())
    }

    fn put_weight(&mut self, _: WeightId, _: &[&[u8]]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        assert!(self.started.is_none(), "one round at a time");
        if self.faulty() {
            return Err(DeviceError::Fault { what: "simulated run" });
        }
        self.compute(round)
    }

    fn start(
        &mut self,
        round: &Round<'_>,
        lanes: &[LaneSampling<'_>],
    ) -> Result<bool, DeviceError> {
        assert!(self.started.is_none(), "one round at a time");
        assert!(lanes.iter().enumerate().all(|(at, lane)| lane.logit_row == at as u32));
        if self.pace == Pace::Whole {
            return Ok(false);
        }
        let faulty = self.faulty();
        let fails = faulty && self.draws.is_multiple_of(2);
        if faulty && !fails {
            return Err(DeviceError::Fault { what: "simulated start" });
        }
        if self.pace == Pace::Early && !fails {
            self.compute(round)?;
        }
        self.started = Some(Started {
            tokens: round.tokens.to_vec(),
            segments: round.segments.to_vec(),
            logit_rows: round.logit_rows.to_vec(),
            block_tables: round.block_tables.to_vec(),
            stride: round.stride,
            draws: lanes.len(),
            fails,
        });
        Ok(true)
    }

    fn collect(&mut self, out: &mut [SampleOut]) -> Result<(), DeviceError> {
        let started = self.started.take().expect("what is collected was started");
        if started.fails {
            return Err(DeviceError::Fault { what: "simulated run" });
        }
        if self.pace == Pace::Late {
            self.compute(&Round {
                tokens: &started.tokens,
                segments: &started.segments,
                logit_rows: &started.logit_rows,
                block_tables: &started.block_tables,
                stride: started.stride,
            })?;
        }
        assert_eq!(out.len(), started.draws, "one draw a lane");
        for (row, out) in out.iter_mut().enumerate() {
            *out = self.draw(row as u32);
        }
        Ok(())
    }

    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        let vocab = self.vocab as usize;
        for (at, &row) in round.logit_rows.iter().enumerate() {
            let segment = round
                .segments
                .iter()
                .find(|s| (s.row..s.row + s.rows).contains(&row))
                .expect("a logit row lies in a segment");
            let last = segment.position + (row - segment.row);
            let prefix = (0..=last).map(|p| self.token(self.slot(round, segment.lane, p)));
            // The section stands behind the segment's last row, and so must the row drawn from.
            assert_eq!(row + 1, segment.row + segment.rows, "the witness draws from last rows");
            let running = self.hash(segment.lane);
            let next = witness_token(prefix, running, self.vocab, self.seed);
            let logits = &mut self.logits[at * vocab..(at + 1) * vocab];
            logits.fill(0.0);
            logits[next as usize] = 1.0;
        }
        Ok(())
    }

    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        assert!(self.started.is_none(), "its draws come with it");
        for (lane, out) in lanes.iter().zip(out) {
            *out = self.draw(lane.logit_row);
        }
        Ok(())
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceError> {
        Ok(self.row(row))
    }

    fn reset_penalties(&mut self, _: u32, _: &[u32], _: &[u32]) -> Result<(), DeviceError> {
        assert!(self.started.is_none(), "between rounds only");
        Ok(())
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        out.copy_from_slice(&self.memory[self.span(at, out.len())]);
        Ok(())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let span = self.span(at, bytes.len());
        self.memory[span].copy_from_slice(bytes);
        Ok(())
    }

    fn copy(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), DeviceError> {
        let from = self.span(from, bytes.as_usize());
        self.memory.copy_within(from, Bytes(to).as_usize());
        Ok(())
    }

    fn copies_beside(&self) -> bool {
        self.beside
    }

    fn begin_copies(
        &mut self,
        way: CopyWay,
        host: Blocks,
        parts: &mut dyn Iterator<Item = CopyPart>,
        still: bool,
    ) -> CopyId {
        let first = if way == CopyWay::Out { 0 } else { COPIES_MAX };
        let slots = &self.flights[first..first + COPIES_MAX];
        let free = slots.iter().position(Option::is_none).expect("too many copies in flight");
        let at = first + free;
        self.copies = self.copies.wrapping_add(1);
        let polls = witness_next([self.copies], COPY_POLLS_MAX + 1, self.seed);
        let parts: Vec<CopyPart> = parts.collect();
        let sum = if still { self.sum(&parts) } else { Sum::NONE };
        let fails = witness_next([self.copies, 1], 1_000_000, self.seed) < self.copies_fault_ppm;
        if way == CopyWay::In && witness_next([self.copies, 2], 2, self.seed) == 0 {
            for part in &parts {
                let span = self.span(part.at, part.bytes);
                self.memory[span].copy_from_slice(&host[part.host..part.host + part.bytes]);
            }
        }
        self.flights[at] = Some(Flight { way, host, parts, polls, sum, fails });
        CopyId(at as u32)
    }

    fn end_copies(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        let at = copies.0 as usize;
        let flight = self.flights[at].as_mut().expect("copies end once");
        if flight.polls > 0 && !wait {
            flight.polls -= 1;
            return None;
        }
        let Flight { way, mut host, parts, sum, fails, .. } = self.flights[at].take()?;
        for part in &parts {
            let span = self.span(part.at, part.bytes);
            let piece = part.host..part.host + part.bytes;
            match (way, fails) {
                (CopyWay::Out, false) => host[piece].copy_from_slice(&self.memory[span]),
                (CopyWay::In, false) => self.memory[span].copy_from_slice(&host[piece]),
                (CopyWay::Out, true) => host[piece].fill(u8::MAX),
                (CopyWay::In, true) => self.memory[span].fill(u8::MAX),
            }
        }
        let result = match (way, fails) {
            (_, true) => Err(DeviceError::Fault { what: "simulated copies" }),
            (CopyWay::Out, false) => Ok(sum),
            (CopyWay::In, false) => Ok(self.sum(&parts)),
        };
        Some(Copied { host, result })
    }
}
