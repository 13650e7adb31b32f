use super::*;
use crate::simd::Isa;

unsafe fn every_op<V: Vector>(x: *const f32, y: *const f32, out: *mut f32) {
    // SAFETY: the test gives 16 floats at x and y, and room for 16 * 12 + 4 at out.
    unsafe {
        let (a, b) = (V::load(x), V::load(y));
        let results = [
            exp(a),
            exp(b),
            a.add(b),
            a.sub(b),
            a.mul(b),
            a.div(b),
            a.mul_add(b, a),
            a.max(b),
            a.min(b),
            a.zero_below(a, b),
            a.first(5, b),
            a.first(11, V::load_first(y, 13)),
        ];
        for (i, v) in results.iter().enumerate() {
            v.store(out.add(i * 16));
        }
        *out.add(192) = a.sum();
        *out.add(193) = a.largest();
        *out.add(194) = b.lane0();
        *out.add(195) = f32::from(u8::from(a.any_above(b)));
    }
}
by_isa! { unsafe fn run_every_op(x: *const f32, y: *const f32, out: *mut f32) => every_op }

#[test]
fn instruction_sets_agree_bit_for_bit() {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 24) as f32
    };
    for round in 0..200 {
        let spread = [1.0, 20.0, 100.0, 1e4][round % 4];
        let x: [f32; 16] = std::array::from_fn(|_| (next() - 0.5) * spread);
        let y: [f32; 16] = std::array::from_fn(|_| (next() - 0.5) * spread);
        let mut expected = [0f32; 196];
        // SAFETY: sizes as `every_op` asks.
        unsafe { run_every_op(Isa::Scalar, x.as_ptr(), y.as_ptr(), expected.as_mut_ptr()) };
        for isa in crate::testing::isas() {
            let mut found = [0f32; 196];
            // SAFETY: as above, and `isa` is one of this machine's.
            unsafe { run_every_op(isa, x.as_ptr(), y.as_ptr(), found.as_mut_ptr()) };
            assert_eq!(expected.map(f32::to_bits), found.map(f32::to_bits), "{isa:?}");
        }
    }
}

#[test]
fn exp_is_within_two_units_and_keeps_its_edges() {
    let of = |x: f32| {
        // SAFETY: the portable vector needs nothing.
        unsafe { exp(Scalar::splat(x)).lane0() }
    };
    assert_eq!(of(0.0), 1.0);
    assert_eq!(of(f32::NEG_INFINITY), 0.0);
    assert_eq!(of(-100.0), 0.0);
    assert!(of(f32::INFINITY).is_finite());
    assert!(of(f32::NAN).is_nan());
    let mut x = -85.9f32;
    while x < 87.9 {
        let exact = f64::from(x).exp();
        let error = (f64::from(of(x)) - exact).abs() / exact;
        assert!(error < 2.4e-7, "exp({x}) is off by {error}");
        x += 0.0137;
    }
}
