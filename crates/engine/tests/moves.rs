//! A sequence that was moved, prefilled again, or started from retained state draws the same bits
//! as one that ran alone, on a dense model and on one with recurrent state.

mod support;

use std::time::Duration;

use ignis_backend::{Activations, KvFormat};
use ignis_cpu::CpuOptions;
use ignis_engine::{Admission, Engine, MoveWay, RoundPlan, Storage};
use ignis_ops::{SampleOut, Sampling};
use ignis_tiers::{ImageId, Kind, Tier};
use ignis_types::SlotId;
use support::{Golden, load_with};

const FAMILIES: [&str; 3] = ["qwen3", "qwen3_5", "qwen3_5-moe"];
const PROMPT: usize = 200;
const DRAWN: usize = 12;

fn options() -> CpuOptions {
    CpuOptions { threads: 2, activations: Activations::Int8, kv_format: KvFormat::Bf16 }
}

fn engine(golden: &Golden) -> Engine {
    let storage =
        Storage { ram_bytes: 64 << 16, disk: None, window_bytes: Some(1 << 16), nonce_seed: 1 };
    load_with(&golden.folder, options(), [2, 2], 64, storage)
}

fn penalised() -> Sampling {
    Sampling {
        temperature: 0.9,
        seed: 7,
        repetition_penalty: 1.2,
        frequency_penalty: 0.4,
        logprobs: Some(3),
        ..Sampling::default()
    }
}

/// A sequence that is driven on one lane, wherever it starts.
struct Run<'a> {
    engine: &'a mut Engine,
    lane: u32,
    out: Vec<SampleOut>,
}

impl Run<'_> {
    /// Prefills up to `to`, in chunks of at most 50.
    fn prefill(&mut self, to: usize) {
        loop {
            let position = self.engine.position(self.lane).unwrap() as usize;
            if position == to {
                return;
            }
            let count = (to - position).min(50) as u32;
            let plan = RoundPlan { prefill: Some((self.lane, count)), decode: &[] };
            let results = self.engine.round(plan).unwrap();
            self.out.extend(results.iter().map(|result| result.sample));
        }
    }

    fn decode(&mut self, until: usize) {
        while self.out.len() < until {
            let plan = RoundPlan { prefill: None, decode: &[self.lane] };
            self.out.push(self.engine.round(plan).unwrap()[0].sample);
        }
    }

    /// Moves out, then in again on another lane, behind whoever took the pages meanwhile.
    fn move_away_and_back(&mut self, prompt: &[u32], tier: Tier) {
        let image = self.engine.move_out(self.lane, tier).unwrap();
        land(self.engine, MoveWay::Out, image);
        self.lane = (self.lane + 1) % 3;
        let tokens: Vec<u32> =
            prompt.iter().copied().chain(self.out.iter().map(|sample| sample.token)).collect();
        let sampling = penalised();
        let admission =
            Admission { prompt_tokens: PROMPT as u32, ..Admission::new(&tokens, 4, &sampling) };
        self.engine.move_in(image, self.lane, &admission).unwrap();
        land(self.engine, MoveWay::In, image);
        self.engine.drop_image(image).unwrap();
    }
}

/// Advances until the move has landed.
fn land(engine: &mut Engine, way: MoveWay, image: ImageId) {
    for _ in 0..10_000 {
        if let Some(event) = engine.advance(Duration::from_millis(1)).into_iter().flatten().next() {
            assert!(event.failure.is_none(), "{event:?}");
            assert_eq!((event.way, event.image), (way, image));
            return;
        }
    }
    panic!("the move never landed");
}

fn alone(golden: &Golden) -> Vec<SampleOut> {
    let mut engine = engine(golden);
    engine.admit(0, &Admission::new(&golden.ids(PROMPT), 4, &penalised()), None).unwrap();
    let mut run = Run { engine: &mut engine, lane: 0, out: Vec::new() };
    run.prefill(PROMPT);
    run.decode(DRAWN);
    run.out
}

#[test]
fn a_moved_sequence_goes_on_as_if_it_had_stayed() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
        for moved_at in [1, 63, 64, 65, 150, PROMPT] {
            let mut engine = engine(&golden);
            engine.admit(0, &Admission::new(&prompt, 4, &penalised()), None).unwrap();
            let mut run = Run { engine: &mut engine, lane: 0, out: Vec::new() };
            run.prefill(moved_at);
            run.move_away_and_back(&prompt, Tier::Ram);
            if moved_at < PROMPT {
                run.prefill(PROMPT);
            }
            run.decode(5);
            run.move_away_and_back(&prompt, Tier::Ram);
            run.decode(DRAWN);
            assert_eq!(run.out, reference, "{family}, moved at {moved_at}");
            let lane = run.lane;
            engine.release(lane).unwrap();
            assert_eq!(engine.pages_free(), 24);
            assert_eq!(engine.tiers().windows_free(Tier::Ram), 64);
        }
    }
}

