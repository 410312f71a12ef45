use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ironmill_text::Silent;
use tempfile::TempDir;

use super::*;
use crate::testing::{inputs, inputs_with, prepare_quietly, tokenizer};
use crate::{Class, InputOptions, Split, TokenStream, verify};

/// A JSON lines file of so many documents, which differ in length.
fn corpus(folder: &TempDir, documents: usize) -> PathBuf {
    let row = |i: usize| format!("{{\"text\": \"document {i} {}\"}}\n", "the cat sat ".repeat(i * 7 % 50));
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, (0..documents).map(row).collect::<String>()).unwrap();
    path
}

fn options(validation: f64, shard_tokens: u64, threads: usize) -> PrepareOptions {
    PrepareOptions { validation, shard_tokens, threads }
}

fn all_tokens(stream: &TokenStream) -> Vec<u32> {
    let mut tokens = vec![0; stream.tokens() as usize];
    stream.read(0, &mut tokens).unwrap();
    tokens
}

fn names_in(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn splits_hold_every_document_in_order_with_its_end_of_text() {
    let folder = TempDir::new().unwrap();
    let inputs = inputs(&[&corpus(&folder, 300)]);
    let out = folder.path().join("out");
    let prepared = prepare_quietly(&inputs, &out, &options(0.1, 1_000, 3)).unwrap();
    assert!(!prepared.reused);
    let manifest = &prepared.manifest;
    assert!(manifest.train.shards.len() > 5);
    assert!(manifest.train.shards.iter().rev().skip(1).all(|shard| shard.tokens == 1_000));
    assert_eq!(manifest.train.documents + manifest.validation.documents, 300);
    assert!((15..50).contains(&manifest.validation.documents), "{}", manifest.validation.documents);

    let tokenizer = tokenizer();
    let dataset = Dataset::open(&out).unwrap();
    let mut streams = Split::ALL.map(|split| all_tokens(dataset.split(split)));
    let mut raw_bytes = 0;
    inputs
        .for_each(|document| {
            let mut expected = Vec::new();
            tokenizer.encode(document.text.as_bytes(), &mut expected).unwrap();
            expected.extend(tokenizer.end_of_text());
            let stream = streams.iter_mut().find(|stream| stream.starts_with(&expected)).unwrap();
            stream.drain(..expected.len());
            raw_bytes += document.text.len() as u64;
            Ok(())
        })
        .unwrap();
    assert!(streams.iter().all(Vec::is_empty));
    assert_eq!(manifest.train.raw_bytes + manifest.validation.raw_bytes, raw_bytes);
    let report = verify(&out, &Silent).unwrap();
    assert_eq!(report.documents, 300);
    assert_eq!(report.shards as usize, manifest.train.shards.len() + manifest.validation.shards.len());
}

#[test]
fn the_bytes_written_do_not_depend_on_the_number_of_threads() {
    let folder = TempDir::new().unwrap();
    let inputs = Inputs::from_specs(&["builtin:stories:3MB".into()], &InputOptions::default()).unwrap();
    let written = |threads: usize| {
        let out = folder.path().join(format!("out-{threads}"));
        prepare_quietly(&inputs, &out, &options(0.05, 100_000, threads)).unwrap();
        names_in(&out).into_iter().map(|name| (fs::read(out.join(&name)).unwrap(), name)).collect::<Vec<_>>()
    };
    let one = written(1);
    assert!(one.len() > 4);
    for threads in [2, 4] {
        assert!(one == written(threads), "{threads} threads");
    }
}

#[test]
fn another_seed_makes_another_validation_split() {
    let folder = TempDir::new().unwrap();
    let path = corpus(&folder, 300);
    let validation = |seed| {
        let inputs = inputs_with(&[&path], &InputOptions { seed, ..InputOptions::default() }).unwrap();
        let out = folder.path().join("out");
        prepare_quietly(&inputs, &out, &options(0.1, 1 << 20, 1)).unwrap();
        all_tokens(Dataset::open(&out).unwrap().split(Split::Validation))
    };
    assert_ne!(validation(1), validation(2));
}

#[test]
fn two_documents_are_enough_for_two_splits() {
    let folder = TempDir::new().unwrap();
    for documents in [2, 3, 7] {
        for share in [1e-9, 0.3, 0.999_999] {
            let inputs = inputs(&[&corpus(&folder, documents)]);
            let manifest = prepare_quietly(&inputs, &folder.path().join("out"), &options(share, 1_000, 1))
                .unwrap()
                .manifest;
            assert!(manifest.train.documents >= 1 && manifest.validation.documents >= 1);
            assert_eq!(manifest.train.documents + manifest.validation.documents, documents as u64);
        }
    }
}

#[test]
fn a_single_document_lends_its_tail_to_the_validation_split() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.txt");
    let text = "the cat sat on the mat, ".repeat(200);
    fs::write(&path, &text).unwrap();
    let out = folder.path().join("out");
    let manifest = prepare_quietly(&inputs(&[&path]), &out, &options(0.1, 1 << 20, 1)).unwrap().manifest;
    assert_eq!(manifest.train.raw_bytes + manifest.validation.raw_bytes, text.len() as u64);
    assert!((400..=480).contains(&manifest.validation.raw_bytes), "{}", manifest.validation.raw_bytes);
    let dataset = Dataset::open(&out).unwrap();
    let joined =
        [all_tokens(dataset.split(Split::Train)), all_tokens(dataset.split(Split::Validation))].concat();
    let mut whole = Vec::new();
    tokenizer().encode(text.as_bytes(), &mut whole).unwrap();
    whole.extend(tokenizer().end_of_text());
    assert_eq!(joined, whole);
}

