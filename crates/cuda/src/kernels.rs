//! The kernels: their sources, how they are compiled for a card, and where each one is.

use std::ffi::{CStr, CString};
use std::path::Path;

use ignis_backend::DeviceError;
use ignis_types::DType;

use crate::cache;
use crate::card::Card;
use crate::driver::{Context, Function, Module};
use crate::nvrtc;

/// One file of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name, without `.cu`.
    pub name: &'static str,
    /// Its text, which includes some of [`HEADERS`].
    pub text: &'static str,
}

/// What files of kernels include: names and texts.
pub(crate) const HEADERS: [(&str, &str); 11] = [
    ("common.cuh", include_str!("../kernels/common.cuh")),
    ("prepare.cuh", include_str!("../kernels/prepare.cuh")),
    ("attention.cuh", include_str!("../kernels/attention.cuh")),
    ("attention_scalar.cuh", include_str!("../kernels/attention_scalar.cuh")),
    ("attend.cuh", include_str!("../kernels/attend.cuh")),
    ("attend_split.cuh", include_str!("../kernels/attend_split.cuh")),
    ("attend_tiles.cuh", include_str!("../kernels/attend_tiles.cuh")),
    ("attend_hopper.cuh", include_str!("../kernels/attend_hopper.cuh")),
    ("weights.cuh", include_str!("../kernels/weights.cuh")),
    ("many.cuh", include_str!("../kernels/many.cuh")),
    ("many_hopper.cuh", include_str!("../kernels/many_hopper.cuh")),
];

/// Every file of kernels; the last is compiled once for each format of weights.
pub const SOURCES: [Source; 4] = [
    Source { name: "rows", text: include_str!("../kernels/rows.cu") },
    Source { name: "attention", text: include_str!("../kernels/attention.cu") },
    Source { name: "sample", text: include_str!("../kernels/sample.cu") },
    Source { name: "linear", text: include_str!("../kernels/linear.cu") },
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

/// Plain types that are kept as bf16 but where products are of pairs: f16 and f32.
const OF_PAIRS: [usize; 2] = [1, 2];

/// Index into [`FORMATS`]; `None` for what no kernel reads.
pub(crate) fn format_of(dtype: DType) -> Option<usize> {
    FORMATS.iter().position(|(known, _)| *known == dtype)
}

/// Head widths that attention is compiled for; others take the next one.
pub(crate) const HEAD_DIMS: [u32; 5] = [16, 32, 64, 128, 256];

/// A kernel whose CTAs take a tile of rows each, with the shape that its file gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileKernel {
    pub(crate) f: Function,
    /// Rows of a tile; of attention, queries: rows times heads.
    pub(crate) rows: u32,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
}

/// A kernel for few rows of inputs, whose CTAs take one tile of a matrix after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewKernel {
    pub(crate) f: Function,
    pub(crate) threads: u32,
    pub(crate) shared_bytes: u32,
    /// That the card runs at a time.
    pub(crate) ctas: u32,
}

/// Products of many rows: tiles of 128 weight rows and of as many rows of x as `tile` says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManyKernel {
    pub(crate) tile: TileKernel,
    /// CTAs that stay and take one tile after the other; `None`: one for each tile.
    pub(crate) ctas: Option<u32>,
}

/// Products of few rows, each for up to 8, 16 and 32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewKernels {
    pub(crate) plain: [FewKernel; 3],
    /// Of long rows.
    pub(crate) long: [FewKernel; 3],
    pub(crate) glu: [FewKernel; 3],
}

/// Products with weights of one format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearKernels {
    /// Not of f16 and f32, which only pairs are multiplied with.
    pub(crate) few: Option<FewKernels>,
    pub(crate) many: ManyKernel,
    /// Summed in one chain; on Hopper alone.
    pub(crate) many_fast: Option<ManyKernel>,
    /// Of pairs: for up to 8 and 32 rows.
    pub(crate) exact: [FewKernel; 2],
    pub(crate) exact_many: Function,
}

/// Attention in scalars over one stored type and head width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarAttention {
    pub(crate) tiles: Function,
    pub(crate) split: Function,
}

/// Attention on tensor cores over one head width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorAttention {
    pub(crate) tiles: TileKernel,
    pub(crate) split: TileKernel,
}

