//! Random weights, so that a device can be measured in a geometry without a checkpoint of it.
//!
//! Key properties: what a kernel does with a value does not depend on the value, so a few gigabytes
//! serve for all weights: each is a view of one run of blocks, from a place of its own. Values are
//! finite and of the size that trained ones have, so that activations stay finite through any
//! number of layers. The same program gets the same bytes on every machine.

use half::f16;
use ignis_backend::DeviceError;
use ignis_ops::{Program, RowOrder, WeightKind, WeightSpec};
use ignis_types::DType;

use crate::error::EngineError;

/// Views start at one of so many blocks.
const STARTS: usize = 1 << 16;

/// Bytes that a thread fills at once, about.
const STRIPE_BYTES: usize = 1 << 20;

/// Stored blocks for every weight of a program.
pub(crate) struct RandomWeights {
    matrices: Vec<Run>,
    /// f32, about 1: gains of norms.
    vectors: Run,
}

/// Blocks of one dtype.
struct Run {
    dtype: DType,
    bytes: Vec<u8>,
}

impl RandomWeights {
    /// Enough blocks of each dtype for the largest weight of `program`, whose residual stream has
    /// `hidden` values.
    ///
    /// Errors: `DTypeUnsupported` for a matrix in another dtype than bf16, Q8_0 and Q4_K, and for a
    /// vector in another than f32.
    pub(crate) fn new(program: &Program, hidden: u32) -> Result<RandomWeights, EngineError> {
        let limit = (3.0 / f64::from(hidden.max(1))).sqrt() as f32; // deviation hidden^-0.5
        let mut matrices: Vec<Run> = Vec::new();
        let mut longest = 0;
        for weight in &program.weights {
            let unsupported =
                DeviceError::DTypeUnsupported { name: weight.name.clone(), dtype: weight.dtype };
            let known = matches!(weight.dtype, DType::BF16 | DType::Q8_0 | DType::Q4K);
            match weight.kind {
                WeightKind::Vector if weight.dtype == DType::F32 => {
                    longest = longest.max(tensor_bytes(weight));
                }
                WeightKind::Vector => return Err(unsupported.into()),
                _ if !known => return Err(unsupported.into()),
                _ if matrices.iter().any(|run| run.dtype == weight.dtype) => {}
                _ => {
                    let alike = program.weights.iter().filter(|other| other.dtype == weight.dtype);
                    let bytes = alike.map(tensor_bytes).max().unwrap_or(0);
                    matrices.push(Run::new(weight.dtype, bytes, limit));
                }
            }
        }
        Ok(RandomWeights { matrices, vectors: Run::new(DType::F32, longest, 0.25) })
    }

    /// The stored bytes of each tensor of weight number `index`.
    pub(crate) fn of(&self, index: usize, weight: &WeightSpec) -> Vec<&[u8]> {
        let run = match weight.kind {
            WeightKind::Vector => &self.vectors,
            _ => {
                let of_dtype = self.matrices.iter().find(|run| run.dtype == weight.dtype);
                of_dtype.expect("there is a run of every dtype of the program")
            }
        };
        let bytes = tensor_bytes(weight);
        (0..weight.tensors().count()).map(|nth| run.view(index + 977 * nth, bytes)).collect()
    }
}

/// Bytes of one stored tensor of `weight`, which may have rows that the weight leaves out.
fn tensor_bytes(weight: &WeightSpec) -> usize {
    let is_vector = weight.kind == WeightKind::Vector;
    let (rows, cols) = if is_vector { (weight.cols, 1) } else { (weight.rows, weight.cols) };
    let stored = match &weight.order {
        RowOrder::AsStored => rows / weight.tensors().count() as u32,
        RowOrder::Picked(picks) => picks.iter().max().map_or(0, |&row| row + 1),
    };
    let blocks = u64::from(stored) * (u64::from(cols) / weight.dtype.block_elements());
    (blocks * weight.dtype.block_bytes()) as usize
}

