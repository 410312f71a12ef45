//! Finding inputs: what a spec names, and what kind of file each is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::open::{Compression, STDIN};
use super::{Format, Source, SourceKind};
use crate::error::{Error, Result};
use crate::manifest::InputRecord;
use crate::order::{PURPOSE_FILES, hash};
use crate::size::parse_size;

/// What has been found so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) sources: Vec<Source>,
    /// Files in folders whose kind is not known.
    pub(super) ignored: u64,
}

/// Adds everything that a spec names.
pub(super) fn resolve(spec: &str, may_read_stdin: bool, found: &mut Found) -> Result<()> {
    if spec == STDIN && may_read_stdin {
        let record = InputRecord { name: spec.into(), bytes: 0, modified_ns: 0 };
        let (format, compression) = (Format::Text, Compression::None);
        found
            .sources
            .push(Source { record, kind: SourceKind::File { path: spec.into(), format, compression } });
        return Ok(());
    }
    if let Some(name) = spec.strip_prefix("builtin:") {
        return resolve_builtin(spec, name, found);
    }
    let path = Path::new(spec);
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => resolve_folder(path, found),
        Ok(_) => add_named_file(path, found),
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Read { path: path.to_path_buf(), source: error })
        }
        Err(_) if spec.contains(['*', '?']) => resolve_pattern(spec, found),
        Err(_) => Err(Error::MissingInput { path: spec.into() }),
    }
}

/// Keeps `wanted` of the sources, chosen by the seed, in their order.
pub(super) fn sample(sources: &mut Vec<Source>, wanted: u64, seed: u64) -> Result<()> {
    if wanted == 0 {
        let advice = "take at least one file, or leave it out to take all".into();
        return Err(Error::BadSetting { name: "sample", value: "0".into(), advice });
    }
    let mut ranks: Vec<(u64, usize)> =
        (0..sources.len()).map(|idx| (hash(&[seed, PURPOSE_FILES, idx as u64]), idx)).collect();
    ranks.sort_unstable();
    let mut kept: Vec<bool> = vec![false; sources.len()];
    for (_, idx) in ranks.into_iter().take(usize::try_from(wanted).unwrap_or(usize::MAX)) {
        kept[idx] = true;
    }
    let mut kept = kept.into_iter();
    sources.retain(|_| kept.next().unwrap_or(false));
    Ok(())
}

fn resolve_builtin(spec: &str, name: &str, found: &mut Found) -> Result<()> {
    let Some(size) = name.strip_prefix("stories:") else {
        return Err(Error::BadSetting {
            name: "input",
            value: format!("'{spec}'"),
            advice: "the built-in corpus is builtin:stories:SIZE, for example builtin:stories:20MB".into(),
        });
    };
    let bytes = parse_size(size)?;
    let record = InputRecord { name: spec.into(), bytes, modified_ns: 0 };
    found.sources.push(Source { record, kind: SourceKind::Stories { bytes } });
    Ok(())
}

fn resolve_folder(path: &Path, found: &mut Found) -> Result<()> {
    let mut files = Vec::new();
    walk(path, &mut files)?;
    files.sort();
    let before = found.sources.len();
    for file in files {
        match classify(&file) {
            Kind::Known(format, compression) => add(&file, format, compression, found)?,
            Kind::Unknown(_) | Kind::Unsupported(_) => found.ignored += 1,
        }
    }
    if found.sources.len() == before {
        Err(Error::NoMatch { spec: path.display().to_string() })
    } else {
        Ok(())
    }
}

/// All files below a folder. Hidden ones are passed over, and so are links to folders, which may lead in a circle.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::read(folder))? {
        let entry = entry.map_err(Error::read(folder))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::read(&path))?;
        if kind.is_dir() {
            walk(&path, files)?;
        } else if kind.is_file() || kind.is_symlink() && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn resolve_pattern(pattern: &str, found: &mut Found) -> Result<()> {
    let parts: Vec<&str> = pattern.split('/').collect();
    let fixed = parts.iter().take_while(|part| !part.contains(['*', '?'])).count();
    let base = match parts[..fixed].join("/") {
        base if base.is_empty() && fixed > 0 => PathBuf::from("/"),
        base => PathBuf::from(base),
    };
    let mut matches = Vec::new();
    expand(&base, &parts[fixed..], &mut matches)?;
    matches.sort();
    matches.dedup();
    if matches.is_empty() {
        return Err(Error::NoMatch { spec: pattern.into() });
    }
    for path in matches {
        if path.is_dir() {
            resolve_folder(&path, found)?;
        } else {
            add_named_file(&path, found)?;
        }
    }
    Ok(())
}

