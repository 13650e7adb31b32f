//! Rounds that are begun and collected, recorded ones among them.

use ignis_backend::{Device, KvFormat, LaneSampling, Recorded, StoredActivations};
use ignis_cuda::CudaDevice;
use ignis_ops::{Round, SampleOut, Sampling, Segment};

use crate::support::{LIMITS, Rig, prompt};
use crate::{BF16, SHAPES, bits, rig};

/// One round of lanes that draw: `(lane, position, tokens)`.
pub(crate) type Part<'a> = (u32, u32, &'a [u32]);

/// Runs a round and draws for every lane in it, whole or begun and collected.
pub(crate) fn draw(rig: &mut Rig<CudaDevice>, parts: &[Part<'_>], begun: bool) -> Vec<SampleOut> {
    let tokens: Vec<u32> = parts.iter().flat_map(|part| part.2.iter().copied()).collect();
    let (mut segments, mut logit_rows, mut row) = (vec![], vec![], 0);
    for &(lane, position, tokens) in parts {
        let rows = tokens.len() as u32;
        segments.push(Segment { lane, row, rows, position });
        row += rows;
        logit_rows.push(row - 1);
    }
    let (block_tables, stride) = (&rig.tables[..], rig.stride);
    let round = Round {
        tokens: &tokens,
        segments: &segments,
        logit_rows: &logit_rows,
        block_tables,
        stride,
    };
    let plain = Sampling { logprobs: Some(2), ..Sampling::default() };
    let kinds = [
        Sampling { temperature: 0.0, ..plain.clone() },
        Sampling { top_k: 40, top_p: 0.9, ..plain.clone() },
        Sampling { repetition_penalty: 1.2, frequency_penalty: 0.3, ..plain },
    ];
    let lanes: Vec<LaneSampling<'_>> = parts
        .iter()
        .enumerate()
        .map(|(i, &(lane, position, tokens))| LaneSampling {
            lane,
            logit_row: i as u32,
            position: position + tokens.len() as u32,
            ids: rig.program.vocab,
            params: &kinds[lane as usize % 3],
            logit_bias: if lane == 4 { &[(3, 2.5), (9, -1.0)] } else { &[] },
        })
        .collect();
    let mut out = vec![SampleOut::default(); lanes.len()];
    if begun {
        assert!(rig.device.start(&round, &lanes).unwrap(), "a card runs beside its caller");
        rig.device.collect(&mut out).unwrap();
    } else {
        rig.device.run(&round).unwrap();
        rig.device.sample(&lanes, &mut out).unwrap();
    }
    out
}

/// Recorded rounds give the bits of those that are launched step by step, and so do rounds that
/// are begun: logits, draws, and what later rounds read.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_recorded_round_has_the_bits_of_one_that_is_launched() {
    for shape in [SHAPES[0], SHAPES[1], SHAPES[6]] {
        for mode in [BF16, (StoredActivations::F32, KvFormat::F32)] {
            let mut rigs = [rig(&shape, mode), rig(&shape, mode)];
            let Recorded { kept, kinds, bytes } = rigs[1].device.recorded().unwrap();
            let planned = rigs[1].device.layout().graph_bytes(&rigs[1].program, &LIMITS).unwrap();
            println!("{}: {kept} rounds recorded in {bytes} of {planned}", shape.matrices);
            // Eight lanes, and contexts up to 16 pages: at most 4 runs, or 16.
            assert_eq!((kept, kinds), (2 * 8, 2 * 8));
            // The last has ten pages: more runs than the first kind of recording has.
            let lens = [5, 64, 63, 129, 1, 200, 258, 600];
            let mut next = [[0u32; 1]; 8];
            let mut places = lens.map(|len| len as u32);
            for (lane, &len) in lens.iter().enumerate() {
                let tokens = prompt(len, shape.vocab, len as u64);
                let part = [(lane as u32, 0, &tokens[..])];
                let [whole, begun] =
                    [false, true].map(|b| draw(&mut rigs[usize::from(b)], &part, b));
                assert_eq!(whole, begun, "prompt of {len}");
                next[lane] = [whole[0].token];
            }
            for width in [1, 2, 3, 4, 5, 6, 7, 8, 8, 1] {
                // Every second width leaves out the longest, so that both kinds come up.
                let first = if width % 2 == 0 { 8 - width } else { 0 };
                let lanes: Vec<usize> = (first..first + width).collect();
                let parts: Vec<Part<'_>> = lanes
                    .iter()
                    .map(|&lane| (lane as u32, places[lane], &next[lane][..]))
                    .collect();
                let [whole, begun] =
                    [false, true].map(|b| draw(&mut rigs[usize::from(b)], &parts, b));
                assert_eq!(whole, begun, "{shape:?} {mode:?} width {width}");
                for row in 0..width as u32 {
                    let [a, b] = [0, 1].map(|i| bits(rigs[i].device.logits(row).unwrap()));
                    assert!(a == b, "{shape:?} {mode:?} width {width} row {row}");
                }
                let last = bits(rigs[1].device.logits(width as u32 - 1).unwrap());
                again(&mut rigs[1], &parts, width as u32 - 1);
                assert!(last == bits(rigs[1].device.logits(0).unwrap()), "the head run again");
                for (&lane, drawn) in lanes.iter().zip(&whole) {
                    places[lane] += 1;
                    next[lane] = [drawn.token];
                }
            }
            // A chunk beside lanes that decode.
            let chunk = prompt(70, shape.vocab, 3);
            let parts: Vec<Part<'_>> = vec![
                (1, 0, &chunk[..]),
                (0, places[0], &next[0][..]),
                (2, places[2], &next[2][..]),
            ];
            let [whole, begun] = [false, true].map(|b| draw(&mut rigs[usize::from(b)], &parts, b));
            assert_eq!(whole, begun, "{shape:?} {mode:?} mixed");
        }
    }
}

/// The head of a decode round again, for one of its rows.
fn again(rig: &mut Rig<CudaDevice>, parts: &[Part<'_>], row: u32) {
    let tokens: Vec<u32> = parts.iter().map(|part| part.2[0]).collect();
    let segment = |(i, &(lane, position, _)): (usize, &Part<'_>)| Segment {
        lane,
        row: i as u32,
        rows: 1,
        position,
    };
    let segments: Vec<Segment> = parts.iter().enumerate().map(segment).collect();
    let round = Round {
        tokens: &tokens,
        segments: &segments,
        logit_rows: &[row],
        block_tables: &rig.tables,
        stride: rig.stride,
    };
    rig.device.run_head(&round).unwrap();
}
