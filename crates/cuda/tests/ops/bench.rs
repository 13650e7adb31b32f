//! A program of one op, on a device whose memory holds nothing but NaN and what the op is given.

use half::bf16;
use ignis_backend::{Addresses, Device, FusedProgram, FusedStep, StoredActivations};
use ignis_ops::{
    AddRows, BufferId, KvShape, Op, Program, ProgramBuilder, RopeScaling, RopeTable, Round, Rows,
    Segment, WeightId, WeightKind, WeightSpec,
};
use ignis_types::{DType, Limits};

use crate::load::{Load, Slot};
use crate::support::{Dice, lay_out, stored};

/// What nothing wrote: NaN, in f32 and in bf16.
const POISON: u8 = 0xff;

pub(crate) const LIMITS: Limits = Limits {
    lanes_max: 8,
    chunk_tokens_max: 264,
    context_tokens_max: 512,
    pages: 64,
    retained_device: 0,
    retained_host: 0,
};

/// A pool for ops that have none.
pub(crate) const NO_POOL: KvShape = KvShape { layers: 1, kv_heads: 1, head_dim: 64 };

/// A program and the bytes of its weights.
#[derive(Clone)]
pub(crate) struct Made {
    pub(crate) program: Program,
    pub(crate) stored: Vec<Vec<u8>>,
}

impl Made {
    /// What a card that rounds to bf16 joins the body's ops to.
    pub(crate) fn steps(&self) -> Vec<&'static str> {
        let fused = FusedProgram::new(&self.program, StoredActivations::Bf16);
        let name = |step: &FusedStep| match step {
            FusedStep::NormEncode { .. } => "norm",
            FusedStep::Encode { .. } => "encode",
            FusedStep::SwiGluEncode { .. } => "swiglu",
            FusedStep::Products(products) if products.then.is_some() => "products and norm",
            FusedStep::Products(_) => "products",
            FusedStep::Glu { .. } => "gated products",
            FusedStep::Prepare(_) => "prepare",
            FusedStep::Attention { prepare: Some(_), .. } => "prepare and attention",
            FusedStep::Attention { prepare: None, .. } => "attention, encoded",
            FusedStep::Op(_) => "op",
        };
        fused.steps[..fused.head].iter().map(name).collect()
    }
}

/// Writes a program of a few ops.
pub(crate) struct Maker {
    builder: ProgramBuilder,
    stored: Vec<Vec<u8>>,
    specs: Vec<WeightSpec>,
}

impl Maker {
    pub(crate) fn new() -> Maker {
        Maker::over(NO_POOL, RopeTable::new(1e4, 0, &RopeScaling::None))
    }

    pub(crate) fn over(kv: KvShape, rope: RopeTable) -> Maker {
        Maker { builder: ProgramBuilder::new(kv, rope), stored: vec![], specs: vec![] }
    }

    /// A buffer of as many rows as the round has.
    pub(crate) fn rows(&mut self, name: &'static str, width: u32) -> BufferId {
        self.builder.buffer(name, Rows::Round, width)
    }

    /// A buffer of as many rows as there are logits.
    pub(crate) fn logits(&mut self, name: &'static str, width: u32) -> BufferId {
        self.builder.buffer(name, Rows::Logits, width)
    }

    pub(crate) fn weight(
        &mut self,
        (kind, dtype): (WeightKind, DType),
        (rows, cols): (u32, u32),
        stored: Vec<u8>,
    ) -> WeightId {
        let spec = WeightSpec::new(format!("w{}", self.stored.len()), dtype, rows, cols, kind);
        self.stored.push(stored);
        self.specs.push(spec.clone());
        self.builder.weight(spec)
    }

    /// Random, and the same in every program of these sizes.
    pub(crate) fn random(&mut self, kind: WeightKind, dtype: DType, size: (u32, u32)) -> WeightId {
        let seed = 1 + self.stored.len() as u64;
        let bytes = stored(&WeightSpec::new(String::new(), dtype, size.0, size.1, kind), seed);
        self.weight((kind, dtype), size, bytes)
    }

    /// A matrix whose row `i` is one in column `picks[i]`: its products are inputs as they are.
    pub(crate) fn picks(&mut self, picks: &[u32], cols: u32) -> WeightId {
        let one = bf16::ONE.to_le_bytes();
        let mut bytes = vec![0; 2 * picks.len() * cols as usize];
        for (row, &pick) in picks.iter().enumerate() {
            let at = 2 * (row * cols as usize + pick as usize);
            bytes[at..at + 2].copy_from_slice(&one);
        }
        let kind = (WeightKind::Matrix, DType::BF16);
        self.weight(kind, (picks.len() as u32, cols), bytes)
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.builder.push(op).unwrap();
    }