/// Every kernel of a card.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    /// By format; `None` until a load stores it.
    pub(crate) linear: [Option<LinearKernels>; FORMATS.len()],
    /// By format.
    pub(crate) embed: [Function; FORMATS.len()],
    pub(crate) encode: Function,
    pub(crate) norm_encode: Function,
    pub(crate) swiglu_encode: Function,
    pub(crate) rope_angles: Function,
    /// bf16, f32.
    pub(crate) prepare: [Function; 2],
    pub(crate) add_rows: Function,
    pub(crate) count_tokens: Function,
    /// bf16, f32; each by [`HEAD_DIMS`].
    pub(crate) scalar: [[ScalarAttention; HEAD_DIMS.len()]; 2],
    pub(crate) attention_join: Function,
    /// By [`HEAD_DIMS`].
    pub(crate) tensor: [TensorAttention; HEAD_DIMS.len()],
    pub(crate) sample_largest: Function,
    pub(crate) sample_masses: Function,
    pub(crate) sample_draw: Function,
}

/// A source, and the format it is compiled for.
type Unit = (Source, Option<usize>);

/// Machine code of `units`, made side by side or read from `folder`.
fn machine_code(
    card: &Card,
    folder: Option<&Path>,
    units: &[Unit],
) -> Result<Vec<Vec<u8>>, DeviceError> {
    let (major, minor) = nvrtc::version()?;
    let version = format!("nvrtc {major}.{minor}");
    let one = |&(source, format): &Unit| {
        let mut options = options(card.capability);
        let mut name = source.name.to_owned();
        if let Some(format) = format {
            options.push(format!("-DFORMAT={format}"));
            name = format!("{name}-{}", FORMATS[format].1);
        }
        let joined = options.join(" ");
        let headers = HEADERS.map(|(_, text)| text);
        let parts = [&headers[..], &[source.text, &joined, &version]].concat();
        cache::get_or_make(folder, &name, &parts, || {
            nvrtc::compile(&format!("{}.cu", source.name), source.text, &HEADERS, &options)
        })
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = units.iter().map(|unit| scope.spawn(|| one(unit))).collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("the compiler does not panic"))
            .collect()
    })
}

fn load_units(
    context: &Context,
    card: &Card,
    folder: Option<&Path>,
    units: &[Unit],
) -> Result<Vec<Module>, DeviceError> {
    machine_code(card, folder, units)?.iter().map(|cubin| context.load(cubin)).collect()
}

fn linear_unit(format: usize) -> Unit {
    (SOURCES[3], Some(format))
}

fn find(module: Module, name: &str) -> Result<Function, DeviceError> {
    let name = CString::new(name).expect("names of kernels hold no zero byte");
    module.function(&name)
}

/// An array of what `make` makes of each item, or the first error.
fn each<A: Copy, B, const N: usize>(
    items: [A; N],
    make: impl FnMut(A) -> Result<B, DeviceError>,
) -> Result<[B; N], DeviceError> {
    let made: Vec<B> = items.into_iter().map(make).collect::<Result<_, _>>()?;
    Ok(made.try_into().unwrap_or_else(|_| unreachable!("as many as there are items")))
}

impl Kernels {
    /// Compiles or reads every kernel, products in `formats` only, and loads it on `card`.
    ///
    /// Errors: what the compiler or the driver says.
    pub(crate) fn load(
        context: &Context,
        card: &Card,
        folder: Option<&Path>,
        formats: &[usize],
    ) -> Result<Kernels, DeviceError> {
        let mut units: Vec<Unit> = SOURCES[..3].iter().map(|&source| (source, None)).collect();
        units.extend(formats.iter().map(|&format| linear_unit(format)));
        let modules = load_units(context, card, folder, &units)?;
        let [rows, attention, sample] = [0, 1, 2].map(|i: usize| modules[i]);
        let stored = ["bf16", "f32"];
        let mut kernels = Kernels {
            linear: [None; FORMATS.len()],
            embed: each(FORMATS, |(_, name)| find(rows, &format!("embed_{name}")))?,
            encode: find(rows, "encode")?,
            norm_encode: find(rows, "norm_encode")?,
            swiglu_encode: find(rows, "swiglu_encode")?,
            rope_angles: find(rows, "rope_angles")?,
            prepare: each(stored, |name| find(rows, &format!("prepare_{name}")))?,
            add_rows: find(rows, "add_rows")?,
            count_tokens: find(rows, "count_tokens")?,
            scalar: each(stored, |name| scalar_attention(attention, name))?,
            attention_join: find(attention, "attention_join")?,
            tensor: tensor_attention(attention)?,
            sample_largest: find(sample, "sample_largest")?,
            sample_masses: find(sample, "sample_masses")?,
            sample_draw: find(sample, "sample_draw")?,
        };
        kernels.take(context, card, formats, &modules[3..])?;
        Ok(kernels)
    }

    /// Those of `formats` that are not loaded.
    pub(crate) fn missing(&self, formats: &[usize]) -> Vec<usize> {
        formats.iter().copied().filter(|&format| self.linear[format].is_none()).collect()
    }

