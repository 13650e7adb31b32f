use super::*;

/// The contract in f64, with sorting. Kept ids, largest first, with their share of the sum.
fn naive(
    logits: &[f32],
    params: &Sampling,
    bias: &[(u32, f32)],
    counts: &[u32],
) -> (Vec<f64>, Vec<(u32, f64)>) {
    let mut l: Vec<f64> =
        logits.iter().map(|&l| if l.is_nan() { f64::NEG_INFINITY } else { f64::from(l) }).collect();
    for &(id, bias) in bias {
        l[id as usize] += f64::from(bias);
    }
    for (l, &count) in l.iter_mut().zip(counts) {
        let repetition = f64::from(params.repetition_penalty);
        if count != 0 {
            *l = if *l > 0.0 { *l / repetition } else { *l * repetition };
        }
        let times = f64::from(count & !IN_PROMPT);
        if times > 0.0 {
            *l -= f64::from(params.frequency_penalty) * times + f64::from(params.presence_penalty);
        }
    }
    let mut order: Vec<usize> = (0..l.len()).filter(|&i| l[i] > f64::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
    if params.temperature == 0.0 {
        let kept = order.first().map(|&id| (id as u32, 1.0)).into_iter().collect();
        return (l, kept);
    }
    let largest = order.first().map_or(0.0, |&id| l[id]);
    let weight = |i: usize| ((l[i] - largest) / f64::from(params.temperature)).exp();
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let (mut kept, mut sum) = (vec![], 0.0);
    for &i in &order {
        let reached = params.top_p < 1.0 && sum >= f64::from(params.top_p) * total;
        if !kept.is_empty() && (reached || weight(i) < f64::from(params.min_p)) {
            break;
        }
        sum += weight(i);
        kept.push((i as u32, weight(i)));
    }
    kept.iter_mut().for_each(|kept| kept.1 /= sum);
    (l, kept)
}

struct Lane {
    keys: Vec<u64>,
    adjusted: Vec<f32>,
    counts: Vec<u32>,
}

impl Lane {
    fn new(vocab: usize) -> Lane {
        Lane { keys: vec![0; vocab], adjusted: vec![0.0; vocab], counts: vec![0; vocab] }
    }

    fn sample(&mut self, isa: Isa, logits: &[f32], params: &Sampling, at: u32) -> SampleOut {
        self.biased(isa, logits, params, &[], at)
    }

    fn biased(
        &mut self,
        isa: Isa,
        logits: &[f32],
        params: &Sampling,
        bias: &[(u32, f32)],
        at: u32,
    ) -> SampleOut {
        let Lane { keys, adjusted, counts } = self;
        sample(isa, logits, params, bias, at, Scratch { keys, adjusted, counts })
    }
}

fn random_logits(len: usize, seed: u32, spread: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * spread
        })
        .collect()
}

fn cases() -> Vec<Sampling> {
    let base = Sampling::default();
    vec![
        base.clone(),
        Sampling { temperature: 0.0, ..base.clone() },
        Sampling { temperature: 0.3, ..base.clone() },
        Sampling { temperature: 5.0, ..base.clone() },
        Sampling { top_k: 1, ..base.clone() },
        Sampling { top_k: 40, ..base.clone() },
        Sampling { top_k: 9, top_p: 0.5, ..base.clone() },
        Sampling { top_k: 100_000, ..base.clone() },
        Sampling { top_p: 0.9, ..base.clone() },
        Sampling { top_p: 0.0, ..base.clone() },
        Sampling { min_p: 0.05, ..base.clone() },
        Sampling { temperature: 0.7, top_k: 20, top_p: 0.8, min_p: 0.01, ..base.clone() },
        Sampling { repetition_penalty: 1.3, ..base.clone() },
        Sampling { presence_penalty: 0.6, frequency_penalty: 0.4, temperature: 0.0, ..base },
    ]
}

