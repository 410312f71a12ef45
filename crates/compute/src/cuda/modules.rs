//! The kernels' source files, and the modules compiled from them so far.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    EIGHT_BIT_CAPABILITY, OLDEST_CAPABILITY,
    driver::{Driver, Function},
    nvrtc::{Nvrtc, Program},
};
use crate::{error::Result, tensor::DType};

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Pointwise,
    Copy,
    Draw,
    Norm,
    Embed,
    Loss,
    Reduce,
    Update,
    Muon,
    Gemm,
    FewRows,
    BatchRows,
    Quantise,
    QuantiseNorm,
    QuantiseNormGrad,
    QuantiseLoss,
    Attention,
    AttentionDecode,
    DecodeStep,
    DecodeFew,
    AttentionF32,
    AttentionHopper,
    AttentionWholeHeads,
    GeluHopper,
    GeluEight,
    GateHopper,
    WeightGradient,
    Int8,
    Transfer,
}

const HEADERS: [(&str, &str); 16] = [
    ("between_products.cuh", include_str!("kernels/between_products.cuh")),
    ("byte_tile.cuh", include_str!("kernels/byte_tile.cuh")),
    ("decode.cuh", include_str!("kernels/decode.cuh")),
    ("eight_bits.cuh", include_str!("kernels/eight_bits.cuh")),
    ("gelu.cuh", include_str!("kernels/gelu.cuh")),
    ("int8.cuh", include_str!("kernels/int8.cuh")),
    ("loss.cuh", include_str!("kernels/loss.cuh")),
    ("norm_grad.cuh", include_str!("kernels/norm_grad.cuh")),
    ("prelude.cuh", include_str!("kernels/prelude.cuh")),
    ("attention.cuh", include_str!("kernels/attention.cuh")),
    ("attention_gradients.cuh", include_str!("kernels/attention_gradients.cuh")),
    ("attention_warpgroup.cuh", include_str!("kernels/attention_warpgroup.cuh")),
    ("matrix.cuh", include_str!("kernels/matrix.cuh")),
    ("tile_products.cuh", include_str!("kernels/tile_products.cuh")),
    ("turns.cuh", include_str!("kernels/turns.cuh")),
    ("warpgroup.cuh", include_str!("kernels/warpgroup.cuh")),
];

impl Source {
    const ALL: [Source; 29] = [
        Source::Pointwise,
        Source::Copy,
        Source::Draw,
        Source::Norm,
        Source::Embed,
        Source::Loss,
        Source::Reduce,
        Source::Update,
        Source::Muon,
        Source::Gemm,
        Source::FewRows,
        Source::BatchRows,
        Source::Quantise,
        Source::QuantiseNorm,
        Source::QuantiseNormGrad,
        Source::QuantiseLoss,
        Source::Attention,
        Source::AttentionDecode,
        Source::DecodeStep,
        Source::DecodeFew,
        Source::AttentionF32,
        Source::AttentionHopper,
        Source::AttentionWholeHeads,
        Source::GeluHopper,
        Source::GeluEight,
        Source::GateHopper,
        Source::WeightGradient,
        Source::Int8,
        Source::Transfer,
    ];