#[test]
fn retained_state_is_claimed_at_any_position() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
        for (slot, kept) in [(0, 1), (1, 64), (2, 127), (3, 199), (0, 130), (3, 128)] {
            let mut engine = engine(&golden);
            let slot = SlotId(slot);
            let sampling = penalised();
            let admission = Admission::new(&prompt, 4, &sampling);
            engine.admit(0, &admission, None).unwrap();
            let mut first = Run { engine: &mut engine, lane: 0, out: Vec::new() };
            first.prefill(kept);
            first.engine.capture(0, slot).unwrap();
            // The lane goes on in the page that the slot ends in.
            first.prefill(PROMPT);
            first.decode(4);
            assert_eq!(first.out, reference[..4], "{family}: captured at {kept}");
            // One claims beside it, one after it has left, and one that was seated before.
            engine.admit(2, &admission, None).unwrap();
            for lane in [1, 2, 0] {
                match lane {
                    2 => engine.adopt(2, slot).unwrap(),
                    0 => {
                        engine.release(0).unwrap();
                        engine.admit(0, &admission, Some(slot)).unwrap();
                    }
                    _ => engine.admit(lane, &admission, Some(slot)).unwrap(),
                }
                assert_eq!(engine.position(lane).unwrap() as usize, kept);
                let mut claimed = Run { engine: &mut engine, lane, out: Vec::new() };
                claimed.prefill(PROMPT);
                claimed.decode(DRAWN);
                assert_eq!(claimed.out, reference, "{family}: claimed at {kept} on lane {lane}");
            }
            let whole = (kept / 64) as u32;
            assert_eq!(engine.pages_free(), 24 - 3 * 4 + 2 * whole - u32::from(kept % 64 > 0));
            (0..3).for_each(|lane| engine.release(lane).unwrap());
            engine.drop_slot(slot).unwrap();
            assert_eq!(engine.pages_free(), 24);
        }
    }
}

#[test]
fn a_claim_that_has_not_begun_is_changed_for_a_longer_one() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
        let mut engine = engine(&golden);
        let sampling = penalised();
        let admission = Admission::new(&prompt, 4, &sampling);
        engine.admit(0, &admission, None).unwrap();
        let mut first = Run { engine: &mut engine, lane: 0, out: Vec::new() };
        first.prefill(70);
        first.engine.capture(0, SlotId(0)).unwrap();
        first.engine.admit(1, &admission, Some(SlotId(0))).unwrap();
        first.prefill(199);
        first.engine.capture(0, SlotId(3)).unwrap();
        engine.adopt(1, SlotId(3)).unwrap();
        assert!(engine.adopt(1, SlotId(0)).is_err(), "it is shorter");
        assert_eq!(engine.pages_free(), 24 - 4 - 1);
        let mut second = Run { engine: &mut engine, lane: 1, out: Vec::new() };
        second.prefill(PROMPT);
        second.decode(DRAWN);
        assert_eq!(second.out, reference, "{family}");
        assert!(engine.adopt(1, SlotId(3)).is_err(), "it has begun");
    }
}

#[test]
fn a_spilled_slot_is_claimed_from_its_image() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
        for slot in [SlotId(1), SlotId(2)] {
            let mut engine = engine(&golden);
            let sampling = penalised();
            let admission = Admission::new(&prompt, 4, &sampling);
            engine.admit(0, &admission, None).unwrap();
            Run { engine: &mut engine, lane: 0, out: Vec::new() }.prefill(150);
            engine.capture(0, slot).unwrap();
            engine.release(0).unwrap();
            let image = engine.spill(slot, Tier::Ram, Kind::Checkpoint, 1).unwrap();
            land(&mut engine, MoveWay::Out, image);
            engine.drop_slot(slot).unwrap();
            assert_eq!(engine.pages_free(), 24);
            for _ in 0..2 {
                engine.move_in(image, 1, &admission).unwrap();
                land(&mut engine, MoveWay::In, image);
                let mut run = Run { engine: &mut engine, lane: 1, out: Vec::new() };
                run.prefill(PROMPT);
                run.decode(DRAWN);
                assert_eq!(run.out, reference, "{family}");
                engine.release(1).unwrap();
            }
        }
    }
}

