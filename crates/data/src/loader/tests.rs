use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::*;
use crate::order::{PURPOSE_BUCKETS, hash, permute};
use crate::shard::{Shard, ShardWriter};

const SEED: u64 = 3;

/// A row, or the rows of a batch one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rows {
    ids: Vec<u32>,
    targets: Vec<u32>,
    positions: Vec<u32>,
    borders: Vec<u32>,
    samples: Vec<u32>,
}

impl Rows {
    fn append(&mut self, more: Rows) {
        self.ids.extend(more.ids);
        self.targets.extend(more.targets);
        self.positions.extend(more.positions);
        self.borders.extend(more.borders);
        self.samples.extend(more.samples);
    }
}

fn step(loader: &Loader, first_sample: u64) -> Rows {
    let mut batch = loader.batch();
    // Whatever an earlier step left in the buffers must be gone.
    for stale in [&mut batch.ids, &mut batch.targets, &mut batch.samples] {
        stale.fill(77);
    }
    refill(loader, first_sample, &mut batch)
}

fn refill(loader: &Loader, first_sample: u64, batch: &mut Batch) -> Rows {
    loader.fill(first_sample, batch).unwrap();
    assert_eq!(batch.length(), loader.length(first_sample));
    let (positions, borders) = (batch.positions().to_vec(), batch.borders().to_vec());
    let Batch { ids, targets, samples, .. } = batch.clone();
    Rows { ids, targets, positions, borders, samples }
}

fn loader(documents: &[Vec<u32>], sampler: Sampler, context: usize, rows: usize) -> Loader {
    Loader::new(TokenStream::from_documents(documents.to_vec(), 0), sampler, SEED, context, rows).unwrap()
}

/// Documents of these lengths, in which no token occurs twice.
fn documents(lengths: &[usize]) -> Vec<Vec<u32>> {
    let mut token = 0;
    let mut next = || (token, token += 3).0 + 1;
    lengths.iter().map(|&length| (0..length).map(|_| next()).collect()).collect()
}

/// The row of one sample, a token at a time.
fn oracle(documents: &[Vec<u32>], sampler: Sampler, context: usize, rows: usize, sample: u64) -> Rows {
    let stream = documents.concat();
    let order = |sampler| Order::new(sampler, SEED, stream.len() as u64, context as u64).unwrap();
    let mut row = match sampler {
        Sampler::Random | Sampler::Shuffled => window(&stream, order(sampler).window(sample), context),
        Sampler::Sequential => {
            let mut cursor = 0;
            for _ in 0..sample * context as u64 {
                cursor = if cursor + 1 == stream.len() { 0 } else { cursor + 1 };
            }
            window(&stream, cursor as u64, context)
        }
        Sampler::Packed => packed(documents, order(Sampler::Shuffled).window(sample), context),
        Sampler::Bucketed => bucketed(documents, context, rows, sample),
    };
    row.samples = vec![sample as u32];
    row
}

fn window(stream: &[u32], start: u64, context: usize) -> Rows {
    let mut row = Rows::default();
    for i in 0..context {
        row.ids.push(stream[(start as usize + i) % stream.len()]);
        row.targets.push(stream[(start as usize + i + 1) % stream.len()]);
        row.positions.push(i as u32);
        row.borders.push(0);
    }
    row
}

fn packed(documents: &[Vec<u32>], start: u64, context: usize) -> Rows {
    // Each token of the stream with what follows in its document.
    let mut stream = Vec::new();
    for document in documents {
        for (i, &token) in document.iter().enumerate() {
            stream.push((token, document.get(i + 1).copied().unwrap_or(IGNORED)));
        }
    }
    let mut row = Rows::default();
    let mut border = 0;
    for i in 0..context {
        let (token, target) = stream[(start as usize + i) % stream.len()];
        row.ids.push(token);
        row.targets.push(target);
        row.positions.push((i - border) as u32);
        row.borders.push(border as u32);
        if target == IGNORED {
            border = i + 1;
        }
    }
    row
}

