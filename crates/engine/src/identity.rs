//! What tells whose state an image holds.

use std::fmt::Write;
use std::hash::Hasher;

use ignis_backend::Device;
use ignis_formats::Checkpoint;
use ignis_ops::Program;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::error::EngineError;

/// Bytes that are read of each end of a tensor.
const SAMPLE_BYTES: usize = 4096;

/// 128 bits that differ between models, weights, KV formats, layouts and arithmetics.
///
/// Of each tensor both ends are hashed, not the whole: a fine-tune changes them all, and a start
/// should not read the file twice. Not a defence against files made to collide.
pub(crate) fn identity(
    checkpoint: &Checkpoint,
    program: &Program,
    device: &dyn Device,
) -> Result<u128, EngineError> {
    let mut hasher = started(program, device);
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
pub(crate) fn identity_of_program(program: &Program, device: &dyn Device) -> u128 {
    started(program, device).0.finish128().as_u128()
}

/// A hasher of what there is before the weights.
fn started(program: &Program, device: &dyn Device) -> Text {
    let mut hasher = Text(SipHasher13::new());
    let (format, arithmetic) = (device.layout().state_format(), device.arithmetic());
    write!(hasher, "{format}, {arithmetic}, {program:?}").expect("hashing does not fail");
    hasher
}

/// Hashes what is written to it.
struct Text(SipHasher13);

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ignis_sim::{SimDevice, witness_program};

    use super::*;

    #[test]
    fn devices_that_compute_otherwise_have_other_identities() {
        let program = witness_program(50);
        let of = |seed| identity_of_program(&program, &SimDevice::new(seed, 0));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2), "the witness hashes with the seed");
    }
}
