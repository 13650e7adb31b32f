//! What tells whose state an image holds.

use std::fmt::Write;
use std::hash::Hasher;

use ignis_backend::DeviceLayout;
use ignis_formats::Checkpoint;
use ignis_ops::Program;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::EngineError;

/// Bytes that are read of each end of a tensor.
const SAMPLE_BYTES: usize = 4096;

/// 128 bits that differ between models, weights, KV formats and layouts.
///
/// Of each tensor both ends are hashed, not the whole: a fine-tune changes them all, and a start
/// should not read the file twice. Not a defence against files made to collide.
pub(crate) fn identity(
    checkpoint: &Checkpoint,
    program: &Program,
    layout: &dyn DeviceLayout,
) -> Result<u128, EngineError> {
    let mut hasher = Text(SipHasher13::new());
    write!(hasher, "{} {program:?}", layout.state_format()).expect("hashing does not fail");
    for weight in &program.weights {
        for name in weight.tensors() {
            let data = checkpoint.data(checkpoint.require(name)?)?;
            let end = data.len().min(SAMPLE_BYTES);
            hasher.0.write(&data[..end]);
            hasher.0.write(&data[data.len() - end..]);
        }
    }
    Ok(hasher.0.finish128().as_u128())
}

/// The identity of a program without weights.
pub(crate) fn identity_of_program(program: &Program, layout: &dyn DeviceLayout, seed: u64) -> u128 {
    let mut hasher = Text(SipHasher13::new());
    write!(hasher, "{} {program:?} {seed}", layout.state_format()).expect("hashing does not fail");
    hasher.0.finish128().as_u128()
}

/// Hashes what is written to it.
struct Text(SipHasher13);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
