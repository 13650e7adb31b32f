//! One model in every layout that it is published in: the same program, the same answers.

mod support;

use std::path::Path;

use ignis_backend::{Activations, KvFormat};
use ignis_engine::Admission;
use support::rewrite::Source;
use support::{Golden, load_from};

/// Largest difference of a logit that f32 arithmetic in another order may make.
const LOGIT_TOLERANCE: f32 = 1e-3;

/// Rewrites the checkpoint of `family` and compares its logits with the golden ones.
fn agrees(family: &str, name: &str, rewrite: impl Fn(&Source, &Path)) {
    let golden = Golden::open(family);
    let at = format!("ignis-layout-{family}-{name}-{}", std::process::id());
    let path = std::env::temp_dir().join(at);
    rewrite(&Source::open(&golden.folder), &path);
    let mut engine = load_from(&path, 64, 2, Activations::F32, KvFormat::F32);
    let remove = if path.is_dir() { std::fs::remove_dir_all } else { std::fs::remove_file };
    remove(&path).unwrap();

    let (rows, expected) = golden.logits(65);
    let vocab = engine.vocab() as usize;
    engine.admit(0, &Admission::new(&golden.ids(65), 4, &Default::default()), None).unwrap();
    let mut worst = 0.0f32;
    for count in [64, 1] {
        engine
            .score_rows(0, count, |position, logits| {
                let Some(row) = (position as usize + rows).checked_sub(65) else { return };
                for (ours, theirs) in logits.iter().zip(&expected[row * vocab..]) {
                    worst = worst.max((ours - theirs).abs());
                }
            })
            .unwrap();
    }
    assert!(worst <= LOGIT_TOLERANCE, "{family} as {name}: off by {worst}");
}

#[test]
fn gguf_files_agree() {
    for (family, arch) in [
        ("qwen3_5", "qwen35"),
        ("qwen3-moe", "qwen3moe"),
        ("qwen3-next", "qwen3next"),
        ("qwen3_5-moe", "qwen35moe"),
    ] {
        agrees(family, arch, |source, path| source.gguf(arch, path));
    }
}

#[test]
fn multimodal_folders_with_fused_experts_agree() {
    for family in ["qwen3_5", "qwen3_5-moe"] {
        agrees(family, "multimodal", Source::multimodal);
    }
}
