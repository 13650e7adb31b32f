//! A round that is begun and finished later: the same text at every pace of a device, and what may
//! be called while it is under way.

use std::time::Duration;

use ignis_engine::{Admission, Engine, EngineError, RoundPlan, Storage};
use ignis_ops::Sampling;
use ignis_sim::{Pace, SimDevice, witness_next, witness_program};
use ignis_tiers::{Kind, Tier};
use ignis_types::{Limits, SlotId};

const VOCAB: u32 = 97;
const SEED: u64 = 5;
const PACES: [Pace; 3] = [Pace::Whole, Pace::Early, Pace::Late];
const LIMITS: Limits = Limits {
    lanes_max: 3,
    chunk_tokens_max: 32,
    context_tokens_max: 256,
    pages: 8,
    retained_device: 2,
    retained_host: 0,
};

fn engine(pace: Pace, fault_ppm: u32) -> Engine {
    let device = Box::new(SimDevice::new(SEED, fault_ppm).at(pace));
    let storage = Storage { ram_bytes: 16 << 12, window_bytes: Some(1 << 12), ..Storage::none() };
    ignis_engine::simulated(&witness_program(VOCAB), &LIMITS, device, storage, SEED).unwrap()
}

fn admit(engine: &mut Engine, lane: u32, prompt: &[u32]) -> Result<(), EngineError> {
    engine.admit(lane, &Admission::new(prompt, 2, &Sampling::default()), None)
}

fn prefill(lane: u32, count: u32) -> RoundPlan<'static> {
    RoundPlan { prefill: Some((lane, count)), decode: &[] }
}

fn decode(lanes: &[u32]) -> RoundPlan<'_> {
    RoundPlan { prefill: None, decode: lanes }
}

#[test]
fn a_begun_round_draws_what_a_whole_one_draws() {
    for pace in PACES {
        let mut engine = engine(pace, 0);
        let mut text: Vec<u32> = (0..40).collect();
        admit(&mut engine, 1, &text).unwrap();
        for plan in [prefill(1, 32), prefill(1, 8)] {
            assert_eq!(engine.begin_round(plan).unwrap(), pace != Pace::Whole);
            text.extend(engine.finish_round().unwrap().iter().map(|result| result.sample.token));
        }
        while text.len() < 100 {
            engine.begin_round(decode(&[1])).unwrap();
            assert_eq!(engine.position(1).unwrap() as usize, text.len() - 1, "not finished yet");
            text.push(engine.finish_round().unwrap()[0].sample.token);
        }
        for at in 40..100 {
            assert_eq!(text[at], witness_next(text[..at].iter().copied(), VOCAB, SEED), "{pace:?}");
        }
    }
}

#[test]
fn a_page_that_a_lane_goes_on_writing_is_spilled_beside_it_and_read_back() {
    for tokens in [32, 64, 70] {
        // Sums are made when a window is sent, and copies when it has arrived.
        let device = Box::new(SimDevice::new(SEED, 0).at(Pace::Late).copying_beside(0));
        let storage =
            Storage { ram_bytes: 16 << 12, window_bytes: Some(1 << 12), ..Storage::none() };
        let mut engine =
            ignis_engine::simulated(&witness_program(VOCAB), &LIMITS, device, storage, SEED)
                .unwrap();
        let prompt: Vec<u32> = (0..90).collect();
        admit(&mut engine, 0, &prompt).unwrap();
        for count in [32, 32, 6] {
            if engine.position(0).unwrap() < tokens {
                engine.round(prefill(0, count)).unwrap();
            }
        }
        engine.capture(0, SlotId(1)).unwrap();
        let image = engine.spill(SlotId(1), Tier::Ram, Kind::Prefix, 0).unwrap();
        assert_eq!(engine.advance(Duration::ZERO).iter().flatten().count(), 0, "it travels");
        engine.round(prefill(0, 20)).unwrap();
        let out = engine.advance(Duration::from_millis(1)).into_iter().flatten().next().unwrap();
        assert!(out.failure.is_none(), "{out:?}");
        engine.move_in(image, 1, &Admission::new(&prompt, 2, &Sampling::default())).unwrap();
        let back = loop {
            let events = engine.advance(Duration::from_millis(1));
            if let Some(event) = events.into_iter().flatten().next() {
                break event;
            }
        };
        assert!(back.failure.is_none(), "{tokens} tokens: {back:?}");
        assert_eq!(engine.position(1).unwrap(), tokens);
    }
}

