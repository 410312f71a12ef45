//! nanoGPT's and llm.c's files: tokens one after the other, with and without a header.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use ironmill_text::Progress;

use super::{Converted, Import, TOKENS_AT_ONCE, TokenReader, bad, name_of, write_tokens};
use crate::dataset::{Dataset, Split};
use crate::error::{Error, Result};
use crate::shard::token_bytes;

/// llm.c's header: so many numbers of four bytes.
const HEADER_NUMBERS: usize = 256;
const HEADER_BYTES: usize = 4 * HEADER_NUMBERS;

/// llm.c's kinds of files: magic, version, bytes of a token.
const KINDS: [(i32, i32, usize); 2] = [(20_240_520, 1, 2), (20_240_801, 7, 4)];

/// llm.c counts tokens in 31 bits, and its own files hold a hundred million.
const MAX_LLMC_TOKENS: u64 = 100_000_000;

pub(super) fn export_nanogpt(
    dataset: &Dataset,
    split: Split,
    out: &Path,
    progress: &dyn Progress,
    converted: &mut Converted,
) -> Result<()> {
    let path = out.join(format!("{}.bin", name_of(split)));
    write_tokens(dataset, split, 0..dataset.split(split).tokens(), 2, &[], &path, progress)?;
    converted.files.push(path);
    Ok(())
}

pub(super) fn import_nanogpt(path: &Path, import: &mut Import<'_>) -> Result<()> {
    let file = File::open(path).map_err(Error::read(path))?;
    let mut tokens = TokenReader::new(file, path, 2, import.tokenizer.vocab_size() as u64, 0);
    loop {
        let some = tokens.read(TOKENS_AT_ONCE)?;
        if some.is_empty() {
            return Ok(());
        }
        import.push_by_ends(some)?;
        import.progress.advance(2 * some.len() as u64);
    }
}

pub(super) fn export_llmc(
    dataset: &Dataset,
    split: Split,
    out: &Path,
    progress: &dyn Progress,
    converted: &mut Converted,
) -> Result<()> {
    let all = dataset.split(split).tokens();
    let (magic, version, width) = KINDS[usize::from(token_bytes(dataset.manifest().vocab_size) == 4)];
    for (number, start) in (0..all).step_by(MAX_LLMC_TOKENS as usize).enumerate() {
        let end = (start + MAX_LLMC_TOKENS).min(all);
        let path = out.join(format!("{}_{number:06}.bin", name_of(split)));
        let mut header = [0; HEADER_BYTES];
        for (field, number) in [magic, version, (end - start) as i32].into_iter().enumerate() {
            header[4 * field..4 * field + 4].copy_from_slice(&number.to_le_bytes());
        }
        write_tokens(dataset, split, start..end, width, &header, &path, progress)?;
        converted.files.push(path);
    }
    Ok(())
}

pub(super) fn import_llmc(path: &Path, import: &mut Import<'_>) -> Result<()> {
    let mut file = File::open(path).map_err(Error::read(path))?;
    let mut header = [0; HEADER_BYTES];
    file.read_exact(&mut header).map_err(|_| bad(path, 0, "it is shorter than llm.c's header".into()))?;
    let number = |field: usize| {
        let bytes = &header[4 * field..4 * field + 4];
        i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let kind = KINDS.into_iter().find(|&(magic, version, _)| number(0) == magic && number(1) == version);
    let Some((_, _, width)) = kind else {
        let reason = format!("magic {} and version {} are none of llm.c's", number(0), number(1));
        return Err(bad(path, 0, reason));
    };
    let promised = number(2).max(0) as u64;
    let mut tokens =
        TokenReader::new(file, path, width, import.tokenizer.vocab_size() as u64, HEADER_BYTES as u64);
    let mut found = 0;
    loop {
        let some = tokens.read(TOKENS_AT_ONCE)?;
        if some.is_empty() {
            break;
        }
        found += some.len() as u64;
        import.push_by_ends(some)?;
        import.progress.advance((width * some.len()) as u64);
    }
    if found != promised {
        return Err(bad(path, 8, format!("its header promises {promised} tokens and it holds {found}")));
    }
    Ok(())
}
