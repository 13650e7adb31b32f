//! Choosing a token from a row of logits: the contract of `ignis_ops::Sampling`.
//!
//! Weights `exp((l - largest) / temperature)` are taken as whole multiples of 2^-40, so their sums
//! are exact and do not depend on an order. Only ids above a falling threshold are sorted, until
//! they hold what `top_k`, `top_p`, `min_p` or the draw asks for. A NaN counts as minus infinity.
//!
//! Scratch of a lane: the adjusted logits, and a sortable key for each id. No heap.

mod lanes;

use ignis_ops::{SampleOut, Sampling, TOP_LOGPROBS_MAX, uniform};

use crate::simd::Isa;
use crate::vector::{LANES, Vector, by_isa, exp};

pub(crate) use lanes::{SampleJob, sample_lanes};

/// Bytes of scratch for each id: a key, and an adjusted logit.
pub(crate) const ID_BYTES: u64 = 8 + 4;

/// Bit 31 of a count: the id is in the prompt. The other bits count it in the output.
pub(crate) const IN_PROMPT: u32 = 1 << 31;

/// Weight of the likeliest id.
const ONE: f64 = (1u64 << 40) as f64;

/// First threshold below the largest logit, in temperatures; it doubles.
const FIRST_CUT: f32 = 4.0;

/// The memory that sampling one lane works on; all three `[vocab]`.
struct Scratch<'a> {
    keys: &'a mut [u64],
    adjusted: &'a mut [f32],
    /// Penalty counts of the lane.
    counts: &'a mut [u32],
}

/// Samples one row and counts the token as output.
fn sample(
    isa: Isa,
    logits: &[f32],
    params: &Sampling,
    logit_bias: &[(u32, f32)],
    position: u32,
    scratch: Scratch<'_>,
) -> SampleOut {
    let Scratch { keys, adjusted, counts } = scratch;
    let logits = if params.has_penalties() || !logit_bias.is_empty() {
        adjust(logits, params, logit_bias, counts, adjusted);
        &*adjusted
    } else {
        logits
    };
    let (best, largest) = argmax(isa, logits);
    let token = match params.temperature > 0.0 && largest.is_finite() {
        true => draw(isa, logits, largest, params, position, keys).unwrap_or(best),
        false => best,
    };
    let mut out = SampleOut { token, ..SampleOut::default() };
    if let Some(alternatives) = params.logprobs {
        let total = if largest.is_finite() {
            // SAFETY: `isa` is this machine's.
            unsafe { weight_sum(isa, logits, largest, 1.0) }
        } else {
            1.0
        };
        let log_sum = f64::from(largest) + total.ln();
        let logprob = |l: f32| {
            let value = (f64::from(l) - log_sum) as f32;
            if value.is_nan() { f32::NEG_INFINITY } else { value }
        };
        out.logprob = logprob(logits[token as usize]);
        let wanted = (alternatives as usize).min(TOP_LOGPROBS_MAX).min(logits.len());
        top(logits, wanted, &mut out);
        for i in 0..out.top_len as usize {
            out.top_logprobs[i] = logprob(out.top_logprobs[i]);
        }
    }
    count_output(&mut counts[token as usize]);
    out
}

/// Counts a drawn token; the count stops one short of the prompt's bit.
pub(crate) fn count_output(count: &mut u32) {
    if *count & !IN_PROMPT != !IN_PROMPT {
        *count += 1;
    }
}

/// Steps 1 to 3 of the contract, into `out`.
fn adjust(
    logits: &[f32],
    params: &Sampling,
    logit_bias: &[(u32, f32)],
    counts: &[u32],
    out: &mut [f32],
) {
    out.copy_from_slice(logits);
    for &(id, bias) in logit_bias {
        if let Some(l) = out.get_mut(id as usize) {
            *l += bias;
        }
    }
    if !params.has_penalties() {
        return;
    }
    for (l, &count) in out.iter_mut().zip(counts) {
        if count == 0 {
            continue;
        }
        let repetition = params.repetition_penalty;
        *l = if *l > 0.0 { *l / repetition } else { *l * repetition };
        let times = count & !IN_PROMPT;
        if times > 0 {
            *l -= params.frequency_penalty * times as f32 + params.presence_penalty;
        }
    }
}

