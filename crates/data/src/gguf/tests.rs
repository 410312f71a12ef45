use std::fs;
use std::path::PathBuf;

use super::*;
use crate::safetensors::SafeTensors;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf").join(name)
}

fn numbers(file: &SafeTensors, name: &str) -> Vec<f32> {
    let elements: u64 = file.shape(name).unwrap().iter().product();
    let mut out = vec![0.0; elements as usize];
    file.read_f32(name, &mut out).unwrap();
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn every_type_is_dequantised_to_the_bits_of_the_reference_package() {
    let file = Gguf::open(&golden("types.gguf")).unwrap();
    let values = SafeTensors::open(&golden("values.safetensors")).unwrap();
    assert_eq!(file.tensors().count(), 13);
    for info in file.tensors() {
        assert_eq!(info.shape, values.shape(&info.name).unwrap());
        let expected = numbers(&values, &info.name);
        let mut ours = vec![0.0; expected.len()];
        file.read_f32(&info.name, &mut ours).unwrap();
        assert_eq!(bits(&ours), bits(&expected), "{}", info.name);
    }
}

#[test]
fn metadata_of_every_type_is_read() {
    let file = Gguf::open(&golden("types.gguf")).unwrap();
    let text = |text: &str| Value::Text(text.into());
    for (key, expected) in [
        ("general.architecture", text("test")),
        ("a.u8", Value::Unsigned(200)),
        ("a.i8", Value::Signed(-7)),
        ("a.u16", Value::Unsigned(60_000)),
        ("a.i16", Value::Signed(-300)),
        ("a.u32", Value::Unsigned(4_000_000_000)),
        ("a.i32", Value::Signed(-5)),
        ("a.u64", Value::Unsigned(1 << 60)),
        ("a.i64", Value::Signed(-(1 << 60))),
        ("a.f32", Value::Float(0.5)),
        ("a.f64", Value::Float(0.1)),
        ("a.bool", Value::Bool(true)),
        ("a.text", text("größer")),
        ("a.texts", Value::Texts(vec!["a".into(), String::new(), "ß".into()])),
        ("a.integers", Value::Integers(vec![1, -2, 3])),
        ("a.floats", Value::Floats(vec![0.25, -1.5])),
        ("a.bools", Value::Bools(vec![true, false])),
    ] {
        assert_eq!(file.value(key), Some(&expected), "{key}");
    }
}

#[test]
fn eight_bits_are_quantised_to_the_bytes_of_the_reference_package() {
    let file = SafeTensors::open(&golden("eight_bits.safetensors")).unwrap();
    let mut expected = vec![0; file.shape("blocks").unwrap().iter().product::<u64>() as usize];
    file.read_bytes("blocks", &mut expected).unwrap();
    assert_eq!(f32_bytes(Type::Q8_0, &numbers(&file, "numbers")).unwrap(), expected);
}

#[test]
fn what_is_written_reads_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let metadata = vec![
        ("general.architecture".to_string(), Value::Text("test".into())),
        ("a".to_string(), Value::Unsigned(7)),
        ("b".to_string(), Value::Unsigned(1 << 40)),
        ("c".to_string(), Value::Texts(vec!["x".into(), "yz".into()])),
        ("d".to_string(), Value::Integers(vec![-3, 4])),
        ("e".to_string(), Value::Floats(vec![0.5])),
        ("f".to_string(), Value::Bool(false)),
    ];
    let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.0) / 8.0).collect();
    let tensors = [("one", Type::F32), ("two", Type::F16), ("three", Type::BF16), ("four", Type::Q8_0)];
    let infos = tensors.map(|(name, of)| TensorInfo { name: name.into(), of, shape: vec![2, 32] });
    let mut writer = Writer::create(&path, &metadata, infos.to_vec()).unwrap();
    for (name, _) in tensors {
        writer.tensor(name, &values).unwrap();
    }
    writer.finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    for (key, value) in &metadata {
        assert_eq!(file.value(key), Some(value));
    }
    assert_eq!(file.tensors().cloned().collect::<Vec<_>>(), infos);
    for (name, of) in tensors {
        let mut read = vec![0.0; 64];
        file.read_f32(name, &mut read).unwrap();
        let bound = if of == Type::Q8_0 { 0.02 } else { 0.0 };
        assert!(read.iter().zip(&values).all(|(a, b)| (a - b).abs() <= bound), "{name}");
    }
}

#[test]
fn hostile_headers_are_errors_that_say_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.gguf");
    let good = fs::read(golden("types.gguf")).unwrap();
    let check = |bytes: &[u8], part: &str| {
        fs::write(&path, bytes).unwrap();
        let message = Gguf::open(&path).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    let with = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    check(b"GGU", "more than there is");
    check(&with(0, b"GGML"), "does not begin");
    check(&with(4, &9u32.to_le_bytes()), "version 9");
    check(&with(4, &3u32.to_be_bytes()), "big-endian");
    check(&with(8, &(1u64 << 63).to_le_bytes()), "tensors at byte");
    check(&with(16, &u64::MAX.to_le_bytes()), "metadata entries at byte");
    // The length of the first key.
    check(&with(24, &(1u64 << 63).to_le_bytes()), "a text at byte");
    check(&good[..good.len() - 1000], "ends outside the file");
    check(&good[..100], "more than there is");
    let place = good.windows(3).position(|window| window == b"f32").unwrap();
    let tensor = good.windows(11).position(|window| window == b"\x03\0\0\0\0\0\0\0f32").unwrap();
    assert!(tensor > place);
    // Dimensions of the tensor, the fastest first.
    check(&with(tensor + 15, &u64::MAX.to_le_bytes()), "cannot be F32");
    check(&with(tensor + 11, &5u32.to_le_bytes()), "5 dimensions");
    check(&with(tensor + 39, &99u32.to_le_bytes()), "type 99");
    check(&with(tensor + 43, &7u64.to_le_bytes()), "no multiple of 32");
    check(&with(tensor + 43, &32u64.to_le_bytes()), "overlap");
    check(&with(tensor + 43, &(u64::MAX - 31).to_le_bytes()), "ends outside the file");
}
