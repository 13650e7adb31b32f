//! Each op against its contract, when it is pushed.

use crate::builder::ProgramBuilder;
use crate::error::{ShapeError, equal, multiple};
use crate::program::Op;
use crate::weight::WeightKind;

impl ProgramBuilder {
    pub(crate) fn check(&self, op: &Op) -> Result<(), ShapeError> {
        let kv_width = u64::from(self.kv.kv_heads) * u64::from(self.kv.head_dim);
        match op {
            Op::Embed(op) => {
                let table = self.spec(op.table);
                equal("embed", "width of y", self.width(op.y), u64::from(table.cols))
            }
            Op::RmsNorm(op) => {
                let gain = u64::from(self.spec(op.w).cols);
                equal("rms_norm", "width of y", self.width(op.y), self.width(op.x))?;
                multiple("rms_norm", "width of x", self.width(op.x), gain)
            }
            Op::Linear(op) => op.parts.iter().try_for_each(|part| {
                let w = self.spec(part.w);
                equal("linear", "width of x", self.width(op.x), u64::from(w.cols))?;
                equal("linear", "width of y", self.width(part.y), u64::from(w.rows))?;
                if let Some(bias) = part.bias {
                    equal("linear", "bias", u64::from(self.spec(bias).cols), u64::from(w.rows))?;
                }
                Ok(())
            }),
            Op::Rope(op) => {
                multiple("rope", "width of x", self.width(op.x), u64::from(op.head_dim))?;
                let rotary = self.rope.rotary_dim() as u64;
                if rotary > u64::from(op.head_dim) {
                    return equal("rope", "rotary_dim", rotary, u64::from(op.head_dim));
                }
                Ok(())
            }
            Op::KvAppend(op) => {
                equal("kv_append", "width of k", self.width(op.k), kv_width)?;
                equal("kv_append", "width of v", self.width(op.v), kv_width)
            }
            Op::PagedAttention(op) => {
                equal("attention", "width of o", self.width(op.o), self.width(op.q))?;
                multiple("attention", "width of q", self.width(op.q), kv_width)
            }
            Op::SwiGlu(op) => {
                equal("swiglu", "width of up", self.width(op.up), self.width(op.gate))?;
                equal("swiglu", "width of y", self.width(op.y), self.width(op.gate))
            }
            Op::AddRows(op) => equal("add_rows", "width of x", self.width(op.x), self.width(op.y)),
            Op::GatherRows(op) => {
                equal("gather_rows", "width of y", self.width(op.y), self.width(op.x))
            }
            Op::Gate(op) => equal("gate", "width of gate", self.width(op.gate), self.width(op.y)),
            Op::CausalConv(_) | Op::L2NormHeads(_) | Op::DeltaGates(_) | Op::DeltaRule(_) => {
                self.check_delta(op)
            }
            Op::GatedNorm(op) => {
                let gain = u64::from(self.spec(op.w).cols);
                equal("gated_norm", "width of y", self.width(op.y), self.width(op.x))?;
                equal("gated_norm", "width of gate", self.width(op.gate), self.width(op.x))?;
                multiple("gated_norm", "width of x", self.width(op.x), gain)
            }
            Op::Route(_) | Op::ExpertLinear(_) | Op::ExpertSum(_) => self.check_experts(op),
            Op::AddScaled(op) => {
                equal("add_scaled", "width of x", self.width(op.x), self.width(op.y))?;
                equal("add_scaled", "width of scale", self.width(op.scale), 1)
            }
        }
    }

    /// Ops of the delta rule and what feeds it.
    fn check_delta(&self, op: &Op) -> Result<(), ShapeError> {
        match op {
            Op::CausalConv(op) => {
                let channels = self.width(op.x);
                equal("causal_conv", "width of y", self.width(op.y), channels)?;
                let taps = u64::from(self.spec(op.w).cols);
                multiple("causal_conv", "taps", taps, channels)?;
                if taps < channels {
                    return equal("causal_conv", "taps", taps, channels);
                }
                self.section_holds("causal_conv", op.taps, op.layer, taps - channels)
            }
            Op::L2NormHeads(op) => {
                let end = u64::from(op.first) + u64::from(op.heads) * u64::from(op.dim);
                let width = self.width(op.x);
                if end > width {
                    equal("l2_norm_heads", "end of the heads", end, width)
                } else {
                    Ok(())
                }
            }
            Op::DeltaGates(op) => {
                let heads = self.width(op.a);
                equal("delta_gates", "width of b", self.width(op.b), heads)?;
                equal("delta_gates", "decay", u64::from(self.spec(op.decay).cols), heads)?;
                equal("delta_gates", "dt", u64::from(self.spec(op.dt).cols), heads)
            }
            Op::DeltaRule(op) => {
                let [key_heads, value_heads] = [op.key_heads, op.value_heads].map(u64::from);
                let [key_dim, value_dim] = [op.key_dim, op.value_dim].map(u64::from);
                multiple("delta_rule", "value heads", value_heads, key_heads)?;
                let values = value_heads * value_dim;
                let width = 2 * key_heads * key_dim + values;
                equal("delta_rule", "width of qkv", self.width(op.qkv), width)?;
                equal("delta_rule", "width of a", self.width(op.a), value_heads)?;
                equal("delta_rule", "width of b", self.width(op.b), value_heads)?;
                equal("delta_rule", "width of y", self.width(op.y), values)?;
                self.section_holds("delta_rule", op.state, op.layer, values * key_dim)
            }
            _ => Ok(()),
        }
    }

    /// Ops that route rows to experts.
    fn check_experts(&self, op: &Op) -> Result<(), ShapeError> {
        match op {
            Op::Route(op) => {
                let (experts, used) = (self.width(op.scores), self.width(op.ids));
                equal("route", "width of weights", self.width(op.weights), used)?;
                if used == 0 || used > experts {
                    return equal("route", "experts used", used, experts);
                }
                Ok(())
            }
            Op::ExpertLinear(op) => op.parts.iter().try_for_each(|part| {
                let (w, used) = (self.spec(part.w), self.width(op.ids));
                let WeightKind::Experts { count } = w.kind else {
                    return equal("expert_linear", "experts of the weight", 0, 1);
                };
                let (x, cols) = (self.width(op.x), u64::from(w.cols));
                if x != cols {
                    equal("expert_linear", "width of x", x, used * cols)?;
                }
                multiple("expert_linear", "rows of the weight", w.rows.into(), count.into())?;
                let out = u64::from(w.rows / count);
                equal("expert_linear", "width of y", self.width(part.y), used * out)
            }),
            Op::ExpertSum(op) => {
                let used = self.width(op.ids);
                equal("expert_sum", "width of weights", self.width(op.weights), used)?;
                equal("expert_sum", "width of x", self.width(op.x), used * self.width(op.y))
            }
            _ => Ok(()),
        }
    }
}
