//! Files of pyarrow, made by `tools/make_golden_parquet.py`, in every way that is read here.

use super::*;
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/parquet").join(name)
}

fn texts(path: &Path, key: &str, max_bytes: usize) -> Result<Vec<(u64, String)>> {
    let mut rows = ParquetRows::open(path, "a.parquet", key, max_bytes)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push((row.position, String::from_utf8(row.bytes).unwrap()));
    }
    Ok(found)
}

fn expected() -> Vec<(u64, String)> {
    let rows: Vec<Option<String>> =
        serde_json::from_slice(&std::fs::read(golden("rows.json")).unwrap()).unwrap();
    (0..).zip(rows).filter_map(|(row, text)| Some((row, text?))).collect()
}

const READ: [&str; 5] = ["plain", "snappy-dictionary", "gzip", "zstd-v2", "delta-v2"];

#[test]
fn every_way_of_writing_gives_the_same_rows() {
    for name in READ {
        for key in ["text", "inner.text"] {
            let found = texts(&golden(&format!("{name}.parquet")), key, usize::MAX).unwrap();
            assert_eq!(found, expected(), "{name} {key}");
        }
    }
    let all: Vec<String> = expected().into_iter().map(|(_, text)| text).collect();
    let found: Vec<String> = texts(&golden("required.parquet"), "text", usize::MAX)
        .unwrap()
        .into_iter()
        .map(|row| row.1)
        .collect();
    assert_eq!(found, all);
}

#[test]
fn what_cannot_be_read_is_named() {
    for (file, key, wanted) in [
        ("plain.parquet", "body", &["\"body\"", "id, text, inner.text", "--text-key"][..]),
        ("plain.parquet", "id", &["\"id\"", "text a row"]),
        ("lz4.parquet", "text", &["lz4", "a.parquet"]),
        ("rows.json", "text", &["does not end as a parquet file does"]),
    ] {
        let error = texts(&golden(file), key, usize::MAX).unwrap_err().to_string();
        assert!(wanted.iter().all(|part| error.contains(part)), "{error}");
    }
    let error = texts(&golden("plain.parquet"), "text", 3000).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

#[test]
fn damaged_files_are_errors_and_nothing_worse() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    for name in READ {
        let bytes = std::fs::read(golden(&format!("{name}.parquet"))).unwrap();
        for at in (0..bytes.len()).step_by(97) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x55;
            std::fs::write(&path, &damaged).unwrap();
            // A byte of a text may be any other; all that is asked for is an end.
            let _ = ParquetRows::open(&path, "a.parquet", "text", 1 << 24)
                .map(|mut rows| while let Ok(Some(_)) = rows.next() {});
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert!(texts(&path, "text", 1 << 24).is_err(), "{name} cut at {at}");
        }
    }
}
