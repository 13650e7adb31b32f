//! A simulated device for tests, and the witness model that it runs.
//!
//! Fault model: a run fails with [`DeviceError::Fault`] with a probability of `fault_ppm` in a
//! million, drawn from `seed`; a failed run has stored nothing. Memory is never damaged.
//!
//! The witness's next token is a hash of its whole prefix, read back through the block table, so
//! one wrong page, slot or order changes the text from there on ([`witness_next`]).
//!
//! Serving never falls back to this device.
#![forbid(unsafe_code)]

mod device;
mod witness;

pub use device::{SimDevice, SimLayout};
pub use ignis_backend::DeviceError;
pub use witness::{witness_next, witness_program};
