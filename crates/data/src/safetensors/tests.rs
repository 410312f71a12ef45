use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::Class;

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn raw_file(dir: &Path, header: &str, data: &[u8]) -> PathBuf {
    let path = dir.join("raw.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()).unwrap();
    path
}

#[test]
fn tensors_read_back_in_the_order_they_were_written() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    let (b, a) = (bytes_of(&[1.0, -2.5, 3.0, 0.5, 0.0, f32::MAX]), 7u64.to_le_bytes());
    let tensors = [
        TensorView { name: "b", dtype: Dtype::F32, shape: &[2, 3], bytes: &b },
        TensorView { name: "empty", dtype: Dtype::F32, shape: &[0, 4], bytes: &[] },
        TensorView { name: "a", dtype: Dtype::I64, shape: &[], bytes: &a },
    ];
    write(&path, &tensors, &[("step".into(), "12".into())]).unwrap();
    let file = SafeTensors::open(&path).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["b", "empty", "a"]);
    assert_eq!(file.shape("b").unwrap(), [2, 3]);
    assert_eq!(file.info("a").unwrap().dtype, Dtype::I64);
    assert_eq!(file.metadata(), [("format".into(), "pt".into()), ("step".into(), "12".into())]);
    let mut values = [0.0; 6];
    file.read_f32("b", &mut values).unwrap();
    assert_eq!(values, [1.0, -2.5, 3.0, 0.5, 0.0, f32::MAX]);
    let mut bytes = [0; 8];
    file.read_bytes("a", &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 7);
    file.read_f32("empty", &mut []).unwrap();
}

#[test]
fn the_header_is_padded_so_that_the_data_are_aligned() {
    let folder = TempDir::new().unwrap();
    for name in ["a", "ab", "abc", "abcdefgh"] {
        let path = folder.path().join("m.safetensors");
        write(&path, &[TensorView { name, dtype: Dtype::F32, shape: &[1], bytes: &bytes_of(&[1.0]) }], &[])
            .unwrap();
        let bytes = fs::read(&path).unwrap();
        let header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(header_bytes % 8, 0);
        assert_eq!(bytes.len() as u64, 8 + header_bytes + 4);
        assert!(bytes[8..].starts_with(b"{\"__metadata__\":{\"format\":\"pt\"},"));
    }
}

#[test]
fn half_precision_and_double_are_converted_to_f32() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    let values: Vec<f32> = (0..10_000).map(|i| (i as f32 - 5_000.0) / 8.0).collect();
    let f16: Vec<u8> = values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let bf16: Vec<u8> = values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
    let f64: Vec<u8> = values.iter().flat_map(|&v| f64::from(v).to_le_bytes()).collect();
    let shape = &[values.len() as u64][..];
    let view = |name, dtype, bytes| TensorView { name, dtype, shape, bytes };
    let tensors =
        [view("f16", Dtype::F16, &f16[..]), view("bf16", Dtype::BF16, &bf16), view("f64", Dtype::F64, &f64)];
    write(&path, &tensors, &[]).unwrap();
    let file = SafeTensors::open(&path).unwrap();
    let mut out = vec![0.0; values.len()];
    file.read_f32("f64", &mut out).unwrap();
    assert_eq!(out, values);
    file.read_f32("f16", &mut out).unwrap();
    assert!(out.iter().zip(&values).all(|(a, b)| *a == half::f16::from_f32(*b).to_f32()));
    file.read_f32("bf16", &mut out).unwrap();
    assert!(out.iter().zip(&values).all(|(a, b)| *a == half::bf16::from_f32(*b).to_f32()));
}

#[test]
fn wrong_names_types_and_lengths_are_mismatches() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    write(&path, &[TensorView { name: "ids", dtype: Dtype::U32, shape: &[2], bytes: &[0; 8] }], &[]).unwrap();
    let file = SafeTensors::open(&path).unwrap();
    assert_eq!(file.read_f32("ids", &mut [0.0; 2]).unwrap_err().class(), Class::Mismatch);
    assert_eq!(file.read_bytes("ids", &mut [0; 7]).unwrap_err().class(), Class::Mismatch);
    let message = file.shape("weights").unwrap_err().to_string();
    assert!(message.contains("weights") && message.contains("missing"), "{message}");
    assert!(!file.contains("weights") && file.contains("ids"));
}

