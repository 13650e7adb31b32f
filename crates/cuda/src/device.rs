//! The running half of the CUDA device.

use std::sync::Arc;

use ignis_backend::{
    Addresses, Blocks, Copied, CopyId, CopyPart, CopyWay, Device, DeviceError, DeviceLayout,
    LaneSampling, Recorded, StoredLayout, StoredScratch,
};
use ignis_ops::{Program, Round, SampleOut, WeightId};
use ignis_types::{Bytes, Limits, Overflow, PlanLine};

use crate::abi::IDS_MAX;
use crate::bound::Bound;
use crate::copies::Copies;
use crate::graph::Graphs;
use crate::host;
use crate::kernels::Kernels;
use crate::launch::Launcher;
use crate::loading::Uploader;
use crate::memory::Memory;
use crate::open::{self, CudaKernels, CudaOptions, Opened};
use crate::program::{Place, Step, compile};
use crate::round::{Counts, RoundInputs};
use crate::sampling::Sampler;
use crate::steps::Fixed;
use crate::sums::Sums;
use crate::tables;
use crate::weights;

/// An NVIDIA card as a device.
pub struct CudaDevice {
    layout: StoredLayout,
    bound: Option<Bound>,
    reservations: u64,
    /// In flight; they end before the reservation goes.
    copies: Copies,
    memory: Option<Memory>,
    /// The way of weights to the card, while they are put.
    uploader: Option<Uploader>,
    /// Of slots and windows, as it was asked for, and of tables.
    pinned: u64,
    options: CudaOptions,
    kernels: Kernels,
    opened: Arc<Opened>,
}

impl CudaDevice {
    /// Opens the first card: its context, and the kernels of a load.
    ///
    /// Errors: `Unavailable`, with what to do; what the compiler or the driver says.
    pub fn new(options: &CudaOptions) -> Result<CudaDevice, DeviceError> {
        let (opened, kernels) = open::open(options)?;
        Ok(CudaDevice {
            layout: options.layout(),
            bound: None,
            reservations: 0,
            copies: Copies::new()?,
            memory: None,
            uploader: None,
            pinned: 0,
            options: options.clone(),
            kernels,
            opened,
        })
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("memory is reserved before it is used")
    }

    /// Makes the context current, and gives the parts of a bound device, to put work on its stream
    /// that copies wait for.
    fn parts(&mut self) -> Result<(Launcher<'_>, &Memory, &mut Bound), DeviceError> {
        self.copies.set_marked(false);
        let context = &self.opened.context;
        context.enter()?;
        let (kernels, products) = (&self.kernels, self.layout.products);
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_mut().expect("the device is bound before it runs");
        Ok((Launcher { context, kernels, products, overlaps: true }, memory, bound))
    }

    /// Where launches find what is no step's own.
    fn fixed(
        &self,
        program: &Program,
        addresses: &Addresses,
        map: &StoredScratch,
    ) -> Result<Fixed, DeviceError> {
        let memory = self.memory();
        let scratch = |offset| memory.address(addresses.scratch.0 + offset, 0);
        Ok(Fixed {
            tokens: scratch(map.tokens),
            positions: scratch(map.positions),
            inv_freq: scratch(map.inv_freq),
            cos: scratch(map.cos),
            sin: scratch(map.sin),
            half: program.rope.inv_freq.len() as u32,
            magnitude: program.rope.magnitude,
            head_dim: program.kv.head_dim,
            attention: self.kernels.attention,
        })
    }
}

impl Device for CudaDevice {
    fn layout(&self) -> &dyn DeviceLayout {
        &self.layout
    }

    fn describe(&self) -> String {
        let card = &self.opened.card;
        let of = format!("{}, {}, {} processors", card.name, self.arithmetic(), card.processors);
        match self.options.kernels {
            CudaKernels::Own => format!("cuda ({of})"),
            CudaKernels::Portable => format!("cuda ({of}, portable kernels)"),
        }
    }

    /// In which order one instruction of tensor cores adds is a generation's own. Which kernels run
    /// changes no bit (`tests/card.rs`), so it is not named.
    fn arithmetic(&self) -> String {
        let (major, minor) = self.opened.card.capability;
        format!("sm_{major}{minor}")
    }

