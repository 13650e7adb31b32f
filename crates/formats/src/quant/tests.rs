use std::path::Path;

use super::*;
use crate::Safetensors;

/// Random blocks and what the reference makes of them; see the generator beside the file.
const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/quants/quants.safetensors");

const FLOATS: [DType; 12] = [
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
];

fn golden() -> Safetensors {
    Safetensors::open_file(Path::new(GOLDEN)).unwrap()
}

fn dequantized(dtype: DType, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; elements_of(dtype, blocks).unwrap()];
    dequantize(dtype, blocks, &mut out).unwrap();
    out
}

#[test]
fn values_equal_the_reference_bit_for_bit() {
    let golden = golden();
    for dtype in FLOATS {
        let values = golden.raw(&format!("{dtype}.values")).unwrap();
        let expected: Vec<u32> =
            values.as_chunks().0.iter().map(|&value| u32::from_le_bytes(value)).collect();
        let found = dequantized(dtype, golden.raw(&format!("{dtype}.blocks")).unwrap());
        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, expected, "{dtype}");
    }
}

#[test]
fn codes_times_scales_equal_the_values() {
    let golden = golden();
    for dtype in FLOATS {
        let Some(shape) = code_shape(dtype) else { continue };
        let blocks = golden.raw(&format!("{dtype}.blocks")).unwrap();
        let values = dequantized(dtype, blocks);
        let mut codes = vec![0; values.len()];
        let mut scales = vec![f32::NAN; values.len() / shape.group];
        let mut mins = scales.clone();
        unpack_codes(dtype, blocks, &mut codes, &mut scales, &mut mins).unwrap();
        assert_eq!(codes.iter().max(), Some(&shape.code_max), "{dtype}");
        for (i, &value) in values.iter().enumerate() {
            let g = i / shape.group;
            // Exact, not only close: scale and code together have at most 24 bits.
            assert_eq!(scales[g] * f32::from(codes[i]) + mins[g], value, "{dtype} element {i}");
            if shape.signed_zero != 0 {
                assert_eq!(mins[g], -f32::from(shape.signed_zero) * scales[g], "{dtype}");
            }
        }
    }
}

#[test]
fn floats_are_copied_from_any_address() {
    let bytes = [&[0xff][..], &1.5f32.to_le_bytes(), &(-0.0f32).to_le_bytes()].concat();
    assert_eq!(dequantized(DType::F32, &bytes[1..]), [1.5, -0.0]);
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let (mut out, mut mins) = ([0.0; 32], [0.0; 1]);
    assert_eq!(
        dequantize(DType::Q4_0, &[0; 17], &mut out),
        Err(QuantError::BlockPartial { dtype: DType::Q4_0, block_bytes: 18, found: 17 })
    );
    let wrong = |what, expected, found| {
        Err(QuantError::LengthWrong { dtype: DType::Q4_0, what, expected, found })
    };
    assert_eq!(dequantize(DType::Q4_0, &[0; 36], &mut out), wrong("out", 64, 32));
    assert_eq!(
        unpack_codes(DType::Q4_0, &[0; 18], &mut [0; 32], &mut [0.0; 2], &mut mins),
        wrong("scales", 1, 2)
    );
    assert_eq!(
        unpack_codes(DType::F16, &[], &mut [], &mut [], &mut []),
        Err(QuantError::NoCodes { dtype: DType::F16 })
    );
    assert_eq!(
        dequantize(DType::I32, &[0; 4], &mut [0.0]),
        Err(QuantError::NotFloat { dtype: DType::I32 })
    );
}

#[test]
fn golden_blocks_are_finite() {
    let golden = golden();
    for dtype in FLOATS {
        let blocks = golden.raw(&format!("{dtype}.blocks")).unwrap();
        assert_eq!(check_finite(dtype, blocks), Ok(()), "{dtype}");
        let partial = blocks.len() / dtype.block_bytes() as usize - 1;
        assert_eq!(check_finite(dtype, &blocks[..blocks.len() - 1]), Err(partial), "{dtype}");
    }
}

#[test]
fn a_bad_scale_is_found_in_any_block_and_field() {
    let golden = golden();
    for dtype in FLOATS {
        let good = golden.raw(&format!("{dtype}.blocks")).unwrap();
        let block_bytes = dtype.block_bytes() as usize;
        let fields = layout(dtype).map_or(&[0][..], |layout| layout.scales_at);
        let bad: &[u16] = match dtype {
            DType::BF16 => &[0x7f80, 0xff80, 0x7fc0],
            _ => &[0x7c00, 0xfc00, 0x7e00],
        };
        for block in [0, 1, good.len() / block_bytes - 1] {
            for (&field, &bits) in fields.iter().flat_map(|f| bad.iter().map(move |b| (f, b))) {
                let mut blocks = good.to_vec();
                blocks[block * block_bytes + field..][..2].copy_from_slice(&bits.to_le_bytes());
                assert_eq!(check_finite(dtype, &blocks), Err(block), "{dtype} {bits:#x}");
                let values = dequantized(dtype, &blocks);
                assert!(values.iter().any(|x| !x.is_finite()), "{dtype} {bits:#x}");
            }
        }
    }
}

#[test]
fn a_bad_element_is_found_past_the_first_run() {
    let mut values = vec![1.0f32; 3000];
    values[2999] = f32::NAN;
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    assert_eq!(check_finite(DType::F32, &bytes), Err(2999));
    assert_eq!(check_finite(DType::I32, &bytes), Ok(()));
    assert_eq!(check_finite(DType::F32, &[]), Ok(()));
}