fn bucketed(documents: &[Vec<u32>], context: usize, rows: usize, sample: u64) -> Rows {
    let mut lengths: Vec<usize> =
        [8, 4, 2, 1].iter().map(|n| (context.div_ceil(*n).div_ceil(8) * 8).min(context)).collect();
    lengths.dedup();
    let mut buckets: BTreeMap<usize, Vec<&Vec<u32>>> = BTreeMap::new();
    for document in documents.iter().filter(|document| !document.is_empty()) {
        let length = lengths.iter().copied().find(|&length| document.len() <= length).unwrap_or(context);
        buckets.entry(length).or_default().push(document);
    }
    // All steps of an epoch, before they are shuffled.
    let mut groups = Vec::new();
    for (&length, examples) in &buckets {
        for group in 0..examples.len().div_ceil(rows) {
            groups.push((length, group));
        }
    }
    let (step, row_idx) = (sample / rows as u64, sample as usize % rows);
    let n_groups = groups.len() as u64;
    let (epoch, step) = (step / n_groups, step % n_groups);
    let (length, group) = groups[permute(hash(&[SEED, PURPOSE_BUCKETS, 0]), epoch, step, n_groups) as usize];
    let examples = &buckets[&length];
    let place = (group * rows + row_idx) % examples.len();
    let seed = hash(&[SEED, PURPOSE_BUCKETS, length as u64]);
    let document = examples[permute(seed, epoch, place as u64, examples.len() as u64) as usize];
    let mut row = Rows::default();
    for i in 0..length {
        let is_padding = i >= document.len();
        row.ids.push(if is_padding { 0 } else { document[i] });
        row.targets.push(document.get(i + 1).copied().unwrap_or(IGNORED));
        row.positions.push(i as u32);
        row.borders.push(if is_padding { document.len() as u32 } else { 0 });
    }
    row
}

fn oracle_step(documents: &[Vec<u32>], sampler: Sampler, context: usize, rows: usize, first: u64) -> Rows {
    let mut all = Rows::default();
    for sample in first..first + rows as u64 {
        all.append(oracle(documents, sampler, context, rows, sample));
    }
    all
}

#[test]
fn batches_equal_a_scalar_oracle_below_at_and_above_the_window() {
    for sampler in Sampler::ALL {
        for tokens in [1, 2, 7, 8, 9, 10, 16, 17, 31, 100] {
            for lengths in [vec![tokens], vec![1; tokens], vec![tokens / 2, 0, tokens - tokens / 2, 0]] {
                let documents = documents(&lengths);
                for rows in [1, 3, 6] {
                    let loader = loader(&documents, sampler, 8, rows);
                    for first in (0..20 * rows as u64).step_by(rows) {
                        let expected = oracle_step(&documents, sampler, 8, rows, first);
                        assert_eq!(step(&loader, first), expected, "{sampler:?} {lengths:?} {first}");
                    }
                }
            }
        }
    }
}

#[test]
fn sequential_rows_wrap_in_mid_row() {
    let rows = step(&loader(&[vec![10, 11, 12, 13, 14]], Sampler::Sequential, 3, 4), 0);
    assert_eq!(rows.ids, [10, 11, 12, 13, 14, 10, 11, 12, 13, 14, 10, 11]);
    assert_eq!(rows.targets, [11, 12, 13, 14, 10, 11, 12, 13, 14, 10, 11, 12]);
}

#[test]
fn packed_rows_show_their_documents() {
    let documents = [vec![10, 11, 12], vec![], vec![20], vec![30, 31, 32, 33]];
    let loader = loader(&documents, Sampler::Packed, 7, 1);
    let starts: BTreeMap<u32, Rows> =
        (0..60).map(|i| step(&loader, i)).map(|row| (row.ids[0], row)).collect();
    assert_eq!(starts.len(), 1, "eight tokens have one window of seven and its target");
    let row = &starts[&10];
    assert_eq!(row.ids, [10, 11, 12, 20, 30, 31, 32]);
    assert_eq!(row.targets, [11, 12, IGNORED, IGNORED, 31, 32, 33]);
    assert_eq!(row.positions, [0, 1, 2, 0, 0, 1, 2]);
    assert_eq!(row.borders, [0, 0, 0, 3, 4, 4, 4]);
}

