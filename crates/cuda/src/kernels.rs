//! The kernels of a load: where each one is, and what shape its file gives it.

use std::ffi::{CStr, CString};

use ignis_backend::{DeviceError, KvFormat};

use crate::card::Card;
use crate::driver::{Context, Function, Module};
use crate::judge::unavailable;
use crate::launch::{SCALAR_THREADS, SPLIT_QUERIES, TILE_QUERIES, attention_shared};
use crate::open::CudaOptions;
use crate::sums::SumKernel;
use crate::units::{
    FORMATS, Part, Target, Unit, attention_of, formats_of, parts_of, stored_name, width_of,
};

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

/// Products of values rounded to bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundedKernels {
    pub(crate) few: FewKernels,
    pub(crate) many: ManyKernel,
    /// Summed in one chain; on Hopper alone, and where it was asked for.
    pub(crate) many_fast: Option<ManyKernel>,
}

/// Products of pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairsKernels {
    /// For up to 8 and 32 rows.
    pub(crate) few: [FewKernel; 2],
    pub(crate) many: Function,
}

/// Products with weights of one format, in the arithmetic of the load.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "a load has one for each format")]
pub(crate) enum LinearKernels {
    Rounded(RoundedKernels),
    Pairs(PairsKernels),
}

/// Attention of a load: on tensor cores where everything is bf16, else in scalars.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionKernels {
    pub(crate) tiles: TileKernel,
    pub(crate) split: SplitKernel,
}

/// Attention of rows whose keys are cut into runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SplitKernel {
    /// On tensor cores: it makes ready what it reads and joins the runs itself. About `ctas` CTAs
    /// share them, as many as the card runs at a time.
    Tensor { kernel: TileKernel, ctas: u32 },
    /// In scalars: a CTA each run. Others make ready what it reads, and join.
    Scalar { kernel: TileKernel, join: Function },
}

/// Every kernel of a load.
#[derive(Clone, Debug)]
pub(crate) struct Kernels {
    pub(crate) fetch_inputs: Function,
    /// By format; `None` where the model has no matrix in it.
    pub(crate) linear: [Option<LinearKernels>; FORMATS.len()],
    /// By format.
    pub(crate) embed: [Function; FORMATS.len()],
    pub(crate) encode: Function,
    pub(crate) norm_encode: Function,
    pub(crate) swiglu_encode: Function,
    pub(crate) rope_angles: Function,
    pub(crate) prepare: Function,
    pub(crate) add_rows: Function,
    pub(crate) count_tokens: Function,
    pub(crate) attention: AttentionKernels,
    pub(crate) sample_largest: Function,
    pub(crate) sample_masses: Function,
    pub(crate) sample_draw: Function,
    pub(crate) sum_parts: SumKernel,
}

/// Units that are loaded on a card.
#[derive(Clone, Debug, Default)]
pub(crate) struct Modules(Vec<(Unit, Module)>);

impl Modules {
    /// Those of `units` that are not loaded.
    pub(crate) fn missing(&self, units: &[Unit]) -> Vec<Unit> {
        let is_loaded = |unit: &Unit| self.0.iter().any(|(loaded, _)| loaded == unit);
        units.iter().filter(|&unit| !is_loaded(unit)).cloned().collect()
    }

    /// Takes in a unit that was loaded.
    pub(crate) fn add(&mut self, unit: Unit, module: Module) {
        self.0.push((unit, module));
    }

