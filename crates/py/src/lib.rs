//! `ignis._native`: type conversion, error mapping, releasing the interpreter. No decision is
//! made here; the stub `python/ignis/_native.pyi` is the contract.

use pyo3::prelude::*;

mod devices;
mod engine;
mod errors;
mod facts;
mod metadata;
mod model;
mod moves;
mod round_out;
mod sampling;
mod tiers;

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    errors::add(m)?;
    m.add_function(wrap_pyfunction!(metadata::read_metadata, m)?)?;
    m.add_function(wrap_pyfunction!(model::inspect, m)?)?;
    m.add_function(wrap_pyfunction!(model::needs, m)?)?;
    m.add_function(wrap_pyfunction!(devices::free_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(devices::process_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(devices::close_card, m)?)?;
    m.add_function(wrap_pyfunction!(devices::kernels_made, m)?)?;
    m.add_function(wrap_pyfunction!(devices::kernel_units, m)?)?;
    m.add_function(wrap_pyfunction!(engine::witness_next, m)?)?;
    m.add_function(wrap_pyfunction!(tiers::prefix_chain, m)?)?;
    m.add_function(wrap_pyfunction!(tiers::disk_available, m)?)?;
    m.add_class::<model::ModelInfo>()?;
    m.add_class::<model::RandomModel>()?;
    m.add_class::<model::Limits>()?;
    m.add_class::<model::Needs>()?;
    m.add_class::<devices::DeviceOptions>()?;
    m.add_class::<devices::CudaCard>()?;
    m.add_class::<facts::CudaFacts>()?;
    m.add_class::<tiers::TierOptions>()?;
    m.add_class::<engine::LoadProgress>()?;
    m.add_class::<sampling::Sampling>()?;
    m.add_class::<round_out::RoundOut>()?;
    m.add_class::<engine::Engine>()
}