/// The lowest id among the largest logits, and its logit.
fn argmax(isa: Isa, logits: &[f32]) -> (u32, f32) {
    // SAFETY: `isa` is this machine's.
    unsafe { argmax_of(isa, logits) }
}

by_isa! { unsafe fn argmax_of(logits: &[f32]) -> (u32, f32) => argmax_v }

/// Blocks of this many ids are searched for a new largest logit at once.
const BLOCK: usize = 8 * LANES;

#[inline(always)]
unsafe fn argmax_v<V: Vector>(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    let take = |from: usize, block: &[f32], best: &mut (u32, f32)| {
        for (i, &l) in block.iter().enumerate() {
            if l > best.1 {
                *best = ((from + i) as u32, l);
            }
        }
    };
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    for (i, block) in blocks.iter().enumerate() {
        // SAFETY: a block holds eight vectors; the instruction set is the caller's.
        unsafe {
            // Of a NaN and a number `max` gives its second operand: here always the number so far.
            let mut v = V::splat(best.1);
            for at in (0..BLOCK).step_by(LANES) {
                v = V::load(block.as_ptr().add(at)).max(v);
            }
            if v.any_above(V::splat(best.1)) {
                take(i * BLOCK, block, &mut best);
            }
        }
    }
    take(blocks.len() * BLOCK, rest, &mut best);
    best
}

by_isa! {
    /// Sum of `exp((l - largest) * scale)`: blocks in f32, their sums in f64, in order.
    ///
    /// # Safety
    /// The instruction set is this machine's.
    unsafe fn weight_sum(logits: &[f32], largest: f32, scale: f32) -> f64 => weight_sum_v
}

#[inline(always)]
unsafe fn weight_sum_v<V: Vector>(logits: &[f32], largest: f32, scale: f32) -> f64 {
    let mut total = 0.0;
    for block in logits.chunks(BLOCK) {
        // SAFETY: loads stay inside the block; the instruction set is the caller's.
        unsafe {
            let mut sum = V::splat(0.0);
            for at in (0..block.len()).step_by(LANES) {
                let n = (block.len() - at).min(LANES);
                let l = V::load_first(block.as_ptr().add(at), n);
                let weight = exp(l.sub(V::splat(largest)).mul(V::splat(scale)));
                // A NaN weighs nothing; so do lanes behind the end.
                sum = sum.add(weight.max(V::splat(0.0)).first(n, V::splat(0.0)));
            }
            total += f64::from(sum.sum());
        }
    }
    total
}

by_isa! {
    /// One weight, with the bits that the sums use.
    ///
    /// # Safety
    /// The instruction set is this machine's.
    unsafe fn weight(difference: f32) -> f32 => weight_v
}

#[inline(always)]
unsafe fn weight_v<V: Vector>(difference: f32) -> f32 {
    // SAFETY: the instruction set is the caller's.
    unsafe { exp(V::splat(difference)).lane0() }
}

by_isa! {
    /// Sum of the whole-numbered weights of all ids.
    ///
    /// # Safety
    /// The instruction set is this machine's.
    unsafe fn whole_sum(logits: &[f32], largest: f32, scale: f32) -> u64 => whole_sum_v
}

#[inline(always)]
unsafe fn whole_sum_v<V: Vector>(logits: &[f32], largest: f32, scale: f32) -> u64 {
    let mut total = 0;
    let mut lanes = [0f32; LANES];
    for block in logits.chunks(LANES) {
        // SAFETY: loads stay inside the block; the instruction set is the caller's.
        unsafe {
            let l = V::load_first(block.as_ptr(), block.len());
            exp(l.sub(V::splat(largest)).mul(V::splat(scale))).store(lanes.as_mut_ptr());
        }
        total += lanes[..block.len()].iter().map(|&weight| whole(weight)).sum::<u64>();
    }
    total
}