    fn of(&self, unit: &Unit) -> Module {
        let found = self.0.iter().find(|(loaded, _)| loaded == unit);
        found.expect("a load's units are loaded before their kernels are looked for").1
    }
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

/// Lets a kernel have its shared memory.
fn allow_shared(context: &Context, f: Function, bytes: u32) -> Result<(), DeviceError> {
    if bytes > 48 * 1024 { context.allow_shared(f, bytes) } else { Ok(()) }
}

impl Kernels {
    /// Finds the kernels of a load, whose units are loaded.
    ///
    /// Errors: a width of head that no kernel has; a card with too little shared memory; what the
    /// driver says.
    pub(crate) fn new(
        context: &Context,
        card: &Card,
        modules: &Modules,
        options: &CudaOptions,
    ) -> Result<Kernels, DeviceError> {
        let target = options.target(card);
        let finder = Finder { context, card, modules, options, target };
        let rows = modules.of(&Unit::rows());
        let sample = modules.of(&Unit::sample());
        let mut linear = [None; FORMATS.len()];
        for format in formats_of(options) {
            linear[format] = Some(finder.linear(format)?);
        }
        Ok(Kernels {
            fetch_inputs: find(rows, "fetch_inputs")?,
            linear,
            embed: each(FORMATS, |(_, name)| find(rows, &format!("embed_{name}")))?,
            encode: find(rows, "encode")?,
            norm_encode: find(rows, "norm_encode")?,
            swiglu_encode: find(rows, "swiglu_encode")?,
            rope_angles: find(rows, "rope_angles")?,
            prepare: find(rows, &format!("prepare_{}", stored_name(options.kv_format)))?,
            add_rows: find(rows, "add_rows")?,
            count_tokens: find(rows, "count_tokens")?,
            attention: finder.attention()?,
            sample_largest: find(sample, "sample_largest")?,
            sample_masses: find(sample, "sample_masses")?,
            sample_draw: find(sample, "sample_draw")?,
            sum_parts: SumKernel::find(modules.of(&Unit::sums()))?,
        })
    }
}

/// What kernels are found by.
struct Finder<'a> {
    context: &'a Context,
    card: &'a Card,
    modules: &'a Modules,
    options: &'a CudaOptions,
    target: Target,
}

