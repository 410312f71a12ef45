//! Pieces as keys: up to 15 bytes in one word, and a hash that is part of a file format.

/// The longest piece that fits a packed key.
pub(crate) const MAX_PACKED: usize = 15;

/// How many partitions the pieces of a counts file have.
pub(crate) const N_PARTITIONS: usize = 256;

/// Multipliers of the hash: digits of pi. Changing them changes the counts file.
const MIX: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

/// The bytes of a short piece, lowest first, and its length in the top byte. Never zero, since no piece is empty.
pub(crate) type Packed = u128;

/// For each length, the bits of so many bytes: a load costs less than shifting 128 bits.
const LOW_BYTES: [u128; MAX_PACKED + 1] = {
    let mut masks = [0; MAX_PACKED + 1];
    let mut n_bytes = 0;
    while n_bytes < masks.len() {
        masks[n_bytes] = (1 << (8 * n_bytes)) - 1;
        n_bytes += 1;
    }
    masks
};

/// The key of the piece of `n_bytes`, at most [`MAX_PACKED`], that starts at `start` of `text`.
#[inline(always)]
pub(crate) fn pack(text: &[u8], start: usize, n_bytes: usize) -> Packed {
    let word = match text.get(start..).and_then(|rest| rest.first_chunk::<16>()) {
        Some(bytes) => u128::from_le_bytes(*bytes) & LOW_BYTES[n_bytes % LOW_BYTES.len()],
        None => {
            let mut bytes = [0; 16];
            bytes[..n_bytes].copy_from_slice(&text[start..start + n_bytes]);
            u128::from_le_bytes(bytes)
        }
    };
    word | (n_bytes as u128) << 120
}

/// The bytes of a packed key, and how many of them are the piece.
pub(super) fn unpack(key: Packed) -> ([u8; 16], usize) {
    (key.to_le_bytes(), (key >> 120) as usize)
}

/// The hash of a packed piece.
#[inline(always)]
pub(crate) fn hash_packed(key: Packed) -> u64 {
    fold(key as u64 ^ MIX[0], (key >> 64) as u64 ^ MIX[1])
}

/// The hash of any piece; of a short one that of its key. The same on every machine.
pub(crate) fn hash(piece: &[u8]) -> u64 {
    if piece.len() <= MAX_PACKED {
        return hash_packed(pack(piece, 0, piece.len()));
    }
    let mut state = piece.len() as u64 ^ MIX[0];
    for block in piece.chunks(16) {
        let mut bytes = [0; 16];
        bytes[..block.len()].copy_from_slice(block);
        let word = u128::from_le_bytes(bytes);
        state = fold(word as u64 ^ state, (word >> 64) as u64 ^ MIX[1]).wrapping_add(MIX[0]);
    }
    fold(state, MIX[0] ^ MIX[1])
}

/// The partition of a piece with this hash.
#[inline(always)]
pub(crate) fn partition(hash: u64) -> usize {
    // Tables use the upper bits; the middle ones leave a partition's pieces spread over its table.
    (hash >> 24) as usize % N_PARTITIONS
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_its_piece_wherever_it_lies() {
        let text = b"0123456789abcdefghijklmnop";
        for start in 0..text.len() {
            for n_bytes in 1..=MAX_PACKED.min(text.len() - start) {
                let key = pack(text, start, n_bytes);
                let (bytes, length) = unpack(key);
                assert_eq!(&bytes[..length], &text[start..start + n_bytes]);
                assert_eq!(key, pack(&text[start..start + n_bytes], 0, n_bytes));
            }
        }
    }

    #[test]
    fn the_hash_is_what_files_were_written_with() {
        let found = [&b"a"[..], b" the", b"fifteen bytes!!", b"more than fifteen bytes"].map(hash);
        assert_eq!(
            found,
            [
                10_722_111_432_161_210_146,
                8_186_319_450_293_767_587,
                13_059_780_127_338_791_755,
                6_845_081_862_901_728_504
            ]
        );
    }

    #[test]
    fn partitions_are_even() {
        let mut sizes = [0u32; N_PARTITIONS];
        for number in 0..100_000 {
            for text in [format!(" {number}"), format!("a piece with the number {number}")] {
                sizes[partition(hash(text.as_bytes()))] += 1;
            }
        }
        assert!(sizes.iter().all(|&size| (600..1000).contains(&size)), "{sizes:?}");
    }
}
