//! What the bytes of a stored tensor mean: values, integer codes, and whether all are finite.
//!
//! Every quantisation is read in one way only, as *codes*: groups of 16 or 32 elements with
//! `value = scale * code + min`, codes unsigned, one scale and one min a group. Values are computed
//! from the codes, so the two views cannot disagree. Formats with signed codes are biased by
//! `signed_zero`; their values are computed as `scale * (code - signed_zero)`, which is what GGML's
//! reference computes, bit for bit.
//!
//! Inputs are little-endian and may lie at any address. Nothing is allocated.

mod k;
mod legacy;

use half::{bf16, f16};
use ignis_types::DType;

/// Elements of the largest block.
const ELEMENTS_MAX: usize = 256;
/// Groups of the largest block.
const GROUPS_MAX: usize = 16;

/// A call does not fit the bytes it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are named in each variant's message
pub enum QuantError {
    /// `blocks` is not a whole number of blocks.
    #[error("{found} B are not a whole number of {dtype} blocks of {block_bytes} B")]
    BlockPartial { dtype: DType, block_bytes: usize, found: usize },

    /// An output has another length than the blocks fill.
    #[error("{what} holds {found} elements, the {dtype} blocks fill {expected}")]
    LengthWrong { dtype: DType, what: &'static str, expected: usize, found: usize },

    /// Codes were asked for of a type without any.
    #[error("{dtype} is not quantised and has no codes")]
    NoCodes { dtype: DType },

    /// Values were asked for of integers that are not weights.
    #[error("{dtype} holds integers, not values")]
    NotFloat { dtype: DType },
}

/// How a quantisation's elements share scales, and what its codes can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeShape {
    /// Elements that share one scale and one min: 16 or 32.
    pub group: usize,
    /// The largest code; the smallest is 0.
    pub code_max: u8,
    /// The code that means zero, for a format with signed codes: `min = -signed_zero * scale`.
    /// 0 when the format stores minima of its own.
    pub signed_zero: u8,
}

/// A block of one quantisation.
struct Layout {
    codes: CodeShape,
    /// Where the block's half-precision scales are, in bytes from its start.
    scales_at: &'static [usize],
    unpack: Unpack,
}

/// Block to codes and scales; also to minima when the format stores them.
type Unpack = fn(block: &[u8], codes: &mut [u8], scales: &mut [f32], mins: &mut [f32]);

fn layout(dtype: DType) -> Option<&'static Layout> {
    Some(match dtype {
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 => return None,
        DType::Q4_0 => &legacy::Q4_0,
        DType::Q4_1 => &legacy::Q4_1,
        DType::Q5_0 => &legacy::Q5_0,
        DType::Q5_1 => &legacy::Q5_1,
        DType::Q8_0 => &legacy::Q8_0,
        DType::Q2K => &k::Q2_K,
        DType::Q3K => &k::Q3_K,
        DType::Q4K => &k::Q4_K,
        DType::Q5K => &k::Q5_K,
        DType::Q6K => &k::Q6_K,
    })
}

/// The code shape of a quantisation; `None` for plain types.
pub fn code_shape(dtype: DType) -> Option<CodeShape> {
    layout(dtype).map(|layout| layout.codes)
}

/// Codes, scales and minima of `blocks`.
///
/// Math:   `value[i] = scales[i / group] * codes[i] + mins[i / group]` in f32, equal to
/// `dequantize` Shapes: blocks: n blocks; codes `[n * block_elements]`; scales, mins `[codes.len()
/// / group]` Errors: NoCodes, BlockPartial, LengthWrong; outputs are untouched then
pub fn unpack_codes(
    dtype: DType,
    blocks: &[u8],
    codes: &mut [u8],
    scales: &mut [f32],
    mins: &mut [f32],
) -> Result<(), QuantError> {
    let layout = layout(dtype).ok_or(QuantError::NoCodes { dtype })?;
    let elements = elements_of(dtype, blocks)?;
    let groups = elements / layout.codes.group;
    check_length(dtype, "codes", elements, codes.len())?;
    check_length(dtype, "scales", groups, scales.len())?;
    check_length(dtype, "mins", groups, mins.len())?;

    let block_elements = dtype.block_elements() as usize;
    let block_groups = block_elements / layout.codes.group;
    let outputs = codes
        .chunks_exact_mut(block_elements)
        .zip(scales.chunks_exact_mut(block_groups))
        .zip(mins.chunks_exact_mut(block_groups));
    let zero = f32::from(layout.codes.signed_zero);
    for (block, ((codes, scales), mins)) in
        blocks.chunks_exact(dtype.block_bytes() as usize).zip(outputs)
    {
        (layout.unpack)(block, codes, scales, mins);
        if zero != 0.0 {
            mins.iter_mut().zip(scales).for_each(|(min, scale)| *min = -zero * *scale);
        }
    }
    Ok(())
}