    fn measured(&self) -> &[(PlanLine, Bytes)] {
        &self.opened.measured
    }

    fn reserve(&mut self, bytes: Bytes) -> Result<(), DeviceError> {
        assert!(self.memory.is_none(), "the device plan is reserved once");
        self.reservations += 1;
        self.opened.context.enter()?;
        self.memory = Some(Memory::new(&self.opened.context, bytes)?);
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
        assert!(self.bound.is_none(), "a program is bound once");
        self.opened.context.enter()?;
        let layout = self.layout;
        let memory = self.memory.as_mut().expect("memory is reserved before it is used");
        let placed = tables::place(&self.opened.context, layout, memory, program, addresses)?;
        let (addresses, tables) = (&placed.0, placed.1);
        self.pinned += tables;
        let scratch = StoredScratch::new(program, limits, layout.activations).map_err(too_large)?;
        if addresses.scratch.1.0 < scratch.end {
            return Err(DeviceError::ShapeUnsupported {
                what: "bytes of scratch",
                found: addresses.scratch.1.0,
                expected: "what the layout asks for",
            });
        }
        let memory = self.memory();
        let place = Place { program, addresses, limits, scratch: &scratch, memory, layout };
        let compiled = compile(place)?;
        let heads = (program.kv.head_dim, self.options.model.head_dim);
        assert_eq!(heads.0, heads.1, "the card was opened for heads of the program");
        for step in &compiled.steps {
            if let Step::Product { format, .. } = step {
                let loaded = self.kernels.linear[*format].is_some();
                assert!(loaded, "the card was opened without a dtype of the program");
            }
        }
        let fixed = self.fixed(program, addresses, &scratch)?;
        let frequencies: Vec<u8> =
            program.rope.inv_freq.iter().flat_map(|f| f.to_le_bytes()).collect();
        memory.write(&self.opened.context, addresses.scratch.0 + scratch.inv_freq, &frequencies)?;
        let logits = addresses.buffers[program.logits.0 as usize];
        let tiling = (compiled.group, fixed.attention.tiles.rows, compiled.vocab);
        let inputs = RoundInputs::new(&scratch, addresses.scratch.0, limits, tiling)?;
        let sampler = Sampler::new(memory, addresses, limits, (logits, program.vocab))?;
        let sums = Sums::new(self.kernels.sum_parts, addresses.scratch.0 + scratch.sums)?;
        let own = inputs.pinned_bytes() + sampler.pinned_bytes() + sums.pinned_bytes();
        tables::check_pinned(layout, program, limits, tables + own)?;
        self.copies.place_sums(sums);
        let graph_bytes = layout.graph_bytes(program, limits).map_err(too_large)?;
        self.bound = Some(Bound {
            graphs: Graphs::default(),
            compiled,
            fixed,
            addresses: addresses.clone(),
            weights: program.weights.clone(),
            limits: *limits,
            vocab: program.vocab,
            logits,
            inputs,
            sampler,
            counts: Counts::default(),
            started: None,
            row: vec![0.0; program.vocab as usize],
        });
        let (run, memory, bound) = self.parts()?;
        bound.record(run, memory, graph_bytes.0)
    }

    fn recorded(&self) -> Option<Recorded> {
        self.bound.as_ref().map(|bound| bound.graphs.recorded())
    }

    fn put_weight(&mut self, id: WeightId, stored: &[&[u8]]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        if self.uploader.is_none() {
            self.uploader = Some(Uploader::new()?);
        }
        let uploader = self.uploader.as_mut().expect("it was made above");
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        let bound = self.bound.as_ref().expect("the device is bound before weights are put");
        let weight = &bound.weights[id.0 as usize];
        let at = bound.addresses.weights[id.0 as usize];
        let kept = self.layout.kept_dtype(weight);
        weights::put(&self.opened.context, memory, uploader, weight, kept, stored, at)
    }

