//! The 32 lanes of a warp, and operations that each lane does by itself.
//!
//! An operation is a function over whole registers, so that an instruction costs one call and a loop that the compiler turns into vector
//! instructions. Every function exists twice, for any processor and for those with AVX2 and FMA; which one is taken is decided when a
//! kernel is translated. Both give the same bits.
#![expect(unsafe_code, reason = "functions that not every processor can run")]

use std::array;

use crate::ptx::Class;

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All of them.
pub const ALL: u32 = u32::MAX;

/// A register of up to 32 bits.
pub type Words = [u32; LANES];
/// A register of 64 bits.
pub type Doubles = [u64; LANES];

/// A function of one register, or of two or three of one kind or of several, that is compiled for this processor.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<F>(F);

impl<F> Chosen<F> {
    /// Of two forms of a function the one for this processor; `wide` needs AVX2 and FMA at most, as the macro below has it.
    pub fn choose(portable: F, wide: F) -> Self {
        Chosen(if has_wide_vectors() { wide } else { portable })
    }
}

/// The same, by what it takes and gives.
pub type Of1<A, R> = Chosen<unsafe fn(&[A; LANES]) -> R>;
/// Of two registers.
pub type Of2<A, B, R> = Chosen<unsafe fn(&[A; LANES], &[B; LANES]) -> R>;
/// Of three.
pub type Of3<A, R> = Chosen<unsafe fn(&[A; LANES], &[A; LANES], &[A; LANES]) -> R>;

impl<A, R> Of1<A, R> {
    /// Calls it.
    #[inline]
    pub fn of(self, a: &[A; LANES]) -> R {
        // SAFETY: `choose` asked the processor.
        unsafe { (self.0)(a) }
    }
}

impl<A, B, R> Of2<A, B, R> {
    /// Calls it.
    #[inline]
    pub fn of(self, a: &[A; LANES], b: &[B; LANES]) -> R {
        // SAFETY: `choose` asked the processor.
        unsafe { (self.0)(a, b) }
    }
}

impl<A, R> Of3<A, R> {
    /// Calls it.
    #[inline]
    pub fn of(self, a: &[A; LANES], b: &[A; LANES], c: &[A; LANES]) -> R {
        // SAFETY: `choose` asked the processor.
        unsafe { (self.0)(a, b, c) }
    }
}

/// What lanes do by themselves, by the registers that it takes and gives.
#[derive(Clone, Copy, Debug)]
pub enum Lanewise {
    /// A word of a word.
    W1(Of1<u32, Words>),
    /// A word of two.
    W2(Of2<u32, u32, Words>),
    /// A word of three.
    W3(Of3<u32, Words>),
    /// A double of a double.
    D1(Of1<u64, Doubles>),
    /// A double of two.
    D2(Of2<u64, u64, Doubles>),
    /// A double of three.
    D3(Of3<u64, Doubles>),
    /// A double of a word.
    WordToDouble(Of1<u32, Doubles>),
    /// A double of two words.
    WordsToDouble(Of2<u32, u32, Doubles>),
    /// A word of a double.
    DoubleToWord(Of1<u64, Words>),
    /// A double of a double and a word.
    Shift(Of2<u64, u32, Doubles>),
    /// Whether something is so of two words: a bit for every lane.
    CompareWords(Of2<u32, u32, u32>),
    /// The same of doubles.
    CompareDoubles(Of2<u64, u64, u32>),
}

impl Lanewise {
    /// What it gives, and what it takes.
    pub fn classes(&self) -> (Class, &'static [Class]) {
        use Class::{Double, Predicate, Word};
        match self {
            Lanewise::W1(_) => (Word, &[Word]),
            Lanewise::W2(_) => (Word, &[Word, Word]),
            Lanewise::W3(_) => (Word, &[Word, Word, Word]),
            Lanewise::D1(_) => (Double, &[Double]),
            Lanewise::D2(_) => (Double, &[Double, Double]),
            Lanewise::D3(_) => (Double, &[Double, Double, Double]),
            Lanewise::WordToDouble(_) => (Double, &[Word]),
            Lanewise::WordsToDouble(_) => (Double, &[Word, Word]),
            Lanewise::DoubleToWord(_) => (Word, &[Double]),
            Lanewise::Shift(_) => (Double, &[Double, Word]),
            Lanewise::CompareWords(_) => (Predicate, &[Word, Word]),
            Lanewise::CompareDoubles(_) => (Predicate, &[Double, Double]),
        }
    }
}

/// Whether the processor has what the faster functions are compiled for.
pub fn has_wide_vectors() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// An operation of [`Lanewise`] from what one lane does: `lanewise!(W2, (a: u32, b: u32) -> u32, a ^ b)`.
macro_rules! lanewise {
    ($variant:ident, ($($x:ident: $of:ty),+) -> $result:ty, $body:expr) => {{
        #[inline(always)]
        fn lane($($x: $of),+) -> $result {
            $body
        }
        #[inline(always)]
        fn all($($x: &[$of; $crate::lanes::LANES]),+) -> [$result; $crate::lanes::LANES] {
            std::array::from_fn(|i| lane($($x[i]),+))
        }
        $crate::lanes::choose!($variant, ($($x: $of),+) -> [$result; $crate::lanes::LANES], all)
    }};
}

/// The same for comparisons: `compared!(CompareWords, (a: u32, b: u32), a < b)`.
macro_rules! compared {
    ($variant:ident, ($($x:ident: $of:ty),+), $body:expr) => {{
        #[inline(always)]
        fn lane($($x: $of),+) -> bool {
            $body
        }
        #[inline(always)]
        fn all($($x: &[$of; $crate::lanes::LANES]),+) -> u32 {
            let are: [bool; $crate::lanes::LANES] = std::array::from_fn(|i| lane($($x[i]),+));
            $crate::lanes::mask_of(&are)
        }
        $crate::lanes::choose!($variant, ($($x: $of),+) -> u32, all)
    }};
}

/// The function compiled for this processor.
macro_rules! choose {
    ($variant:ident, ($($x:ident: $of:ty),+) -> $result:ty, $all:ident) => {{
        fn portable($($x: &[$of; $crate::lanes::LANES]),+) -> $result {
            $all($($x),+)
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn wide($($x: &[$of; $crate::lanes::LANES]),+) -> $result {
            $all($($x),+)
        }
        #[cfg(not(target_arch = "x86_64"))]
        use portable as wide;
        type Form = unsafe fn($(&[$of; $crate::lanes::LANES]),+) -> $result;
        $crate::lanes::Lanewise::$variant($crate::lanes::Chosen::choose(portable as Form, wide as Form))
    }};
}

pub(crate) use {choose, compared, lanewise};

/// A bit for every lane where something is so.
#[inline(always)]
pub fn mask_of(are: &[bool; LANES]) -> u32 {
    are.iter().enumerate().fold(0, |mask, (lane, &is)| mask | u32::from(is) << lane)
}

/// The lanes of a mask, the lowest first.
#[inline]
pub fn lanes_of(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            lane
        })
    })
}

/// Writes a register in the lanes of a mask.
#[inline]
pub fn put<T: Copy>(to: &mut [T; LANES], from: &[T; LANES], mask: u32) {
    if mask == ALL {
        *to = *from;
    } else {
        *to = array::from_fn(|lane| if mask >> lane & 1 == 1 { from[lane] } else { to[lane] });
    }
}