/// The values of `blocks`, equal to GGML's reference bit for bit.
///
/// Shapes: blocks: n blocks (n elements of a plain type); out `[n * block_elements]`
/// Errors: NotFloat (I32), BlockPartial, LengthWrong; `out` is untouched then
pub fn dequantize(dtype: DType, blocks: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    check_length(dtype, "out", elements_of(dtype, blocks)?, out.len())?;
    match (dtype, layout(dtype)) {
        (_, Some(layout)) => dequantize_blocks(dtype, layout, blocks, out),
        (DType::F32, None) => convert(blocks, out, f32::from_le_bytes),
        (DType::F16, None) => convert(blocks, out, |b| f16::from_le_bytes(b).to_f32()),
        (DType::BF16, None) => convert(blocks, out, |b| bf16::from_le_bytes(b).to_f32()),
        (_, None) => return Err(QuantError::NotFloat { dtype }),
    }
    Ok(())
}

/// Looks for NaN and infinity: in every element of a plain type, in the scales of a quantisation
/// (whose values are finite when its scales are). Reads no more than that, so that gigabytes cost
/// about one pass over memory. Integers are always finite.
///
/// Errors: the index of the first bad block, or element of a plain type. A partial block at the end
/// counts as bad.
pub fn check_finite(dtype: DType, blocks: &[u8]) -> Result<(), usize> {
    const F16_EXPONENT: u16 = 0x7c00;
    const BF16_EXPONENT: u16 = 0x7f80;
    const F32_EXPONENT: u32 = 0x7f80_0000;

    match (dtype, layout(dtype)) {
        (_, Some(layout)) => {
            let is_bad = |block: &[u8]| {
                layout.scales_at.iter().any(|&at| {
                    u16::from_le_bytes([block[at], block[at + 1]]) & F16_EXPONENT == F16_EXPONENT
                })
            };
            let bad = blocks.chunks_exact(dtype.block_bytes() as usize).position(is_bad);
            bad.map_or(Ok(()), Err)?;
        }
        (DType::F32, None) => {
            check_elements(blocks, |b| u32::from_le_bytes(b) & F32_EXPONENT == F32_EXPONENT)?
        }
        (DType::F16, None) => {
            check_elements(blocks, |b| u16::from_le_bytes(b) & F16_EXPONENT == F16_EXPONENT)?
        }
        (DType::BF16, None) => {
            check_elements(blocks, |b| u16::from_le_bytes(b) & BF16_EXPONENT == BF16_EXPONENT)?
        }
        (_, None) => {}
    }
    match blocks.len() / dtype.block_bytes() as usize {
        whole if whole * dtype.block_bytes() as usize == blocks.len() => Ok(()),
        whole => Err(whole),
    }
}

fn dequantize_blocks(dtype: DType, layout: &Layout, blocks: &[u8], out: &mut [f32]) {
    let CodeShape { group, signed_zero, .. } = layout.codes;
    let block_elements = dtype.block_elements() as usize;
    let mut codes = [0; ELEMENTS_MAX];
    let (mut scales, mut mins) = ([0.0; GROUPS_MAX], [0.0; GROUPS_MAX]);
    let codes = &mut codes[..block_elements];
    for (block, out) in
        blocks.chunks_exact(dtype.block_bytes() as usize).zip(out.chunks_exact_mut(block_elements))
    {
        (layout.unpack)(block, codes, &mut scales, &mut mins);
        for (g, (out, codes)) in
            out.chunks_exact_mut(group).zip(codes.chunks_exact(group)).enumerate()
        {
            let (scale, min) = (scales[g], mins[g]);
            for (value, &code) in out.iter_mut().zip(codes) {
                *value = match signed_zero {
                    0 => scale * f32::from(code) + min,
                    zero => scale * f32::from(i16::from(code) - i16::from(zero)),
                };
            }
        }
    }
}

fn convert<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let (elements, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(elements).for_each(|(out, &element)| *out = value(element));
}

/// The index of the first element that `is_bad`. Runs of elements are tested without a branch
/// between them, then the bad run again one by one.
fn check_elements<const N: usize>(
    bytes: &[u8],
    is_bad: impl Fn([u8; N]) -> bool,
) -> Result<(), usize> {
    const RUN: usize = 1024;

    let (elements, _) = bytes.as_chunks::<N>();
    for (run, elements) in elements.chunks(RUN).enumerate() {
        if elements.iter().fold(false, |bad, &element| bad | is_bad(element)) {
            let at = elements.iter().position(|&element| is_bad(element));
            return Err(run * RUN + at.expect("the run has a bad element"));
        }
    }
    Ok(())
}

fn elements_of(dtype: DType, blocks: &[u8]) -> Result<usize, QuantError> {
    let (block_bytes, found) = (dtype.block_bytes() as usize, blocks.len());
    if !found.is_multiple_of(block_bytes) {
        return Err(QuantError::BlockPartial { dtype, block_bytes, found });
    }
    Ok(found / block_bytes * dtype.block_elements() as usize)
}

fn check_length(
    dtype: DType,
    what: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), QuantError> {
    match found == expected {
        true => Ok(()),
        false => Err(QuantError::LengthWrong { dtype, what, expected, found }),
    }
}

/// The half-precision scale at byte `at` of `block`.
fn scale_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests;
