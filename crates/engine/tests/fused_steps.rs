//! How a GPU load joins the ops of real programs, and that it computes what they say.

#[path = "support/symbols.rs"]
mod symbols;

use std::path::PathBuf;

use ignis_backend::{FusedProgram, FusedStep, Prepare, StoredActivations};
use ignis_formats::Checkpoint;
use ignis_models::Model;
use ignis_ops::{BufferId, Op, Program, WeightId};
use ignis_types::DType;
use symbols::check_steps;

use StoredActivations::{Bf16, F32};

fn golden(family: &str) -> Program {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(family);
    Model::of(&Checkpoint::open(&folder).unwrap()).unwrap().program
}

/// One word a step, with a `'` where it reads the second region or a gated product writes it, and
/// with what it does beside after or before an `&`.
fn words(program: &Program, activations: StoredActivations) -> (Vec<String>, usize) {
    let fused = FusedProgram::new(program, activations);
    let prepare = |step: &Prepare| {
        let norms = u32::from(step.q_norm.is_some()) + u32::from(step.k_norm.is_some());
        format!("prepare{norms}")
    };
    let word = |step: &FusedStep| match step {
        FusedStep::NormEncode { gathered: false, .. } => "norm".into(),
        FusedStep::NormEncode { gathered: true, .. } => "last-norm".into(),
        FusedStep::Encode { .. } => "encode".into(),
        FusedStep::SwiGluEncode { .. } => "swiglu".into(),
        FusedStep::Products(products) => {
            let add = if products.accumulate { "+" } else { "" };
            let second = "'".repeat(products.x.region);
            let norm = if products.then.is_some() { "&norm" } else { "" };
            format!("product{}{add}{second}{norm}", products.parts.len())
        }
        FusedStep::Glu { to, .. } => format!("glu{}", "'".repeat(to.region)),
        FusedStep::Prepare(step) => prepare(step),
        FusedStep::Attention { prepare: None, .. } => "attention".into(),
        FusedStep::Attention { prepare: Some(step), .. } => prepare(step) + "&attention",
        FusedStep::Op(at) => match &program.ops[*at] {
            Op::Embed(_) => "embed".into(),
            other => format!("{other:?}").split('(').next().unwrap().to_lowercase(),
        },
    };
    (fused.steps.iter().map(word).collect(), fused.head)
}

/// Words of three layers, of which each but the last makes the norm of the next.
fn list(layer: &[&str]) -> Vec<String> {
    let mut all = vec!["embed".to_owned(), "norm".to_owned()];
    for at in 0..3 {
        all.extend(layer.iter().map(|&word| word.to_owned()));
        if at < 2 {
            *all.last_mut().unwrap() += "&norm";
        }
    }
    all.extend(["last-norm", "product1"].map(str::to_owned));
    all
}

#[test]
fn a_dense_layer_is_five_steps() {
    for (family, attention) in [
        ("llama", "prepare0&attention"),
        ("qwen2", "prepare0&attention"),
        ("qwen3", "prepare2&attention"),
    ] {
        let program = golden(family);
        let expected = list(&["product3", attention, "product1+'&norm", "glu'", "product1+'"]);
        assert_eq!(words(&program, Bf16), (expected.clone(), expected.len() - 2), "{family}");
        // Pairs have no gated product: both products, then their input of the next one.
        let mlp = ["product2", "swiglu", "product1+'"];
        let expected = list(&[&["product3", attention, "product1+'&norm"], &mlp[..]].concat());
        assert_eq!(words(&program, F32), (expected.clone(), expected.len() - 2), "{family}");
    }
}

#[test]
fn matrices_of_other_dtypes_have_their_own_launch() {
    let mut program = golden("llama");
    let mixed: Vec<WeightId> = program
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Linear(op) if op.parts.len() > 1 => op.parts.last().map(|part| part.w),
            _ => None,
        })
        .collect();
    for id in mixed {
        program.weights[id.0 as usize].dtype = DType::Q6K;
    }
    let attention = ["product2", "product1", "prepare0&attention", "product1+'&norm"];
    let mlp = ["product1", "product1", "swiglu", "product1+'"];
    assert_eq!(words(&program, Bf16).0, list(&[&attention[..], &mlp].concat()));
}

#[test]
fn plain_matrices_are_joined_where_they_are_kept_alike() {
    let mut program = golden("llama");
    let plain = [DType::BF16, DType::F16, DType::F32];
    for op in &program.ops {
        let Op::Linear(op) = op else { continue };
        for (part, dtype) in op.parts.iter().zip(plain) {
            program.weights[part.w.0 as usize].dtype = dtype;
        }
    }
    let attention = ["prepare0&attention", "product1+'&norm"];
    let joined = [&["product3"], &attention[..], &["glu'", "product1+'"]].concat();
    assert_eq!(words(&program, Bf16).0, list(&joined));
    let mlp = ["product1", "product1", "swiglu", "product1+'"];
    let apart = [&["product1"; 3], &attention[..], &mlp].concat();
    assert_eq!(words(&program, F32).0, list(&apart));
}

/// Index of the first op that `is` holds of.
fn first(program: &Program, is: impl Fn(&Op) -> bool) -> usize {
    program.ops.iter().position(is).unwrap()
}