#[test]
fn bucketed_rows_are_padded_and_truncated() {
    let documents = [(1..=10).collect::<Vec<u32>>(), vec![21, 22, 23]];
    let loader = loader(&documents, Sampler::Bucketed, 9, 1);
    assert_eq!(loader.lengths(), [8, 9]);
    let mut rows = [step(&loader, 0), step(&loader, 1)];
    rows.sort_by_key(|row| row.ids.len());
    let [short, long] = rows;
    assert_eq!(short.ids, [21, 22, 23, 0, 0, 0, 0, 0]);
    assert_eq!(short.targets[..3], [22, 23, IGNORED]);
    assert_eq!(short.targets[3..], [IGNORED; 5]);
    assert_eq!(short.borders, [0, 0, 0, 3, 3, 3, 3, 3]);
    assert_eq!(short.positions, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(long.ids, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(long.targets, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(long.borders, [0; 9]);
    assert_eq!(loader.padding_share(), 5.0 / 17.0);
    assert_eq!(loader.truncated_share(), 1.0 / 13.0);
}

#[test]
fn the_padding_share_is_that_of_an_epoch_of_full_groups() {
    let lengths: Vec<usize> = (0..60).map(|i| 1 + i * 7 % 40).collect();
    let documents = documents(&lengths);
    let loader = loader(&documents, Sampler::Bucketed, 32, 1);
    let (mut padding, mut all) = (0, 0);
    for sample in 0..loader.samples_per_epoch() {
        let row = step(&loader, sample);
        all += row.ids.len();
        padding += row.ids.iter().filter(|&&id| id == 0).count();
    }
    assert!(padding > 0);
    assert_eq!(loader.padding_share(), padding as f64 / all as f64);
    for sampler in [Sampler::Random, Sampler::Shuffled, Sampler::Sequential, Sampler::Packed] {
        let loader =
            Loader::new(TokenStream::from_documents(documents.clone(), 0), sampler, SEED, 32, 1).unwrap();
        assert_eq!((loader.padding_share(), loader.truncated_share()), (0.0, 0.0));
    }
}

#[test]
fn every_epoch_shows_every_window_or_example_once() {
    let documents = documents(&[5, 12, 1, 40, 8, 8, 30, 2, 0, 17]);
    for sampler in [Sampler::Shuffled, Sampler::Packed, Sampler::Bucketed] {
        let loader = loader(&documents, sampler, 10, 1);
        let per_epoch = loader.samples_per_epoch();
        assert_eq!(per_epoch, if sampler == Sampler::Bucketed { 9 } else { 12 });
        for epoch in 0..5 {
            let mut shown = BTreeSet::new();
            for sample in epoch * per_epoch..(epoch + 1) * per_epoch {
                assert!(shown.insert(step(&loader, sample).ids[0]), "{sampler:?}");
                assert_eq!(loader.epoch(sample).floor() as u64, epoch);
            }
            if sampler == Sampler::Bucketed {
                let firsts = documents.iter().filter_map(|document| document.first().copied());
                assert_eq!(shown, firsts.collect());
            } else {
                let distances: BTreeSet<u32> =
                    shown.iter().zip(shown.iter().skip(1)).map(|(a, b)| b - a).collect();
                assert_eq!(distances, BTreeSet::from([30]), "windows lie ten tokens apart");
            }
        }
    }
}

/// Writes shards of `n_shards × documents × length` tokens.
fn shards(folder: &Path, n_shards: usize, documents: u32, length: u32) -> Vec<Arc<Shard>> {
    let write = |shard_idx| {
        let path = folder.join(format!("{n_shards}-{shard_idx}.shard"));
        let mut writer = ShardWriter::create(&path, [0; 32], 1_000).unwrap();
        for document in 0..documents {
            writer.start_document(1);
            writer.push(&(0..length).map(|i| (document + i) % 1_000).collect::<Vec<_>>()).unwrap();
        }
        writer.finish().unwrap();
        Arc::new(Shard::open(&path).unwrap())
    };
    (0..n_shards).map(write).collect()
}

#[test]
fn the_reads_of_a_batch_do_not_depend_on_the_size_of_the_stream() {
    let folder = tempfile::tempdir().unwrap();
    for (n_shards, documents) in [(1, 500), (8, 5_000)] {
        let shards = shards(folder.path(), n_shards, documents, 61);
        let reads = || shards.iter().map(|shard| shard.reads.load(Ordering::Relaxed)).sum::<u64>();
        for sampler in Sampler::ALL {
            let stream = TokenStream::from_shards(shards.clone());
            assert_eq!(stream.documents(), n_shards as u64 * u64::from(documents));
            let loader = Loader::new(stream, sampler, SEED, 64, 16).unwrap();
            for first in (0..1_600).step_by(16) {
                // The first touch of a block of 64 KiB reads it whole; a row lies in at most two and its last target
                // perhaps in a third. A block is read in eight pieces.
                let before = reads();
                step(&loader, first);
                assert!(reads() - before <= 16 * (3 * 8 + 3));
                // Then a row is one read and its last target another, and either may lie across two shards or wrap.
                let before = reads();
                step(&loader, first);
                assert!(reads() - before <= 16 * 3);
            }
        }
    }
}

#[test]
fn documents_that_cross_shards_equal_documents_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let documents = documents(&[5, 12, 0, 1, 40, 8, 8, 30, 0, 2, 17]);
    let memory = TokenStream::from_documents(documents.clone(), 0);
    let starts = memory.document_starts().unwrap();
    // Cut into shards of ten tokens, wherever that falls.
    let tokens = documents.concat();
    let mut shards = Vec::new();
    for (shard_idx, part) in tokens.chunks(10).enumerate() {
        let path = folder.path().join(format!("{shard_idx}.shard"));
        let mut writer = ShardWriter::create(&path, [0; 32], 1_000).unwrap();
        for (i, &token) in part.iter().enumerate() {
            let position = (shard_idx * 10 + i) as u64;
            for _ in starts.iter().filter(|&&start| start == position) {
                writer.start_document(1);
            }
            writer.push(&[token]).unwrap();
        }
        writer.finish().unwrap();
        shards.push(Arc::new(Shard::open(&path).unwrap()));
    }
    let disk = TokenStream::from_shards(shards.clone());
    assert_eq!(disk.document_starts().unwrap(), starts);
    for sampler in Sampler::ALL {
        let [a, b] = [&memory, &disk]
            .map(|stream| Loader::new(stream.clone(), sampler, SEED, 16, 4).unwrap())
            .map(|loader| (0..30).map(|i| step(&loader, 4 * i)).collect::<Vec<_>>());
        assert_eq!(a, b);
    }
    // The second shard starts inside a document.
    let error = TokenStream::from_shards(shards.split_off(1)).document_starts().unwrap_err();
    assert!(error.to_string().contains("no document starts at the first token"), "{error}");
}

#[test]
fn batches_of_other_rows_and_unusable_settings_are_errors() {
    let documents = documents(&[50, 50]);
    for sampler in Sampler::ALL {
        let loader = loader(&documents, sampler, 8, 2);
        for rows in [0, 1, 3] {
            let error = loader.fill(0, &mut Batch::new(rows, 8)).unwrap_err().to_string();
            assert!(error.contains("the steps of this loader have 2"), "{error}");
        }
        let stream = TokenStream::from_documents(documents.clone(), 0);
        assert!(Loader::new(stream.clone(), sampler, SEED, 0, 2).is_err());
        assert!(Loader::new(stream, sampler, SEED, 8, 0).is_err());
        assert!(Loader::new(TokenStream::from_tokens(vec![], 0), sampler, SEED, 8, 2).is_err());
    }
}

#[test]
fn bucketed_steps_start_at_a_multiple_of_their_rows() {
    let loader = loader(&documents(&[50, 50]), Sampler::Bucketed, 8, 2);
    let error = loader.fill(3, &mut loader.batch()).unwrap_err().to_string();
    assert!(error.contains("first sample cannot be 3") && error.contains("multiple of 2"), "{error}");
}

proptest! {
    #[test]
    fn any_documents_give_what_the_oracle_gives(
        lengths in prop::collection::vec(0usize..40, 1..12), context in 1usize..40, rows in 1usize..5, step_idx in 0u64..50,
    ) {
        prop_assume!(lengths.iter().sum::<usize>() > 0);
        let documents = documents(&lengths);
        for sampler in Sampler::ALL {
            let loader = loader(&documents, sampler, context, rows);
            let first = step_idx * rows as u64;
            prop_assert_eq!(step(&loader, first), oracle_step(&documents, sampler, context, rows, first));
        }
    }

    #[test]
    fn any_split_of_a_run_into_steps_shows_the_same_samples(
        tokens in 1usize..300, context in 1usize..40, first in 0u64..10_000, cuts in prop::collection::vec(1usize..5, 1..5),
    ) {
        let documents = documents(&[tokens / 3, tokens - tokens / 3]);
        for sampler in [Sampler::Random, Sampler::Shuffled, Sampler::Sequential, Sampler::Packed] {
            let whole = step(&loader(&documents, sampler, context, cuts.iter().sum()), first);
            let (mut parts, mut next) = (Rows::default(), first);
            for &rows in &cuts {
                parts.append(step(&loader(&documents, sampler, context, rows), next));
                next += rows as u64;
            }
            prop_assert_eq!(whole, parts);
        }
    }

    #[test]
    fn no_target_and_no_document_crosses_a_border(
        lengths in prop::collection::vec(1usize..30, 1..12), context in 1usize..40, first in 0u64..100,
    ) {
        let documents = documents(&lengths);
        let owner = |token: u32| documents.iter().position(|document| document.contains(&token));
        for sampler in [Sampler::Packed, Sampler::Bucketed] {
            let loader = loader(&documents, sampler, context, 1);
            prop_assert!(loader.has_borders());
            let row = step(&loader, first);
            for (i, &id) in row.ids.iter().enumerate() {
                if row.targets[i] != IGNORED {
                    prop_assert_eq!(owner(id), owner(row.targets[i]));
                }
                for j in 0..i {
                    if row.borders[i] == row.borders[j] {
                        prop_assert_eq!(owner(id), owner(row.ids[j]));
                        prop_assert_eq!(row.positions[i] - row.positions[j], (i - j) as u32);
                    }
                }
            }
        }
    }
}

#[test]
fn one_batch_goes_through_all_samplers_and_lengths() {
    let documents = documents(&[7, 30, 1, 16, 90, 2, 55, 8, 8, 41]);
    let loaders =
        |context: usize| Sampler::ALL.map(|sampler| (sampler, loader(&documents, sampler, context, 4)));
    let mut batch = Batch::new(4, 1);
    for (context, (sampler, loader)) in
        [16, 8, 16].into_iter().flat_map(|context| loaders(context).map(|loader| (context, loader)))
    {
        for first in (0..40).step_by(4) {
            let expected = oracle_step(&documents, sampler, context, 4, first);
            assert_eq!(refill(&loader, first, &mut batch), expected, "{sampler:?} {context} {first}");
            let _ = batch.ids.pop();
        }
    }
}

#[test]
fn loaders_that_share_their_workers_disturb_nobody() {
    let documents = documents(&[500, 300]);
    let plain = loader(&documents, Sampler::Shuffled, 16, 4);
    let ahead = plain.clone().with_workers(2).unwrap();
    std::thread::scope(|scope| {
        for first_step in [0, 1_000, 5] {
            let (plain, ahead) = (&plain, ahead.clone());
            scope.spawn(move || {
                for first_sample in (first_step..first_step + 200).map(|step| step * 4) {
                    assert_eq!(step(&ahead, first_sample), step(plain, first_sample));
                }
            });
        }
    });
}

#[test]
fn any_number_of_workers_gives_the_same_batches_in_any_order_of_asking() {
    let documents = documents(&[7, 30, 1, 16, 90, 2, 55, 8, 8, 41]);
    for sampler in Sampler::ALL {
        let plain = loader(&documents, sampler, 16, 4);
        for workers in [1, 2, 8] {
            let ahead = plain.clone().with_workers(workers).unwrap();
            let asked = (0..60).chain([12, 13, 14, 3, 4, 3, 1_000_000, 1_000_001]).map(|step| step * 4);
            for first_sample in asked {
                let expected = step(&plain, first_sample);
                assert_eq!(step(&ahead, first_sample), expected, "{sampler:?} {workers} {first_sample}");
            }
        }
    }
}

#[test]
fn workers_hand_on_what_is_wrong_with_a_shard() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.shard");
    let mut writer = ShardWriter::create(&path, [0; 32], 250).unwrap();
    writer.start_document(1);
    writer.push(&[7u32; 100_000]).unwrap();
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[96 + 150_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let stream = TokenStream::from_shards(vec![std::sync::Arc::new(Shard::open(&path).unwrap())]);
    let loader = Loader::new(stream, Sampler::Sequential, SEED, 1_000, 2).unwrap().with_workers(2).unwrap();
    let mut batch = loader.batch();
    let mut fill = |first_sample| loader.fill(first_sample, &mut batch);
    assert!((0..32).step_by(2).all(|sample| fill(sample).is_ok()));
    assert_eq!(fill(74).unwrap_err().class(), crate::Class::BadData);
    assert!(fill(0).is_ok());
    assert_eq!(fill(74).unwrap_err().class(), crate::Class::BadData);
}
