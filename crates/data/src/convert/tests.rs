use std::fs;

use ironmill_text::Silent;
use tempfile::TempDir;

use super::*;
use crate::testing::{inputs, prepare_quietly, tokenizer};
use crate::{Class, PrepareOptions, verify};

/// A data set of several shards and documents of many lengths, of which some go over a border of shards.
fn dataset(folder: &TempDir) -> PathBuf {
    let rows: String = (0..60)
        .map(|i| format!("{{\"text\": \"document {i} {}\"}}\n", "the cat sat ".repeat(i * 7 % 23)))
        .collect();
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, rows).unwrap();
    let out = folder.path().join("data");
    let options = PrepareOptions { validation: 0.2, shard_tokens: 500, ..PrepareOptions::default() };
    prepare_quietly(&inputs(&[&path]), &out, &options).unwrap();
    out
}

/// Tokens and starts of documents of both splits.
fn streams(dir: &Path) -> [(Vec<u32>, Vec<u64>); 2] {
    let dataset = Dataset::open(dir).unwrap();
    Split::ALL.map(|split| {
        let stream = dataset.split(split);
        let mut tokens = vec![0; stream.tokens() as usize];
        stream.read(0, &mut tokens).unwrap();
        (tokens, stream.document_starts().unwrap())
    })
}

/// As `np.fromfile(path, dtype=np.uint16)`.
fn read_u16(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 8).collect()
}

fn number(bytes: &[u8], at: usize, n_bytes: usize) -> u64 {
    (0..n_bytes).map(|i| u64::from(bytes[at + i]) << (8 * i)).sum()
}

#[test]
fn nanogpt_reads_what_is_written() {
    let folder = TempDir::new().unwrap();
    let (data, out) = (dataset(&folder), folder.path().join("out"));
    let converted = export(&data, TokenFormat::NanoGpt, &out, &Silent).unwrap();
    assert_eq!(converted.files.len(), 2);
    for (name, (tokens, _)) in ["train", "val"].iter().zip(streams(&data)) {
        assert!(read_u16(&fs::read(out.join(format!("{name}.bin"))).unwrap()) == tokens, "{name}");
    }
}

#[test]
fn llmc_reads_what_is_written() {
    let folder = TempDir::new().unwrap();
    let (data, out) = (dataset(&folder), folder.path().join("out"));
    export(&data, TokenFormat::LlmC, &out, &Silent).unwrap();
    for (name, (tokens, _)) in ["train", "val"].iter().zip(streams(&data)) {
        let bytes = fs::read(out.join(format!("{name}_000000.bin"))).unwrap();
        assert_eq!(number(&bytes, 0, 4), 20_240_520);
        assert_eq!(number(&bytes, 4, 4), 1);
        assert_eq!(number(&bytes, 8, 4), tokens.len() as u64);
        assert!(bytes[12..1024].iter().all(|&byte| byte == 0));
        assert!(read_u16(&bytes[1024..]) == tokens, "{name}");
    }
}

#[test]
fn megatron_reads_what_is_written() {
    let folder = TempDir::new().unwrap();
    let (data, out) = (dataset(&folder), folder.path().join("out"));
    export(&data, TokenFormat::Megatron, &out, &Silent).unwrap();
    for (name, (tokens, starts)) in ["train", "val"].iter().zip(streams(&data)) {
        let bin = fs::read(out.join(format!("{name}.bin"))).unwrap();
        let idx = fs::read(out.join(format!("{name}.idx"))).unwrap();
        assert_eq!(&idx[..9], b"MMIDIDX\0\0");
        assert_eq!((number(&idx, 9, 8), idx[17]), (1, 8));
        let (sequences, borders) = (number(&idx, 18, 8) as usize, number(&idx, 26, 8) as usize);
        assert_eq!((sequences, borders), (starts.len(), starts.len() + 1));
        let (places_at, borders_at) = (34 + 4 * sequences, 34 + 12 * sequences);
        assert_eq!(idx.len(), borders_at + 8 * borders);
        let mut joined = Vec::new();
        for (sequence, start) in starts.iter().enumerate() {
            let length = number(&idx, 34 + 4 * sequence, 4) as usize;
            let place = number(&idx, places_at + 8 * sequence, 8) as usize;
            assert_eq!(place as u64, 2 * start);
            joined.extend(read_u16(&bin[place..place + 2 * length]));
        }
        assert!(joined == tokens, "{name}");
        for border in 0..borders {
            assert_eq!(number(&idx, borders_at + 8 * border, 8), border as u64);
        }
    }
}

