//! Sizes and counts as people write them: `20MB`, `4GiB`, `100M`, `65536`.

use crate::error::{Error, Result};

/// Reads a size or count: a whole or decimal number with an optional suffix.
///
/// `K`, `M`, `G`, `T` (also `KB`, `MB`, …) are powers of 1000; `KiB`, `MiB`, `GiB`, `TiB` are powers of 1024; `B` alone
/// is one. Case does not matter, and underscores may group digits. The result is rounded down to a whole number.
///
/// ```
/// assert_eq!(ironmill_data::parse_size("20MB")?, 20_000_000);
/// assert_eq!(ironmill_data::parse_size("4GiB")?, 4 << 30);
/// assert_eq!(ironmill_data::parse_size("1.5K")?, 1_500);
/// # Ok::<(), ironmill_data::Error>(())
/// ```
pub fn parse_size(text: &str) -> Result<u64> {
    let bad = || Error::BadSetting {
        name: "size",
        value: format!("'{text}'"),
        advice: "write a number with an optional suffix, such as 20MB, 4GiB or 100M".into(),
    };
    let trimmed = text.trim();
    let digits_end =
        trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, suffix) = trimmed.split_at(digits_end);
    let unit: u64 = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(bad()),
    };
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.len() > 15 || fraction.contains('.') {
        return Err(bad());
    }
    let parse = |digits: &str| {
        if digits.is_empty() { Ok(0) } else { digits.parse::<u64>().map_err(|_| bad()) }
    };
    let whole = parse(whole)?.checked_mul(unit).ok_or_else(bad)?;
    let scale = 10u128.pow(fraction.len() as u32);
    let part = u128::from(parse(fraction)?) * u128::from(unit) / scale;
    whole.checked_add(part as u64).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, expected) in [
            ("0", 0),
            ("65536", 65_536),
            ("100M", 100_000_000),
            ("20MB", 20_000_000),
            (" 20 mb ", 20_000_000),
            ("4GiB", 4 << 30),
            ("1.5KiB", 1_536),
            ("1_000", 1_000),
            (".5k", 500),
            ("7b", 7),
        ] {
            assert_eq!(parse_size(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn nonsense_sizes_are_refused_with_advice() {
        for text in
            ["", "MB", ".", "-1", "1.2.3", "12 apples", "1e6", "18446744073709551616", "99999999999TiB"]
        {
            let error = parse_size(text).unwrap_err();
            assert_eq!(error.class(), crate::Class::BadSetting, "{text}");
            assert!(error.to_string().contains("20MB"), "{text}");
        }
    }
}
