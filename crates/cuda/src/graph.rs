//! Decode rounds, recorded: one launch instead of one for each step.
//!
//! A decode round has one row a lane and draws for each. What differs between two of them lies in
//! device memory, except for how many rows there are and how many runs attention launches; so each
//! width and each class of runs is recorded once, at load. Other rounds are launched step by step.
//!
//! The driver keeps recordings in memory of its own, which the plan bounds (`decode_graph`). A
//! recording that would go beyond the bound is not kept, and its rounds are launched step by step.

use ignis_backend::{DeviceError, GRAPH_LANES_MAX, run_classes};
use ignis_types::Limits;

use crate::driver::{Context, Graph};
use crate::round::Counts;

/// Recorded rounds; none at first.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    classes: &'static [u32],
    /// By width, then by class; the narrow ones first.
    kept: Vec<Graph>,
    /// What the driver took for them.
    bytes: u64,
}

/// Every kind of round that is recorded, in order.
fn kinds(limits: &Limits) -> impl Iterator<Item = Counts> + use<> {
    let classes = run_classes(limits);
    (1..=limits.lanes_max.min(GRAPH_LANES_MAX))
        .flat_map(move |width| classes.iter().map(move |&runs| decode_counts(width, runs)))
}

fn decode_counts(width: u32, runs: u32) -> Counts {
    Counts { rows: width, logit_rows: width, tiles: 0, split: width, runs }
}

impl Graphs {
    /// Records every kind of round while the driver takes no more than `bound` bytes. `work` puts
    /// one on the stream; `check` runs a recorded one.
    pub(crate) fn record(
        context: &Context,
        limits: &Limits,
        bound: u64,
        work: impl Fn(&Counts) -> Result<(), DeviceError>,
        check: impl Fn(&Graph) -> Result<(), DeviceError>,
    ) -> Result<Graphs, DeviceError> {
        let before = context.free_bytes()?;
        let mut graphs = Graphs { classes: run_classes(limits), kept: vec![], bytes: 0 };
        for counts in kinds(limits) {
            let graph = context.record(|| work(&counts))?;
            check(&graph)?;
            let bytes = before.saturating_sub(context.free_bytes()?);
            if bytes > bound {
                break;
            }
            graphs.kept.push(graph);
            graphs.bytes = bytes;
        }
        Ok(graphs)
    }

    /// The recording of a round that draws for `draws` lanes.
    pub(crate) fn of(&self, counts: &Counts, draws: usize) -> Option<&Graph> {
        self.kept.get(place(self.classes, counts, draws)?)
    }

    /// Recordings kept, and what the driver took for them.
    pub(crate) fn kept(&self) -> (usize, u64) {
        (self.kept.len(), self.bytes)
    }
}

/// Index of the recording of a decode round that draws for every row.
fn place(classes: &[u32], counts: &Counts, draws: usize) -> Option<usize> {
    let class = classes.iter().position(|&most| counts.runs <= most)?;
    let width = counts.rows;
    let is_decode = *counts == decode_counts(width, counts.runs) && draws == width as usize;
    (is_decode && width > 0).then(|| (width as usize - 1) * classes.len() + class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(lanes_max: u32, context_tokens_max: u32) -> Limits {
        Limits {
            lanes_max,
            chunk_tokens_max: 64,
            context_tokens_max,
            pages: 1,
            retained_device: 0,
            retained_host: 0,
        }
    }

    #[test]
    fn every_decode_round_finds_a_recording_with_room_for_its_runs() {
        let limits = limits(5, 1 << 16);
        let recorded: Vec<Counts> = kinds(&limits).collect();
        let classes = run_classes(&limits);
        assert_eq!(recorded.len(), 5 * classes.len());
        for width in 1..=5 {
            for runs in 1..=64 {
                let counts = decode_counts(width, runs);
                let found = recorded[place(classes, &counts, width as usize).unwrap()];
                assert_eq!(found.rows, width);
                assert!(found.runs >= runs, "{found:?} for {runs} runs");
            }
        }
    }

    #[test]
    fn other_rounds_find_none() {
        let classes = run_classes(&limits(5, 1 << 16));
        let decode = decode_counts(3, 2);
        assert_eq!(place(classes, &decode, 2), None, "fewer draws than rows");
        assert_eq!(place(classes, &Counts { tiles: 1, ..decode }, 3), None, "a chunk");
        assert_eq!(place(classes, &Counts { logit_rows: 2, ..decode }, 3), None, "fewer logits");
        assert_eq!(place(classes, &Counts::default(), 0), None, "nothing");
    }
}