#[test]
fn what_is_written_is_read_back_token_for_token() {
    let folder = TempDir::new().unwrap();
    let data = dataset(&folder);
    let before = Dataset::open(&data).unwrap().manifest().clone();
    for format in [TokenFormat::NanoGpt, TokenFormat::LlmC, TokenFormat::Megatron] {
        let (out, back) = (folder.path().join("out"), folder.path().join("back"));
        let there = export(&data, format, &out, &Silent).unwrap();
        let again = import(&out, format, &tokenizer(), &back, 300, &Silent).unwrap();
        assert_eq!((there.tokens, there.documents), (again.tokens, again.documents), "{format:?}");
        assert!(streams(&back) == streams(&data), "{format:?}");
        let report = verify(&back, &Silent).unwrap();
        assert_eq!(report.raw_bytes, before.train.raw_bytes + before.validation.raw_bytes);
        let error = import(&out, format, &tokenizer(), &back, 300, &Silent).unwrap_err();
        assert!(matches!(error, Error::AlreadyADataset { .. }), "{error}");
        fs::remove_dir_all(&out).unwrap();
        fs::remove_dir_all(&back).unwrap();
    }
}

#[test]
fn wide_tokens_take_four_bytes() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let tokens = [0, 65_535, 65_536, 69_999, 7];
    let mut writer = ShardWriter::create(&data.join("train-00000.shard"), [3; 32], 70_000).unwrap();
    writer.start_document(5);
    writer.push(&tokens).unwrap();
    let mut record = SplitRecord::default();
    record.push("train-00000.shard".into(), &writer.finish().unwrap());
    let other = TempDir::new().unwrap();
    let mut manifest = Dataset::open(&dataset(&other)).unwrap().manifest().clone();
    (manifest.train, manifest.validation) = (record, SplitRecord::default());
    (manifest.tokenizer_hash, manifest.vocab_size) = (hex(&[3; 32]), 70_000);
    manifest.sections.clear();
    manifest.save(&data).unwrap();
    let out = folder.path().join("out");
    let error = export(&data, TokenFormat::NanoGpt, &out, &Silent).unwrap_err();
    assert_eq!(error.class(), Class::BadSetting);
    let wide = |bytes: &[u8]| bytes.chunks(4).map(|four| number(four, 0, 4) as u32).collect::<Vec<_>>();
    export(&data, TokenFormat::LlmC, &out, &Silent).unwrap();
    let bytes = fs::read(out.join("train_000000.bin")).unwrap();
    assert_eq!((number(&bytes, 0, 4), number(&bytes, 4, 4)), (20_240_801, 7));
    assert_eq!(wide(&bytes[1024..]), tokens);
    export(&data, TokenFormat::Megatron, &out, &Silent).unwrap();
    assert_eq!(fs::read(out.join("train.idx")).unwrap()[17], 4);
    assert_eq!(wide(&fs::read(out.join("train.bin")).unwrap()), tokens);
}

#[test]
fn foreign_files_that_are_wrong_are_named_with_the_place() {
    let folder = TempDir::new().unwrap();
    let data = dataset(&folder);
    let out = folder.path().join("out");
    let check = |format: TokenFormat, file: &str, change: &dyn Fn(&mut Vec<u8>), expected: &str| {
        export(&data, format, &out, &Silent).unwrap();
        let path = out.join(file);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let error =
            import(&out, format, &tokenizer(), &folder.path().join("back"), 300, &Silent).unwrap_err();
        assert_eq!(error.class(), Class::BadData, "{error}");
        let said = error.to_string();
        assert!(said.contains(file) && said.contains(expected), "{said}");
        assert!(!folder.path().join("back/manifest.json").exists());
        fs::remove_dir_all(&out).unwrap();
    };
    check(TokenFormat::NanoGpt, "train.bin", &|bytes| bytes[11] = 0xff, "(at byte 10)");
    check(TokenFormat::NanoGpt, "train.bin", &|bytes| bytes.truncate(bytes.len() - 1), "ends inside a token");
    check(TokenFormat::LlmC, "val_000000.bin", &|bytes| bytes[0] = 0, "none of llm.c's");
    check(TokenFormat::LlmC, "train_000000.bin", &|bytes| bytes.truncate(1030), "promises");
    check(TokenFormat::LlmC, "train_000000.bin", &|bytes| bytes.truncate(100), "shorter than");
    check(TokenFormat::Megatron, "train.idx", &|bytes| bytes[0] = 0, "no index of Megatron's");
    check(TokenFormat::Megatron, "train.idx", &|bytes| bytes.truncate(bytes.len() - 1), "do not fit");
    check(TokenFormat::Megatron, "train.idx", &|bytes| bytes[34] ^= 1, "does not start where");
    check(TokenFormat::Megatron, "val.bin", &|bytes| bytes.truncate(100), "ends before its index");
    check(TokenFormat::Megatron, "val.bin", &|bytes| bytes.extend([1, 0]), "goes on where");
    let error = import(&folder.path().join("gone"), TokenFormat::LlmC, &tokenizer(), &out, 300, &Silent);
    assert_eq!(error.unwrap_err().class(), Class::NoInput);
}
