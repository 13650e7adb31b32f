//! The ops of recurrent layers and of experts in f64, from their contracts.

use ignis_ops::{BufferId, GateFunction, Op, Program, WeightId};

fn sigmoid(a: f64) -> f64 {
    1.0 / (1.0 + (-a).exp())
}

/// Runs `op` over `rows` rows of one sequence from its start.
pub(crate) fn run(
    program: &Program,
    op: &Op,
    rows: usize,
    weight: &dyn Fn(WeightId) -> Vec<f64>,
    buffers: &mut [Vec<f64>],
) {
    let width = |id: BufferId| program.buffer(id).width as usize;
    let get = |buffers: &[Vec<f64>], id: BufferId| buffers[id.0 as usize].clone();
    match op {
        Op::Gate(op) => {
            let gate = get(buffers, op.gate);
            let y = &mut buffers[op.y.0 as usize];
            y.iter_mut().zip(gate).for_each(|(y, gate)| *y *= sigmoid(gate));
        }
        Op::AddScaled(op) => {
            let (x, scale, n) = (get(buffers, op.x), get(buffers, op.scale), width(op.y));
            for (i, y) in buffers[op.y.0 as usize].iter_mut().enumerate() {
                *y += sigmoid(scale[i / n]) * x[i];
            }
        }
        Op::CausalConv(op) => {
            let (x, w, n) = (get(buffers, op.x), weight(op.w), width(op.x));
            let kernel = w.len() / n;
            for t in 0..rows {
                for c in 0..n {
                    let taps = (0..kernel).filter(|j| t + j + 1 >= kernel);
                    let sum: f64 =
                        taps.map(|j| w[j * n + c] * x[(t + j + 1 - kernel) * n + c]).sum();
                    buffers[op.y.0 as usize][t * n + c] = sum * sigmoid(sum);
                }
            }
        }
        Op::L2NormHeads(op) => {
            let n = width(op.x);
            for row in buffers[op.x.0 as usize].chunks_exact_mut(n) {
                let heads = &mut row[op.first as usize..][..(op.heads * op.dim) as usize];
                for head in heads.chunks_exact_mut(op.dim as usize) {
                    let sum: f64 = head.iter().map(|x| x * x).sum();
                    let scale = f64::from(op.scale) / (sum + f64::from(op.eps)).sqrt();
                    head.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
        Op::DeltaGates(op) => {
            let (decay, dt, n) = (weight(op.decay), weight(op.dt), width(op.a));
            for (i, a) in buffers[op.a.0 as usize].iter_mut().enumerate() {
                *a = (decay[i % n] * (1.0 + (*a + dt[i % n]).exp()).ln()).exp();
            }
            buffers[op.b.0 as usize].iter_mut().for_each(|b| *b = sigmoid(*b));
        }
        Op::DeltaRule(op) => {
            let (qkv, a, b) = (get(buffers, op.qkv), get(buffers, op.a), get(buffers, op.b));
            let [keys, dk, dv] = [op.key_heads, op.key_dim, op.value_dim].map(|n| n as usize);
            let (values, n) = (op.value_heads as usize, width(op.qkv));
            let mut states = vec![vec![0.0; dk * dv]; values];
            for t in 0..rows {
                for (j, state) in states.iter_mut().enumerate() {
                    let from = op.map.key_head(j as u32, op.key_heads, op.value_heads) as usize;
                    let q = &qkv[t * n + from * dk..][..dk];
                    let k = &qkv[t * n + (keys + from) * dk..][..dk];
                    let v = &qkv[t * n + 2 * keys * dk + j * dv..][..dv];
                    state.iter_mut().for_each(|s| *s *= a[t * values + j]);
                    for c in 0..dv {
                        let seen: f64 = (0..dk).map(|i| state[i * dv + c] * k[i]).sum();
                        let new = b[t * values + j] * (v[c] - seen);
                        (0..dk).for_each(|i| state[i * dv + c] += k[i] * new);
                        let read = (0..dk).map(|i| state[i * dv + c] * q[i]).sum();
                        buffers[op.y.0 as usize][(t * values + j) * dv + c] = read;
                    }
                }
            }
        }
        Op::GatedNorm(op) => {
            let (mut x, w, gate) = (get(buffers, op.x), weight(op.w), get(buffers, op.gate));
            for (x, gate) in x.chunks_exact_mut(w.len()).zip(gate.chunks_exact(w.len())) {
                let mean = x.iter().map(|v| v * v).sum::<f64>() / w.len() as f64;
                for i in 0..w.len() {
                    let open = match op.f {
                        GateFunction::Silu => gate[i] * sigmoid(gate[i]),
                        GateFunction::Sigmoid => sigmoid(gate[i]),
                    };
                    x[i] *= w[i] / (mean + f64::from(op.eps)).sqrt() * open;
                }
            }
            buffers[op.y.0 as usize] = x;
        }
        Op::Route(op) => {
            let (scores, experts, used) =
                (get(buffers, op.scores), width(op.scores), width(op.ids));
            for t in 0..rows {
                let row = &scores[t * experts..][..experts];
                let mut order: Vec<usize> = (0..experts).collect();
                order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
                let total: f64 = if op.renormalise {
                    order[..used].iter().map(|&e| row[e].exp()).sum()
                } else {
                    row.iter().map(|score| score.exp()).sum()
                };
                for (choice, &expert) in order[..used].iter().enumerate() {
                    buffers[op.ids.0 as usize][t * used + choice] = expert as f64;
                    buffers[op.weights.0 as usize][t * used + choice] = row[expert].exp() / total;
                }
            }
        }
        Op::ExpertLinear(op) => {
            let (x, ids, used) = (get(buffers, op.x), get(buffers, op.ids), width(op.ids));
            for part in &op.parts {
                let (w, cols) = (weight(part.w), program.weight(part.w).cols as usize);
                let out = width(part.y) / used;
                for pair in 0..rows * used {
                    let row = if width(op.x) == cols { pair / used } else { pair };
                    let x = &x[row * cols..][..cols];
                    for r in 0..out {
                        let w = &w[(ids[pair] as usize * out + r) * cols..][..cols];
                        let dot = x.iter().zip(w).map(|(x, w)| x * w).sum();
                        buffers[part.y.0 as usize][pair * out + r] = dot;
                    }
                }
            }
        }
        Op::ExpertSum(op) => {
            let (x, weights, n) = (get(buffers, op.x), get(buffers, op.weights), width(op.y));
            for (pair, weight) in weights.iter().enumerate() {
                let row = pair / width(op.weights);
                for i in 0..n {
                    buffers[op.y.0 as usize][row * n + i] += weight * x[pair * n + i];
                }
            }
        }
        other => panic!("no twin for {other:?}"),
    }
}