#[test]
fn what_is_not_for_the_time_of_a_round_is_refused_and_changes_nothing() {
    for pace in PACES {
        let mut engine = engine(pace, 0);
        admit(&mut engine, 0, &[1, 2, 3]).unwrap();
        engine.round(prefill(0, 2)).unwrap();
        engine.begin_round(prefill(0, 1)).unwrap();
        let of_the_lane = [
            engine.release(0).err(),
            engine.capture(0, SlotId(0)).err(),
            engine.adopt(0, SlotId(0)).err(),
            engine.move_out(0, Tier::Ram).err(),
        ];
        for refused in of_the_lane {
            let text = refused.expect("the lane is in the round").to_string();
            assert!(text.contains("lane 0 is in the round under way"), "{text}");
        }
        let of_any = [
            engine.begin_round(decode(&[])).err(),
            engine.round(decode(&[])).err(),
            admit(&mut engine, 1, &[1]).err(),
            engine.score(0, 1, &mut [0.0]).err(),
        ];
        for refused in of_any {
            assert!(matches!(refused, Some(EngineError::RoundUnderWay { .. })), "{refused:?}");
        }
        assert_eq!(engine.pages_free(), 6);
        assert_eq!(
            engine.finish_round().unwrap()[0].sample.token,
            witness_next([1, 2, 3], VOCAB, SEED)
        );
        assert!(matches!(engine.finish_round(), Err(EngineError::NoRound)));
        engine.release(0).unwrap();
        assert_eq!(engine.pages_free(), LIMITS.pages);
    }
}

#[test]
fn a_round_without_work_is_begun_and_finished_too() {
    let mut engine = engine(Pace::Late, 0);
    assert!(!engine.begin_round(decode(&[])).unwrap());
    assert!(engine.finish_round().unwrap().is_empty());
}

#[test]
fn a_refused_plan_leaves_no_round_under_way() {
    let mut engine = engine(Pace::Early, 0);
    admit(&mut engine, 0, &[1, 2]).unwrap();
    assert!(engine.begin_round(decode(&[0])).is_err());
    assert!(matches!(engine.finish_round(), Err(EngineError::NoRound)));
    assert_eq!(engine.round(prefill(0, 2)).unwrap().len(), 1);
}

#[test]
fn moves_and_slots_of_other_lanes_go_on_beside_a_round() {
    for pace in PACES {
        let mut engine = engine(pace, 0);
        let prompts: [Vec<u32>; 2] = [(0..70).collect(), (20..90).collect()];
        for (lane, prompt) in (0..).zip(&prompts) {
            admit(&mut engine, lane, prompt).unwrap();
            for count in [32, 32, 6] {
                engine.round(prefill(lane, count)).unwrap();
            }
        }
        let mut text = prompts[0].clone();
        text.push(witness_next(text.iter().copied(), VOCAB, SEED));
        // The slot shares the page that the lane goes on writing to.
        engine.capture(0, SlotId(0)).unwrap();
        let mut image = None;
        let mut ended = 0;
        for round in 0..30 {
            engine.begin_round(decode(&[0])).unwrap();
            match round {
                0 => image = Some(engine.move_out(1, Tier::Ram).unwrap()),
                10 => {
                    engine.spill(SlotId(0), Tier::Ram, Kind::Prefix, 0).unwrap();
                }
                20 => {
                    engine.drop_slot(SlotId(0)).unwrap();
                    engine.release(1).unwrap();
                    engine.release(2).unwrap();
                    engine.drop_image(image.unwrap()).unwrap();
                }
                _ => {}
            }
            for event in engine.advance(Duration::ZERO).into_iter().flatten() {
                assert!(event.failure.is_none(), "{event:?}");
                ended += 1;
            }
            let token = engine.finish_round().unwrap()[0].sample.token;
            assert_eq!(token, witness_next(text.iter().copied(), VOCAB, SEED), "{pace:?}");
            text.push(token);
        }
        assert_eq!(ended, 2);
        engine.release(0).unwrap();
        assert_eq!(engine.pages_free(), LIMITS.pages);
    }
}

