//! A simulated device and a simulated disk for tests, and the witness model that the device runs.
//!
//! Fault model: a run fails with [`DeviceError::Fault`] with a probability of `fault_ppm` in a
//! million, drawn from `seed`; a failed run has stored nothing. Memory is never damaged. A round
//! that is begun runs at once or when it is finished, and fails at either end ([`Pace`]).
//!
//! A [`SimDisk`] finishes its operations after a few polls, in an order drawn from its seed; with a
//! probability of `fault_ppm` in a million one meets a [`DiskFault`]: an error with nothing or with
//! a first part transferred, a refusal for lack of space, a long delay, or (and these report
//! success) a write of only some sectors, a flipped bit in what is read or at rest, a transfer
//! elsewhere. A cut of the power loses, tears or completes each write in flight; what was written
//! before stays.
//!
//! The witness's next token is a hash of its whole prefix, read back through the block table, so
//! one wrong page, slot or order changes the text from there on ([`witness_next`]).
//!
//! Serving never falls back to this device.
#![forbid(unsafe_code)]

mod device;
mod disk;
mod layout;
mod witness;

pub use device::{Pace, SimDevice};
pub use disk::{DiskFault, SimDisk, SimPlatter};
pub use ignis_backend::DeviceError;
pub use layout::SimLayout;
pub use witness::{witness_next, witness_program};
