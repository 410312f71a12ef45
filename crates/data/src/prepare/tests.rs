use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ironmill_text::Silent;
use ironmill_text::durable::{Act, Watch};
use tempfile::TempDir;

use super::*;
use crate::testing::{inputs, inputs_with, prepare_quietly, tokenizer, tokenizer_with};
use crate::{Class, InputOptions, Split, TokenStream, verify};

/// A JSON lines file of so many documents, which differ in length.
fn corpus(folder: &TempDir, documents: usize) -> PathBuf {
    let row = |i: usize| format!("{{\"text\": \"document {i} {}\"}}\n", "the cat sat ".repeat(i * 7 % 50));
    let path = folder.path().join("corpus.jsonl");
    fs::write(&path, (0..documents).map(row).collect::<String>()).unwrap();
    path
}

fn options(validation: f64, shard_tokens: u64, threads: usize) -> PrepareOptions {
    PrepareOptions { validation, shard_tokens, threads, ..PrepareOptions::default() }
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

/// The documents of a small text whose vocabulary puts these special tokens around one, the manifest and `<bos>`.
fn framed(before: &[&str], after: &[&str]) -> (Vec<Vec<u32>>, Manifest, u32) {
    let folder = TempDir::new().unwrap();
    let tokenizer = tokenizer_with(&["<|endoftext|>", "<bos>", "<sep>"]).with_around(before, after).unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "the cat sat|on the mat|and the dog").unwrap();
    let separated = InputOptions { document_separator: Some("|".into()), ..InputOptions::default() };
    let inputs = inputs_with(&[&path], &separated).unwrap();
    let out = folder.path().join("out");
    let stop = AtomicBool::new(false);
    let manifest = prepare(&inputs, &tokenizer, &out, &options(0.0, 10, 1), &Silent, &stop).unwrap().manifest;
    let dataset = Dataset::open(&out).unwrap();
    let tokens = all_tokens(dataset.split(Split::Train));
    let end = tokenizer.end_of_text().unwrap();
    let documents = tokens.split_inclusive(|&id| id == end).map(<[u32]>::to_vec).collect();
    (documents, manifest, tokenizer.special_id("<bos>").unwrap())
}