#[test]
fn what_moved_out_beside_a_round_comes_back_whole() {
    for pace in PACES {
        let mut engine = engine(pace, 0);
        let mut texts: [Vec<u32>; 2] = [(0..70).collect(), (20..90).collect()];
        for (lane, text) in (0..).zip(&mut texts) {
            admit(&mut engine, lane, text).unwrap();
            for count in [32, 32, 6] {
                let drawn = engine.round(prefill(lane, count)).unwrap();
                text.extend(drawn.iter().map(|result| result.sample.token));
            }
        }
        let image = engine.move_out(1, Tier::Ram).unwrap();
        while engine.moving() != (false, false) {
            engine.begin_round(decode(&[0])).unwrap();
            engine.advance(Duration::ZERO);
            texts[0].push(engine.finish_round().unwrap()[0].sample.token);
        }
        let (moved, sampling) = (texts[1].clone(), Sampling::default());
        let returning = Admission { prompt_tokens: 70, ..Admission::new(&moved, 2, &sampling) };
        engine.begin_round(decode(&[0])).unwrap();
        let refused = engine.move_in(image, 2, &returning).err();
        assert!(matches!(refused, Some(EngineError::RoundUnderWay { .. })));
        texts[0].push(engine.finish_round().unwrap()[0].sample.token);
        engine.move_in(image, 2, &returning).unwrap();
        while engine.moving() != (false, false) {
            engine.begin_round(decode(&[0])).unwrap();
            engine.advance(Duration::ZERO);
            texts[0].push(engine.finish_round().unwrap()[0].sample.token);
        }
        for _ in 0..20 {
            let drawn = engine.round(decode(&[0, 2])).unwrap();
            texts.iter_mut().zip(drawn).for_each(|(text, drawn)| text.push(drawn.sample.token));
        }
        for text in &texts {
            for at in 70..text.len() {
                let expected = witness_next(text[..at].iter().copied(), VOCAB, SEED);
                assert_eq!(text[at], expected, "{pace:?}");
            }
        }
    }
}

#[test]
fn a_fault_at_either_end_breaks_the_lanes_of_the_round_and_no_other() {
    for pace in PACES {
        let mut seen = [false; 2];
        let mut engine = engine(pace, 1_000_000);
        for turn in 0..4 {
            admit(&mut engine, 0, &[1, 2]).unwrap();
            admit(&mut engine, 1, &[3, 4]).unwrap();
            let begun = engine.begin_round(prefill(0, 2));
            seen[usize::from(begun.is_ok())] = true;
            let failed = match begun {
                Err(error) => {
                    assert!(matches!(engine.finish_round(), Err(EngineError::NoRound)));
                    error
                }
                Ok(_) => engine.finish_round().unwrap_err(),
            };
            assert!(matches!(failed, EngineError::Device(_)), "{failed}");
            let broken = engine.begin_round(prefill(0, 2)).unwrap_err().to_string();
            assert!(broken.contains("broken by a device fault"), "{broken}");
            if turn == 3 {
                let other = engine.round(prefill(1, 2)).map(<[_]>::len);
                assert!(matches!(other, Err(EngineError::Device(_))), "{other:?}");
            }
            engine.release(0).unwrap();
            engine.release(1).unwrap();
        }
        assert_eq!(engine.pages_free(), LIMITS.pages);
        assert_eq!(seen, [pace != Pace::Whole, true], "{pace:?}");
    }
}
