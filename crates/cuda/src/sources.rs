//! Sources of kernels, and the machine code of their units.

use std::path::Path;

use ignis_backend::DeviceError;

use crate::cache;
use crate::nvrtc;
use crate::units::Unit;

/// Files of kernels: names without `.cu`, and texts, which include some of [`HEADERS`].
const FILES: [(&str, &str); 6] = [
    ("rows", include_str!("../kernels/rows.cu")),
    ("sample", include_str!("../kernels/sample.cu")),
    ("sums", include_str!("../kernels/sums.cu")),
    ("attend", include_str!("../kernels/attend.cu")),
    ("attention", include_str!("../kernels/attention.cu")),
    ("linear", include_str!("../kernels/linear.cu")),
];

/// What they include: names and texts.
const HEADERS: [(&str, &str); 24] = [
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("ptx.cuh", include_str!("../kernels/ptx.cuh")),
    ("wgmma.cuh", include_str!("../kernels/wgmma.cuh")),
    ("blocks.cuh", include_str!("../kernels/blocks.cuh")),
    ("encoded.cuh", include_str!("../kernels/encoded.cuh")),
    ("prepare.cuh", include_str!("../kernels/prepare.cuh")),
    ("attention.cuh", include_str!("../kernels/attention.cuh")),
    ("attention_scalar.cuh", include_str!("../kernels/attention_scalar.cuh")),
    ("attend.cuh", include_str!("../kernels/attend.cuh")),
    ("attend_runs.cuh", include_str!("../kernels/attend_runs.cuh")),
    ("attend_join.cuh", include_str!("../kernels/attend_join.cuh")),
    ("attend_split.cuh", include_str!("../kernels/attend_split.cuh")),
    ("attend_whole.cuh", include_str!("../kernels/attend_whole.cuh")),
    ("attend_pair.cuh", include_str!("../kernels/attend_pair.cuh")),
    ("attend_tiles.cuh", include_str!("../kernels/attend_tiles.cuh")),
    ("attend_hopper.cuh", include_str!("../kernels/attend_hopper.cuh")),
    ("weights.cuh", include_str!("../kernels/weights.cuh")),
    ("products.cuh", include_str!("../kernels/products.cuh")),
    ("few.cuh", include_str!("../kernels/few.cuh")),
    ("many_exact.cuh", include_str!("../kernels/many_exact.cuh")),
    ("many.cuh", include_str!("../kernels/many.cuh")),
    ("many_hopper.cuh", include_str!("../kernels/many_hopper.cuh")),
    ("sample.cuh", include_str!("../kernels/sample.cuh")),
    ("sample_find.cuh", include_str!("../kernels/sample_find.cuh")),
];

/// Machine code of `units`, made side by side or read from `folder`.
///
/// Errors: what the compiler says.
pub(crate) fn machine_code(
    capability: (u32, u32),
    folder: Option<&Path>,
    units: &[Unit],
) -> Result<Vec<Vec<u8>>, DeviceError> {
    let (major, minor) = nvrtc::version()?;
    let version = format!("nvrtc {major}.{minor}");
    let one = |unit: &Unit| compile(unit, capability, folder, &version);
    std::thread::scope(|scope| {
        let running: Vec<_> = units.iter().map(|unit| scope.spawn(|| one(unit))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("the compiler does not panic"))
            .collect()
    })
}

/// Machine code of one unit, made now or read from `folder`.
fn compile(
    unit: &Unit,
    capability: (u32, u32),
    folder: Option<&Path>,
    version: &str,
) -> Result<Vec<u8>, DeviceError> {
    let text = FILES.iter().find(|(name, _)| *name == unit.file);
    let (_, text) = text.expect("a unit is of a file that there is");
    let options = unit.options(capability);
    let joined = options.join(" ");
    let headers = HEADERS.map(|(_, text)| text);
    let parts = [&headers[..], &[text, &joined, version]].concat();
    cache::get_or_make(folder, &unit.name(), &parts, || {
        nvrtc::compile(&format!("{}.cu", unit.file), text, &HEADERS, &options)
    })
}
