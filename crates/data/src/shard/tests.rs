use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Class;

/// Writes a shard of one document for every length, with the given vocabulary.
fn write_shard(dir: &Path, tokens: &[u32], document_lengths: &[usize], vocab_size: u64) -> PathBuf {
    let path = dir.join("a.shard");
    let mut writer = ShardWriter::create(&path, [7; 32], vocab_size).unwrap();
    let mut rest = tokens;
    for &length in document_lengths {
        let (document, later) = rest.split_at(length);
        writer.start_document(3 * length as u64);
        writer.push(document).unwrap();
        rest = later;
    }
    writer.push(rest).unwrap();
    writer.finish().unwrap();
    path
}

fn numbers(count: usize, vocab_size: u64) -> Vec<u32> {
    (0..count as u64).map(|i| (i * 7_919 % vocab_size) as u32).collect()
}

/// Everything that a reader can learn from a shard, or the first error.
fn read_all(path: &Path) -> crate::Result<(Vec<u32>, Vec<u64>)> {
    let shard = Shard::open(path)?;
    let mut tokens = vec![0; shard.header().tokens as usize];
    shard.read(0, &mut tokens)?;
    let mut offsets = vec![0; shard.header().documents as usize];
    shard.document_offsets(0, &mut offsets)?;
    Ok((tokens, offsets))
}

#[test]
fn a_shard_reads_back_what_was_written() {
    let folder = TempDir::new().unwrap();
    for (count, vocab_size) in
        [(0, 10), (1, 10), (100, 65_536), (100, 65_537), (32_768, 300), (40_000, 70_000), (100_000, 50_000)]
    {
        let tokens = numbers(count, vocab_size);
        let path = write_shard(folder.path(), &tokens, &[count / 3, 0, count / 5], vocab_size);
        let (found, offsets) = read_all(&path).unwrap();
        assert_eq!(found, tokens);
        assert_eq!(offsets, [0, count as u64 / 3, count as u64 / 3]);
        let shard = Shard::open(&path).unwrap();
        let header = shard.header();
        assert_eq!(header.token_bytes, if vocab_size <= 65_536 { 2 } else { 4 });
        assert_eq!(
            (header.tokens, header.documents, header.raw_bytes),
            (count as u64, 3, 3 * (count / 3 + count / 5) as u64)
        );
        assert_eq!(header.tokenizer_hash, [7; 32]);
        let blocks = (count as u64 * header.token_bytes).div_ceil(BLOCK_BYTES) + 1;
        assert_eq!(shard.check(&|_| ()).unwrap(), blocks);
    }
}

#[test]
fn a_shard_of_many_blocks_has_the_same_bytes_however_its_tokens_come() {
    let folder = TempDir::new().unwrap();
    let tokens = numbers(600_000, 65_536);
    let narrow: Vec<u16> = tokens.iter().map(|&token| token as u16).collect();
    let lengths: Vec<usize> = (0..150_000).map(|i| i % 4).collect();
    let expected = fs::read(write_shard(folder.path(), &tokens, &lengths, 65_536)).unwrap();
    assert_eq!(
        expected.len(),
        (96 + 1_200_000 + 8 * 150_000)
            + 8 * (1_200_000usize.div_ceil(65_536) + 1_200_000usize.div_ceil(65_536))
            + 32
    );
    let stored: Vec<u8> = narrow.iter().flat_map(|token| token.to_le_bytes()).collect();
    assert_eq!(expected[96..96 + stored.len()], stored);

    let path = folder.path().join("b.shard");
    let mut writer = ShardWriter::create(&path, [7; 32], 65_536).unwrap();
    let mut rest = narrow.as_slice();
    for &length in &lengths {
        let (document, later) = rest.split_at(length);
        writer.start_document(3 * length as u64);
        writer.push(document).unwrap();
        rest = later;
    }
    for part in rest.chunks(77_777) {
        writer.push(part).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), expected);
    assert_eq!(Shard::open(&path).unwrap().check(&|_| ()).unwrap(), 38);
}

#[test]
fn the_layout_is_the_documented_one() {
    let folder = TempDir::new().unwrap();
    let bytes = fs::read(write_shard(folder.path(), &[1, 2, 258], &[2], 300)).unwrap();
    assert_eq!(&bytes[..16], b"IRONSHRD\x01\0\0\0\x02\0\0\0");
    assert_eq!(
        bytes[16..40],
        [[3, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]].concat()
    );
    assert_eq!(bytes[40..72], [7; 32]);
    assert_eq!(bytes[72..88], [44, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[88..96], xxhash_rust::xxh3::xxh3_64(&bytes[..88]).to_le_bytes());
    assert_eq!(bytes[96..102], [1, 0, 2, 0, 2, 1]);
    assert_eq!(bytes[102..110], [0; 8]);
    assert_eq!(bytes[110..118], xxhash_rust::xxh3::xxh3_64(&bytes[96..102]).to_le_bytes());
    assert_eq!(bytes[118..126], xxhash_rust::xxh3::xxh3_64(&bytes[102..110]).to_le_bytes());
    let whole = [&bytes[96..126], &bytes[..96]].concat();
    assert_eq!(&bytes[126..], blake3::hash(&whole).as_bytes());
}

#[test]
fn every_flipped_bit_is_found_and_none_gives_wrong_tokens() {
    let folder = TempDir::new().unwrap();
    let tokens = numbers(50, 300);
    let path = write_shard(folder.path(), &tokens, &[20, 10], 300);
    let right = (tokens, vec![0, 20]);
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, &bad).unwrap();
            let error = Shard::open(&path).and_then(|shard| shard.check(&|_| ())).unwrap_err();
            assert_eq!(error.class(), Class::BadData, "byte {at}, bit {bit}: {error}");
            if let Ok(found) = read_all(&path) {
                assert_eq!(found, right, "byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn every_truncation_and_every_addition_is_found() {
    let folder = TempDir::new().unwrap();
    let path = write_shard(folder.path(), &numbers(50, 300), &[20, 10], 300);
    let good = fs::read(&path).unwrap();
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        let error = Shard::open(&path).unwrap_err();
        assert_eq!(error.class(), Class::BadData);
        assert!(error.to_string().contains("a.shard"), "{error}");
    }
    fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    assert!(Shard::open(&path).is_err());
}

#[test]
fn a_file_cut_while_open_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = write_shard(folder.path(), &numbers(50_000, 300), &[], 300);
    let shard = Shard::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(70_000).unwrap();
    let mut out = [0; 10];
    shard.read(0, &mut out).unwrap();
    let error = shard.read(40_000, &mut out).unwrap_err();
    assert_eq!(error.class(), Class::BadData);
}

