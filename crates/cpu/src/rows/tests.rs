use super::*;
use crate::simd::Isa;
use crate::testing::isas;

const WIDTHS: [usize; 8] = [1, 7, 15, 16, 17, 33, 64, 576];

fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * 4.0
        })
        .collect()
}

/// Runs `op` into copies of `start` on each instruction set; all must agree, and with `expected`.
fn check(start: &[f32], expected: &[f64], op: impl Fn(Isa, &mut [f32])) {
    let mut scalar = start.to_vec();
    op(Isa::Scalar, &mut scalar);
    for (a, b) in expected.iter().zip(&scalar) {
        assert!((a - f64::from(*b)).abs() <= 2e-6 * (1.0 + a.abs()), "{a} is not {b}");
    }
    for isa in isas() {
        let mut found = start.to_vec();
        op(isa, &mut found);
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&scalar), bits(&found), "{isa}");
    }
}

#[test]
fn norms_are_those_of_each_group() {
    for width in WIDTHS {
        for groups in [1, 3] {
            let (x, w) = (values(width * groups, 1), values(width, 2));
            let mut expected = vec![];
            for group in x.chunks(width) {
                let squares: f64 = group.iter().map(|&v| f64::from(v).powi(2)).sum();
                let scale = 1.0 / (squares / width as f64 + 1e-5).sqrt();
                let normed =
                    group.iter().zip(&w).map(|(&v, &w)| f64::from(v) * scale * f64::from(w));
                expected.extend(normed);
            }
            check(&x, &expected, |isa, y| {
                // SAFETY: shapes as the kernel asks; y is a copy of x, which it may be.
                unsafe {
                    rms_norm(isa, y.as_ptr(), w.as_ptr(), y.as_mut_ptr(), width, groups, 1e-5)
                }
            });
        }
    }
}

#[test]
fn rotation_turns_halves_and_leaves_the_rest() {
    for (half, head_dim) in [(1, 2), (8, 16), (12, 24), (16, 40), (32, 64)] {
        let heads = 3;
        let x = values(heads * head_dim, 3);
        let inv_freq: Vec<f32> = (0..half).map(|i| 0.9f32.powi(i as i32)).collect();
        let (mut cos, mut sin) = (vec![0f32; half], vec![0f32; half]);
        // SAFETY: cos and sin have `half` floats.
        unsafe { angles(1234, &inv_freq, 1.5, cos.as_mut_ptr(), sin.as_mut_ptr()) };
        let mut expected: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
        for head in expected.chunks_mut(head_dim) {
            for i in 0..half {
                let angle = f64::from(1234.0 * inv_freq[i]);
                let (c, s) = (1.5 * angle.cos(), 1.5 * angle.sin());
                let (a, b) = (head[i], head[i + half]);
                (head[i], head[i + half]) = (a * c - b * s, b * c + a * s);
            }
        }
        check(&x, &expected, |isa, x| {
            // SAFETY: shapes as the kernel asks.
            unsafe { rope(isa, x.as_mut_ptr(), cos.as_ptr(), sin.as_ptr(), half, head_dim, heads) }
        });
    }
}

#[test]
fn gates_are_silu_times_up() {
    for width in WIDTHS {
        let (mut gate, up) = (values(width, 4), values(width, 5));
        gate[0] = -200.0;
        let expected: Vec<f64> = gate
            .iter()
            .zip(&up)
            .map(|(&a, &b)| f64::from(a) / (1.0 + (-f64::from(a)).exp()) * f64::from(b))
            .collect();
        check(&gate, &expected, |isa, y| {
            // SAFETY: all of one width; y may be the gate.
            unsafe { swiglu(isa, y.as_ptr(), up.as_ptr(), y.as_mut_ptr(), width) }
        });
    }
}

#[test]
fn sums_are_sums() {
    for width in WIDTHS {
        let (x, y) = (values(width, 6), values(width, 7));
        let expected: Vec<f64> =
            x.iter().zip(&y).map(|(&a, &b)| f64::from(a) + f64::from(b)).collect();
        check(&y, &expected, |isa, y| {
            // SAFETY: both of one width.
            unsafe { add(isa, x.as_ptr(), y.as_mut_ptr(), width) }
        });
    }
}