#[test]
fn a_single_document_without_borders_is_cut_between_characters() {
    let folder = TempDir::new().unwrap();
    for (text, share) in
        [("їжак".repeat(50), 0.3), ("x".into(), 0.5), ("ї".into(), 0.999), ("ab".into(), 1e-9)]
    {
        let path = folder.path().join("a.txt");
        fs::write(&path, &text).unwrap();
        let out = folder.path().join("out");
        let manifest =
            prepare_quietly(&inputs(&[&path]), &out, &options(share, 1 << 20, 1)).unwrap().manifest;
        assert!(manifest.train.tokens > 0);
        assert_eq!(manifest.train.raw_bytes + manifest.validation.raw_bytes, text.len() as u64);
        assert_eq!(verify(&out, &Silent).unwrap().raw_bytes, text.len() as u64);
    }
}

#[test]
fn no_validation_share_means_no_validation_split() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    prepare_quietly(&inputs(&[&corpus(&folder, 5)]), &out, &options(0.0, 1_000, 1)).unwrap();
    let dataset = Dataset::open(&out).unwrap();
    assert!(dataset.split(Split::Validation).is_empty());
    assert_eq!(dataset.split(Split::Train).documents(), 5);
}

#[test]
fn a_rerun_is_recognised_until_something_changes() {
    let folder = TempDir::new().unwrap();
    let path = corpus(&folder, 50);
    let out = folder.path().join("out");
    let settings = options(0.1, 1_000, 1);
    let first = prepare_quietly(&inputs(&[&path]), &out, &settings).unwrap();
    let again = |settings: &PrepareOptions| prepare_quietly(&inputs(&[&path]), &out, settings).unwrap();
    let second = again(&options(0.1, 1_000, 4));
    assert!(second.reused);
    assert_eq!(second.manifest, first.manifest);

    assert!(!again(&options(0.2, 1_000, 1)).reused);
    assert!(!again(&settings).reused);
    fs::write(&path, fs::read_to_string(&path).unwrap() + "{\"text\": \"one more\"}\n").unwrap();
    assert!(!again(&settings).reused);
    assert!(again(&settings).reused);
    let shard = out.join("train-00000.shard");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    assert!(!again(&settings).reused);
    verify(&out, &Silent).unwrap();
}

