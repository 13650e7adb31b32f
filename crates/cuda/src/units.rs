//! Units: what is compiled at once, into a module of its own, and which of them a load runs.
//!
//! A unit is a file of `kernels/` and the macros that say what for. A load compiles the units that
//! it runs and no others, side by side: what takes longest is the largest unit. [`units`] lists
//! every one that there is for a card, for tests that compile them all.
//!
//! Leaves out: their texts (`sources`), and what is in them (`kernels`).

use ignis_backend::{DeviceError, KvFormat, StoredActivations, StoredProducts};
use ignis_types::DType;

use crate::open::{CudaKernels, CudaOptions};

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

/// Widths of heads that attention is compiled for; others take the next one.
const WIDTHS: [u32; 5] = [16, 32, 64, 128, 256];

/// Those that one generation has kernels of its own for: `BY_GROUPS` of `attend_hopper.cuh`.
const OWN_WIDTHS: [u32; 2] = [64, 128];

/// The width that attention over heads of `head_dim` values is compiled for.
///
/// Errors: a width that no kernel has.
pub(crate) fn width_of(head_dim: u32) -> Result<u32, DeviceError> {
    let width = WIDTHS.into_iter().find(|&width| head_dim <= width);
    let width = width.filter(|_| head_dim.is_multiple_of(8) && head_dim > 0);
    width.ok_or(DeviceError::ShapeUnsupported {
        what: "head_dim",
        found: u64::from(head_dim),
        expected: "a multiple of 8, at most 256",
    })
}

/// Parts of the products of a format, as `linear.cu` calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Of bf16, with up to `FEW_ROWS` rows.
    Few,
    /// Of bf16, with more.
    Many,
    /// The same, summed in one chain; only where [`Target::is_own`].
    ManyFast,
    /// Of pairs, with any number of rows.
    Pairs,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Few => "OF_FEW",
            Part::Many => "OF_MANY",
            Part::ManyFast => "OF_MANY_FAST",
            Part::Pairs => "OF_PAIRS",
        }
    }
}

/// The card that units are compiled for, and whether what is made for its generation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) capability: (u32, u32),
    pub(crate) kernels: CudaKernels,
}

impl Target {
    /// Whether there are kernels made for this generation, and they are wanted: `HOPPER` of
    /// `common.cuh`.
    pub(crate) fn is_own(self) -> bool {
        self.capability == (9, 0) && self.kernels == CudaKernels::Own
    }

    /// What leaves out such kernels.
    fn portable(self) -> Option<String> {
        let leaves_out = self.capability == (9, 0) && self.kernels == CudaKernels::Portable;
        leaves_out.then(|| "PORTABLE".to_owned())
    }
}

/// A file of kernels, and the macros that say what for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Name of the file, without `.cu`.
    pub file: &'static str,
    /// Macros: `NAME=VALUE`, or `NAME`.
    pub defines: Vec<String>,
}

impl Unit {
    fn whole(file: &'static str) -> Unit {
        Unit { file, defines: vec![] }
    }

    /// What works on one row at a time.
    pub(crate) fn rows() -> Unit {
        Unit::whole("rows")
    }

    /// Sampling.
    pub(crate) fn sample() -> Unit {
        Unit::whole("sample")
    }

    /// Sums of what travels beside rounds.
    pub(crate) fn sums() -> Unit {
        Unit::whole("sums")
    }

    /// Attention on tensor cores, for a width of [`width_of`].
    pub(crate) fn attend(width: u32, target: Target) -> Unit {
        let mut defines = vec![format!("WIDTH={width}")];
        if OWN_WIDTHS.contains(&width) {
            defines.extend(target.portable());
        }
        Unit { file: "attend", defines }
    }

    /// Attention in scalars, for a width of [`width_of`].
    pub(crate) fn attention(width: u32, kv_format: KvFormat) -> Unit {
        let defines = vec![format!("STORED={}", stored_name(kv_format)), format!("WIDTH={width}")];
        Unit { file: "attention", defines }
    }

    /// Products with weights of a format.
    pub(crate) fn linear(format: usize, part: Part, target: Target) -> Unit {
        let mut defines = vec![
            format!("FORMAT={}", FORMATS[format].1.to_uppercase()),
            format!("PART={}", part.name()),
        ];
        if part == Part::Many {
            defines.extend(target.portable());
        }
        Unit { file: "linear", defines }
    }

