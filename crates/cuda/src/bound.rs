//! What binding fixed, and a round over it.

use ignis_backend::{Addresses, DeviceError, LaneSampling};
use ignis_ops::{Round, SampleOut, Sampling, Segment, WeightSpec};
use ignis_types::Limits;

use crate::graph::Graphs;
use crate::launch::Launcher;
use crate::memory::Memory;
use crate::program::Compiled;
use crate::round::{Counts, RoundInputs};
use crate::sampling::Sampler;
use crate::steps::{Fixed, walk};

/// What `bind` fixed.
pub(crate) struct Bound {
    /// Dropped before the reservation that they were recorded with.
    pub(crate) graphs: Graphs,
    pub(crate) compiled: Compiled,
    pub(crate) fixed: Fixed,
    pub(crate) addresses: Addresses,
    pub(crate) weights: Vec<WeightSpec>,
    pub(crate) limits: Limits,
    pub(crate) vocab: u32,
    /// Offset of the logits.
    pub(crate) logits: u64,
    pub(crate) inputs: RoundInputs,
    pub(crate) sampler: Sampler,
    /// Of the last round.
    pub(crate) counts: Counts,
    /// Lanes that draw in the round that was started and not collected.
    pub(crate) started: Option<usize>,
    /// One row of logits, `[vocab]`, for the host to read.
    pub(crate) row: Vec<f32>,
}

impl Bound {
    /// Writes a round's inputs.
    fn write(&mut self, round: &Round<'_>) -> Result<(), DeviceError> {
        assert!(self.started.is_none(), "a round was started and not collected");
        self.counts = self.inputs.write(round)?;
        Ok(())
    }

    /// Runs a round, step by step.
    pub(crate) fn run(
        &mut self,
        run: Launcher<'_>,
        memory: &Memory,
        round: &Round<'_>,
    ) -> Result<(), DeviceError> {
        self.write(round)?;
        self.inputs.send(run.context, memory)?;
        self.walk(run, true)
    }

    /// Runs the head of the last round for other rows.
    pub(crate) fn run_head(
        &mut self,
        run: Launcher<'_>,
        memory: &Memory,
        round: &Round<'_>,
    ) -> Result<(), DeviceError> {
        self.inputs.write_logit_rows(round, &mut self.counts)?;
        self.inputs.send(run.context, memory)?;
        self.walk(run, false)
    }

    fn walk(&self, run: Launcher<'_>, body: bool) -> Result<(), DeviceError> {
        let head = self.counts.logit_rows > 0;
        walk(run, &self.fixed, &self.compiled, &self.counts, (body, head))
    }

    /// Runs and draws without waiting: as recorded, where it is.
    pub(crate) fn start(
        &mut self,
        run: Launcher<'_>,
        memory: &Memory,
        round: &Round<'_>,
        lanes: &[LaneSampling<'_>],
    ) -> Result<(), DeviceError> {
        self.check_lanes(lanes);
        self.write(round)?;
        let draws = lanes.len();
        if let Some(graph) = self.graphs.of(&self.counts, draws) {
            self.sampler.write_recorded(run.context, memory, lanes)?;
            run.context.launch_graph(graph)?;
            self.inputs.mark_read(run.context)?;
        } else {
            self.inputs.send(run.context, memory)?;
            self.walk(run, true)?;
            if draws > 0 {
                self.sampler.send(run.context, memory, lanes)?;
                self.sampler.launch(run, draws as u32)?;
            }
        }
        if draws > 0 {
            self.sampler.mark_drawn(run.context)?;
        }
        self.started = Some(draws);
        Ok(())
    }

    /// Waits for the draws of the round that was started.
    pub(crate) fn collect(&mut self, out: &mut [SampleOut]) -> Result<(), DeviceError> {
        let draws = self.started.take().expect("a round was started");
        assert_eq!(draws, out.len(), "one result a lane");
        if draws > 0 { self.sampler.collect(out) } else { Ok(()) }
    }

    /// Draws from the logits that are there, and waits.
    pub(crate) fn sample(
        &mut self,
        run: Launcher<'_>,
        memory: &Memory,
        lanes: &[LaneSampling<'_>],
        out: &mut [SampleOut],
    ) -> Result<(), DeviceError> {
        assert!(self.started.is_none(), "a round was started and not collected");
        assert_eq!(lanes.len(), out.len(), "one result a lane");
        self.check_lanes(lanes);
        if lanes.is_empty() {
            return Ok(());
        }
        self.sampler.send(run.context, memory, lanes)?;
        self.sampler.launch(run, lanes.len() as u32)?;
        self.sampler.mark_drawn(run.context)?;
        self.sampler.collect(out)
    }

    fn check_lanes(&self, lanes: &[LaneSampling<'_>]) {
        for (i, lane) in lanes.iter().enumerate() {
            let rows = self.limits.lanes_max;
            assert!(lane.lane < rows && lane.logit_row < rows, "lane {} to sample", lane.lane);
            let twice = lanes[..i].iter().any(|other| other.lane == lane.lane);
            assert!(!twice, "lane {} is sampled twice", lane.lane);
        }
    }

    /// Records decode rounds and runs each once, over the zeros of a fresh reservation.
    pub(crate) fn record(
        &mut self,
        run: Launcher<'_>,
        memory: &Memory,
        bytes_max: u64,
    ) -> Result<(), DeviceError> {
        let (context, limits) = (run.context, self.limits);
        let lanes = limits.lanes_max;
        let segment = |lane| Segment { lane, row: lane, rows: 1, position: 0 };
        let segments: Vec<Segment> = (0..lanes).map(segment).collect();
        let rows: Vec<u32> = (0..lanes).collect();
        let round = Round {
            tokens: &vec![0; lanes as usize],
            segments: &segments,
            logit_rows: &rows,
            block_tables: &vec![0; lanes as usize],
            stride: 1,
        };
        let params = Sampling { temperature: 0.0, ..Sampling::default() };
        let draw = |lane| LaneSampling {
            lane,
            logit_row: lane,
            position: 0,
            ids: self.vocab,
            params: &params,
            logit_bias: &[],
        };
        let draws: Vec<LaneSampling<'_>> = (0..lanes).map(draw).collect();
        self.inputs.write(&round)?;
        self.sampler.write_recorded(context, memory, &draws)?;
        let (sampler, fixed, compiled) = (&self.sampler, &self.fixed, &self.compiled);
        let fetched = self.inputs.fetched(memory, sampler.draws());
        self.graphs = Graphs::record(
            context,
            &limits,
            bytes_max,
            |context, counts| {
                let run = Launcher { context, ..run };
                run.fetch_inputs(&fetched, counts.rows)?;
                walk(run, fixed, compiled, counts, (true, true))?;
                sampler.launch(run, counts.rows)
            },
            |graph| {
                context.launch_graph(graph)?;
                context.wait()
            },
        )?;
        let counted = 4 * u64::from(self.vocab) * u64::from(lanes);
        memory.zero(context.stream, self.addresses.penalty_counts, counted)
    }
}
