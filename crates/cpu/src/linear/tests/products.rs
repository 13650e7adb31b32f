use super::*;

const ENCODINGS: [Encoding; 3] = [Encoding::Int8, Encoding::Int16, Encoding::F32];

/// Largest error of a result, as a part of `sum |w x|`: half a step of the activations for 8 and 16
/// bits (1/254 and 1/65024 of the largest of 32, which the mean undercuts by far less than 10), and
/// the rounding of a thousand sums.
fn tolerance(encoding: Encoding) -> f64 {
    match encoding {
        Encoding::Int8 => 2e-2,
        Encoding::Int16 => 1e-4,
        Encoding::F32 => 2e-5,
    }
}

fn inputs(rows: usize, cols: u32, random: &mut Random) -> Vec<Vec<f32>> {
    (0..rows).map(|_| random.row(cols as usize)).collect()
}

/// Shapes around every boundary: one and several blocks of each dtype, partial last panels, more
/// groups than are staged at a time.
fn shapes(dtype: DType) -> Vec<(u32, u32)> {
    let block = dtype.block_elements() as u32;
    let mut shapes = vec![(16, block.max(32)), (5, 2 * block.max(32)), (35, 256)];
    if matches!(dtype, DType::Q4_1 | DType::Q8_0 | DType::Q6K | DType::F16 | DType::F32) {
        shapes.push((33, 1280));
    }
    if block == 1 {
        shapes.extend([(17, 7), (3, 1), (16, 300)]);
    }
    shapes
}

#[test]
fn every_isa_row_count_and_split_gives_the_bits_of_the_contract() {
    let mut random = Random(1);
    for dtype in DTYPES {
        for (rows, cols) in shapes(dtype) {
            let case = Case::new(dtype, rows, cols, &mut random);
            let bias = random.row(rows as usize);
            let x = inputs(21, cols, &mut random);
            for encoding in ENCODINGS {
                if encoding_for(dtype, encoding) != encoding {
                    continue;
                }
                let expected = naive::product(&case, &x, encoding, Some(&bias), Some(0.25));
                for isa in Isa::available() {
                    for m in [1, 2, 3, 4, 5, 7, 8, 9, 12, 21] {
                        let what = format!("{dtype} {rows}x{cols} {encoding:?} {isa} m={m}");
                        let splits: &[u32] = if rows > 16 && m % 2 == 1 { &[1] } else { &[] };
                        let y =
                            product(isa, &case, &x[..m], encoding, Some(&bias), Some(0.25), splits);
                        assert_bits(&y, &expected[..m * rows as usize], &what);
                    }
                }
            }
        }
    }
}

#[test]
fn bias_and_accumulation_are_optional() {
    let mut random = Random(2);
    for dtype in [DType::Q4_1, DType::F16] {
        let case = Case::new(dtype, 20, 64, &mut random);
        let (x, bias) = (inputs(9, 64, &mut random), random.row(20));
        let encoding = encoding_for(dtype, Encoding::Int8);
        for bias in [None, Some(bias.as_slice())] {
            for before in [None, Some(-3.5)] {
                let expected = naive::product(&case, &x, encoding, bias, before);
                for isa in Isa::available() {
                    let y = product(isa, &case, &x, encoding, bias, before, &[]);
                    assert_bits(&y, &expected, &format!("{dtype} {isa}"));
                }
            }
        }
    }
}

#[test]
fn chunks_of_many_rows_do_not_show() {
    let mut random = Random(3);
    let cols = 1056;
    let case = Case::new(DType::Q4_1, 16, cols, &mut random);
    let x = inputs(530, cols, &mut random);
    for encoding in ENCODINGS {
        let expected = naive::product(&case, &x, encoding, None, None);
        for isa in Isa::available() {
            let y = product(isa, &case, &x, encoding, None, None, &[]);
            assert_bits(&y, &expected, &format!("{isa} {encoding:?}"));
        }
    }
}

#[test]
fn results_are_close_to_f64() {
    let mut random = Random(4);
    for dtype in DTYPES {
        let case = Case::new(dtype, 48, 1024, &mut random);
        let w = naive::values(&case);
        let x = inputs(3, 1024, &mut random);
        for encoding in ENCODINGS {
            let encoding = encoding_for(dtype, encoding);
            let y = product(Isa::detect(), &case, &x, encoding, None, None, &[]);
            for (t, x) in x.iter().enumerate() {
                for n in 0..48 {
                    let terms = w[n * 1024..][..1024].iter().zip(x);
                    let (mut sum, mut size) = (0.0, 0.0);
                    for (w, x) in terms {
                        let term = f64::from(*w) * f64::from(*x);
                        sum += term;
                        size += term.abs();
                    }
                    let error = (f64::from(y[t * 48 + n]) - sum).abs();
                    assert!(
                        error <= tolerance(encoding) * size,
                        "{dtype} {encoding:?}: error {error:e} of {size:e}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_row_that_is_not_finite_spoils_only_itself() {
    let mut random = Random(5);
    for dtype in [DType::Q4_1, DType::Q8_0, DType::Q6K, DType::F32] {
        let case = Case::new(dtype, 16, 256, &mut random);
        let clean = inputs(11, 256, &mut random);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for encoding in ENCODINGS {
                let encoding = encoding_for(dtype, encoding);
                let mut x = clean.clone();
                x[4][37] = bad;
                for isa in Isa::available() {
                    let expected = product(isa, &case, &clean, encoding, None, None, &[]);
                    let y = product(isa, &case, &x, encoding, None, None, &[]);
                    let rows = y.chunks_exact(16).zip(expected.chunks_exact(16)).enumerate();
                    for (t, (y, expected)) in rows {
                        if t == 4 {
                            assert!(y.iter().all(|y| !y.is_finite()), "{dtype} {isa}");
                        } else {
                            assert_bits(y, expected, "a clean row");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn tiny_huge_and_zero_rows_are_products_too() {
    let mut random = Random(6);
    let case = Case::new(DType::Q4_1, 16, 64, &mut random);
    let mut x = inputs(5, 64, &mut random);
    x[0].fill(0.0);
    x[1].iter_mut().for_each(|x| *x *= 1e-38);
    x[2].iter_mut().for_each(|x| *x = x.signum() * f32::MAX);
    x[3][..32].fill(-0.0);
    x[4].fill(1.0);
    for encoding in ENCODINGS {
        let expected = naive::product(&case, &x, encoding, None, None);
        assert_eq!(expected[..16], [0.0; 16]);
        for isa in Isa::available() {
            let y = product(isa, &case, &x, encoding, None, None, &[]);
            assert_bits(&y, &expected, &format!("{isa} {encoding:?}"));
        }
    }
}