    /// A name of its own, such as `linear-q4_k-of_few`.
    pub fn name(&self) -> String {
        let value = |define: &String| match define.split_once('=') {
            Some((_, value)) => value.to_lowercase(),
            None => define.to_lowercase(),
        };
        let parts = std::iter::once(self.file.to_owned()).chain(self.defines.iter().map(value));
        parts.collect::<Vec<_>>().join("-")
    }

    /// Options of the compiler. Products and sums are never contracted: the sources say where.
    pub fn options(&self, capability: (u32, u32)) -> Vec<String> {
        let (major, minor) = capability;
        // Instructions of one architecture alone are there from 9.0 on.
        let own = if major >= 9 { "a" } else { "" };
        let mut options = vec![
            format!("--gpu-architecture=sm_{major}{minor}{own}"),
            "--std=c++17".into(),
            "--fmad=false".into(),
            "-default-device".into(),
        ];
        options.extend(self.defines.iter().map(|define| format!("-D{define}")));
        options
    }
}

/// What kernels call the type that a pool stores.
pub(crate) fn stored_name(kv_format: KvFormat) -> &'static str {
    match kv_format {
        KvFormat::Bf16 => "bf16",
        KvFormat::F32 => "f32",
    }
}

/// Formats that a load keeps the model's matrices in.
pub(crate) fn formats_of(options: &CudaOptions) -> Vec<usize> {
    let kept = options.model.dtypes.iter().map(|&dtype| options.activations.kept_dtype(dtype));
    let kept: Vec<DType> = kept.collect();
    (0..FORMATS.len()).filter(|&format| kept.contains(&FORMATS[format].0)).collect()
}

/// The parts of products that a load runs.
pub(crate) fn parts_of(options: &CudaOptions, target: Target) -> &'static [Part] {
    match (options.activations, options.products) {
        (StoredActivations::F32, _) => &[Part::Pairs],
        (StoredActivations::Bf16, StoredProducts::Fast) if target.is_own() => {
            &[Part::Few, Part::Many, Part::ManyFast]
        }
        (StoredActivations::Bf16, _) => &[Part::Few, Part::Many],
    }
}

/// The unit of a load's attention.
///
/// Errors: a width of head that no kernel has.
pub(crate) fn attention_of(options: &CudaOptions, target: Target) -> Result<Unit, DeviceError> {
    let width = width_of(options.model.head_dim)?;
    Ok(if options.layout().attends_on_tensor_cores() {
        Unit::attend(width, target)
    } else {
        Unit::attention(width, options.kv_format)
    })
}

/// The units that a load runs.
///
/// Errors: a width of head that no kernel has.
pub(crate) fn needed(options: &CudaOptions, target: Target) -> Result<Vec<Unit>, DeviceError> {
    let attention = attention_of(options, target)?;
    let mut units = vec![Unit::rows(), Unit::sample(), Unit::sums(), attention];
    for format in formats_of(options) {
        let parts = parts_of(options, target).iter();
        units.extend(parts.map(|&part| Unit::linear(format, part, target)));
    }
    Ok(units)
}