#[test]
fn a_bad_block_is_named_and_the_good_ones_still_read() {
    let folder = TempDir::new().unwrap();
    let tokens = numbers(100_000, 300);
    let path = write_shard(folder.path(), &tokens, &[], 300);
    let mut bytes = fs::read(&path).unwrap();
    bytes[96 + 65_536 + 5] ^= 64;
    fs::write(&path, bytes).unwrap();
    let shard = Shard::open(&path).unwrap();
    let mut out = vec![0; 1_000];
    shard.read(0, &mut out).unwrap();
    assert_eq!(out, tokens[..1_000]);
    shard.read(70_000, &mut out).unwrap();
    assert_eq!(out, tokens[70_000..71_000]);
    let message = shard.read(32_000, &mut out).unwrap_err().to_string();
    assert!(message.contains("block 1") && message.contains("byte 65632"), "{message}");
}

/// Rewrites the header and both checksums after a change, as an attacker could.
fn forge(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..88]);
    bytes[88..96].copy_from_slice(&checksum.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn counts_that_cannot_be_true_are_refused_before_use() {
    let folder = TempDir::new().unwrap();
    for field in [16, 24] {
        for value in [u64::MAX, u64::MAX / 2, 1 << 62, 1 << 40, 51] {
            let path = write_shard(folder.path(), &numbers(50, 300), &[20, 10], 300);
            forge(&path, |bytes| bytes[field..field + 8].copy_from_slice(&value.to_le_bytes()));
            assert_eq!(Shard::open(&path).unwrap_err().class(), Class::BadData);
        }
    }
}

#[test]
fn unknown_versions_and_widths_are_refused() {
    let folder = TempDir::new().unwrap();
    for (at, value, expected) in [(8, 2, "version 2"), (12, 4, "4 bytes a token"), (80, 1, "reserved")] {
        let path = write_shard(folder.path(), &numbers(50, 300), &[], 300);
        forge(&path, |bytes| bytes[at] = value);
        let message = Shard::open(&path).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn tokens_outside_the_vocabulary_are_refused_by_writer_and_reader() {
    let folder = TempDir::new().unwrap();
    let mut writer = ShardWriter::create(&folder.path().join("b.shard"), [0; 32], 300).unwrap();
    assert!(writer.push(&[299u32]).is_ok());
    assert!(writer.push(&[300u32]).is_err());
    let path = write_shard(folder.path(), &numbers(50, 300), &[], 300);
    forge(&path, |bytes| bytes[72..80].copy_from_slice(&200u64.to_le_bytes()));
    let shard = Shard::open(&path).unwrap();
    let message = shard.read(0, &mut [0; 5]).unwrap_err().to_string();
    assert!(message.contains("vocabulary has 200"), "{message}");
}

#[test]
fn reads_beyond_the_end_are_errors() {
    let folder = TempDir::new().unwrap();
    let shard = Shard::open(&write_shard(folder.path(), &numbers(50, 300), &[20], 300)).unwrap();
    for position in [46, 50, 51, u64::MAX - 2, u64::MAX] {
        assert!(shard.read(position, &mut [0; 5]).is_err());
    }
    assert!(shard.read(50, &mut []).is_ok());
    assert!(shard.document_offsets(1, &mut [0]).is_err());
}

#[test]
fn an_unfinished_shard_leaves_nothing_behind() {
    let folder = TempDir::new().unwrap();
    let mut writer = ShardWriter::create(&folder.path().join("a.shard"), [0; 32], 300).unwrap();
    writer.push(&numbers(100_000, 300)).unwrap();
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_range_reads_as_written(count in 1usize..90_000, narrow: bool, cuts in prop::collection::vec((0u64..90_000, 0usize..20_000), 1..8)) {
        let folder = TempDir::new().unwrap();
        let vocab_size = if narrow { 60_000 } else { 100_000 };
        let tokens = numbers(count, vocab_size);
        let shard = Shard::open(&write_shard(folder.path(), &tokens, &[], vocab_size)).unwrap();
        for (start, length) in cuts {
            let start = start.min(count as u64);
            let mut out = vec![0; length.min(count - start as usize)];
            shard.read(start, &mut out).unwrap();
            prop_assert_eq!(&out[..], &tokens[start as usize..][..out.len()]);
        }
    }

    #[test]
    fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), magic: bool) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("a.shard");
        let mut bytes = bytes;
        if magic && bytes.len() >= 96 {
            bytes[..16].copy_from_slice(b"IRONSHRD\x01\0\0\0\x02\0\0\0");
            let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[..88]);
            bytes[88..96].copy_from_slice(&checksum.to_le_bytes());
        }
        fs::write(&path, &bytes).unwrap();
        prop_assert!(Shard::open(&path).is_err());
    }
}
