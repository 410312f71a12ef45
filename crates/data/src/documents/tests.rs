use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression as Level;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tempfile::TempDir;

use super::*;
use crate::Class;
use crate::testing::{inputs, inputs_with};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

fn file(folder: &TempDir, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    path
}

fn texts(inputs: &Inputs) -> Result<Vec<String>> {
    inputs.documents().map(|document| document.map(|document| document.text)).collect()
}

fn separated(separator: &str) -> InputOptions {
    InputOptions { document_separator: Some(separator.into()), ..InputOptions::default() }
}

fn first_error(path: &Path, options: &InputOptions) -> Error {
    texts(&inputs_with(&[path], options).unwrap()).unwrap_err()
}

#[test]
fn a_text_file_is_one_document() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "a.txt", "one\n\ntwo\n");
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one\n\ntwo\n"]);
}

#[test]
fn a_separator_splits_a_text_file_and_knows_positions() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "a.md", "one<|end|>two<|end|>\n<|end|><|end|>three<|end|>");
    let inputs = inputs_with(&[&path], &separated("<|end|>")).unwrap();
    let found: Vec<(u64, String)> =
        inputs.documents().map(|document| document.unwrap()).map(|d| (d.position, d.text)).collect();
    assert_eq!(found, [(0, "one".into()), (10, "two".into()), (35, "three".into())]);
}

#[test]
fn rows_of_json_lines_are_documents_whatever_else_they_hold() {
    let folder = TempDir::new().unwrap();
    let rows = concat!(
        "{\"id\": 1, \"text\": \"one\\n\\u00e9\"}\n",
        "\n",
        "{\"text\": \"two\", \"meta\": {\"a\": [1, {\"text\": \"no\"}]}}\r\n",
        "{\"text\": \"\"}\n",
        "{\"text\": \"first\", \"text\": \"last\"}",
    );
    let path = file(&folder, "a.jsonl", rows);
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one\né", "two", "last"]);
    let options = InputOptions { text_key: "id".into(), ..InputOptions::default() };
    assert!(first_error(&path, &options).to_string().contains("line 1"));
}

#[test]
fn bad_rows_are_named_by_file_and_line() {
    let folder = TempDir::new().unwrap();
    for (row, expected) in [
        ("{\"body\": \"x\"}", "no field \"text\""),
        ("{\"text\": 5}", "string under \"text\""),
        ("{\"text\": [1, 2]}", "string under \"text\""),
        ("{\"text\": null}", "string under \"text\""),
        ("[\"text\"]", "not an object"),
        ("{\"text\": \"cut", "EOF"),
        ("{\"text\": \"x\"} more", "trailing"),
    ] {
        let path = file(&folder, "a.jsonl", format!("{{\"text\": \"fine\"}}\n{row}\n"));
        let error = first_error(&path, &InputOptions::default());
        assert_eq!(error.class(), Class::BadData);
        let message = error.to_string();
        assert!(message.contains("a.jsonl, line 2") && message.contains(expected), "{message}");
    }
}

#[test]
fn compressed_files_read_as_their_content() {
    let folder = TempDir::new().unwrap();
    let text = "some text, ".repeat(100_000);
    let row = format!("{{\"text\": \"{text}\"}}\n");
    for (name, bytes) in [
        ("a.txt.gz", gzip(text.as_bytes())),
        ("b.txt.zst", zstd(text.as_bytes())),
        ("c.jsonl.gz", gzip(row.as_bytes())),
        ("d.jsonl.zst", zstd(row.as_bytes())),
        ("e.txt.bz2", bzip2(text.as_bytes())),
        ("f.json.bz2", bzip2(format!("[{row}]").as_bytes())),
        ("g.csv.zst", zstd(format!("text\n\"{text}\"\n").as_bytes())),
        ("wiki_00.bz2", bzip2(format!("<doc id=\"1\">\n{text}\n</doc>\n").as_bytes())),
    ] {
        let path = file(&folder, name, bytes);
        let found = texts(&inputs(&[&path])).unwrap();
        assert_eq!(found.len(), 1, "{name}");
        assert_eq!(found[0].trim_end(), text.trim_end(), "{name}");
    }
}

#[test]
fn files_of_several_compressed_parts_are_read_to_the_end() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "a.txt.gz", [gzip(b"one "), gzip(b"two")].concat());
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one two"]);
    let path = file(&folder, "a.txt.bz2", [bzip2(b"one "), bzip2(b"two")].concat());
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one two"]);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
    let path = file(&folder, "a.txt.zst", [zstd(b"one "), skippable, zstd(b"two")].concat());
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one two"]);
}