    /// Loads products in further formats.
    pub(crate) fn add(
        &mut self,
        context: &Context,
        card: &Card,
        folder: Option<&Path>,
        formats: &[usize],
    ) -> Result<(), DeviceError> {
        let units: Vec<Unit> = formats.iter().map(|&format| linear_unit(format)).collect();
        let modules = load_units(context, card, folder, &units)?;
        self.take(context, card, formats, &modules)
    }

    fn take(
        &mut self,
        context: &Context,
        card: &Card,
        formats: &[usize],
        modules: &[Module],
    ) -> Result<(), DeviceError> {
        for (&format, &module) in formats.iter().zip(modules) {
            let kernels = linear_kernels(context, card, module, format)?;
            for many in [Some(kernels.many), kernels.many_fast].into_iter().flatten() {
                allow_shared(context, many.tile.f, many.tile.shared_bytes)?;
            }
            self.linear[format] = Some(kernels);
        }
        Ok(())
    }
}

/// Lets a kernel have its shared memory.
pub(crate) fn allow_shared(context: &Context, f: Function, bytes: u32) -> Result<(), DeviceError> {
    if bytes > 48 * 1024 { context.allow_shared(f, bytes) } else { Ok(()) }
}

/// Its shape is four words: rows of x, threads, bytes of shared memory, and whether CTAs stay: as
/// many as there are processors.
fn many_kernel(
    module: Module,
    card: &Card,
    name: &str,
    shape: &CStr,
) -> Result<ManyKernel, DeviceError> {
    let [rows, threads, shared_bytes, stay] = module.words(shape)?;
    let tile = TileKernel { f: find(module, name)?, rows, threads, shared_bytes };
    Ok(ManyKernel { tile, ctas: (stay > 0).then_some(card.processors) })
}

fn linear_kernels(
    context: &Context,
    card: &Card,
    module: Module,
    format: usize,
) -> Result<LinearKernels, DeviceError> {
    let has_fast = card.capability == (9, 0);
    let fast = || many_kernel(module, card, "many_fast", c"many_fast_shape");
    let few = |name: &str, rows: u32| few_kernel(context, card, module, &format!("{name}_{rows}"));
    let every_few = || {
        let [plain, long, glu] =
            each(["few", "few_long", "few_glu"], |name| each([8, 16, 32], |rows| few(name, rows)))?;
        Ok::<_, DeviceError>(FewKernels { plain, long, glu })
    };
    Ok(LinearKernels {
        few: if OF_PAIRS.contains(&format) { None } else { Some(every_few()?) },
        many: many_kernel(module, card, "many", c"many_shape")?,
        many_fast: if has_fast { Some(fast()?) } else { None },
        exact: each([8, 32], |rows| few("exact", rows))?,
        exact_many: find(module, "exact_many")?,
    })
}

/// Finds a kernel by its name, and its threads and shared memory behind that name.
fn few_kernel(
    context: &Context,
    card: &Card,
    module: Module,
    name: &str,
) -> Result<FewKernel, DeviceError> {
    let f = find(module, name)?;
    let shape = CString::new(format!("{name}_shape")).expect("names hold no zero byte");
    let [threads, shared_bytes] = module.words(&shape)?;
    allow_shared(context, f, shared_bytes)?;
    let ctas = card.processors * context.ctas_at_a_time(f, threads, shared_bytes)?;
    assert!(ctas > 0, "{name} fits a processor of every card that is opened");
    Ok(FewKernel { f, threads, shared_bytes, ctas })
}

fn scalar_attention(
    module: Module,
    stored: &str,
) -> Result<[ScalarAttention; HEAD_DIMS.len()], DeviceError> {
    each(HEAD_DIMS, |dim| {
        Ok(ScalarAttention {
            tiles: find(module, &format!("attention_{stored}_{dim}"))?,
            split: find(module, &format!("attention_{stored}_split_{dim}"))?,
        })
    })
}

/// Shapes hold three words a head width: queries of a CTA, its threads, bytes of shared memory.
fn tensor_attention(module: Module) -> Result<[TensorAttention; HEAD_DIMS.len()], DeviceError> {
    let tiles: [u32; 3 * HEAD_DIMS.len()] = module.words(c"attend_shape")?;
    let split: [u32; 3 * HEAD_DIMS.len()] = module.words(c"attend_split_shape")?;
    let kernel = |name: &str, at: usize, shapes: &[u32]| {
        let f = find(module, &format!("{name}_{}", HEAD_DIMS[at]))?;
        let [rows, threads, shared_bytes] = [0, 1, 2].map(|i| shapes[3 * at + i]);
        Ok(TileKernel { f, rows, threads, shared_bytes })
    };
    each([0, 1, 2, 3, 4], |at| {
        Ok(TensorAttention {
            tiles: kernel("attend_tiles", at, &tiles)?,
            split: kernel("attend_split", at, &split)?,
        })
    })
}