/// Every unit that a load on a card of some capability may run, portable ones too.
pub fn units(capability: (u32, u32)) -> Vec<Unit> {
    let own = Target { capability, kernels: CudaKernels::Own };
    let portable = Target { kernels: CudaKernels::Portable, ..own };
    let mut units = vec![Unit::rows(), Unit::sample(), Unit::sums()];
    for width in WIDTHS {
        units.extend([own, portable].map(|target| Unit::attend(width, target)));
        units.extend([KvFormat::Bf16, KvFormat::F32].map(|kv| Unit::attention(width, kv)));
    }
    for (format, (dtype, _)) in FORMATS.into_iter().enumerate() {
        units.push(Unit::linear(format, Part::Pairs, own));
        if StoredActivations::Bf16.kept_dtype(dtype) != dtype {
            continue;
        }
        units.push(Unit::linear(format, Part::Few, own));
        units.extend([own, portable].map(|target| Unit::linear(format, Part::Many, target)));
        if own.is_own() {
            units.push(Unit::linear(format, Part::ManyFast, own));
        }
    }
    units.dedup();
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::{Libraries, ModelFacts};

    const OWN: Target = Target { capability: (9, 0), kernels: CudaKernels::Own };
    const PORTABLE: Target = Target { kernels: CudaKernels::Portable, ..OWN };
    const OTHER: Target = Target { capability: (12, 0), kernels: CudaKernels::Own };

    fn options() -> CudaOptions {
        CudaOptions {
            kv_format: KvFormat::Bf16,
            activations: StoredActivations::Bf16,
            products: StoredProducts::Same,
            tables_on_host: false,
            kernels: CudaKernels::Own,
            model: ModelFacts { dtypes: vec![DType::Q4K, DType::Q6K], head_dim: 120 },
            libraries: Libraries::default(),
        }
    }

    fn names(options: &CudaOptions, target: Target) -> Vec<String> {
        needed(options, target).unwrap().iter().map(Unit::name).collect()
    }

    #[test]
    fn a_load_compiles_only_what_it_runs() {
        let of_q4_k_m = [
            "rows",
            "sample",
            "sums",
            "attend-128",
            "linear-q4_k-of_few",
            "linear-q4_k-of_many",
            "linear-q6_k-of_few",
            "linear-q6_k-of_many",
        ];
        assert_eq!(names(&options(), OWN), of_q4_k_m);
        assert_eq!(names(&options(), OTHER), of_q4_k_m);
        let plain = ModelFacts { dtypes: vec![DType::F16, DType::F32], head_dim: 64 };
        let plain = CudaOptions { model: plain, ..options() };
        let kept =
            ["rows", "sample", "sums", "attend-64", "linear-bf16-of_few", "linear-bf16-of_many"];
        assert_eq!(names(&plain, OWN), kept);
        let pool = CudaOptions { kv_format: KvFormat::F32, ..plain.clone() };
        assert_eq!(names(&pool, OWN)[3..5], ["attention-f32-64", "linear-bf16-of_few"]);
        let exact = CudaOptions { activations: StoredActivations::F32, ..plain };
        let pairs = ["attention-bf16-64", "linear-f16-of_pairs", "linear-f32-of_pairs"];
        assert_eq!(names(&exact, OWN)[3..], pairs);
    }

    #[test]
    fn one_generation_alone_has_fast_products_and_leaves_out_its_own() {
        let fast = CudaOptions { products: StoredProducts::Fast, ..options() };
        assert!(names(&fast, OWN).contains(&"linear-q4_k-of_many_fast".to_owned()));
        assert_eq!(names(&fast, OTHER), names(&options(), OTHER));
        let portable = names(&fast, PORTABLE);
        assert!(portable.contains(&"attend-128-portable".to_owned()));
        assert!(portable.contains(&"linear-q4_k-of_many-portable".to_owned()));
        assert!(!portable.iter().any(|name| name.contains("fast")));
        let elsewhere = Target { kernels: CudaKernels::Portable, ..OTHER };
        assert_eq!(names(&options(), elsewhere), names(&options(), OTHER));
    }

    #[test]
    fn heads_take_the_next_width_and_some_have_none() {
        for (head_dim, width) in [(8, 16), (16, 16), (24, 32), (120, 128), (256, 256)] {
            assert_eq!(width_of(head_dim).unwrap(), width);
        }
        assert!([0, 4, 100, 264].iter().all(|&head_dim| width_of(head_dim).is_err()));
    }

    #[test]
    fn every_unit_is_listed_once_and_every_load_finds_its_own() {
        let facts = |head_dim| ModelFacts {
            dtypes: FORMATS.iter().map(|(dtype, _)| *dtype).collect(),
            head_dim,
        };
        for target in [OWN, PORTABLE, OTHER] {
            let all = units(target.capability);
            let mut names: Vec<String> = all.iter().map(Unit::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all.len(), "a name of its own each");
            for activations in [StoredActivations::Bf16, StoredActivations::F32] {
                for (kv_format, head_dim) in [(KvFormat::Bf16, 16), (KvFormat::F32, 200)] {
                    let products = StoredProducts::Fast;
                    let model = facts(head_dim);
                    let load = CudaOptions { kv_format, activations, products, model, ..options() };
                    let needed = needed(&load, target).unwrap();
                    assert!(needed.iter().all(|unit| all.contains(unit)), "{load:?}");
                }
            }
        }
        let own = units((9, 0)).len();
        assert_eq!(units((8, 0)).len() + 2 + 6 + 6, own, "portable ones, and fast ones");
    }
}