#[test]
fn draws_fall_where_the_contract_puts_them() {
    for (case, params) in cases().into_iter().enumerate() {
        for len in [1, 5, 130, 3000] {
            for spread in [0.1, 3.0, 40.0] {
                let logits = random_logits(len, case as u32 * 7 + len as u32, spread);
                let mut lane = Lane::new(len);
                for id in 0..len / 2 {
                    lane.counts[id] = [0, IN_PROMPT, 2, IN_PROMPT | 1][id % 4];
                }
                let bias = [((len - 1) as u32, 1.5), (0, -2.0)];
                let bias = if case % 2 == 0 { &bias[..] } else { &[] };
                for at in 0..6 {
                    let params = Sampling { seed: case as u64, ..params.clone() };
                    let (_, kept) = naive(&logits, &params, bias, &lane.counts);
                    let found = lane.biased(Isa::detect(), &logits, &params, bias, at);
                    let aim = uniform(params.seed, at);
                    let mut passed = 0.0;
                    let place = kept.iter().find_map(|&(id, share)| {
                        let from = passed;
                        passed += share;
                        (id == found.token).then_some((from, passed))
                    });
                    let (from, to) = place.expect("the draw is one of those kept");
                    let slack = if params.temperature == 0.0 { 1.0 } else { 1e-5 };
                    assert!(
                        from - slack <= aim && aim <= to + slack,
                        "{params:?} {len} {spread}: {aim} is not in {from}..{to}"
                    );
                }
            }
        }
    }
}

#[test]
fn instruction_sets_draw_the_same() {
    for params in cases() {
        let params = Sampling { logprobs: Some(5), ..params };
        let logits = random_logits(1000, 3, 6.0);
        for at in 0..20 {
            let expected = Lane::new(1000).sample(Isa::Scalar, &logits, &params, at);
            for isa in crate::testing::isas() {
                assert_eq!(expected, Lane::new(1000).sample(isa, &logits, &params, at));
            }
        }
    }
}

#[test]
fn log_probabilities_are_those_after_penalties_and_before_temperature() {
    let logits = random_logits(777, 11, 5.0);
    let params = Sampling {
        temperature: 0.2,
        repetition_penalty: 1.2,
        logprobs: Some(20),
        ..Sampling::default()
    };
    let mut lane = Lane::new(777);
    lane.counts[3] = IN_PROMPT;
    let (l, _) = naive(&logits, &params, &[], &lane.counts);
    let log_sum = l.iter().map(|l| l.exp()).sum::<f64>().ln();
    let found = lane.sample(Isa::detect(), &logits, &params, 1);
    let mut order: Vec<usize> = (0..777).collect();
    order.sort_by(|&a, &b| l[b].total_cmp(&l[a]));
    assert_eq!(found.top_len, 20);
    for i in 0..20 {
        assert_eq!(found.top_ids[i] as usize, order[i]);
        assert!((f64::from(found.top_logprobs[i]) - (l[order[i]] - log_sum)).abs() < 1e-5);
    }
    let expected = l[found.token as usize] - log_sum;
    assert!((f64::from(found.logprob) - expected).abs() < 1e-5);
}

#[test]
fn damaged_logits_give_a_token_all_the_same() {
    let mut some = random_logits(300, 5, 2.0);
    some[17] = f32::NAN;
    some[250] = 9.0;
    some[4] = f32::NEG_INFINITY;
    let rows = [
        some,
        vec![f32::NAN; 300],
        vec![f32::NEG_INFINITY; 300],
        vec![f32::INFINITY; 300],
        vec![0.0; 300],
    ];
    for logits in &rows {
        for params in cases() {
            let params = Sampling { logprobs: Some(3), ..params };
            let found = Lane::new(300).sample(Isa::detect(), logits, &params, 0);
            assert!(found.token < 300);
            assert!(!found.logprob.is_nan() && found.token != 17);
        }
    }
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    assert_eq!(Lane::new(300).sample(Isa::detect(), &rows[0], &greedy, 0).token, 250);
    assert_eq!(Lane::new(300).sample(Isa::detect(), &rows[4], &greedy, 0).token, 0);
}

#[test]
fn a_token_is_counted_once_it_is_drawn() {
    let greedy = Sampling { temperature: 0.0, frequency_penalty: 0.5, ..Sampling::default() };
    let logits = [1.0, 1.2, 0.0];
    let mut lane = Lane::new(3);
    lane.counts[1] = IN_PROMPT;
    let drawn: Vec<u32> =
        (0..4).map(|at| lane.sample(Isa::detect(), &logits, &greedy, at).token).collect();
    assert_eq!(drawn, [1, 0, 1, 0]);
    assert_eq!(lane.counts, [2, IN_PROMPT | 2, 0]);
}
