use ignis_ops::RowOrder;

use super::*;

#[test]
fn table_rows_are_the_stored_values() {
    let mut random = Random(7);
    for dtype in DTYPES {
        let case = Case::new(dtype, 37, 512, &mut random);
        let values = naive::values(&case);
        let mut row = vec![0.0; 512];
        for n in 0..37 {
            table_row(&case.matrix(), n, &mut row);
            for (found, expected) in row.iter().zip(&values[n as usize * 512..]) {
                // A product and a sum are rounded once here, twice by the definition of K formats.
                let near = (found - expected).abs() <= 1e-6 * expected.abs() + 1e-7;
                assert!(near, "{dtype}: {found} is not {expected}");
            }
        }
    }
}

#[test]
fn adjacent_pairs_become_halves() {
    let (rows, cols, head_dim) = (16, 32, 8);
    let values: Vec<f32> = (0..rows * cols).map(|at| (at / cols) as f32).collect();
    let stored: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut packed = Aligned::zeroed(packed_bytes(DType::F32, rows, cols).unwrap().as_usize());
    let order = RowOrder::adjacent_pairs(rows, head_dim);
    let picks: Vec<u32> = (0..rows).map(|row| order.stored_row(row)).collect();
    pack(DType::F32, rows, cols, Some(&picks), &stored, packed.get_mut()).unwrap();
    // SAFETY: the bytes were packed for this shape.
    let matrix = unsafe { Matrix::new(DType::F32, rows, cols, packed.get().as_ptr()) };
    let mut row = [0.0; 32];
    let found: Vec<f32> = (0..rows)
        .map(|n| {
            table_row(&matrix, n, &mut row);
            row[0]
        })
        .collect();
    let head = [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0];
    let expected: Vec<f32> = head.into_iter().chain(head.map(|row| 8.0 + row)).collect();
    assert_eq!(found, expected);
}

#[test]
fn encoded_rows_are_the_same_bytes_everywhere() {
    let mut random = Random(8);
    let mut x: Vec<Vec<f32>> = (0..40).map(|_| random.row(96)).collect();
    // Ties, the largest code, and values that a reciprocal could push past it.
    x[0] = (0..96).map(|at| at as f32 - 47.5).collect();
    x[1] = (0..96).map(|at| f32::from_bits(0x3f80_0000 + at * 0x1_2345)).collect();
    x[2].fill(f32::MIN_POSITIVE);
    x[3].fill(2f32.powi(-96));
    for encoding in [Encoding::Int8, Encoding::Int16, Encoding::F32] {
        let expected = encoded(Isa::Scalar, &x, encoding);
        for isa in Isa::available() {
            assert!(encoded(isa, &x, encoding).get() == expected.get(), "{isa} {encoding:?}");
        }
    }
}

#[test]
fn every_16_bit_code_splits_into_two_bytes() {
    struct Split(i32);
    impl crate::simd::Kernel for Split {
        type Output = (i8, i8);
        #[inline(always)]
        unsafe fn run<S: crate::simd::Simd>(self) -> (i8, i8) {
            let (mut high, mut low) = ([0u8; 16], [0u8; 16]);
            // SAFETY: both arrays have 16 bytes.
            unsafe {
                let x = S::round(S::splat(self.0 as f32));
                let (h, l) = S::split(x);
                S::store_i8(high.as_mut_ptr(), h);
                S::store_i8(low.as_mut_ptr(), l);
            }
            (high[0] as i8, low[0] as i8)
        }
    }
    for isa in Isa::available() {
        for q in -32512..=32512 {
            // SAFETY: the instruction set is available.
            let (high, low) = unsafe { isa.run(Split(q)) };
            assert_eq!(255 * i32::from(high) + i32::from(low), q, "{isa}");
            assert!(high > -128 && low > -128, "{isa}: {q}");
        }
    }
}

#[test]
fn damage_is_named() {
    let pack_f16 = |rows: u32, picks, stored: &[u8]| {
        let mut out = vec![0; packed_bytes(DType::F16, rows, 4).unwrap().as_usize()];
        pack(DType::F16, rows, 4, picks, stored, &mut out)
    };
    assert_eq!(
        pack_f16(2, None, &[0; 15]),
        Err(PackError::StoredBytes { expected: 16, found: 15 })
    );
    assert_eq!(
        pack_f16(1, None, &[0, 0, 0, 0, 0, 0x7c, 0, 0]),
        Err(PackError::NotFinite { block: 2 })
    );
    assert_eq!(
        pack_f16(2, Some(&[0, 2]), &[0; 16]),
        Err(PackError::RowMissing { row: 2, stored: 2 })
    );
    assert_eq!(
        pack(DType::I32, 1, 1, None, &[0; 4], &mut []),
        Err(PackError::Unsupported { dtype: DType::I32, cols: 1 })
    );
    assert!(!supports(DType::Q4K, 128));
    assert!(!supports(DType::F32, 0));
}
