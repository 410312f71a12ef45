use std::fs;

use ironmill_text::Silent;
use tempfile::TempDir;

use super::*;
use crate::testing::{inputs, prepare_quietly, tokenizer};
use crate::{Class, PrepareOptions};

/// A small data set with several shards in each split.
fn dataset() -> TempDir {
    let folder = TempDir::new().unwrap();
    let rows: String = (0..20).map(|i| format!("{{\"text\": \"the cat {i} sat\"}}\n")).collect();
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, rows).unwrap();
    let options = PrepareOptions { validation: 0.4, shard_tokens: 40, ..PrepareOptions::default() };
    prepare_quietly(&inputs(&[&path]), &folder.path().join("out"), &options).unwrap();
    folder
}

/// All tokens of both splits, or the first error.
fn read_all(dir: &Path) -> Result<Vec<Vec<u32>>> {
    let dataset = Dataset::open(dir)?;
    Split::ALL
        .into_iter()
        .map(|split| {
            let stream = dataset.split(split);
            let mut tokens = vec![0; stream.tokens() as usize];
            stream.read(0, &mut tokens).map(|()| tokens)
        })
        .collect()
}

#[test]
fn every_flipped_bit_of_shards_and_manifest_is_found() {
    let folder = dataset();
    let out = folder.path().join("out");
    let right = read_all(&out).unwrap();
    for name in ["train-00000.shard", "validation-00000.shard", "manifest.json"] {
        let path = out.join(name);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            let error = verify(&out, &Silent).unwrap_err();
            assert_eq!(error.class(), Class::BadData, "{name}, byte {at}: {error}");
            assert!(error.to_string().contains(name), "byte {at}: {error}");
            if let Ok(found) = read_all(&out) {
                assert_eq!(found, right, "{name}, byte {at}");
            }
        }
        fs::write(&path, &good).unwrap();
    }
    verify(&out, &Silent).unwrap();
}

#[test]
fn every_bit_of_the_manifest_counts() {
    let folder = dataset();
    let path = folder.path().join("out/manifest.json");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            fs::write(&path, &bad).unwrap();
            assert!(Manifest::load(&folder.path().join("out")).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn every_truncation_of_shards_and_manifest_is_found() {
    let folder = dataset();
    let out = folder.path().join("out");
    for name in ["train-00000.shard", "manifest.json"] {
        let path = out.join(name);
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            let error = verify(&out, &Silent).unwrap_err();
            assert_eq!(error.class(), Class::BadData, "{name} cut to {length}: {error}");
            assert!(read_all(&out).is_err());
        }
        fs::write(&path, &good).unwrap();
    }
}

#[test]
fn missing_and_exchanged_shards_are_found() {
    let folder = dataset();
    let out = folder.path().join("out");
    fs::rename(out.join("train-00000.shard"), out.join("aside")).unwrap();
    let message = verify(&out, &Silent).unwrap_err().to_string();
    assert!(message.contains("train-00000.shard") && message.contains("missing"), "{message}");
    fs::copy(out.join("train-00001.shard"), out.join("train-00000.shard")).unwrap();
    let message = verify(&out, &Silent).unwrap_err().to_string();
    assert!(message.contains("not the shard that the manifest lists"), "{message}");
}

#[test]
fn a_folder_without_a_manifest_is_no_data_set() {
    let folder = TempDir::new().unwrap();
    let error = verify(folder.path(), &Silent).unwrap_err();
    assert_eq!(error.class(), Class::NoInput);
    assert!(error.to_string().contains("data prepare"), "{error}");
}

#[test]
fn a_manifest_of_another_version_is_refused_by_name() {
    let folder = dataset();
    let out = folder.path().join("out");
    let mut manifest = Manifest::load(&out).unwrap();
    manifest.version = 3;
    manifest.save(&out).unwrap();
    let message = Manifest::load(&out).unwrap_err().to_string();
    assert!(message.contains("version 3"), "{message}");
}

#[test]
fn a_manifest_cannot_lead_out_of_its_folder_or_lie_about_sums() {
    let folder = dataset();
    let out = folder.path().join("out");
    let good = Manifest::load(&out).unwrap();
    for file in ["../secret", "/etc/passwd", "a/b", "..", ""] {
        let mut manifest = good.clone();
        manifest.train.shards[0].file = file.into();
        manifest.save(&out).unwrap();
        assert!(Manifest::load(&out).is_err(), "{file}");
    }
    let mut manifest = good.clone();
    manifest.train.tokens += 1;
    manifest.save(&out).unwrap();
    assert!(Manifest::load(&out).is_err());
}

#[test]
fn inspect_shows_the_beginnings_of_documents() {
    let folder = dataset();
    let out = folder.path().join("out");
    let summary = inspect(&out).unwrap();
    assert_eq!(summary, inspect(&out).unwrap());
    assert!(summary.bytes > 0 && summary.samples.len() >= 2);
    let tokenizer = tokenizer();
    for sample in &summary.samples {
        let text = String::from_utf8(tokenizer.decode(&sample.tokens).unwrap()).unwrap();
        assert!(text.starts_with("the cat"), "{text}");
    }
}

#[test]
fn another_tokenizer_is_a_mismatch_with_advice() {
    let folder = dataset();
    let dataset = Dataset::open(&folder.path().join("out")).unwrap();
    dataset.check_tokenizer(&tokenizer().hash()).unwrap();
    let error = dataset.check_tokenizer(&[0; 32]).unwrap_err();
    assert_eq!(error.class(), Class::Mismatch);
    assert!(error.to_string().contains("prepare again or pass --tokenizer"), "{error}");
}
