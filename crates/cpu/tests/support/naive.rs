//! The program in f64, op by op from the contracts, for one sequence without pages.

use ignis_formats::quant;
use ignis_ops::{BufferId, Op, Program, VectorMap, WeightId, WeightKind};

use super::{naive_state, stored};

/// Logits of the last token of `tokens`.
pub(crate) fn logits(program: &Program, tokens: &[u32]) -> Vec<f64> {
    let rows = tokens.len();
    let weight = |id: WeightId| -> Vec<f64> {
        let spec = program.weight(id);
        let mut values = vec![0f32; spec.rows as usize * spec.cols as usize];
        quant::dequantize(spec.dtype, &stored(spec, u64::from(id.0)), &mut values).unwrap();
        let map = if spec.kind == WeightKind::Vector { spec.map } else { VectorMap::AsStored };
        values.into_iter().map(|value| f64::from(map.apply(value))).collect()
    };
    let mut buffers: Vec<Vec<f64>> =
        program.buffers.iter().map(|spec| vec![0.0; rows * spec.width as usize]).collect();
    let width = |id: BufferId| program.buffer(id).width as usize;
    let mut cache = vec![(vec![], vec![]); program.kv.layers as usize];
    let mut logit_rows = rows;
    for (at, op) in program.ops.iter().enumerate() {
        if at == program.head {
            logit_rows = 1;
        }
        let get = |id: BufferId| buffers[id.0 as usize].clone();
        let (id, value) = match op {
            Op::Embed(op) => {
                let (table, n) = (weight(op.table), width(op.y));
                let row = |&token: &u32| table[token as usize * n..][..n].to_vec();
                (op.y, tokens.iter().flat_map(row).collect())
            }
            Op::RmsNorm(op) => {
                let w = weight(op.w);
                let mut x = get(op.x);
                for group in x.chunks_exact_mut(w.len()) {
                    let mean = group.iter().map(|v| v * v).sum::<f64>() / w.len() as f64;
                    let scale = 1.0 / (mean + f64::from(op.eps)).sqrt();
                    group.iter_mut().zip(&w).for_each(|(v, w)| *v *= scale * w);
                }
                (op.y, x)
            }
            Op::Linear(op) => {
                let x = get(op.x);
                let cols = width(op.x);
                for part in &op.parts {
                    let (w, n) = (weight(part.w), width(part.y));
                    let bias = part.bias.map(&weight);
                    let y = &mut buffers[part.y.0 as usize];
                    for t in 0..logit_rows {
                        for r in 0..n {
                            let dot: f64 =
                                (0..cols).map(|c| x[t * cols + c] * w[r * cols + c]).sum::<f64>()
                                    + bias.as_ref().map_or(0.0, |bias| bias[r]);
                            let y = &mut y[t * n + r];
                            *y = if op.accumulate { *y + dot } else { dot };
                        }
                    }
                }
                continue;
            }
            Op::Rope(op) => {
                let (mut x, n, dim) = (get(op.x), width(op.x), op.head_dim as usize);
                let half = program.rope.inv_freq.len();
                for (at, head) in x.chunks_exact_mut(dim).enumerate() {
                    let position = (at * dim / n) as f64;
                    for i in 0..half {
                        let angle = position * f64::from(program.rope.inv_freq[i]);
                        let (a, b) = (head[i], head[i + half]);
                        head[i] = a * angle.cos() - b * angle.sin();
                        head[i + half] = b * angle.cos() + a * angle.sin();
                    }
                }
                (op.x, x)
            }
            Op::KvAppend(op) => {
                cache[op.layer as usize] = (get(op.k), get(op.v));
                continue;
            }
            Op::PagedAttention(op) => {
                let (k, v) = &cache[op.layer as usize];
                let (q, n) = (get(op.q), width(op.q));
                let (dim, kv_heads) = (program.kv.head_dim as usize, program.kv.kv_heads as usize);
                let (heads, kv_width) = (n / dim, kv_heads * dim);
                let mut o = vec![0.0; q.len()];
                for t in 0..rows {
                    for head in 0..heads {
                        let kv_at = |j: usize| j * kv_width + head / (heads / kv_heads) * dim;
                        let q = &q[t * n + head * dim..][..dim];
                        let scores: Vec<f64> = (0..=t)
                            .map(|j| {
                                let dot: f64 = (0..dim).map(|d| q[d] * k[kv_at(j) + d]).sum();
                                dot * f64::from(op.scale)
                            })
                            .collect();
                        let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                        for (j, score) in scores.iter().enumerate() {
                            for d in 0..dim {
                                o[t * n + head * dim + d] +=
                                    (score - largest).exp() / sum * v[kv_at(j) + d];
                            }
                        }
                    }
                }
                (op.o, o)
            }
            Op::SwiGlu(op) => {
                let (gate, up) = (get(op.gate), get(op.up));
                (op.y, gate.iter().zip(up).map(|(a, b)| a / (1.0 + (-a).exp()) * b).collect())
            }
            Op::AddRows(op) => {
                (op.y, get(op.y).iter().zip(get(op.x)).map(|(a, b)| a + b).collect())
            }
            Op::GatherRows(op) => {
                let n = width(op.x);
                (op.y, get(op.x)[(rows - 1) * n..].to_vec())
            }
            other => {
                naive_state::run(program, other, rows, &weight, &mut buffers);
                continue;
            }
        };
        buffers[id.0 as usize] = value;
    }
    buffers[program.logits.0 as usize][..program.vocab as usize].to_vec()
}