#[test]
fn truncated_and_damaged_compressed_files_are_errors() {
    let folder = TempDir::new().unwrap();
    let text: Vec<u8> = (0..5_000u32).flat_map(|i| format!("line {}\n", i * i).into_bytes()).collect();
    for (name, bytes) in [("a.txt.gz", gzip(&text)), ("a.txt.zst", zstd(&text)), ("a.txt.bz2", bzip2(&text))]
    {
        for length in [1, 5, 11, bytes.len() / 2, bytes.len() - 4, bytes.len() - 1] {
            let path = file(&folder, name, &bytes[..length]);
            let error = first_error(&path, &InputOptions::default());
            assert_eq!(error.class(), Class::BadData, "{name} cut to {length}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
    let path = file(&folder, "b.txt.gz", b"this is not compressed at all");
    assert_eq!(first_error(&path, &InputOptions::default()).class(), Class::BadData);
}

#[test]
fn bad_utf8_is_an_error_with_its_offset_or_replaced_or_skipped() {
    let folder = TempDir::new().unwrap();
    let text = file(&folder, "a.txt", b"good|b\xffd|fine");
    let rows =
        file(&folder, "a.jsonl", b"{\"text\": \"good\"}\n{\"text\": \"b\xffd\"}\n{\"text\": \"fine\"}\n");
    for (path, offset) in [(&text, 6), (&rows, 28)] {
        let options = |on_bad_utf8| InputOptions { on_bad_utf8, ..separated("|") };
        let error = first_error(path, &options(BadUtf8::Error));
        assert_eq!(error.class(), Class::BadData);
        assert!(error.to_string().contains(&format!("at byte {offset}")), "{error}");
        let inputs = |policy| inputs_with(&[path], &options(policy)).unwrap();
        assert_eq!(texts(&inputs(BadUtf8::Replace)).unwrap(), ["good", "b\u{fffd}d", "fine"]);
        let skipping = inputs(BadUtf8::Skip);
        let mut documents = skipping.documents();
        assert_eq!(documents.by_ref().map(|d| d.unwrap().text).collect::<Vec<_>>(), ["good", "fine"]);
        assert_eq!(documents.skipped(), 1);
    }
}

#[test]
fn escaped_lone_surrogates_follow_the_policy() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "a.jsonl", r#"{"text": "a\ud800b"}"#);
    assert!(matches!(first_error(&path, &InputOptions::default()), Error::BadUtf8 { .. }));
    let options = InputOptions { on_bad_utf8: BadUtf8::Replace, ..InputOptions::default() };
    let replaced = texts(&inputs_with(&[&path], &options).unwrap()).unwrap().remove(0);
    assert!(replaced.starts_with('a') && replaced.ends_with('b') && replaced.contains('\u{fffd}'));
}

#[test]
fn byte_order_marks_are_dropped() {
    let folder = TempDir::new().unwrap();
    let text = file(&folder, "a.txt", "\u{feff}one|two");
    let rows = file(&folder, "b.jsonl", "\u{feff}{\"text\": \"three\"}");
    let inputs = inputs_with(&[&text, &rows], &separated("|")).unwrap();
    assert_eq!(texts(&inputs).unwrap(), ["one", "two", "three"]);
}

#[test]
fn folders_are_read_recursively_in_sorted_order_without_strangers() {
    let folder = TempDir::new().unwrap();
    for name in
        ["b.txt", "a/z.md", "a/b/c.jsonl", "a.txt", "notes.pdf", "no_extension", ".hidden.txt", ".git/x.txt"]
    {
        file(&folder, name, if name.ends_with("jsonl") { "{\"text\": \"row\"}" } else { name });
    }
    let found = inputs(&[folder.path()]);
    assert_eq!(texts(&found).unwrap(), ["row", "a/z.md", "a.txt", "b.txt"]);
    assert_eq!(found.ignored_files(), 2);
    assert_eq!(found.names().len(), 4);
}

#[test]
fn patterns_match_files_and_folders() {
    let folder = TempDir::new().unwrap();
    for name in ["a1.txt", "a2.txt", "b.txt", "a3.log", "deep/er/a4.txt", "deep/a5.txt"] {
        file(&folder, name, name);
    }
    for (pattern, expected) in [
        ("a?.txt", &["a1.txt", "a2.txt"][..]),
        ("a*", &["a1.txt", "a2.txt", "a3.log"]),
        ("**/a*.txt", &["a1.txt", "a2.txt", "deep/a5.txt", "deep/er/a4.txt"]),
        ("d*", &["deep/a5.txt", "deep/er/a4.txt"]),
        ("*/*/a*", &["deep/er/a4.txt"]),
    ] {
        assert_eq!(texts(&inputs(&[&folder.path().join(pattern)])).unwrap(), expected, "{pattern}");
    }
}

#[test]
fn what_cannot_be_found_is_no_input() {
    let folder = TempDir::new().unwrap();
    let refused = |path: &Path| inputs_with(&[path], &InputOptions::default()).unwrap_err();
    for missing in ["a.txt", "*.txt", "no/such/*.txt"] {
        let error = refused(&folder.path().join(missing));
        assert_eq!(error.class(), Class::NoInput);
        assert!(error.to_string().contains(missing), "{error}");
    }
    assert_eq!(refused(folder.path()).class(), Class::NoInput);
    let vanishing = file(&folder, "v.txt", "text");
    let inputs = inputs(&[&vanishing]);
    fs::remove_file(vanishing).unwrap();
    assert_eq!(texts(&inputs).unwrap_err().class(), Class::NoInput);
}

#[test]
fn files_that_are_surely_not_text_are_refused_when_named() {
    let folder = TempDir::new().unwrap();
    for (name, advice) in [
        ("a.parquet.gz", "unpack the file first"),
        ("a.parquet.zst", "unpack the file first"),
        ("a.xz", "convert it to .txt or .jsonl"),
        ("a.zip.gz", "convert it to .txt or .jsonl"),
    ] {
        let path = file(&folder, name, "x");
        let error = inputs_with(&[&path], &InputOptions::default()).unwrap_err();
        assert!(matches!(error, Error::UnsupportedFormat { .. }), "{error}");
        assert!(error.to_string().contains(name) && error.to_string().contains(advice), "{error}");
    }
    let path = file(&folder, "README", "read me");
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["read me"]);
}

#[test]
fn a_corpus_without_documents_is_an_error() {
    let folder = TempDir::new().unwrap();
    let path = file(&folder, "a.txt", " \n\t ");
    let error = inputs(&[&path]).for_each(|_| Ok(())).unwrap_err();
    assert_eq!(error.class(), Class::NoInput);
    assert!(error.to_string().contains("a.txt"), "{error}");
}

#[test]
fn a_sample_takes_some_files_in_order_and_always_the_same() {
    let folder = TempDir::new().unwrap();
    for i in 0..20 {
        file(&folder, &format!("{i:02}.txt"), format!("{i:02}"));
    }
    let options = |seed| InputOptions { sample: Some(5), seed, ..InputOptions::default() };
    let taken = |seed| texts(&inputs_with(&[folder.path()], &options(seed)).unwrap()).unwrap();
    assert_eq!(taken(1).len(), 5);
    assert!(taken(1).is_sorted());
    assert_eq!(taken(1), taken(1));
    assert_ne!(taken(1), taken(2));
}

#[test]
fn built_in_stories_are_documents() {
    let specs = ["builtin:stories:20KB".to_owned()];
    let inputs = Inputs::from_specs(&specs, &InputOptions::default()).unwrap();
    let mut bytes = 0;
    let count = inputs.for_each(|document| {
        bytes += document.text.len();
        Ok(())
    });
    assert!(count.unwrap() > 5);
    assert!((15_000..30_000).contains(&bytes), "{bytes}");
    assert_eq!(inputs.total_bytes(), 20_000);
    for bad in ["builtin:poems:1MB", "builtin:stories", "builtin:stories:many"] {
        let error = Inputs::from_specs(&[bad.into()], &InputOptions::default()).unwrap_err();
        assert_eq!(error.class(), Class::BadSetting, "{bad}");
    }
}

#[test]
fn bytes_read_reach_the_total() {
    let folder = TempDir::new().unwrap();
    file(&folder, "a.txt.gz", gzip("hello ".repeat(1_000).as_bytes()));
    file(&folder, "b.txt", "hello");
    let inputs = inputs(&[folder.path()]);
    let mut documents = inputs.documents();
    assert_eq!(documents.by_ref().count(), 2);
    assert_eq!(documents.bytes_read(), inputs.total_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn splitting_equals_the_plain_split(pieces in prop::collection::vec("[ab-]{0,12}", 1..40), repeat in 1usize..400, separator in "-{1,3}|a-|--a") {
        let folder = TempDir::new().unwrap();
        // Repeated, the text reaches beyond one read, so that separators lie across the borders of reads.
        let text = pieces.concat().repeat(repeat * 64);
        prop_assume!(!text.is_empty());
        let path = file(&folder, "a.txt", &text);
        let expected: Vec<&str> = text.split(separator.as_str()).filter(|piece| !piece.is_empty()).collect();
        prop_assert_eq!(texts(&inputs_with(&[&path], &separated(&separator)).unwrap()).unwrap(), expected);
    }

    #[test]
    fn damaged_compressed_files_never_panic(at in 0usize..100_000, value: u8, zstandard: bool) {
        let folder = TempDir::new().unwrap();
        let text: Vec<u8> = (0..300u32).flat_map(|i| format!("line {}\n", i * i * i % 1_009).into_bytes()).collect();
        let mut bytes = if zstandard { zstd(&text) } else { gzip(&text) };
        let at = at % bytes.len();
        bytes[at] = value;
        let path = file(&folder, if zstandard { "a.txt.zst" } else { "a.txt.gz" }, bytes);
        let _ = texts(&inputs(&[&path]));
    }
}

/// The text of all chunks, and what they were cut into.
fn chunked(inputs: &Inputs, lines: bool, chunk_bytes: usize) -> Result<(Vec<String>, u64)> {
    let special = ["<|end|>".to_string()];
    let cuts = ironmill_text::TextCuts::new(&ironmill_text::Pattern::Gpt2, &special, lines).unwrap();
    let mut chunks = inputs.chunks(cuts, chunk_bytes, 8 << 20);
    let (mut chunk, mut parts) = (Chunk::default(), Vec::new());
    while chunks.next(&mut chunk)? {
        parts.extend(chunk.parts().map(|(text, _)| text.to_string()));
    }
    assert_eq!(chunks.bytes_read(), inputs.total_bytes());
    Ok((parts, chunks.documents()))
}

#[test]
fn chunks_have_the_text_of_the_documents_however_small_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\u{feff}Один, two!\nthree <|end|> it's 世界。 \n\n|  |naïve café|\n|ende".repeat(40);
    let path = folder.path().join("a.txt");
    std::fs::write(&path, &text).unwrap();
    for separator in [None, Some("|".to_string()), Some("<|end|>".to_string())] {
        let options = InputOptions { document_separator: separator.clone(), ..InputOptions::default() };
        let inputs = Inputs::from_specs(&[path.display().to_string()], &options).unwrap();
        let documents: Vec<String> = inputs.documents().map(|document| document.unwrap().text).collect();
        for chunk_bytes in [1, 7, 64, 1000, 1 << 20] {
            for lines in [false, true] {
                let (parts, n_documents) = chunked(&inputs, lines, chunk_bytes).unwrap();
                assert_eq!(parts.concat(), documents.concat(), "{separator:?} {chunk_bytes}");
                assert_eq!(n_documents, documents.len() as u64, "{separator:?} {chunk_bytes}");
            }
        }
    }
}

#[test]
fn chunks_obey_the_policy_for_bad_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    std::fs::write(&path, b"one two\xff three\n\xe4\xb8".repeat(3)).unwrap();
    let read = |on_bad_utf8| {
        let options = InputOptions { on_bad_utf8, ..InputOptions::default() };
        let inputs = Inputs::from_specs(&[path.display().to_string()], &options).unwrap();
        let whole: String =
            inputs.documents().map(|document| document.map_or(String::new(), |d| d.text)).collect();
        [3, 1000].map(|chunk_bytes| {
            chunked(&inputs, false, chunk_bytes).map(|(parts, _)| (parts.concat(), whole.clone()))
        })
    };
    for result in read(BadUtf8::Replace) {
        let (parts, whole) = result.unwrap();
        assert_eq!(parts, whole);
    }
    for result in read(BadUtf8::Error) {
        assert!(matches!(result, Err(Error::BadUtf8 { offset: 7, .. })), "{result:?}");
    }
    for result in read(BadUtf8::Skip) {
        assert!(matches!(result, Err(Error::EmptyCorpus { .. })), "{result:?}");
    }
}