impl Finder<'_> {
    fn linear(&self, format: usize) -> Result<LinearKernels, DeviceError> {
        let module = |part| self.modules.of(&Unit::linear(format, part, self.target));
        let few = |part, name: &str, rows: u32| self.few(module(part), &format!("{name}_{rows}"));
        let parts = parts_of(self.options, self.target);
        if parts.contains(&Part::Pairs) {
            return Ok(LinearKernels::Pairs(PairsKernels {
                few: each([8, 32], |rows| few(Part::Pairs, "exact", rows))?,
                many: find(module(Part::Pairs), "exact_many")?,
            }));
        }
        let [plain, long, glu] = each(["few", "few_long", "few_glu"], |name| {
            each([8, 16, 32], |rows| few(Part::Few, name, rows))
        })?;
        let fast = || self.many(module(Part::ManyFast), "many_fast", c"many_fast_shape");
        let has_fast = parts.contains(&Part::ManyFast);
        Ok(LinearKernels::Rounded(RoundedKernels {
            few: FewKernels { plain, long, glu },
            many: self.many(module(Part::Many), "many", c"many_shape")?,
            many_fast: if has_fast { Some(fast()?) } else { None },
        }))
    }

    /// Its shape is four words: rows of x, threads, bytes of shared memory, and whether CTAs stay:
    /// as many as there are processors.
    fn many(&self, module: Module, name: &str, shape: &CStr) -> Result<ManyKernel, DeviceError> {
        let [rows, threads, shared_bytes, stay] = module.words(shape)?;
        let tile = TileKernel { f: find(module, name)?, rows, threads, shared_bytes };
        allow_shared(self.context, tile.f, shared_bytes)?;
        Ok(ManyKernel { tile, ctas: (stay > 0).then_some(self.card.processors) })
    }

    /// Finds a kernel by its name, and its threads and shared memory behind that name.
    fn few(&self, module: Module, name: &str) -> Result<FewKernel, DeviceError> {
        let f = find(module, name)?;
        let shape = CString::new(format!("{name}_shape")).expect("names hold no zero byte");
        let [threads, shared_bytes] = module.words(&shape)?;
        allow_shared(self.context, f, shared_bytes)?;
        let ctas = self.ctas_of_card(name, f, (threads, shared_bytes))?;
        Ok(FewKernel { f, threads, shared_bytes, ctas })
    }

    /// CTAs of a kernel that the card runs at a time.
    fn ctas_of_card(
        &self,
        name: &str,
        f: Function,
        (threads, shared): (u32, u32),
    ) -> Result<u32, DeviceError> {
        let at_a_time = self.context.ctas_at_a_time(f, threads, shared)?;
        if at_a_time == 0 {
            return Err(unavailable(
                format!(
                    "no processor of {} holds {name}: {threads} threads, {shared} bytes of shared \
                     memory",
                    self.card.name
                ),
                "use --device cpu",
            ));
        }
        Ok(self.card.processors * at_a_time)
    }

    /// The kernels of attention, allowed their shared memory; or that the card has too little.
    fn attention(&self) -> Result<AttentionKernels, DeviceError> {
        let module = self.modules.of(&attention_of(self.options, self.target)?);
        if self.options.layout().attends_on_tensor_cores() {
            self.tensor_attention(module)
        } else {
            self.scalar_attention(module)
        }
    }

    /// Lets a kernel of attention have its shared memory; or that the card has too little.
    fn allowed(&self, kernel: TileKernel) -> Result<TileKernel, DeviceError> {
        let needed = kernel.shared_bytes + 1024;
        if needed > self.card.shared_bytes_max {
            return Err(too_little_shared(self.card, needed, self.options.kv_format));
        }
        allow_shared(self.context, kernel.f, kernel.shared_bytes)?;
        Ok(kernel)
    }

    /// A shape is three words: queries of a CTA, its threads, bytes of shared memory.
    fn tensor_attention(&self, module: Module) -> Result<AttentionKernels, DeviceError> {
        let width = width_of(self.options.model.head_dim)?;
        let kernel = |name: &str, shape: &CStr| {
            let f = find(module, &format!("{name}_{width}"))?;
            let [rows, threads, shared_bytes] = module.words(shape)?;
            self.allowed(TileKernel { f, rows, threads, shared_bytes })
        };
        let tiles = kernel("attend_tiles", c"attend_tiles_shape")?;
        let split = kernel("attend_split", c"attend_split_shape")?;
        let TileKernel { f, threads, shared_bytes, .. } = split;
        let ctas = self.ctas_of_card("attend_split", f, (threads, shared_bytes))?;
        Ok(AttentionKernels { tiles, split: SplitKernel::Tensor { kernel: split, ctas } })
    }

    fn scalar_attention(&self, module: Module) -> Result<AttentionKernels, DeviceError> {
        let CudaOptions { kv_format, model, .. } = self.options;
        let (stored, width) = (stored_name(*kv_format), width_of(model.head_dim)?);
        let value_bytes = kv_format.dtype().block_bytes() as u32;
        let kernel = |name: String, rows| {
            let shared_bytes = attention_shared(rows, model.head_dim, value_bytes);
            let f = find(module, &name)?;
            self.allowed(TileKernel { f, rows, threads: SCALAR_THREADS, shared_bytes })
        };
        let tiles = kernel(format!("attention_{stored}_{width}"), TILE_QUERIES)?;
        let split = kernel(format!("attention_{stored}_split_{width}"), SPLIT_QUERIES)?;
        let join = find(module, "attention_join")?;
        Ok(AttentionKernels { tiles, split: SplitKernel::Scalar { kernel: split, join } })
    }
}

/// That a kernel of attention does not fit a processor of the card.
fn too_little_shared(card: &Card, needed: u32, kv_format: KvFormat) -> DeviceError {
    let remedy = match kv_format {
        KvFormat::Bf16 => "use --device cpu",
        KvFormat::F32 => "use --model-kv-format bf16, or --device cpu",
    };
    let (name, most) = (&card.name, card.shared_bytes_max);
    unavailable(
        format!("attention takes {needed} bytes of shared memory, {name} gives a CTA {most}"),
        remedy,
    )
}