impl Run {
    /// Blocks for views of `longest` bytes; values of a matrix lie between `-limit` and `limit`.
    fn new(dtype: DType, longest: usize, limit: f32) -> Run {
        let block = dtype.block_bytes() as usize;
        let mut bytes = vec![0; longest + STARTS * block];
        let stripe = STRIPE_BYTES / block * block;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = bytes.len().div_ceil(stripe).div_ceil(threads) * stripe;
        std::thread::scope(|scope| {
            for (thread, part) in bytes.chunks_mut(share).enumerate() {
                scope.spawn(move || fill(dtype, part, (thread * share) as u64, limit));
            }
        });
        Run { dtype, bytes }
    }

    fn view(&self, nth: usize, bytes: usize) -> &[u8] {
        let start = nth.wrapping_mul(9973) % STARTS * self.dtype.block_bytes() as usize;
        &self.bytes[start..start + bytes]
    }
}

/// Random blocks, drawn from their place: `part` begins `at` bytes into the run.
fn fill(dtype: DType, part: &mut [u8], at: u64, limit: f32) {
    match dtype {
        DType::F32 => {
            for (i, value) in part.chunks_exact_mut(4).enumerate() {
                let gain = 1.0 + limit * uniform(word(at + 4 * i as u64) as u32);
                value.copy_from_slice(&gain.to_le_bytes());
            }
        }
        DType::BF16 => {
            for (i, value) in part.chunks_exact_mut(2).enumerate() {
                let x = limit * uniform(word(at + 2 * i as u64) as u32);
                value.copy_from_slice(&x.to_le_bytes()[2..]);
            }
        }
        _ => {
            for (i, bytes) in part.chunks_mut(8).enumerate() {
                let random = word(at + 8 * i as u64).to_le_bytes();
                bytes.copy_from_slice(&random[..bytes.len()]);
            }
            let block = dtype.block_bytes() as usize;
            part.chunks_exact_mut(block).for_each(|block| set_scales(dtype, block, limit));
        }
    }
}

/// Gives a block of random codes the scales with which its values reach about `limit`.
fn set_scales(dtype: DType, block: &mut [u8], limit: f32) {
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    match dtype {
        DType::Q8_0 => block[..2].copy_from_slice(&half(limit / 127.0)),
        _ => {
            // Codes 0..15 centred by their minimum; scales and minimums, 6 bits of about 32, are
            // random too, which nearly doubles the deviation.
            block[..2].copy_from_slice(&half(0.54 * limit / 7.5 / 32.0));
            block[2..4].copy_from_slice(&half(0.54 * limit / 32.0));
        }
    }
}

/// From -1 to 1.
fn uniform(random: u32) -> f32 {
    (random >> 8) as f32 / (1 << 23) as f32 - 1.0
}

/// Splitmix64 of a place.
fn word(at: u64) -> u64 {
    let mut z = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use ignis_formats::quant;

    use super::*;

    #[test]
    fn values_are_finite_and_have_the_deviation_that_was_asked() {
        for dtype in [DType::BF16, DType::Q8_0, DType::Q4K] {
            let run = Run::new(dtype, 4096 * dtype.block_bytes() as usize, 0.5);
            let view = run.view(3, 4096 * dtype.block_bytes() as usize);
            assert_eq!(quant::check_finite(dtype, &run.bytes), Ok(()));
            let mut values = vec![0.0; 4096 * dtype.block_elements() as usize];
            quant::dequantize(dtype, view, &mut values).unwrap();
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            let square = values.iter().map(|x| x * x).sum::<f32>() / values.len() as f32;
            let deviation = 0.5 / 3f32.sqrt();
            assert!(mean.abs() < 0.2 * deviation, "{dtype}: mean {mean}");
            assert!(
                (0.8..1.2).contains(&(square.sqrt() / deviation)),
                "{dtype}: {}",
                square.sqrt()
            );
        }
    }

    #[test]
    fn bytes_do_not_depend_on_how_the_work_was_cut() {
        let mut whole = vec![0; 1440];
        fill(DType::Q4K, &mut whole, 0, 0.1);
        let mut parts = vec![0; 1440];
        let (first, second) = parts.split_at_mut(432);
        fill(DType::Q4K, first, 0, 0.1);
        fill(DType::Q4K, second, 432, 0.1);
        assert_eq!(whole, parts);
    }
}