#[test]
fn a_writer_holds_its_caller_to_what_was_declared() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    let info = |name: &str| TensorInfo { name: name.into(), dtype: Dtype::U8, shape: vec![4] };
    let start = || Writer::create(&path, vec![info("a"), info("b")], &[]).unwrap();
    assert!(start().tensor("b", &[0; 4]).is_err());
    assert!(start().tensor("a", &[0; 5]).is_err());
    assert!(start().tensor("a", &[0; 3]).is_err());
    let mut writer = start();
    writer.part("a", &[1, 2]).unwrap();
    writer.part("a", &[3, 4]).unwrap();
    assert!(writer.finish().is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left of unfinished files");
    assert!(Writer::create(&path, vec![info("a"), info("a")], &[]).is_err());
    assert!(Writer::create(&path, vec![info("__metadata__")], &[]).is_err());
    let huge = TensorInfo { name: "h".into(), dtype: Dtype::F64, shape: vec![u64::MAX, 2] };
    assert!(Writer::create(&path, vec![huge], &[]).is_err());
}

#[test]
fn hostile_headers_are_errors() {
    let folder = TempDir::new().unwrap();
    let one = |offsets: &str| format!(r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}}}"#);
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
        )
    };
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let cases = [
        ("out of range", one("[0,5]")),
        ("reversed", one("[4,0]")),
        ("offset by one", one("[1,5]")),
        ("near the end of u64", one("[18446744073709551612,18446744073709551615]")),
        ("beyond u64", one("[0,18446744073709551616]")),
        ("negative", one("[-4,0]")),
        ("three offsets", one("[0,4,4]")),
        ("overlapping", two("[0,4]", "[2,6]")),
        ("hole", two("[0,4]", "[5,9]")),
        ("repeated name", two("[0,4]", "[4,8]").replace(r#""b":"#, r#""a":"#)),
        ("trailing bytes", one("[0,4]")),
        ("wrong size", one("[0,8]")),
        ("unknown dtype", one("[0,8]").replace("U8", "U7")),
        ("unknown field", one("[0,8]").replace("[4]", "[8],\"extra\":1")),
        ("missing field", r#"{"a":{"dtype":"U8","shape":[8]}}"#.into()),
        ("overflowing shape", one("[0,8]").replace("[4]", "[4294967296,4294967296,4294967296]")),
        ("metadata twice", r#"{"__metadata__":{},"__metadata__":{}}"#.into()),
        ("metadata not strings", r#"{"__metadata__":{"a":1}}"#.into()),
        ("array", "[]".into()),
        ("leading space", format!(" {}", one("[0,8]").replace("[4]", "[8]"))),
        ("text after", format!("{} x", one("[0,8]").replace("[4]", "[8]"))),
        ("cut", one("[0,8]")[..20].into()),
        ("empty", String::new()),
        ("deep", deep),
    ];
    for (what, header) in cases {
        let error = SafeTensors::open(&raw_file(folder.path(), &header, &[0; 8])).map(|_| ()).unwrap_err();
        assert_eq!(error.class(), Class::BadData, "{what}: {error}");
    }
    let good = one("[0,8]").replace("[4]", "[8]") + "   ";
    assert!(SafeTensors::open(&raw_file(folder.path(), &good, &[0; 8])).is_ok());
}

#[test]
fn header_lengths_are_checked_before_anything_is_allocated() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    for length in [1 << 63, u64::MAX, u64::MAX - 7, MAX_HEADER_BYTES + 1, 9, 3] {
        fs::write(&path, [&u64::to_le_bytes(length)[..], b"{}      "].concat()).unwrap();
        assert!(SafeTensors::open(&path).is_err(), "{length}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("m.safetensors");
    write(&path, &[TensorView { name: "a", dtype: Dtype::F32, shape: &[3], bytes: &[1; 12] }], &[]).unwrap();
    let good = fs::read(&path).unwrap();
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        assert!(SafeTensors::open(&path).is_err(), "{length}");
    }
}

#[test]
fn dtypes_are_known_by_their_names() {
    for (dtype, name, bytes) in Dtype::ALL {
        assert_eq!((dtype.name(), dtype.bytes(), Dtype::from_name(name)), (name, bytes, Some(dtype)));
    }
}

proptest! {
    #[test]
    fn damaged_files_never_panic(at in 0usize..200, value: u8) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("m.safetensors");
        write(&path, &[TensorView { name: "a", dtype: Dtype::F32, shape: &[3], bytes: &[1; 12] }], &[]).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = at % bytes.len();
        bytes[at] = value;
        fs::write(&path, bytes).unwrap();
        if let Ok(file) = SafeTensors::open(&path) {
            let names: Vec<String> = file.names().map(String::from).collect();
            for name in names {
                let _ = file.read_f32(&name, &mut [0.0; 3]);
            }
        }
    }
}