    pub(crate) fn begin_head(&mut self) {
        self.builder.begin_head();
    }

    /// The program, with a head that no round here runs.
    pub(crate) fn finish(mut self) -> Made {
        self.begin_head();
        let [x, logits] = ["idle", "logits"].map(|name| self.logits(name, 8));
        self.push(Op::AddRows(AddRows { x, y: logits }));
        self.finish_at(logits)
    }

    pub(crate) fn finish_at(self, logits: BufferId) -> Made {
        Made { program: self.builder.finish(logits), stored: self.stored }
    }
}

/// All columns, or where there are many some, the first and the last among them.
pub(crate) fn some_of(cols: u32) -> Vec<u32> {
    const MOST: u32 = 192;
    if cols <= MOST {
        return (0..cols).collect();
    }
    (0..MOST).map(|i| (u64::from(i) * u64::from(cols - 1) / u64::from(MOST - 1)) as u32).collect()
}

/// `rows` rows of random values, some large and some small.
pub(crate) fn random_rows(rows: usize, width: usize, seed: u64) -> Vec<f32> {
    let mut dice = Dice(seed);
    let scale = |row: usize| [1.0, 0.003, 12.0][row % 3];
    (0..rows * width).map(|i| scale(i / width) * dice.unit()).collect()
}

pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Rows of one lane in a round: lane, position of the first, how many.
pub(crate) type Part = (u32, u32, u32);

/// A device with a program bound.
pub(crate) struct Bench {
    pub(crate) load: Load,
    pub(crate) device: Box<dyn Device>,
    pub(crate) program: Program,
    pub(crate) addresses: Addresses,
    pub(crate) limits: Limits,
    /// Block tables, `[lanes_max, stride]`: pages one after another, the last lane's first.
    tables: Vec<u32>,
    stride: usize,
}

impl Bench {
    pub(crate) fn new(load: Load, made: &Made, limits: Limits) -> Bench {
        let program = made.program.clone();
        let mut device = load.open(&program);
        let (addresses, end) = lay_out(&program, &limits, device.layout());
        device.reserve(end).unwrap();
        device.bind(&program, &addresses, &limits).unwrap();
        for (i, bytes) in made.stored.iter().enumerate() {
            device.put_weight(WeightId(i as u32), &[bytes]).unwrap();
        }
        device.weights_arrived().unwrap();
        let stride = limits.sequence_pages_max() as usize;
        let share = limits.pages / limits.lanes_max;
        let page = |at: usize| {
            let (lane, i) = ((at / stride) as u32, (at % stride) as u32);
            if i < share { (limits.lanes_max - 1 - lane) * share + i } else { u32::MAX }
        };
        let tables = (0..stride * limits.lanes_max as usize).map(page).collect();
        Bench { load, device, program, addresses, limits, tables, stride }
    }

    /// Makes NaN of every buffer, of the pool, and of scratch and sampling's memory.
    pub(crate) fn poison(&mut self) {
        let buffers = self.program.buffers.clone();
        for (spec, at) in buffers.iter().zip(self.addresses.buffers.clone()) {
            self.fill(at, 4 * u64::from(spec.width) * u64::from(self.rows_max(spec.rows)));
        }
        let (scratch, bytes) = self.addresses.scratch;
        for (from, to) in self.load.loose_scratch(&self.program, &self.limits, bytes.0) {
            self.fill(scratch + from, to - from);
        }
        let (pool, bytes) = (self.addresses.kv_pool, self.page_bytes());
        self.fill(pool, u64::from(self.limits.pages) * bytes);
        let layout = self.device.layout();
        let lane = layout.sampling_lane_bytes(self.program.vocab).unwrap().0;
        self.fill(self.addresses.sampling, u64::from(self.limits.lanes_max) * lane);
    }

    fn fill(&mut self, at: u64, bytes: u64) {
        self.device.write(at, &vec![POISON; bytes as usize]).unwrap();
    }

