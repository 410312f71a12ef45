//! The values of a page: where each text lies in the page's bytes.

use super::thrift::{varint, zigzag};

/// A text: where it starts and how long it is.
pub(super) type Span = (u32, u32);

/// Texts one after the other, each behind its length of four bytes.
pub(super) fn plain(bytes: &[u8], n_values: usize) -> Option<Vec<Span>> {
    let mut spans = Vec::with_capacity(n_values.min(bytes.len() / 4));
    let mut at = 0usize;
    for _ in 0..n_values {
        let length = bytes.get(at..at + 4)?.iter().rev().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte));
        let start = at + 4;
        at = start.checked_add(length as usize).filter(|&end| end <= bytes.len())?;
        spans.push((start as u32, length));
    }
    Some(spans)
}

/// Texts one after the other, all their lengths before them.
pub(super) fn after_lengths(bytes: &[u8], n_values: usize) -> Option<Vec<Span>> {
    let mut rest = bytes;
    let lengths = deltas(&mut rest, n_values)?;
    let mut at = bytes.len() - rest.len();
    let mut spans = Vec::with_capacity(lengths.len());
    for length in lengths {
        let length = u32::try_from(length).ok()?;
        spans.push((u32::try_from(at).ok()?, length));
        at = at.checked_add(length as usize).filter(|&end| end <= bytes.len())?;
    }
    Some(spans)
}

/// Numbers of `width` bits, in runs of equal ones and in packs of eight.
pub(super) fn hybrid(mut bytes: &[u8], width: u32, n_values: usize) -> Option<Vec<u32>> {
    if width > 32 {
        return None;
    }
    let mut numbers = Vec::new();
    while numbers.len() < n_values {
        let head = varint(&mut bytes)?;
        let left = n_values - numbers.len();
        if head & 1 == 0 {
            let (run, rest) = bytes.split_at_checked(width.div_ceil(8) as usize)?;
            let number = run.iter().rev().fold(0u32, |sum, &byte| sum << 8 | u32::from(byte));
            let count = usize::try_from(head >> 1).ok()?;
            if count == 0 {
                return None;
            }
            numbers.resize(numbers.len() + count.min(left), number);
            bytes = rest;
        } else {
            let n_packs = usize::try_from(head >> 1).ok().filter(|&n_packs| n_packs > 0)?;
            // The last pack of a page may be cut short.
            let n_bytes = n_packs.checked_mul(width as usize)?.min(bytes.len());
            let (packed, rest) = bytes.split_at(n_bytes);
            let count = n_packs.saturating_mul(8).min(left);
            for idx in 0..count {
                numbers.push(bits(packed, idx * width as usize, width)? as u32);
            }
            bytes = rest;
        }
    }
    Some(numbers)
}

/// `width` bits from a place on, lowest first.
fn bits(bytes: &[u8], start: usize, width: u32) -> Option<u64> {
    let (mut number, mut taken) = (0u64, 0);
    while taken < width {
        let at = start + taken as usize;
        let byte = u64::from(*bytes.get(at / 8)?) >> (at % 8);
        number |= byte << taken;
        taken += 8 - (at % 8) as u32;
    }
    Some(if width == 64 { number } else { number & ((1 << width) - 1) })
}

/// Numbers as differences in blocks, each block with its smallest difference and the rest in as few bits as they need.
fn deltas(bytes: &mut &[u8], n_values: usize) -> Option<Vec<i64>> {
    let block = usize::try_from(varint(bytes)?).ok()?;
    let n_parts = usize::try_from(varint(bytes)?).ok().filter(|&n_parts| n_parts > 0)?;
    let total = usize::try_from(varint(bytes)?).ok()?;
    let mut last = zigzag(bytes)?;
    let per_part = block / n_parts;
    if total != n_values || per_part == 0 || !per_part.is_multiple_of(8) {
        return None;
    }
    let mut numbers = Vec::new();
    if total > 0 {
        numbers.push(last);
    }
    while numbers.len() < total {
        let least = zigzag(bytes)?;
        let (widths, rest) = bytes.split_at_checked(n_parts)?;
        *bytes = rest;
        for &width in widths {
            // Parts behind the last number are not there.
            if numbers.len() >= total {
                break;
            }
            if width > 64 {
                return None;
            }
            let n_bytes = per_part * usize::from(width) / 8;
            let (packed, rest) = bytes.split_at_checked(n_bytes)?;
            for idx in 0..per_part.min(total - numbers.len()) {
                let extra = bits(packed, idx * usize::from(width), u32::from(width))?;
                last = last.wrapping_add(least).wrapping_add(extra as i64);
                numbers.push(last);
            }
            *bytes = rest;
        }
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packs_are_told_apart() {
        // Ten of the number 4, then a pack of 0 to 7 in three bits each.
        let bytes = [20, 4, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let expected: Vec<u32> = [4; 10].into_iter().chain(0..8).collect();
        assert_eq!(hybrid(&bytes, 3, 18), Some(expected));
        assert_eq!(hybrid(&bytes, 3, 19), None);
        assert_eq!(hybrid(&[0, 4], 3, 1), None);
    }

    #[test]
    fn lengths_before_texts_are_differences() {
        // Lengths 1, 2 and 4: the first, the smallest difference 1, and 0 and 1 in one bit each of a part of 32.
        let bytes = [&[128, 1, 4, 3, 2, 2, 1, 0, 0, 0, 0b10, 0, 0, 0][..], b"abbcccc"].concat();
        assert_eq!(after_lengths(&bytes, 3), Some(vec![(14, 1), (15, 2), (17, 4)]));
        assert_eq!(after_lengths(&bytes[..bytes.len() - 1], 3), None);
    }

    #[test]
    fn plain_texts_must_fit_their_page() {
        assert_eq!(plain(b"\x01\0\0\0a\0\0\0\0", 2), Some(vec![(4, 1), (9, 0)]));
        assert_eq!(plain(b"\x02\0\0\0a", 1), None);
    }
}