    /// The settings that kernels of the file are launched with.
    fn settings(self) -> Vec<Vec<(&'static str, usize)>> {
        let with = |reals: &[usize], name: &'static str, values: &[usize]| {
            let pairs = reals.iter().flat_map(|&real| values.iter().map(move |&value| (real, value)));
            pairs.map(|(real, value)| vec![("REAL", real), (name, value)]).collect()
        };
        match self {
            Source::Gemm => with(&[0, 1, 2], "OUT", &[0, 1]),
            Source::Attention | Source::AttentionHopper => with(&[1, 2], "HEAD", &[64, 128]),
            Source::AttentionWholeHeads => with(&[1, 2], "HEAD", &[64]),
            Source::AttentionF32 => {
                [with(&[0], "HEAD", &[64, 128, 256]), with(&[1, 2], "HEAD", &[256])].concat()
            }
            Source::BatchRows => {
                let norms = ["BEFORE_NORM", "OF_NORM"].iter().flat_map(|norm| {
                    [0, 1].map(|centred| vec![("REAL", 1), ("PARTS", 3), (*norm, 1), ("CENTRED", centred)])
                });
                with(&[1, 2], "PARTS", &[1, 3]).into_iter().chain(norms).collect()
            }
            Source::AttentionDecode => with(&[0, 1, 2], "HEAD", &[64, 128, 256]),
            Source::DecodeStep => {
                let single = with(&[0], "HEAD", &[64, 128]);
                [single, with(&[1, 2], "TILES", &[1, 2]), with(&[0, 1, 2], "INT8", &[1])].concat()
            }
            Source::DecodeFew => {
                let ways = [with(&[1, 2], "WHOLE", &[1]), with(&[1, 2], "INT8", &[1])].concat();
                [with(&[1, 2], "ROWS", &[1, 2]), ways].concat()
            }
            Source::FewRows => with(&[0, 1, 2], "INT8", &[0, 1]),
            Source::GeluHopper => {
                let tiles = [[("COLUMNS", 128), ("CLUSTER", 1)], [("COLUMNS", 192), ("CLUSTER", 2)]];
                let of = |real, slope| {
                    tiles.map(|[columns, cluster]| vec![("REAL", real), columns, cluster, ("SLOPE", slope)])
                };
                [of(1, 0), of(1, 1), of(2, 0), of(2, 1)].concat()
            }
            Source::GeluEight => with(&[1], "SLOPE", &[0, 1]),
            Source::GateHopper => with(&[1, 2], "CLUSTER", &[1, 2]),
            Source::WeightGradient => {
                let of = |real| {
                    [128, 200].map(|columns| vec![("REAL", real), ("COLUMNS", columns), ("CLUSTER", 2)])
                };
                [of(1), of(2)].concat()
            }
            Source::Transfer => vec![vec![("REAL", 0)]],
            _ => [0, 1, 2].map(|real| vec![("REAL", real)]).into(),
        }
    }

    /// The first compute capability that has the instructions which the file is made of.
    fn oldest_capability(self) -> usize {
        match self {
            Source::Quantise
            | Source::QuantiseNorm
            | Source::QuantiseNormGrad
            | Source::QuantiseLoss
            | Source::GeluEight => EIGHT_BIT_CAPABILITY,
            _ => OLDEST_CAPABILITY,
        }
    }

    /// Whether all kernels of the file wait themselves for the kernel before them and then let the next one begin, so that they may
    /// start early.
    pub fn takes_turns(self) -> bool {
        match self {
            Source::Pointwise
            | Source::Copy
            | Source::Norm
            | Source::Embed
            | Source::Loss
            | Source::Reduce
            | Source::Update
            | Source::Quantise
            | Source::QuantiseNorm
            | Source::QuantiseNormGrad
            | Source::QuantiseLoss
            | Source::Muon
            | Source::Int8
            | Source::Gemm => true,
            // Some of these start early as well, but each in its own way.
            Source::Draw
            | Source::FewRows
            | Source::BatchRows
            | Source::Attention
            | Source::AttentionDecode
            | Source::DecodeStep
            | Source::DecodeFew
            | Source::AttentionF32
            | Source::AttentionHopper
            | Source::AttentionWholeHeads
            | Source::GeluHopper
            | Source::GeluEight
            | Source::GateHopper
            | Source::WeightGradient
            | Source::Transfer => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Source::Pointwise => "pointwise.cu",
            Source::Copy => "copy.cu",
            Source::Draw => "draw.cu",
            Source::Norm => "norm.cu",
            Source::Embed => "embed.cu",
            Source::Loss => "loss.cu",
            Source::Reduce => "reduce.cu",
            Source::Update => "update.cu",
            Source::Quantise => "quantise.cu",
            Source::QuantiseNorm => "quantise_norm.cu",
            Source::QuantiseNormGrad => "quantise_norm_grad.cu",
            Source::QuantiseLoss => "quantise_loss.cu",
            Source::Muon => "muon.cu",
            Source::Gemm => "gemm.cu",
            Source::FewRows => "few_rows.cu",
            Source::BatchRows => "batch_rows.cu",
            Source::Attention => "attention.cu",
            Source::AttentionDecode => "attention_decode.cu",
            Source::DecodeStep => "decode_step.cu",
            Source::DecodeFew => "decode_few.cu",
            Source::AttentionF32 => "attention_f32.cu",
            Source::AttentionHopper => "attention_hopper.cu",
            Source::AttentionWholeHeads => "attention_whole_heads.cu",
            Source::GeluHopper => "gelu_hopper.cu",
            Source::GeluEight => "gelu_eight.cu",
            Source::GateHopper => "gate_hopper.cu",
            Source::WeightGradient => "weight_gradient.cu",
            Source::Int8 => "int8.cu",
            Source::Transfer => "transfer.cu",
        }
    }

    fn text(self) -> &'static str {
        match self {
            Source::Pointwise => include_str!("kernels/pointwise.cu"),
            Source::Copy => include_str!("kernels/copy.cu"),
            Source::Draw => include_str!("kernels/draw.cu"),
            Source::Norm => include_str!("kernels/norm.cu"),
            Source::Embed => include_str!("kernels/embed.cu"),
            Source::Loss => include_str!("kernels/loss.cu"),
            Source::Reduce => include_str!("kernels/reduce.cu"),
            Source::Update => include_str!("kernels/update.cu"),
            Source::Muon => include_str!("kernels/muon.cu"),
            Source::Gemm => include_str!("kernels/gemm.cu"),
            Source::FewRows => include_str!("kernels/few_rows.cu"),
            Source::BatchRows => include_str!("kernels/batch_rows.cu"),
            Source::Quantise => include_str!("kernels/quantise.cu"),
            Source::QuantiseNorm => include_str!("kernels/quantise_norm.cu"),
            Source::QuantiseNormGrad => include_str!("kernels/quantise_norm_grad.cu"),
            Source::QuantiseLoss => include_str!("kernels/quantise_loss.cu"),
            Source::Attention => include_str!("kernels/attention.cu"),
            Source::AttentionDecode => include_str!("kernels/attention_decode.cu"),
            Source::DecodeStep => include_str!("kernels/decode_step.cu"),
            Source::DecodeFew => include_str!("kernels/decode_few.cu"),
            Source::AttentionF32 => include_str!("kernels/attention_f32.cu"),
            Source::AttentionHopper => include_str!("kernels/attention_hopper.cu"),
            Source::AttentionWholeHeads => include_str!("kernels/attention_whole_heads.cu"),
            Source::GeluHopper => include_str!("kernels/gelu_hopper.cu"),
            Source::GeluEight => include_str!("kernels/gelu_eight.cu"),
            Source::GateHopper => include_str!("kernels/gate_hopper.cu"),
            Source::WeightGradient => include_str!("kernels/weight_gradient.cu"),
            Source::Int8 => include_str!("kernels/int8.cu"),
            Source::Transfer => include_str!("kernels/transfer.cu"),
        }
    }
}