    fn weights_arrived(&mut self) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        self.uploader.take().map_or(Ok(()), Uploader::finish)
    }

    fn run(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        let (run, memory, bound) = self.parts()?;
        bound.run(run, memory, round)
    }

    fn run_head(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        let (run, memory, bound) = self.parts()?;
        bound.run_head(run, memory, round)
    }

    fn sample(
        &mut self,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        let (run, memory, bound) = self.parts()?;
        bound.sample(run, memory, lanes, out)
    }

    fn start(
        &mut self,
        round: &Round<'_>,
        lanes: &[LaneSampling<'_>],
    ) -> Result<bool, DeviceError> {
        self.opened.context.enter()?;
        self.copies.mark(&self.opened.context)?;
        let (run, memory, bound) = self.parts()?;
        bound.start(run, memory, round, lanes)?;
        self.copies.set_marked(true);
        Ok(true)
    }

    fn collect(&mut self, out: &mut [SampleOut]) -> Result<(), DeviceError> {
        let (_, _, bound) = self.parts()?;
        bound.collect(out)
    }

    fn logits(&mut self, row: u32) -> Result<&[f32], DeviceError> {
        let (run, memory, bound) = self.parts()?;
        assert!(row < bound.limits.lanes_max, "row {row} of the logits");
        let at = bound.logits + u64::from(row) * u64::from(bound.vocab) * 4;
        // SAFETY: the bytes of floats, all of them; any bits are a float.
        let bytes = unsafe { bound.row.align_to_mut::<u8>().1 };
        memory.read(run.context, at, bytes)?;
        Ok(&bound.row)
    }

    fn reset_penalties(
        &mut self,
        lane: u32,
        prompt: &[u32],
        output: &[u32],
    ) -> Result<(), DeviceError> {
        let (run, memory, bound) = self.parts()?;
        assert!(lane < bound.limits.lanes_max, "lane {lane} of the penalties");
        let row = 4 * u64::from(bound.vocab);
        let at = bound.addresses.penalty_counts + u64::from(lane) * row;
        memory.zero(run.context.stream, at, row)?;
        for (ids, is_prompt) in [(prompt, true), (output, false)] {
            for piece in ids.chunks(IDS_MAX) {
                assert!(piece.iter().all(|&id| id < bound.vocab), "an id outside the vocabulary");
                run.count_tokens(memory.address(at, row), piece, is_prompt)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        self.memory().read(&self.opened.context, at, out)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.opened.context.enter()?;
        self.memory().write(&self.opened.context, at, bytes)
    }

    fn copy(&mut self, from: u64, to: u64, bytes: Bytes) -> Result<(), DeviceError> {
        assert!(from.abs_diff(to) >= bytes.0, "a copy of {bytes} overlaps itself");
        self.copies.set_marked(false);
        self.opened.context.enter()?;
        self.memory().copy(&self.opened.context, from, to, bytes.0)
    }

    fn host_memory(&mut self, pieces: usize, bytes: usize) -> Result<Vec<Blocks>, DeviceError> {
        let given = host::pieces(&self.opened.context, pieces, bytes)?;
        self.pinned += pieces as u64 * bytes as u64;
        Ok(given)
    }

    fn pinned(&self) -> Bytes {
        let own = |bound: &Bound| bound.inputs.pinned_bytes() + bound.sampler.pinned_bytes();
        Bytes(self.pinned + self.copies.pinned_bytes() + self.bound.as_ref().map_or(0, own))
    }

    fn copies_beside(&self) -> bool {
        true
    }

    fn begin_copies(
        &mut self,
        way: CopyWay,
        host: Blocks,
        parts: &mut dyn Iterator<Item = CopyPart>,
        still: bool,
    ) -> CopyId {
        let context = &self.opened.context;
        let entered = context.enter();
        let memory = self.memory.as_ref().expect("memory is reserved before it is used");
        self.copies.begin((context, memory), entered, (way, still), host, parts)
    }

    fn end_copies(&mut self, copies: CopyId, wait: bool) -> Option<Copied> {
        let entered = self.opened.context.enter();
        self.copies.end(entered, copies, wait)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // What the stream still does must end before the memory goes.
        let _ = self.opened.context.enter();
        let _ = self.opened.context.wait();
        self.copies.settle(&self.opened.context);
    }
}

pub(crate) fn too_large(_: Overflow) -> DeviceError {
    DeviceError::ShapeUnsupported {
        what: "a size",
        found: u64::MAX,
        expected: "less than 2^64 bytes",
    }
}