#[test]
fn what_was_lost_is_prefilled_again_from_its_tokens() {
    for family in FAMILIES {
        let golden = Golden::open(family);
        let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
        let mut engine = engine(&golden);
        let drawn = reference[..7].iter().map(|sample| sample.token);
        let tokens: Vec<u32> = prompt.iter().copied().chain(drawn).collect();
        let sampling = penalised();
        let admission =
            Admission { prompt_tokens: PROMPT as u32, ..Admission::new(&tokens, 4, &sampling) };
        engine.admit(0, &admission, None).unwrap();
        let mut run = Run { engine: &mut engine, lane: 0, out: Vec::new() };
        run.prefill(PROMPT + 7);
        run.decode(DRAWN - 7);
        assert_eq!(run.out, reference[7..], "{family}");
    }
}

#[test]
fn a_move_is_abandoned_at_every_window() {
    let golden = Golden::open("qwen3_5");
    let (reference, prompt) = (alone(&golden), golden.ids(PROMPT));
    let sampling = penalised();
    let mut engine = engine(&golden);
    let windows = engine.windows_for(PROMPT as u32);
    assert!(windows > 2, "{windows} windows");
    for steps in 0..windows {
        engine.admit(0, &Admission::new(&prompt, 4, &sampling), None).unwrap();
        let mut run = Run { engine: &mut engine, lane: 0, out: Vec::new() };
        run.prefill(PROMPT);
        run.engine.move_out(0, Tier::Ram).unwrap();
        assert!(run.engine.round(RoundPlan { prefill: None, decode: &[0] }).is_err());
        (0..steps).for_each(|_| assert!(run.engine.advance(Duration::ZERO)[0].is_none()));
        run.engine.abandon_out();
        run.decode(3);
        let image = run.engine.move_out(0, Tier::Ram).unwrap();
        land(run.engine, MoveWay::Out, image);

        let tokens: Vec<u32> =
            prompt.iter().copied().chain(run.out.iter().map(|sample| sample.token)).collect();
        let admission =
            Admission { prompt_tokens: PROMPT as u32, ..Admission::new(&tokens, 4, &sampling) };
        engine.move_in(image, 1, &admission).unwrap();
        (0..steps).for_each(|_| assert!(engine.advance(Duration::ZERO)[1].is_none()));
        engine.release(1).unwrap();
        engine.move_in(image, 2, &admission).unwrap();
        land(&mut engine, MoveWay::In, image);
        let out = reference[..3].to_vec();
        let mut run = Run { engine: &mut engine, lane: 2, out };
        run.decode(DRAWN);
        assert_eq!(run.out, reference, "after {steps} windows");
        engine.drop_image(image).unwrap();
        engine.release(2).unwrap();
        assert_eq!(engine.pages_free(), 24);
        assert_eq!(engine.tiers().windows_free(Tier::Ram), 64);
    }
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let golden = Golden::open("qwen3");
    let mut engine = engine(&golden);
    let sampling = penalised();
    let prompt = golden.ids(PROMPT);
    let refused = |result: Result<(), ignis_engine::EngineError>| result.unwrap_err().to_string();
    assert!(refused(engine.capture(0, SlotId(0))).contains("lane 0 is empty"));
    engine.admit(0, &Admission::new(&prompt, 4, &sampling), None).unwrap();
    assert!(refused(engine.capture(0, SlotId(0))).contains("tokens stored"));
    assert!(refused(engine.adopt(0, SlotId(0))).contains("slot 0 is empty"));
    assert!(refused(engine.adopt(0, SlotId(4))).contains("there are 4"));
    Run { engine: &mut engine, lane: 0, out: Vec::new() }.prefill(100);
    engine.capture(0, SlotId(0)).unwrap();
    assert!(refused(engine.capture(0, SlotId(0))).contains("slot 0 is taken"));
    let short = Admission::new(&prompt[..100], 4, &sampling);
    assert!(refused(engine.admit(1, &short, Some(SlotId(0)))).contains("of other tokens"));
    let mut other = prompt.clone();
    other[99] ^= 1;
    let other = Admission::new(&other, 4, &sampling);
    assert!(refused(engine.admit(1, &other, Some(SlotId(0)))).contains("of other tokens"));
    let image = engine.move_out(0, Tier::Ram).unwrap();
    assert!(refused(engine.move_out(0, Tier::Ram).map(|_| ())).contains("being moved out"));
    land(&mut engine, MoveWay::Out, image);
    assert!(refused(engine.move_in(image, 0, &short)).contains("image of 100 tokens"));
    assert_eq!(engine.pages_free(), 22);
    engine.drop_image(image).unwrap();
    assert!(engine.move_in(image, 0, &Admission::new(&prompt, 4, &sampling)).is_err());
    assert_eq!(engine.pages_free(), 22);
}
