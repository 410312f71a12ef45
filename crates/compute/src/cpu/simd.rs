//! Which vector instructions the kernels use.

use std::fmt;

/// A family of kernels, named after the instructions it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// What every processor of the target has.
    Portable,
    /// 256-bit vectors and fused multiply-add of x86-64.
    Avx2,
    /// 512-bit vectors of x86-64.
    Avx512,
    /// The same with products of bf16 pairs.
    Avx512Bf16,
}

impl InstructionSet {
    /// All of them, the widest last.
    pub const ALL: [InstructionSet; 4] =
        [InstructionSet::Portable, InstructionSet::Avx2, InstructionSet::Avx512, InstructionSet::Avx512Bf16];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            InstructionSet::Portable => true,
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => {
                InstructionSet::Avx2.is_available() && is_x86_feature_detected!("avx512f")
            }
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512Bf16 => {
                InstructionSet::Avx512.is_available()
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 | InstructionSet::Avx512Bf16 => false,
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InstructionSet::Portable => "portable",
            InstructionSet::Avx2 => "AVX2",
            InstructionSet::Avx512 => "AVX-512",
            InstructionSet::Avx512Bf16 => "AVX-512 with BF16",
        })
    }
}

/// Proof that this processor has an instruction set: calls of functions that need one cite it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Simd(InstructionSet);

impl Simd {
    /// The proof, if the processor has the set.
    pub fn new(set: InstructionSet) -> Option<Self> {
        set.is_available().then_some(Simd(set))
    }

    /// The proof for the widest set there is.
    pub fn widest() -> Self {
        let widest = InstructionSet::ALL.into_iter().rev().find_map(Simd::new);
        widest.unwrap_or(Simd(InstructionSet::Portable))
    }

    /// The instruction set.
    pub fn set(self) -> InstructionSet {
        self.0
    }
}
