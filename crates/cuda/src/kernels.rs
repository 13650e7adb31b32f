//! The kernels: their sources, how they are compiled for a card, and where each one is.

use std::ffi::CString;
use std::path::Path;

use ignis_backend::DeviceError;
use ignis_types::DType;

use crate::cache;
use crate::driver::{Card, Context, Function, Module};
use crate::nvrtc;

/// One file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, without `.cu`.
    pub name: &'static str,
    /// Its text; [`COMMON`] goes before it.
    pub text: &'static str,
}

/// What every file starts with.
pub(crate) const COMMON: &str = include_str!("../kernels/common.cuh");

/// Every file of kernels.
pub const SOURCES: [Source; 4] = [
    Source { name: "rows", text: include_str!("../kernels/rows.cu") },
    Source { name: "linear", text: include_str!("../kernels/linear.cu") },
    Source { name: "attention", text: include_str!("../kernels/attention.cu") },
    Source { name: "sample", text: include_str!("../kernels/sample.cu") },
];

/// Options of the compiler. Products and sums are never contracted: the sources say where.
fn options(capability: (u32, u32)) -> Vec<String> {
    let (major, minor) = capability;
    // Instructions of one architecture alone are there from 9.0 on.
    let own = if major >= 9 { "a" } else { "" };
    vec![
        format!("--gpu-architecture=sm_{major}{minor}{own}"),
        "--std=c++17".into(),
        "--fmad=false".into(),
        "-default-device".into(),
    ]
}

/// How a dtype's weights are read by kernels; the order of `enum Format`.
pub(crate) const FORMATS: [(DType, &str); 8] = [
    (DType::BF16, "bf16"),
    (DType::F16, "f16"),
    (DType::F32, "f32"),
    (DType::Q8_0, "q8_0"),
    (DType::Q4_0, "q4_0"),
    (DType::Q4_1, "q4_1"),
    (DType::Q4K, "q4_k"),
    (DType::Q6K, "q6_k"),
];

/// Index into [`FORMATS`]; `None` for what no kernel reads.
pub(crate) fn format_of(dtype: DType) -> Option<usize> {
    FORMATS.iter().position(|(known, _)| *known == dtype)
}

/// Head widths that attention is compiled for; others take the next one.
pub(crate) const HEAD_DIMS: [u32; 5] = [16, 32, 64, 128, 256];

/// Kernels of one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormatKernels {
    pub(crate) embed: Function,
    /// For up to 8, 16 and 32 rows.
    pub(crate) few: [Function; 3],
    pub(crate) many: Function,
}

/// Attention over one stored type and head width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionKernels {
    pub(crate) tiles: Function,
    pub(crate) split: Function,
}

/// Every kernel of a card.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) formats: Vec<FormatKernels>,
    pub(crate) encode: Function,
    pub(crate) rms_norm_row: Function,
    pub(crate) rms_norm_groups: Function,
    pub(crate) rope_angles: Function,
    pub(crate) rope: Function,
    /// bf16, f32.
    pub(crate) kv_append: [Function; 2],
    pub(crate) swiglu: Function,
    pub(crate) add_rows: Function,
    pub(crate) gate_rows: Function,
    pub(crate) gather_rows: Function,
    pub(crate) count_tokens: Function,
    /// bf16, f32; each by [`HEAD_DIMS`].
    pub(crate) attention: [Vec<AttentionKernels>; 2],
    pub(crate) attention_join: Function,
    pub(crate) sample: Function,
    /// Kept loaded.
    _modules: Vec<Module>,
}

// SAFETY: functions are handles of modules that are never unloaded.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

/// Machine code of every source, made side by side or read from `folder`.
fn machine_code(card: &Card, folder: Option<&Path>) -> Result<Vec<Vec<u8>>, DeviceError> {
    let (major, minor) = nvrtc::version()?;
    let version = format!("nvrtc {major}.{minor}");
    let options = options(card.capability);
    let joined = options.join(" ");
    let one = |source: &Source| {
        let parts = [COMMON, source.text, &joined, &version];
        cache::get_or_make(folder, source.name, &parts, || {
            let text = format!("{COMMON}\n#line 1 \"{}.cu\"\n{}", source.name, source.text);
            nvrtc::compile(&format!("{}.cu", source.name), &text, &options)
        })
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = SOURCES.iter().map(|source| scope.spawn(|| one(source))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("the compiler does not panic"))
            .collect()
    })
}

impl Kernels {
    /// Compiles or reads every kernel and loads it on `card`.
    ///
    /// Errors: what the compiler or the driver says.
    pub(crate) fn load(
        context: &Context,
        card: &Card,
        folder: Option<&Path>,
    ) -> Result<Kernels, DeviceError> {
        let code = machine_code(card, folder)?;
        let modules: Vec<Module> =
            code.iter().map(|cubin| context.load(cubin)).collect::<Result<_, _>>()?;
        let [rows, linear, attention, sample] = [0, 1, 2, 3].map(|i| &modules[i]);
        let find = |module: &Module, name: &str| {
            let name = CString::new(name).expect("names of kernels hold no zero byte");
            module.function(&name)
        };
        let formats = FORMATS.map(|(_, name)| {
            let few = |rows| find(linear, &format!("linear_{name}_{rows}"));
            Ok(FormatKernels {
                embed: find(rows, &format!("embed_{name}"))?,
                few: [few(8)?, few(16)?, few(32)?],
                many: find(linear, &format!("linear_{name}_many"))?,
            })
        });
        let attend = |stored: &str| {
            let one = |dim| {
                Ok(AttentionKernels {
                    tiles: find(attention, &format!("attention_{stored}_{dim}"))?,
                    split: find(attention, &format!("attention_{stored}_split_{dim}"))?,
                })
            };
            HEAD_DIMS.into_iter().map(one).collect::<Result<Vec<_>, DeviceError>>()
        };
        Ok(Kernels {
            formats: formats.into_iter().collect::<Result<_, DeviceError>>()?,
            encode: find(linear, "encode")?,
            rms_norm_row: find(rows, "rms_norm_row")?,
            rms_norm_groups: find(rows, "rms_norm_groups")?,
            rope_angles: find(rows, "rope_angles")?,
            rope: find(rows, "rope")?,
            kv_append: [find(rows, "kv_append_bf16")?, find(rows, "kv_append_f32")?],
            swiglu: find(rows, "swiglu")?,
            add_rows: find(rows, "add_rows")?,
            gate_rows: find(rows, "gate_rows")?,
            gather_rows: find(rows, "gather_rows")?,
            count_tokens: find(rows, "count_tokens")?,
            attention: [attend("bf16")?, attend("f32")?],
            attention_join: find(attention, "attention_join")?,
            sample: find(sample, "sample")?,
            _modules: modules,
        })
    }
}