#[test]
fn documents_begin_with_what_the_vocabulary_puts_before_a_text() {
    let (plain, manifest, bos) = framed(&[], &[]);
    assert_eq!(plain.len(), 3);
    assert!(manifest.settings.document_start.is_empty());
    for after in [&[][..], &["<|endoftext|>"]] {
        let (begun, manifest, _) = framed(&["<bos>"], after);
        assert_eq!(manifest.settings.document_start, [bos]);
        let expected: Vec<Vec<u32>> = plain.iter().map(|tokens| [&[bos][..], tokens].concat()).collect();
        assert_eq!(begun, expected);
    }
    // A token that ends documents stands between them already; a text that another one closes is no document of ours.
    for (before, after) in [(&["<|endoftext|>"][..], &[][..]), (&["<bos>"], &["<sep>"])] {
        assert_eq!(framed(before, after).0, plain);
    }
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
fn the_last_of_a_few_long_documents_lends_its_tail_and_of_many_goes_whole() {
    let folder = TempDir::new().unwrap();
    let sentence = "the cat sat on the mat, ";
    let out = folder.path().join("out");
    for n_documents in [2, 3, 30] {
        let texts: Vec<String> =
            (0..n_documents).map(|i| format!("{i} {}", sentence.repeat(3_000 + i))).collect();
        let path = folder.path().join("a.txt");
        fs::write(&path, texts.join("\0")).unwrap();
        let separated = InputOptions { document_separator: Some("\0".into()), ..InputOptions::default() };
        let inputs = inputs_with(&[&path], &separated).unwrap();
        let manifest = prepare_quietly(&inputs, &out, &options(1e-3, 1 << 20, 2)).unwrap().manifest;
        let all = texts.iter().map(String::len).sum::<usize>() as u64;
        let (train, validation) = (&manifest.train, &manifest.validation);
        assert_eq!(train.raw_bytes + validation.raw_bytes, all);
        assert_eq!(validation.documents, 1);
        if n_documents < 10 {
            assert_eq!(train.documents, n_documents as u64);
            assert!((all / 1_000 - 30..=all / 1_000).contains(&validation.raw_bytes), "{validation:?}");
        } else {
            assert_eq!(train.documents, n_documents as u64 - 1);
            assert_eq!(validation.raw_bytes, texts[n_documents - 1].len() as u64);
        }
        let dataset = Dataset::open(&out).unwrap();
        let joined = Split::ALL.map(|split| all_tokens(dataset.split(split))).concat();
        let mut whole = Vec::new();
        for text in &texts {
            tokenizer().encode(text.as_bytes(), &mut whole).unwrap();
            whole.extend(tokenizer().end_of_text());
        }
        assert_eq!(joined, whole);
        assert!(prepare_quietly(&inputs, &out, &options(1e-3, 1 << 20, 2)).unwrap().reused);
    }
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
    let expected =
        ["manifest.json", "notes.txt", "tokenizer.json", "train-00000.shard", "validation-00000.shard"];
    assert_eq!(names_in(&out), expected);
    assert_eq!(fs::read_to_string(out.join("notes.txt")).unwrap(), "mine");
}

#[test]
fn a_failed_run_keeps_the_old_data() {
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
    let before = content(&out);
    assert_eq!(bad_row().class(), Class::BadData);
    assert!(content(&out) == before);
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
fn a_stop_ends_the_work_and_keeps_nothing_but_complete_shards() {
    let folder = TempDir::new().unwrap();
    let inputs = Inputs::from_specs(&["builtin:stories:10MB".into()], &InputOptions::default()).unwrap();
    let out = folder.path().join("out");
    // Before the first shard is full there is nothing to go on from.
    for (shard_tokens, leaves) in [(1 << 30, false), (1_000, true)] {
        let stop = AtomicBool::new(false);
        let settings = options(0.1, shard_tokens, 2);
        let error = prepare(&inputs, &tokenizer(), &out, &settings, &StopEarly(&stop), &stop).unwrap_err();
        assert_eq!(error.class(), Class::Stopped);
        assert_eq!(out.exists(), leaves);
        assert!(!out.join("manifest.json").exists());
    }
}

/// Everything in a folder but the staging folder: names and bytes.
fn content(dir: &Path) -> Vec<(String, Vec<u8>)> {
    assert!(!dir.join(".prepare").exists());
    names_in(dir).into_iter().map(|name| (name.clone(), fs::read(dir.join(name)).unwrap())).collect()
}

/// Lets so many acts on the disk happen, and fails all later ones.
struct FailsAfter(AtomicU64);

impl Watch for FailsAfter {
    fn before(&self, _: Act, _: &Path) -> io::Result<()> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map(|_| ()).map_err(|_| io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn a_run_that_fails_at_any_act_on_the_disk_goes_on_to_the_same_bytes() {
    let folder = TempDir::new().unwrap();
    let inputs = inputs(&[&corpus(&folder, 12)]);
    let settings = PrepareOptions { drop_duplicates: true, ..options(0.2, 400, 2) };
    let whole = folder.path().join("whole");
    let manifest = prepare_quietly(&inputs, &whole, &settings).unwrap().manifest;
    assert!(manifest.train.shards.len() > 1);
    let expected = content(&whole);
    for allowed in 0.. {
        let out = folder.path().join(format!("out-{allowed}"));
        let disk = Disk::watched(Arc::new(FailsAfter(AtomicU64::new(allowed))));
        let failing = PrepareOptions { disk, ..settings.clone() };
        let first = prepare_quietly(&inputs, &out, &failing);
        // What is there is never half of something.
        assert!(!out.join("manifest.json").exists() || verify(&out, &Silent).is_ok(), "{allowed}");
        if first.is_ok() {
            assert!(allowed > 20);
            break;
        }
        assert_eq!(first.unwrap_err().class(), Class::CannotWrite);
        prepare_quietly(&inputs, &out, &settings).unwrap();
        assert!(content(&out) == expected, "{allowed}");
    }
}

#[test]
fn a_resumed_run_encodes_only_what_is_missing() {
    let folder = TempDir::new().unwrap();
    let (good, out) = (corpus(&folder, 80), folder.path().join("out"));
    let bad = folder.path().join("z.jsonl");
    fs::write(&bad, "{\"text\": \"fine\"}\n{\"text\": 5}\n").unwrap();
    let settings = options(0.1, 300, 1);
    // Each file is a section of its own, so the first is complete when the second turns out to be bad.
    let inputs = |paths: &[&Path]| self::inputs(paths).with_section_bytes(1);
    let both = inputs(&[&good, &bad]);
    assert_eq!(prepare_quietly(&both, &out, &settings).unwrap_err().class(), Class::BadData);
    let complete = names_in(&out.join(".prepare")).len();
    assert!(complete > 4, "{complete}");
    let times = |dir: &Path| {
        let mut times: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.file_name().to_str().unwrap().ends_with(".shard"))
            .map(|entry| entry.metadata().unwrap().modified().unwrap())
            .collect();
        times.sort();
        times
    };
    let before = times(&out.join(".prepare"));
    // The same error comes again, and nothing that is complete is written again.
    assert_eq!(prepare_quietly(&both, &out, &settings).unwrap_err().class(), Class::BadData);
    assert!(times(&out.join(".prepare")) == before);
    // Once the input is right, what was complete is part of the result.
    fs::remove_file(&bad).unwrap();
    let alone = inputs(&[&good]);
    let resumed = prepare_quietly(&alone, &out, &settings).unwrap();
    assert_eq!(resumed.reused_sections, 1);
    prepare_quietly(&alone, &folder.path().join("fresh"), &settings).unwrap();
    assert!(content(&out) == content(&folder.path().join("fresh")));
}

#[test]
fn sections_end_where_files_say_and_large_files_always_do() {
    let folder = TempDir::new().unwrap();
    let file = |name: &str, bytes: u64| {
        let path = folder.path().join(name);
        fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    };
    let mut files: Vec<PathBuf> = (0..200).map(|i| file(&format!("{i:03}.txt"), 8 << 20)).collect();
    files.insert(77, file("large.txt", 300 << 20));
    let borders = |files: &[PathBuf]| -> Vec<PathBuf> {
        let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let sections = super::sections::plan(&inputs(&paths));
        assert_eq!(sections.iter().map(|section| section.sources.len()).sum::<usize>(), files.len());
        sections.iter().map(|section| files[section.sources.end - 1].clone()).collect()
    };
    let all = borders(&files);
    assert!((3..25).contains(&all.len()) && all.contains(&files[77]), "{}", all.len());
    // Without one of the files the others end sections as before.
    let removed = files.remove(100);
    let fewer = borders(&files);
    assert_eq!(fewer, all.into_iter().filter(|path| *path != removed).collect::<Vec<_>>());
}

#[test]
fn other_sections_are_kept_when_one_changes() {
    let folder = TempDir::new().unwrap();
    let path = |i: usize| folder.path().join(format!("{i}.txt"));
    let write = |i: usize, text: &str| fs::write(path(i), text).unwrap();
    for i in 0..3 {
        write(i, &format!("the cat {i}<sep>the dog {i}<sep>the mat {i}<sep>the log {i}"));
    }
    // What is larger than a section ends one.
    let reading = InputOptions { document_separator: Some("<sep>".into()), ..InputOptions::default() };
    let specs: Vec<String> = (0..3).map(|i| path(i).display().to_string()).collect();
    let with_stories = |texts: &[usize]| {
        let mut all: Vec<String> = Vec::new();
        for &i in texts {
            all.push(specs[i].clone());
            all.push(format!("builtin:stories:{}", 300_000 + i));
        }
        Inputs::from_specs(&all, &reading).unwrap().with_section_bytes(100_000)
    };
    let out = folder.path().join("out");
    let settings = options(0.2, 5_000, 2);
    let run = |inputs: &Inputs, out: &Path| prepare_quietly(inputs, out, &settings).unwrap();
    let first = run(&with_stories(&[0, 1, 2]), &out);
    assert!(first.manifest.sections.len() >= 3, "{}", first.manifest.sections.len());
    write(1, "something else<sep>the end");
    let second = run(&with_stories(&[0, 1, 2]), &out);
    assert_eq!(second.reused_sections as usize, second.manifest.sections.len() - 1);
    let fresh = folder.path().join("fresh");
    assert_eq!(run(&with_stories(&[0, 1, 2]), &fresh).reused_sections, 0);
    assert!(content(&out) == content(&fresh));
    // Fewer inputs, other order: what is kept is found wherever it was.
    let third = run(&with_stories(&[2, 0]), &out);
    assert_eq!(third.reused_sections, third.manifest.sections.len() as u64);
    verify(&out, &Silent).unwrap();
}

#[test]
fn duplicates_are_dropped_and_counted_and_copies_are_on_one_side() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.jsonl");
    let rows: String = (0..400).map(|i| format!("{{\"text\": \"document {}\"}}\n", i * i % 151)).collect();
    fs::write(&path, rows).unwrap();
    let inputs = inputs(&[&path]);
    let mut distinct = std::collections::BTreeSet::new();
    inputs
        .for_each(|document| {
            distinct.insert(document.text);
            Ok(())
        })
        .unwrap();
    let out = folder.path().join("out");
    let kept = prepare_quietly(&inputs, &out, &options(0.3, 1 << 20, 2)).unwrap().manifest;
    assert_eq!((kept.train.documents + kept.validation.documents, kept.duplicate_documents), (400, 0));
    let documents = |split| {
        let dataset = Dataset::open(&out).unwrap();
        let tokens = all_tokens(dataset.split(split));
        let end = tokenizer().end_of_text().unwrap();
        tokens.split(|&token| token == end).map(<[u32]>::to_vec).collect::<std::collections::BTreeSet<_>>()
    };
    let (train, validation) = (documents(Split::Train), documents(Split::Validation));
    assert_eq!(train.intersection(&validation).filter(|document| !document.is_empty()).count(), 0);
    let settings = PrepareOptions { drop_duplicates: true, ..options(0.3, 1 << 20, 2) };
    let dropped = prepare_quietly(&inputs, &out, &settings).unwrap().manifest;
    assert_eq!((dropped.train.documents + dropped.validation.documents) as usize, distinct.len());
    assert_eq!(dropped.duplicate_documents as usize, 400 - distinct.len());
}

#[test]
fn a_document_in_parts_has_the_tokens_of_the_whole() {
    let folder = TempDir::new().unwrap();
    let text: String = (0..400_000).map(|i| format!("the cat {} sat, ", i * 7 % 1_000)).collect();
    assert!(text.len() > 5 << 20);
    let mut whole = Vec::new();
    tokenizer().encode(text.as_bytes(), &mut whole).unwrap();
    whole.extend(tokenizer().end_of_text());
    let out = folder.path().join("out");
    for (name, bytes) in [("a.txt", text.clone()), ("a.jsonl", format!("{{\"text\": \"{text}\"}}\n"))] {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        for validation in [0.0, 0.25] {
            let settings = options(validation, 300_000, 2);
            let manifest = prepare_quietly(&inputs(&[&path]), &out, &settings).unwrap().manifest;
            let dataset = Dataset::open(&out).unwrap();
            let streams = Split::ALL.map(|split| all_tokens(dataset.split(split)));
            assert!(streams.concat() == whole, "{name} {validation}");
            assert_eq!(manifest.train.raw_bytes + manifest.validation.raw_bytes, text.len() as u64);
            assert_eq!(manifest.train.documents, 1);
            let share = manifest.validation.raw_bytes as f64 / text.len() as f64;
            assert!((share - validation).abs() < 1e-4, "{name} {share}");
        }
    }
}

#[test]
fn an_input_that_changes_or_vanishes_is_an_error_and_nothing_of_it_is_used() {
    let folder = TempDir::new().unwrap();
    let path = corpus(&folder, 50);
    let out = folder.path().join("out");
    let found = inputs(&[&path]);
    fs::write(&path, "{\"text\": \"another\"}\n{\"text\": \"corpus\"}\n").unwrap();
    let error = prepare_quietly(&found, &out, &options(0.1, 1_000, 1)).unwrap_err();
    assert!(matches!(error, Error::ChangedInput { .. }), "{error}");
    assert!(!out.join("manifest.json").exists());
    fs::remove_file(&path).unwrap();
    let error = prepare_quietly(&found, &out, &options(0.1, 1_000, 1)).unwrap_err();
    assert!(matches!(error, Error::MissingInput { .. }), "{error}");
    assert!(!out.join("manifest.json").exists());
}

#[test]
fn two_at_once_in_one_folder_are_refused() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    let _first = Staging::open(&out, &Disk::default()).unwrap();
    let error = prepare_quietly(&inputs(&[&corpus(&folder, 5)]), &out, &options(0.1, 1_000, 1)).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
}

#[test]
fn leftovers_of_a_killed_run_are_swept_away() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join(".prepare")).unwrap();
    fs::write(out.join(".prepare/train-00000.shard"), "half").unwrap();
    let found = inputs(&[&corpus(&folder, 10)]);
    prepare_quietly(&found, &out, &options(0.1, 1_000, 1)).unwrap();
    let whole = ["manifest.json", "tokenizer.json", "train-00000.shard", "validation-00000.shard"];
    assert_eq!(names_in(&out), whole);
    // Killed after the last move, a run leaves its folder beside a complete data set.
    fs::create_dir_all(out.join(".prepare")).unwrap();
    fs::write(out.join(".prepare/lock"), "").unwrap();
    assert!(prepare_quietly(&found, &out, &options(0.1, 1_000, 1)).unwrap().reused);
    assert_eq!(names_in(&out), whole);
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
