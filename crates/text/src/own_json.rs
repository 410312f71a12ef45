//! Our own tokenizer files, for the kinds that have no standard one: JSON with `format`, `version` and
//! `kind`, then what the kind needs. Each kind's module says what that is.
//!
//! The reader is strict: a field that is missing, unknown or given twice is an error, and so is another
//! version. A later version may therefore change anything.

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

const FORMAT: &str = "ironmill-tokenizer";
const VERSION: u32 = 1;

/// The first fields of every file of ours. They are repeated in each kind's own type, because `serde` cannot
/// both embed a struct and refuse unknown fields.
#[derive(Deserialize)]
struct Head {
    version: u32,
    kind: String,
}

/// Whether the JSON says that it is our own format, whatever its version and kind.
pub(crate) fn is_own(json: &str) -> bool {
    #[derive(Deserialize)]
    struct Format {
        format: String,
    }
    serde_json::from_str::<Format>(json).is_ok_and(|head| head.format == FORMAT)
}

/// The kind that a file of ours says it has.
pub(crate) fn kind_of(json: &str) -> Result<String> {
    let head: Head = read(json)?;
    if head.version != VERSION {
        return Err(Error::Unsupported(format!("version {} of the format {FORMAT}", head.version)));
    }
    Ok(head.kind)
}

/// Reads the fields of a kind.
pub(crate) fn read<'j, T: Deserialize<'j>>(json: &'j str) -> Result<T> {
    serde_json::from_str(json).map_err(|error| Error::Format(error.to_string()))
}

/// The values of the fields `format` and `version`.
pub(crate) fn format_and_version() -> (String, u32) {
    (FORMAT.to_owned(), VERSION)
}

/// The text of a file.
pub(crate) fn write(file: &impl Serialize) -> String {
    // Strings, numbers and lists of them always have a JSON form.
    serde_json::to_string_pretty(file).unwrap_or_default() + "\n"
}