/// The setting by which a file learns its element type.
fn real_define(real: DType) -> (&'static str, usize) {
    let value = match real {
        // Numbers of eight bits are bytes to a file, beside elements of another type.
        DType::F32 | DType::E4M3 | DType::E5M2 | DType::U32 => 0,
        DType::BF16 => 1,
        DType::F16 => 2,
    };
    ("REAL", value)
}

/// Compiles every file with all the settings that it knows, and says how many images came out.
pub(super) fn compile_all(nvrtc: &Nvrtc, architecture: &str, cache: Option<&Path>) -> Result<usize> {
    let mut count = 0;
    let suits = |source: &Source| capability(architecture) >= source.oldest_capability();
    for source in Source::ALL.into_iter().filter(suits) {
        let program = Program { name: source.name(), text: source.text(), headers: &HEADERS };
        for settings in source.settings() {
            nvrtc.compile(&program, architecture, &settings, cache)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The number in an architecture's name.
fn capability(architecture: &str) -> usize {
    let digits: String = architecture.chars().filter(char::is_ascii_digit).collect();
    digits.parse().unwrap_or(OLDEST_CAPABILITY)
}

/// A file with the settings that it is compiled with.
type Key = (Source, Vec<(&'static str, usize)>);

/// What was compiled and loaded.
pub(super) struct Modules {
    driver: Arc<Driver>,
    nvrtc: Nvrtc,
    architecture: String,
    cache: Option<PathBuf>,
    loaded: BTreeMap<Key, usize>,
}

/// Dynamic shared memory that every kernel may use without asking: of the 48 KiB that are free, what its own arrays leave.
const FREE_SHARED_BYTES: u32 = 32 << 10;

impl Modules {
    pub fn new(driver: Arc<Driver>, nvrtc: Nvrtc, architecture: String, cache: Option<PathBuf>) -> Self {
        Modules { driver, nvrtc, architecture, cache, loaded: BTreeMap::new() }
    }

    /// Whether the card multiplies by warpgroups, which Hopper alone does.
    pub fn has_warpgroup_products(&self) -> bool {
        self.architecture == "sm_90a"
    }

    /// Whether the card multiplies numbers of eight bits.
    pub fn has_eight_bit_products(&self) -> bool {
        capability(&self.architecture) >= EIGHT_BIT_CAPABILITY
    }

    /// A kernel, compiled if it is the first of its file.
    pub fn function(
        &mut self,
        source: Source,
        name: &'static str,
        real: DType,
        defines: &[(&'static str, usize)],
        shared_bytes: u32,
    ) -> Result<Function> {
        let mut settings = vec![real_define(real)];
        settings.extend_from_slice(defines);
        let key = (source, settings);
        let module = match self.loaded.get(&key) {
            Some(&module) => module,
            None => {
                let program = Program { name: source.name(), text: source.text(), headers: &HEADERS };
                let image =
                    self.nvrtc.compile(&program, &self.architecture, &key.1, self.cache.as_deref())?;
                let module = self.driver.load_module(&image)?;
                self.loaded.insert(key, module);
                module
            }
        };
        let function = self.driver.function(module, name)?;
        if shared_bytes > FREE_SHARED_BYTES {
            self.driver.allow_shared(function, shared_bytes)?;
        }
        Ok(function)
    }
}

impl Drop for Modules {
    fn drop(&mut self) {
        for &module in self.loaded.values() {
            self.driver.unload_module(module);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_may_start_early_take_their_turn_before_anything_else() {
        for source in Source::ALL.into_iter().filter(|source| source.takes_turns()) {
            let kernels: Vec<&str> = source.text().split("__global__").skip(1).collect();
            assert!(!kernels.is_empty(), "{}", source.name());
            for kernel in kernels {
                let (declared, body) = kernel.split_once('{').expect("a kernel has a body");
                let first = body.trim_start_matches(|c: char| c.is_whitespace() || c == '\\');
                // Those that write tiles of bytes, and norms of few rows, read something first: their files say why they may.
                let reads_first = match source {
                    Source::Quantise | Source::QuantiseNormGrad => first.starts_with("quantise"),
                    Source::Norm => first.starts_with("norm<"),
                    _ => false,
                };
                assert!(first.starts_with("take_turn();") || reads_first, "{}: {declared}", source.name());
            }
        }
    }

    /// The compiler reads what is const and restrict as if nobody wrote it while a kernel runs, past what a wait makes visible. But a
    /// kernel that starts early runs while the one before it writes.
    #[test]
    fn kernels_that_may_start_early_read_nothing_as_constant() {
        let waits = |source: &Source| {
            ["take_turn();", "wait_for_kernel_before();"].iter().any(|wait| source.text().contains(wait))
        };
        for source in Source::ALL.into_iter().filter(waits) {
            for kernel in source.text().split("__global__").skip(1) {
                let (declared, _) = kernel.split_once('{').expect("a kernel has a body");
                let is_constant =
                    |parameter: &&str| parameter.contains("const ") && parameter.contains("__restrict__");
                assert_eq!(declared.split(',').find(is_constant), None, "{}", source.name());
            }
        }
    }
}