/// Adds the paths below `base` that the parts of a pattern match. `**` stands for any number of folders.
fn expand(base: &Path, parts: &[&str], matches: &mut Vec<PathBuf>) -> Result<()> {
    let Some((&part, rest)) = parts.split_first() else {
        matches.push(base.to_path_buf());
        return Ok(());
    };
    let folder = if base.as_os_str().is_empty() { Path::new(".") } else { base };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(Error::Read { path: folder.to_path_buf(), source });
        }
    };
    if part == "**" {
        expand(base, rest, matches)?;
    }
    for entry in entries {
        let entry = entry.map_err(Error::read(folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && !part.starts_with('.') {
            continue;
        }
        let path = base.join(&*name);
        let is_folder = path.is_dir();
        if part == "**" {
            if is_folder && !path.is_symlink() {
                expand(&path, parts, matches)?;
            } else if rest.is_empty() {
                matches.push(path);
            }
        } else if wildcard_matches(part, &name) && (rest.is_empty() || is_folder) {
            expand(&path, rest, matches)?;
        }
    }
    Ok(())
}

/// Whether a name matches a pattern in which `*` stands for any run of characters and `?` for one.
fn wildcard_matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // After a mismatch, the last star takes one character more.
    let mut retry: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            retry = Some((p + 1, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((after_star, taken)) = retry {
            retry = Some((after_star, taken + 1));
            (p, n) = (after_star, taken + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

fn add_named_file(path: &Path, found: &mut Found) -> Result<()> {
    match classify(path) {
        Kind::Known(format, compression) => add(path, format, compression, found),
        Kind::Unknown(compression) => add(path, Format::Text, compression, found),
        Kind::Unsupported(reason) => {
            Err(Error::UnsupportedFormat { path: path.display().to_string(), reason })
        }
    }
}

fn add(path: &Path, format: Format, compression: Compression, found: &mut Found) -> Result<()> {
    let kind = SourceKind::File { path: path.to_path_buf(), format, compression };
    found.sources.push(Source { record: record(path)?, kind });
    Ok(())
}

/// What is known of a file without reading it.
pub(crate) fn record(path: &Path) -> Result<InputRecord> {
    let metadata = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::MissingInput { path: path.display().to_string() },
        _ => Error::Read { path: path.to_path_buf(), source },
    })?;
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Ok(InputRecord {
        name: path.display().to_string(),
        bytes: metadata.len(),
        modified_ns: modified.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
    })
}

/// What a file's name says about its content.
enum Kind {
    Known(Format, Compression),
    /// Read as text, but only if it is named outright.
    Unknown(Compression),
    /// Surely not text, by its extension; why it is not read, and what to do.
    Unsupported(String),
}

/// Kinds that would be read as nonsense if they were taken for text.
const UNSUPPORTED: [&str; 11] =
    ["arrow", "xz", "lz4", "zip", "tar", "tgz", "7z", "pdf", "docx", "bin", "npy"];

fn classify(path: &Path) -> Kind {
    let extension = |path: &Path| {
        path.extension().map(|extension| extension.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
    };
    let (inner, compression) = match extension(path).as_str() {
        "gz" => (path.with_extension(""), Compression::Gzip),
        "zst" => (path.with_extension(""), Compression::Zstd),
        "bz2" => (path.with_extension(""), Compression::Bzip2),
        _ => (path.to_path_buf(), Compression::None),
    };
    match extension(&inner).as_str() {
        "txt" | "md" => Kind::Known(Format::Text, compression),
        "jsonl" => Kind::Known(Format::JsonLines, compression),
        "json" => Kind::Known(Format::Json, compression),
        "csv" => Kind::Known(Format::Csv, compression),
        "xml" => Kind::Known(Format::WikiDump, compression),
        // It is compressed inside, and is read from its end.
        "parquet" if compression == Compression::None => Kind::Known(Format::Parquet, compression),
        "parquet" => {
            let reason = "parquet is compressed inside and read from its end, so unpack the file first (gunzip, unzstd or bunzip2)";
            Kind::Unsupported(reason.into())
        }
        other if UNSUPPORTED.contains(&other) => Kind::Unsupported(format!(
            "files ending in .{other} are not supported, so convert it to .txt or .jsonl"
        )),
        "" if is_wiki_part(&inner) => Kind::Known(Format::WikiExtracted, compression),
        _ => Kind::Unknown(compression),
    }
}

/// Whether a file is named as WikiExtractor names its own: `wiki_00`.
fn is_wiki_part(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.strip_prefix("wiki_")
        .is_some_and(|number| number.len() >= 2 && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxayybzz", true),
            ("*a*b*", "xxbyyazz", false),
            ("*", "", true),
            ("ж*", "жук", true),
            ("a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(wildcard_matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