#[test]
fn text_that_cannot_be_cut_and_does_not_fit_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    std::fs::write(&path, "x".repeat(3 << 20)).unwrap();
    let inputs = Inputs::from_specs(&[path.display().to_string()], &InputOptions::default()).unwrap();
    let error = chunked(&inputs, false, 1 << 16).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("--memory"), "{error}");

    // A row is not cut at all, and a window is refused before it is made.
    let row = format!("{{\"text\": \"{}\"}}\n", "x y".repeat(1 << 20));
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 14 << 3, 1, 0, 0];
    for (name, bytes, expected) in [
        ("a.jsonl", row.as_bytes(), "a row at byte 0"),
        ("a.txt.zst", &window[..], "a zstd window at byte 0"),
    ] {
        let path = file(&folder, name, bytes);
        let error = chunked(&self::inputs(&[&path]), false, 1 << 16).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("--memory"), "{error}");
        assert!(name != "a.txt.zst" || error.contains("takes 16 MiB, and 1 MiB fit"), "{error}");
        assert!(name != "a.txt.zst" || error.contains("at least 128 MiB"), "{error}");
    }
}

#[test]
fn a_column_of_a_csv_file_is_read_with_its_commas_quotes_and_lines() {
    let folder = TempDir::new().unwrap();
    let rows = "\u{feff}id,text,n\r\n1,\"one, \"\"two\"\"\nthree\",x\r\n2,four,y\r\n3,,z\n";
    let path = file(&folder, "a.csv", rows);
    assert_eq!(texts(&inputs(&[&path])).unwrap(), ["one, \"two\"\nthree", "four"]);
    let options = InputOptions { text_key: "n".into(), ..InputOptions::default() };
    assert_eq!(texts(&inputs_with(&[&path], &options).unwrap()).unwrap(), ["x", "y", "z"]);
    let options = InputOptions { text_key: "body".into(), ..InputOptions::default() };
    let message = first_error(&path, &options).to_string();
    assert!(message.contains("no column \"body\" among id, text, n"), "{message}");
    let path = file(&folder, "b.csv", "id,text\n1,a\n2,b,c\n");
    let message = first_error(&path, &InputOptions::default()).to_string();
    assert!(
        message.contains("b.csv, line 3") && message.contains("3 fields and the first row 2"),
        "{message}"
    );
    let path = file(&folder, "c.csv", b"text\ngood\nb\xffd\n");
    assert!(first_error(&path, &InputOptions::default()).to_string().contains("at byte 11"));
    // A quote that is never closed would make the rest of the file one row.
    let path = file(&folder, "d.csv", format!("text\n\"{}", "x,\n".repeat(1 << 20)));
    let error = chunked(&inputs(&[&path]), false, 1 << 16).unwrap_err();
    assert!(matches!(error, Error::TooLarge { what: "a row", .. }), "{error}");
}