/// A weight in units of 2^-40; a NaN is 0.
#[inline(always)]
fn whole(weight: f32) -> u64 {
    (f64::from(weight) * ONE) as u64
}

/// Sorts by logit, largest first, then by id: ascending keys.
fn key(l: f32, id: u32) -> u64 {
    // Adding zero makes the two zeros equal.
    let bits = (l + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(!ascending) << 32 | u64::from(id)
}

/// Steps 5 and 6. `None` if no id has a weight.
fn draw(
    isa: Isa,
    logits: &[f32],
    largest: f32,
    params: &Sampling,
    position: u32,
    keys: &mut [u64],
) -> Option<u32> {
    let scale = 1.0 / params.temperature;
    let top_k = if params.top_k == 0 { usize::MAX } else { params.top_k as usize };
    let filters = params.top_k != 0 || params.top_p < 1.0 || params.min_p > 0.0;
    let weight_of = |key: u64| {
        let l = logits[key as u32 as usize];
        // SAFETY: `isa` is this machine's.
        whole(unsafe { weight(isa, (l - largest) * scale) })
    };
    // SAFETY: as above.
    let total = unsafe { whole_sum(isa, logits, largest, scale) };
    let floor = (f64::from(params.min_p) * ONE) as u64;
    let aim = uniform(params.seed, position);

    let mut cut = FIRST_CUT;
    loop {
        let limit = largest - cut * params.temperature;
        let all = cut > 64.0 || !limit.is_finite();
        let mut found = 0;
        for (id, &l) in logits.iter().enumerate() {
            if l >= limit || (all && l > f32::NEG_INFINITY) {
                keys[found] = key(l, id as u32);
                found += 1;
            }
        }
        let sorted = &mut keys[..found];
        sorted.sort_unstable();
        if params.top_k != 0 && found < top_k && !all {
            cut *= 2.0;
            continue;
        }
        // What `top_p` is a share of: the ids that `top_k` keeps.
        let base = match params.top_k {
            0 => total,
            _ => sorted.iter().take(top_k).map(|&key| weight_of(key)).sum(),
        };
        let nucleus = (f64::from(params.top_p) * base as f64) as u64;
        // How many ids the filters keep, and their weight.
        let (mut kept, mut mass, mut stopped) = (0, 0u64, false);
        if filters {
            for &key in sorted.iter() {
                let weight = weight_of(key);
                if kept >= top_k
                    || (kept > 0 && params.top_p < 1.0 && mass >= nucleus)
                    || (kept > 0 && weight < floor)
                {
                    stopped = true;
                    break;
                }
                (kept, mass) = (kept + 1, mass + weight);
            }
            stopped |= kept >= top_k || (params.top_p < 1.0 && mass >= nucleus);
            if !stopped && !all {
                cut *= 2.0;
                continue;
            }
        } else {
            (kept, mass) = (found, total);
        }
        let target = ((aim * mass as f64) as u64).min(mass.saturating_sub(1));
        let mut passed = 0;
        for &key in &sorted[..kept] {
            passed += weight_of(key);
            if passed > target {
                return Some(key as u32);
            }
        }
        if all {
            return sorted.first().map(|&key| key as u32);
        }
        cut *= 2.0;
    }
}

/// The `wanted` largest logits, lowest id first among equals, into `out`, values still logits.
fn top(logits: &[f32], wanted: usize, out: &mut SampleOut) {
    let mut len = 0;
    for (id, &l) in logits.iter().enumerate() {
        if wanted == 0 || l.is_nan() || (len == wanted && l <= out.top_logprobs[len - 1]) {
            continue;
        }
        let mut at = if len == wanted { len - 1 } else { len };
        while at > 0 && out.top_logprobs[at - 1] < l {
            out.top_ids[at] = out.top_ids[at - 1];
            out.top_logprobs[at] = out.top_logprobs[at - 1];
            at -= 1;
        }
        (out.top_ids[at], out.top_logprobs[at]) = (id as u32, l);
        len = (len + 1).min(wanted);
    }
    out.top_len = len as u32;
}

#[cfg(test)]
mod tests;
