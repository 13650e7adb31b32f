//! One model on one device: lay out, reserve, load, warm up, verify, seal; then rounds.
//!
//! Key properties: [`lay_out`] is the only place where sizes are decided; a plan and a load both
//! call it. After [`Engine::load`] nothing here allocates: rounds work in fixed arrays.
//!
//! Knows nothing of requests, classes or text: it seats a sequence where it is told and runs the
//! round that it is given.

mod engine;
mod error;
mod identity;
mod lane;
mod layout;
mod load;
mod moves;
mod random;
mod retained;
mod round;
mod score;
mod state;

pub use engine::{Admission, Engine};
pub use error::EngineError;
pub use layout::{Mapped, Needs, StateSizes, lay_out, needs};
pub use load::{Progress, load, load_random, simulated};
pub use moves::{MoveEvent, MoveWay, Storage};
pub use round::{RoundPlan, RoundResult};