#[test]
fn a_smaller_rerun_removes_the_old_shards_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("notes.txt"), "mine").unwrap();
    prepare_quietly(&inputs(&[&corpus(&folder, 100)]), &out, &options(0.1, 500, 1)).unwrap();
    assert!(names_in(&out).len() > 5);
    prepare_quietly(&inputs(&[&corpus(&folder, 100)]), &out, &options(0.1, 1 << 20, 1)).unwrap();
    assert_eq!(names_in(&out), ["manifest.json", "notes.txt", "train-00000.shard", "validation-00000.shard"]);
    assert_eq!(fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_failed_run_leaves_no_trace_and_keeps_the_old_data() {
    let folder = TempDir::new().unwrap();
    let path = corpus(&folder, 100);
    let out = folder.path().join("out");
    let bad_row = || {
        let rows = fs::read_to_string(&path).unwrap();
        fs::write(&path, rows + "{\"text\": 1}\n").unwrap();
        prepare_quietly(&inputs(&[&path]), &out, &options(0.1, 500, 2)).unwrap_err()
    };
    assert_eq!(bad_row().class(), Class::BadData);
    assert!(!out.exists());
    prepare_quietly(&inputs(&[&corpus(&folder, 100)]), &out, &options(0.1, 500, 2)).unwrap();
    let before = names_in(&out);
    assert_eq!(bad_row().class(), Class::BadData);
    assert_eq!(names_in(&out), before);
    verify(&out, &Silent).unwrap();
}

/// Stops the work at the first sign of progress.
struct StopEarly<'a>(&'a AtomicBool);

impl Progress for StopEarly<'_> {
    fn start(&self, _phase: &str, _total: Option<u64>, _unit: &str) {}
    fn advance(&self, _amount: u64) {
        self.0.store(true, Ordering::Relaxed);
    }
    fn finish(&self) {}
}

#[test]
fn a_stop_ends_the_work_and_leaves_no_trace() {
    let folder = TempDir::new().unwrap();
    let inputs = Inputs::from_specs(&["builtin:stories:10MB".into()], &InputOptions::default()).unwrap();
    let out = folder.path().join("out");
    let stop = AtomicBool::new(false);
    let error =
        prepare(&inputs, &tokenizer(), &out, &options(0.1, 1_000, 2), &StopEarly(&stop), &stop).unwrap_err();
    assert_eq!(error.class(), Class::Stopped);
    assert!(!out.exists());
}

#[test]
fn leftovers_of_a_killed_run_are_swept_away() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join(".prepare")).unwrap();
    fs::write(out.join(".prepare/train-00000.shard"), "half").unwrap();
    prepare_quietly(&inputs(&[&corpus(&folder, 10)]), &out, &options(0.1, 1_000, 1)).unwrap();
    assert_eq!(names_in(&out), ["manifest.json", "train-00000.shard", "validation-00000.shard"]);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let folder = TempDir::new().unwrap();
    let inputs = inputs(&[&corpus(&folder, 10)]);
    for bad in [
        options(1.0, 10, 1),
        options(-0.1, 10, 1),
        options(f64::NAN, 10, 1),
        options(0.1, 0, 1),
        options(0.1, 10, 0),
    ] {
        let error = prepare_quietly(&inputs, &folder.path().join("out"), &bad).unwrap_err();
        assert_eq!(error.class(), Class::BadSetting, "{error}");
    }
}

#[test]
fn an_empty_corpus_and_an_unwritable_folder_are_errors() {
    let folder = TempDir::new().unwrap();
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "\n").unwrap();
    let error =
        prepare_quietly(&inputs(&[&empty]), &folder.path().join("out"), &options(0.1, 10, 1)).unwrap_err();
    assert_eq!(error.class(), Class::NoInput);
    let error = prepare_quietly(&inputs(&[&corpus(&folder, 3)]), &empty, &options(0.1, 10, 1)).unwrap_err();
    assert_eq!(error.class(), Class::CannotWrite);
}

#[test]
fn reading_progress_reaches_its_total() {
    use std::sync::atomic::AtomicU64;
    #[derive(Default)]
    struct Sums {
        total: AtomicU64,
        done: AtomicU64,
    }
    impl Progress for Sums {
        fn start(&self, _phase: &str, total: Option<u64>, _unit: &str) {
            self.total.store(total.unwrap(), Ordering::Relaxed);
        }
        fn advance(&self, amount: u64) {
            self.done.fetch_add(amount, Ordering::Relaxed);
        }
        fn finish(&self) {}
    }
    let folder = TempDir::new().unwrap();
    let sums = Sums::default();
    let inputs = inputs(&[&corpus(&folder, 2_000)]);
    let stop = AtomicBool::new(false);
    prepare(&inputs, &tokenizer(), &folder.path().join("out"), &options(0.1, 10_000, 2), &sums, &stop)
        .unwrap();
    assert_eq!(sums.total.into_inner(), sums.done.into_inner());
}
