//! Prints what a checkpoint holds, and checks that every weight is finite.
//!
//! usage: cargo run --release -p ignis-formats --example inspect -- PATH [--header]

use std::path::PathBuf;
use std::time::Instant;

use ignis_formats::{Checkpoint, quant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = PathBuf::from(arguments.first().ok_or("usage: inspect PATH [--header]")?);
    let header_only = arguments.iter().any(|a| a == "--header");
    let started = Instant::now();
    let checkpoint =
        if header_only { Checkpoint::open_header(&path)? } else { Checkpoint::open(&path)? };
    let opened = started.elapsed();
    match &checkpoint {
        Checkpoint::Gguf(gguf) => {
            gguf.metadata().for_each(|(key, value)| println!("{key}: {}", value.describe()));
        }
        Checkpoint::Safetensors { config, tensors } => {
            println!("{}", config.raw());
            tensors.unread().for_each(|(name, dtype)| println!("{name}: {dtype}, not read"));
        }
        Checkpoint::Config(config) => println!("{}", config.raw()),
    }
    let mut bytes = 0;
    for tensor in checkpoint.tensors() {
        println!("{}: {} {:?}, {} B", tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
        bytes += tensor.bytes;
    }
    println!("{} tensors, {bytes} B; opened in {opened:.1?}", checkpoint.tensors().len());
    if !header_only {
        let started = Instant::now();
        for tensor in checkpoint.tensors() {
            quant::check_finite(tensor.dtype, checkpoint.data(tensor)?)
                .map_err(|at| format!("{}: block {at} is not finite", tensor.name))?;
        }
        println!("all finite; checked in {:.1?}", started.elapsed());
        let (mut values, started) = (Vec::new(), Instant::now());
        for tensor in checkpoint.tensors() {
            values.resize(tensor.elements() as usize, 0.0);
            quant::dequantize(tensor.dtype, checkpoint.data(tensor)?, &mut values)?;
        }
        println!("dequantised in {:.1?}", started.elapsed());
    }
    Ok(())
}
