//! The window masks in vector registers, and the scanning loop compiled for them.
//!
//! The unsafe code here is of two kinds: loads of a whole `[u8; 64]`, which the reference makes sound, and calls of functions
//! compiled for instructions that [`Instructions::detect`] or the test has found on this machine.

#![expect(unsafe_code, reason = "vector loads, and functions compiled for instructions found at run time")]

use super::window::{Masks, WINDOW, masks_portable};
use super::{Ends, Scanner};

/// The instructions that a scanner uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instructions {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Everything that this machine has, the fastest last.
    pub(crate) fn available() -> Vec<Self> {
        let mut found = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            let has_bits = is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt")
                && is_x86_feature_detected!("popcnt");
            if has_bits && is_x86_feature_detected!("avx2") {
                found.push(Self::Avx2);
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
                    found.push(Self::Avx512);
                }
            }
        }
        found
    }

    /// The fastest that this machine has.
    pub(crate) fn detect() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }
}

/// [`Scanner::fill`] with the scanner's instructions.
pub(super) fn fill(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) -> usize {
    match scanner.instructions {
        Instructions::Portable => scanner.fill(text, from, ends, masks_portable),
        // SAFETY: a scanner is made only with instructions that `Instructions::available` has found.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { fill_avx2(scanner, text, from, ends) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { fill_avx512(scanner, text, from, ends) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
fn fill_avx2(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) -> usize {
    scanner.fill(text, from, ends, |window| masks_avx2(window))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2,bmi1,bmi2,lzcnt,popcnt")]
fn fill_avx512(scanner: &Scanner, text: &str, from: usize, ends: &mut Ends) -> usize {
    scanner.fill(text, from, ends, |window| masks_avx512(window))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn masks_avx512(text: &[u8; WINDOW]) -> Masks {
    use std::arch::x86_64::*;
    // SAFETY: the reference is to 64 readable bytes, and the load needs no alignment.
    let bytes = unsafe { _mm512_loadu_si512(text.as_ptr().cast()) };
    let equal = |byte: u8| _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte as i8));
    let within = |first: u8, count: u8| {
        let offset = _mm512_sub_epi8(bytes, _mm512_set1_epi8(first as i8));
        _mm512_cmplt_epu8_mask(offset, _mm512_set1_epi8(count as i8))
    };
    let (upper, lower, blank) = (within(b'A', 26), within(b'a', 26), equal(b' '));
    Masks {
        letter: upper | lower,
        upper,
        lower,
        number: within(b'0', 10),
        space: blank | within(9, 5),
        blank,
        newline: equal(b'\n') | equal(b'\r'),
        apostrophe: equal(b'\''),
        slash: equal(b'/'),
        caseless: 0,
        mark: 0,
        wide: _mm512_movepi8_mask(bytes),
        inner: within(0x80, 0x40),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn masks_avx2(text: &[u8; WINDOW]) -> Masks {
    use std::arch::x86_64::*;
    // SAFETY: the reference is to 64 readable bytes, the two loads cover them, and they need no alignment.
    let halves = unsafe {
        [_mm256_loadu_si256(text.as_ptr().cast()), _mm256_loadu_si256(text.as_ptr().add(32).cast())]
    };
    let bits = |halves: [__m256i; 2]| {
        let [low, high] = halves.map(|half| u64::from(_mm256_movemask_epi8(half) as u32));
        low | high << 32
    };
    let equal = |byte: u8| bits(halves.map(|half| _mm256_cmpeq_epi8(half, _mm256_set1_epi8(byte as i8))));
    // There is no unsigned comparison of bytes; saturating subtraction leaves zero where the offset is small enough.
    let within = |first: u8, count: u8| {
        bits(halves.map(|half| {
            let offset = _mm256_sub_epi8(half, _mm256_set1_epi8(first as i8));
            let excess = _mm256_subs_epu8(offset, _mm256_set1_epi8((count - 1) as i8));
            _mm256_cmpeq_epi8(excess, _mm256_setzero_si256())
        }))
    };
    let (upper, lower, blank) = (within(b'A', 26), within(b'a', 26), equal(b' '));
    Masks {
        letter: upper | lower,
        upper,
        lower,
        number: within(b'0', 10),
        space: blank | within(9, 5),
        blank,
        newline: equal(b'\n') | equal(b'\r'),
        apostrophe: equal(b'\''),
        slash: equal(b'/'),
        caseless: 0,
        mark: 0,
        wide: bits(halves),
        inner: within(0x80, 0x40),
    }
}
