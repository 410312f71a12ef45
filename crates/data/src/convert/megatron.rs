//! Megatron-LM's indexed files: tokens in `.bin`, and in `.idx` where each document lies.
//!
//! The index: 9 bytes `MMIDIDX\0\0`; `u64` version 1; `u8` kind of the tokens (8 is `u16`, 4 is `i32`); `u64` number of
//! sequences `S`; `u64` number of borders of documents `D`; `S` lengths as `i32`, in tokens; `S` places as `i64`, in bytes; `D`
//! borders as `i64`, in sequences, from 0 to `S`. A document of ours is one sequence; one of theirs may have several.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ironmill_text::Progress;
use ironmill_text::durable::StagedFile;

use super::{Converted, Import, TOKENS_AT_ONCE, TokenReader, bad, name_of, write_tokens};
use crate::dataset::{Dataset, Split};
use crate::error::{Error, Result};

const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const VERSION: u64 = 1;
/// Where the lengths start.
const LENGTHS_AT: u64 = 34;

/// Kinds of tokens and their bytes. Megatron writes 16 bits for vocabularies below 65,500.
const NARROW: (u8, usize) = (8, 2);
const WIDE: (u8, usize) = (4, 4);
const NARROW_VOCAB: u64 = 65_500;

/// The longest sequence that its lengths can tell.
const MAX_LENGTH: u64 = i32::MAX as u64;

pub(super) fn export(
    dataset: &Dataset,
    split: Split,
    out: &Path,
    progress: &dyn Progress,
    converted: &mut Converted,
) -> Result<()> {
    let (kind, width) = if dataset.manifest().vocab_size < NARROW_VOCAB { NARROW } else { WIDE };
    let path = out.join(format!("{}.bin", name_of(split)));
    write_tokens(dataset, split, 0..dataset.split(split).tokens(), width, &[], &path, progress)?;

    let index_path = path.with_extension("idx");
    let write = Error::write;
    let mut index = StagedFile::create(&index_path).map_err(write(&index_path))?;
    let documents = dataset.split(split).documents();
    let mut put = |bytes: &[u8]| index.write_all(bytes).map_err(write(&index_path));
    put(MAGIC)?;
    put(&VERSION.to_le_bytes())?;
    put(&[kind])?;
    put(&documents.to_le_bytes())?;
    put(&(documents + 1).to_le_bytes())?;
    for_each_document(dataset, split, |start, end| {
        if end - start > MAX_LENGTH {
            return Err(Error::BadSetting {
                name: "to",
                value: "megatron".into(),
                advice: format!("a document of {} tokens is longer than its index can tell", end - start),
            });
        }
        put(&((end - start) as i32).to_le_bytes())
    })?;
    for_each_document(dataset, split, |start, _| put(&(start * width as u64).to_le_bytes()))?;
    for border in 0..=documents {
        put(&border.to_le_bytes())?;
    }
    index.commit().map_err(write(&index_path))?;
    converted.files.extend([path, index_path]);
    Ok(())
}

/// Gives the places of all documents of a split in order, without holding them.
fn for_each_document(
    dataset: &Dataset,
    split: Split,
    mut visit: impl FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let mut offsets = vec![0; TOKENS_AT_ONCE];
    let (mut shard_start, mut open) = (0, None);
    for shard in dataset.shards(split) {
        let documents = shard.header().documents;
        let mut first = 0;
        while first < documents {
            let count = (documents - first).min(TOKENS_AT_ONCE as u64) as usize;
            shard.document_offsets(first, &mut offsets[..count])?;
            for offset in &offsets[..count] {
                let start = shard_start + offset;
                if let Some(before) = open.replace(start) {
                    visit(before, start)?;
                }
            }
            first += count as u64;
        }
        shard_start += shard.header().tokens;
    }
    open.map_or(Ok(()), |last| visit(last, shard_start))
}

pub(super) fn import(path: &Path, import: &mut Import<'_>) -> Result<()> {
    let index_path = path.with_extension("idx");
    let open =
        |path: &Path| File::open(path).map_err(|_| Error::MissingInput { path: path.display().to_string() });
    let mut header = [0; LENGTHS_AT as usize];
    let mut lengths = BufReader::new(open(&index_path)?);
    lengths
        .read_exact(&mut header)
        .map_err(|_| bad(&index_path, 0, "it is shorter than its header".into()))?;
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
    if &header[..9] != MAGIC || number(9) != VERSION {
        return Err(bad(&index_path, 0, "it is no index of Megatron's, version 1".into()));
    }
    let Some((_, width)) = [NARROW, WIDE].into_iter().find(|&(kind, _)| kind == header[17]) else {
        return Err(bad(&index_path, 17, format!("tokens of kind {} are neither u16 nor i32", header[17])));
    };
    let (sequences, borders) = (number(18), number(26));
    let promised = sequences
        .checked_mul(12)
        .and_then(|bytes| bytes.checked_add(borders.checked_mul(8)?))
        .and_then(|bytes| bytes.checked_add(LENGTHS_AT));
    let found = index_path.metadata().map_err(Error::read(&index_path))?.len();
    if promised != Some(found) || borders == 0 {
        return Err(bad(
            &index_path,
            18,
            format!("{sequences} sequences and {borders} borders do not fit its {found} bytes"),
        ));
    }
    // Lengths, places and borders are read side by side, so that no index has to fit the memory.
    let at = |offset: u64| -> Result<BufReader<File>> {
        let mut part = BufReader::new(open(&index_path)?);
        part.seek(SeekFrom::Start(offset)).map_err(Error::read(&index_path))?;
        Ok(part)
    };
    let (mut places, mut ends) = (at(LENGTHS_AT + 4 * sequences)?, at(LENGTHS_AT + 12 * sequences)?);
    let read = |part: &mut BufReader<File>, bytes: &mut [u8]| {
        part.read_exact(bytes).map_err(Error::read(&index_path))
    };
    let (mut four, mut eight) = ([0; 4], [0; 8]);
    let vocab_size = import.tokenizer.vocab_size() as u64;
    let mut tokens = TokenReader::new(BufReader::new(open(path)?), path, width, vocab_size, 0);
    read(&mut ends, &mut eight)?;
    let (mut border, mut n_borders) = (u64::from_le_bytes(eight), 1);
    for sequence in 0..sequences {
        read(&mut lengths, &mut four)?;
        read(&mut places, &mut eight)?;
        let (length, place) = (i32::from_le_bytes(four), u64::from_le_bytes(eight));
        if length < 0 || place != tokens.offset {
            let at = LENGTHS_AT + 4 * sequences + 8 * sequence;
            let reason = format!("sequence {sequence} does not start where the one before it ends");
            return Err(bad(&index_path, at, reason));
        }
        while border == sequence {
            import.begin_document();
            if n_borders == borders {
                break;
            }
            read(&mut ends, &mut eight)?;
            (border, n_borders) = (u64::from_le_bytes(eight), n_borders + 1);
        }
        let mut left = length as usize;
        while left > 0 {
            let some = tokens.read(left)?;
            if some.is_empty() {
                return Err(bad(path, tokens.offset, "it ends before its index does".into()));
            }
            left -= some.len();
            import.push(some)?;
            import.progress.advance((width * some.len()) as u64);
        }
    }
    match tokens.read(1)?.is_empty() {
        true => Ok(()),
        false => Err(bad(path, tokens.offset, "it goes on where its index ends".into())),
    }
}