#[test]
fn a_json_file_is_an_array_or_values_one_after_the_other() {
    let folder = TempDir::new().unwrap();
    let long = "x y ".repeat(200_000);
    for (json, expected) in [
        (
            r#"[{"text": "one [\"}"}, {"n": {"text": 1}, "text": "two"}, "three"]"#.to_string(),
            vec!["one [\"}", "two", "three"],
        ),
        ("[]".into(), vec![]),
        (r#" {"text": "alone"} "#.into(), vec!["alone"]),
        ("{\"text\": \"a\"}\n{\"text\": \"b\"}\n".into(), vec!["a", "b"]),
        (format!("[\"{long}\", {{\"text\": \"{long}\"}}]"), vec![&long, &long]),
    ] {
        let path = file(&folder, "a.json", &json);
        assert_eq!(texts(&inputs(&[&path])).unwrap(), expected);
    }
    for (json, expected) in [
        (r#"[{"text": "a"} {"text": "b"}]"#, "byte 15: a comma is missing"),
        (r#"[{"text": "a"}, 5]"#, "byte 16: a row is neither"),
        (r#"[{"text": "a"}, {"body": "b"}]"#, "byte 16: the row has no field \"text\""),
        (r#"[{"text": "a"},"#, "ends inside the array"),
        (r#"[{"text": "a"#, "ends inside a row"),
        (r#"[{"text": "a"}}"#, "a comma is missing"),
        ("[[1]]", "neither an object nor a text"),
    ] {
        let path = file(&folder, "a.json", json);
        let message = first_error(&path, &InputOptions::default()).to_string();
        assert!(message.contains("a.json, ") && message.contains(expected), "{json}: {message}");
    }
}

/// A dump of these pages: title, namespace, what stands before the revision, text.
fn dump(pages: &[(&str, &str, &str, &str)]) -> String {
    let mut xml = String::from(
        "<mediawiki xmlns=\"x\" version=\"0.11\">\n<siteinfo><namespaces>\
         <namespace key=\"6\" case=\"first-letter\">Datei</namespace></namespaces></siteinfo>\n",
    );
    for (title, namespace, more, text) in pages {
        xml += &format!(
            "  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>1</id>\n{more}    \
             <revision>\n      <model>wikitext</model>\n      \
             <text bytes=\"9\" xml:space=\"preserve\">{text}</text>\n    </revision>\n  </page>\n"
        );
    }
    xml + "</mediawiki>\n"
}

#[test]
fn the_articles_of_a_dump_are_documents_and_other_pages_are_not() {
    let folder = TempDir::new().unwrap();
    let ada = "'''Ada'''&lt;ref&gt;x&lt;/ref&gt; met [[Bob|him]] at 5&amp;nbsp;pm. [[Datei:a.jpg]]";
    let xml = dump(&[
        ("Ada &amp; Bob", "0", "", ada),
        ("Talk:Ada", "1", "", "chat"),
        ("A", "0", "    <redirect title=\"Ada\" />\n", "x"),
        ("B", "0", "", "#REDIRECT [[Ada]]"),
        ("C", "0", "", "{{only a template}}"),
        ("D", "0", "", "Last."),
    ]);
    let expected = ["Ada & Bob\n\nAda met him at 5 pm.\n", "D\n\nLast.\n"];
    for (name, bytes) in [("a.xml", xml.clone().into_bytes()), ("a.xml.bz2", bzip2(xml.as_bytes()))] {
        let path = file(&folder, name, bytes);
        assert_eq!(texts(&inputs(&[&path])).unwrap(), expected, "{name}");
    }
    for cut in [xml.len() / 2, xml.len() - 14] {
        let path = file(&folder, "cut.xml", &xml[..cut]);
        let error = first_error(&path, &InputOptions::default());
        assert!(matches!(error, Error::DamagedInput { .. }), "{error}");
    }
    let path = file(&folder, "other.xml", "<html></html>");
    assert!(first_error(&path, &InputOptions::default()).to_string().contains("no MediaWiki dump"));
}

#[test]
fn folders_of_wikiextractor_are_read_in_both_forms() {
    let folder = TempDir::new().unwrap();
    let docs = "<doc id=\"1\" url=\"u\" title=\"A\">\nA\n\n1 &lt; 2\n\n</doc>\n\
                <doc id=\"2\" title=\"B\">\nB\n</doc>\n";
    file(&folder, "AA/wiki_00", docs);
    file(&folder, "AA/wiki_01.bz2", bzip2(b"{\"id\": \"3\", \"text\": \"three\"}\n{\"text\": \"\"}\n"));
    file(&folder, "AB/wiki_x", "not one of its files");
    let found = inputs(&[folder.path()]);
    assert_eq!(texts(&found).unwrap(), ["A\n\n1 < 2", "B", "three"]);
    assert_eq!(found.ignored_files(), 1);
    let path = file(&folder, "wiki_07", &docs[..docs.len() - 9]);
    assert!(matches!(first_error(&path, &InputOptions::default()), Error::DamagedInput { .. }));
}

#[test]
fn truncated_structured_files_are_errors() {
    let folder = TempDir::new().unwrap();
    let rows: String = (0..2_000u32).map(|i| format!("{{\"text\": \"row {}\"}}\n", i * i)).collect();
    let xml = dump(&[("A", "0", "", &"some text ".repeat(2_000))]);
    for (name, bytes) in [
        ("a.jsonl.gz", gzip(rows.as_bytes())),
        ("a.json.zst", zstd(format!("[{}]", rows.trim_end().replace('\n', ",")).as_bytes())),
        ("a.csv.bz2", bzip2(format!("text\n{rows}").replace('"', "").as_bytes())),
        ("a.xml.bz2", bzip2(xml.as_bytes())),
    ] {
        for length in [9, bytes.len() / 2, bytes.len() - 3] {
            let path = file(&folder, name, &bytes[..length]);
            let error = first_error(&path, &InputOptions::default());
            assert_eq!(error.class(), Class::BadData, "{name} cut to {length}: {error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