#[test]
fn products_that_read_where_their_norm_goes_do_not_make_it() {
    let mut program = golden("llama");
    // Attended rows are wanted twice, so they are a buffer, which is encoded for both products.
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_))) + 1;
    program.ops.insert(at, program.ops[at].clone());
    program.head += 1;
    let twice = ["encode", "product1+", "encode", "product1+", "norm", "glu'"];
    let found = words(&program, Bf16).0;
    let at = found.iter().position(|word| word == "encode").unwrap();
    assert_eq!(found[at..at + twice.len()], twice);
}

#[test]
fn the_head_makes_its_norms_itself() {
    let mut program = golden("llama");
    let is_norm = |op: &Op| matches!(op, Op::RmsNorm(_));
    program.head = 1
        + program.ops[1 + first(&program, is_norm)..].iter().position(is_norm).unwrap()
        + first(&program, is_norm);
    let (found, head) = words(&program, Bf16);
    assert_eq!(found[head - 1..head + 2], ["product1+'", "norm", "glu'"]);
}

#[test]
fn queries_that_are_read_again_are_made_ready_in_memory() {
    let mut program = golden("llama");
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_)));
    let Op::PagedAttention(op) = &program.ops[at] else { panic!("it was found") };
    let again = ignis_ops::AddRows { x: op.q, y: op.q };
    program.ops.insert(at + 2, Op::AddRows(again));
    program.head += 1;
    assert_eq!(words(&program, Bf16).0[3..6], ["prepare0", "attention", "product1+'"]);
}

#[test]
fn a_buffer_that_is_read_again_stays_in_memory() {
    let mut program = golden("llama");
    let fused = FusedProgram::new(&program, Bf16).buffers_in_memory(&program);
    let names = |held: &[bool]| {
        let all = program.buffers.iter().zip(held).filter(|(_, held)| !**held);
        let mut names: Vec<&str> = all.map(|(spec, _)| spec.name).collect();
        names.sort_unstable();
        names.dedup();
        names.join(" ")
    };
    let without = names(&fused);
    assert!(without.contains("attended") && without.contains("gate"), "{without}");
    assert!(fused[program.logits.0 as usize]);

    // The first product's input is wanted once more, by the op behind the last layer.
    let Some(Op::RmsNorm(norm)) = program.ops.get(1) else { panic!("a norm is the second op") };
    let (normed, x) = (norm.y, norm.x);
    program.ops.insert(program.head, Op::AddRows(ignis_ops::AddRows { x: normed, y: x }));
    program.head += 1;
    let fused = FusedProgram::new(&program, Bf16);
    assert!(fused.buffers_in_memory(&program)[normed.0 as usize]);
    assert_eq!(words(&program, Bf16).0[1..4], ["rmsnorm", "encode", "product3"]);
}

#[test]
fn steps_compute_what_the_ops_say_also_where_programs_are_shuffled() {
    let mut seed = 7u64;
    let mut dice = |sides: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % sides
    };
    for family in ["llama", "qwen2", "qwen3"] {
        for activations in [Bf16, F32] {
            let whole = golden(family);
            check_steps(&whole, activations, false);
            check_steps(&whole, activations, true);
            for _ in 0..2000 {
                let mut program = whole.clone();
                for _ in 0..1 + dice(3) {
                    let at = dice(program.ops.len());
                    let (first, last) = if at < program.head {
                        (0, program.head)
                    } else {
                        (program.head, program.ops.len())
                    };
                    let other = first + dice(last - first);
                    match dice(3) {
                        0 => program.ops.swap(at, other),
                        1 if last - first > 1 => {
                            program.ops.remove(at);
                            program.head -= usize::from(last == program.head);
                        }
                        _ => {
                            let copy = program.ops[at].clone();
                            program.ops.insert(other, copy);
                            program.head += usize::from(last == program.head);
                        }
                    }
                }
                check_steps(&program, activations, dice(2) == 1);
            }
        }
    }
}

#[test]
fn a_norm_of_other_rows_than_were_written_is_a_step() {
    let mut program = golden("llama");
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_))) + 2;
    let other = BufferId(program.buffers.len() as u32);
    let Op::RmsNorm(norm) = &mut program.ops[at] else { panic!("the norm of the MLP") };
    program.buffers.push(program.buffers[norm.x.0 as usize].clone());
    norm.x = other;
    assert_eq!(words(&program, Bf16).0[3..6], ["prepare0&attention", "product1+'", "norm"]);
    check_steps(&program, Bf16, false);
}

#[test]
fn a_gated_product_writes_the_region_that_it_does_not_read() {
    let mut program = golden("llama");
    let at = first(&program, |op| matches!(op, Op::PagedAttention(_)));
    let Op::PagedAttention(attention) = &program.ops[at] else { panic!("it was found") };
    let attended = attention.o;
    // The MLP takes attended rows, without the product and the norm between.
    program.ops.drain(at + 1..at + 3);
    program.head -= 2;
    let Op::Linear(gate_and_up) = &mut program.ops[at + 1] else { panic!("gate and up") };
    gate_and_up.x = attended;
    let layer = ["prepare0&attention", "glu", "product1+", "norm"];
    assert_eq!(words(&program, Bf16).0[3..7], layer);
    check_steps(&program, Bf16, true);
}
