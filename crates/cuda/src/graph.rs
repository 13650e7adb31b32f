//! Decode rounds, recorded: one launch instead of one for each step.
//!
//! A decode round has one row a lane and draws for each. What differs between two of them lies in
//! device memory, except for how many rows there are and how many runs attention launches; so each
//! width and each class of runs is recorded once, at load. Other rounds are launched step by step.
//!
//! The driver keeps recordings in memory of its own, which the plan bounds (`decode_graph`). A
//! recording that would go beyond the bound is not kept, nor are any after it; their rounds are
//! launched step by step, and the load says how many kinds those are.

use ignis_backend::{DeviceError, GRAPH_LANES_MAX, Recorded, run_classes};
use ignis_types::{Bytes, Limits};

use crate::driver::{Context, Graph};
use crate::round::Counts;

/// Recorded rounds; none at first.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    classes: &'static [u32],
    /// By width, then by class; the narrow ones first.
    kept: Vec<Graph>,
    /// How many there would be without a bound.
    kinds: usize,
    /// What the driver took for those that were kept.
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
    /// one on the stream of the context that it is given; `check` runs a recorded one.
    pub(crate) fn record(
        context: &Context,
        limits: &Limits,
        bound: u64,
        work: impl Fn(&Context, &Counts) -> Result<(), DeviceError>,
        check: impl Fn(&Graph) -> Result<(), DeviceError>,
    ) -> Result<Graphs, DeviceError> {
        let mut before = context.look();
        let made = kinds(limits).map(|counts| {
            let graph = context.record(|onto| work(onto, &counts))?;
            check(&graph)?;
            let now = context.look();
            let taken = before.taken_until(&now).0;
            before = now;
            Ok((graph, taken))
        });
        let (kept, bytes) = within(bound, made)?;
        Ok(Graphs { classes: run_classes(limits), kept, kinds: kinds(limits).count(), bytes })
    }

    /// The recording of a round that draws for `draws` lanes.
    pub(crate) fn of(&self, counts: &Counts, draws: usize) -> Option<&Graph> {
        self.kept.get(place(self.classes, counts, draws)?)
    }

    /// How much of what could be recorded was.
    pub(crate) fn recorded(&self) -> Recorded {
        let [kept, kinds] = [self.kept.len(), self.kinds].map(|count| count as u32);
        Recorded { kept, kinds, bytes: Bytes(self.bytes) }
    }
}

/// Recordings up to the first with which all of them take more than `bound` bytes, and what they
/// take. After that one none is made. A single one never takes all that: another process did, on a
/// card whose driver counts for no process.
fn within<G>(
    bound: u64,
    made: impl Iterator<Item = Result<(G, u64), DeviceError>>,
) -> Result<(Vec<G>, u64), DeviceError> {
    let (mut kept, mut taken) = (vec![], 0);
    for one in made {
        let (graph, bytes) = one?;
        let with_it = taken + if bytes > bound { 0 } else { bytes };
        if with_it > bound {
            break;
        }
        kept.push(graph);
        taken = with_it;
    }
    Ok((kept, taken))
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
    fn what_goes_beyond_the_bound_is_not_kept_and_ends_the_recording() {
        let mut made = 0;
        let mut record = |bound| {
            made = 0;
            within(bound, (1..=5).inspect(|&number| made = number).map(|n| Ok((n, 10)))).unwrap()
        };
        assert_eq!(record(50), (vec![1, 2, 3, 4, 5], 50));
        assert_eq!(record(39), (vec![1, 2, 3], 30));
        assert_eq!(made, 4);
    }

    #[test]
    fn what_another_process_took_drops_no_recording() {
        let taken = [10, 10, 4000, 10].into_iter().enumerate().map(Ok);
        assert_eq!(within(50, taken).unwrap(), (vec![0, 1, 2, 3], 30));
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