    fn rows_max(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Round => self.limits.round_rows_max(),
            Rows::Logits => self.limits.lanes_max,
        }
    }

    pub(crate) fn put(&mut self, id: BufferId, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.device.write(self.addresses.buffers[id.0 as usize], &bytes).unwrap();
    }

    /// The first `rows` rows of a buffer. Nothing wrote behind them, or it panics.
    pub(crate) fn take(&mut self, id: BufferId, rows: usize) -> Vec<f32> {
        let spec = self.program.buffer(id).clone();
        let all = 4 * spec.width as usize * self.rows_max(spec.rows) as usize;
        let mut bytes = vec![0; all];
        self.device.read(self.addresses.buffers[id.0 as usize], &mut bytes).unwrap();
        let (taken, rest) = bytes.split_at(4 * spec.width as usize * rows);
        assert!(rest.iter().all(|&byte| byte == POISON), "{}: more than {rows} rows", spec.name);
        taken.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
    }

    pub(crate) fn page_bytes(&self) -> u64 {
        self.device.layout().kv_page_bytes(&self.program.kv).unwrap().0
    }

    /// Start of the page of a lane's token.
    fn page_at(&self, lane: u32, position: u32) -> u64 {
        let page = self.tables[lane as usize * self.stride + position as usize / 64];
        self.addresses.kv_pool + u64::from(page) * self.page_bytes()
    }

    /// Stores keys and values of a lane's tokens from position 0 on; `value_of(position, is_value,
    /// head, at)` of layer `layer`. Slots behind them stay as they are.
    pub(crate) fn put_pool(
        &mut self,
        (lane, layer, tokens): (u32, u32, u32),
        value_of: impl Fn(u32, bool, u32, u32) -> f32,
    ) {
        let (load, kv) = (self.load, self.program.kv);
        for first in (0..tokens).step_by(64) {
            let mut page = vec![0; self.page_bytes() as usize];
            let at = self.page_at(lane, first);
            self.device.read(at, &mut page).unwrap();
            for (position, is_value) in
                (first..tokens.min(first + 64)).flat_map(|p| [(p, false), (p, true)])
            {
                let slot = Slot { layer, is_value, offset: position % 64 };
                for i in 0..kv.kv_heads * kv.head_dim {
                    let (head, d) = (i / kv.head_dim, i % kv.head_dim);
                    let bytes = load.kv_bytes(value_of(position, is_value, head, d));
                    let place = load.kv_place(&kv, slot, head, d) * bytes.len();
                    page[place..place + bytes.len()].copy_from_slice(&bytes);
                }
            }
            self.device.write(at, &page).unwrap();
        }
    }

    /// Keys or values of a lane's token, `[kv_heads * head_dim]`.
    pub(crate) fn take_slot(
        &mut self,
        (lane, position): (u32, u32),
        layer: u32,
        is_value: bool,
    ) -> Vec<f32> {
        let (load, kv) = (self.load, self.program.kv);
        let mut page = vec![0; self.page_bytes() as usize];
        self.device.read(self.page_at(lane, position), &mut page).unwrap();
        let size = load.kv_format().dtype().block_bytes() as usize;
        let slot = Slot { layer, is_value, offset: position % 64 };
        let value = |i: u32| {
            let at = load.kv_place(&kv, slot, i / kv.head_dim, i % kv.head_dim) * size;
            load.kv_value(&page[at..at + size])
        };
        (0..kv.kv_heads * kv.head_dim).map(value).collect()
    }

    /// Whether nothing but the slots of these parts was written since the pool was poisoned.
    pub(crate) fn wrote_only_slots_of(&mut self, parts: &[Part], layer: u32) -> bool {
        let (load, kv) = (self.load, self.program.kv);
        let size = load.kv_format().dtype().block_bytes() as usize;
        let mut pool = vec![0; (u64::from(self.limits.pages) * self.page_bytes()) as usize];
        self.device.read(self.addresses.kv_pool, &mut pool).unwrap();
        for position in parts.iter().flat_map(|&(lane, at, n)| (at..at + n).map(move |p| (lane, p)))
        {
            let page = (self.page_at(position.0, position.1) - self.addresses.kv_pool) as usize;
            for is_value in [false, true] {
                let slot = Slot { layer, is_value, offset: position.1 % 64 };
                for i in 0..kv.kv_heads * kv.head_dim {
                    let place = load.kv_place(&kv, slot, i / kv.head_dim, i % kv.head_dim);
                    pool[page + place * size..][..size].fill(POISON);
                }
            }
        }
        pool.iter().all(|&byte| byte == POISON)
    }

    /// Runs one round with these tokens, or any where none are given.
    pub(crate) fn round(&mut self, parts: &[Part], tokens: &[u32], logit_rows: &[u32]) {
        let mut row = 0;
        let segment = |&(lane, position, rows): &Part| {
            row += rows;
            Segment { lane, row: row - rows, rows, position }
        };
        let segments: Vec<Segment> = parts.iter().map(segment).collect();
        let any = vec![0; row as usize];
        let round = Round {
            tokens: if tokens.is_empty() { &any } else { tokens },
            segments: &segments,
            logit_rows,
            block_tables: &self.tables,
            stride: self.stride,
        };
        self.device.run(&round).unwrap();
    }
}
