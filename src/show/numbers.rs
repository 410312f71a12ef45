//! Numbers as people read them.

use std::time::Duration;

/// A whole number with its thousands apart: `1,240`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count of things: `1 shard`, `2 shards`.
pub fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Bytes one by one: `0x00 0x0b`.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:#04x}")).collect::<Vec<String>>().join(" ")
}

/// A size in bytes: `1.5 MB`.
pub fn bytes(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 999.5 {
            return if unit == "B" { format!("{value:.0} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// Operations a second: `467 GFLOP/s`.
pub fn flops(per_s: f64) -> String {
    let (value, unit) = if per_s < 1e12 { (per_s / 1e9, "GFLOP/s") } else { (per_s / 1e12, "TFLOP/s") };
    format!("{value:.0} {unit}")
}

/// An amount of some unit: bytes as a size, anything else as a count.
pub fn amount(number: u64, unit: &str) -> String {
    if unit == "bytes" { bytes(number) } else { format!("{} {unit}", grouped(number)) }
}

/// A time with its two largest units: `2h 41m`.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 9.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole}s"),
        60..3600 => format!("{}m {:02}s", whole / 60, whole % 60),
        3600..86_400 => format!("{}h {:02}m", whole / 3600, whole / 60 % 60),
        _ => format!("{}d {:02}h", whole / 86_400, whole / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!((flops(467.4e9), flops(989.4e12)), ("467 GFLOP/s".into(), "989 TFLOP/s".into()));
        assert_eq!((counted(1, "shard"), counted(1200, "shard")), ("1 shard".into(), "1,200 shards".into()));
        for (number, expected) in [(0, "0"), (999, "999"), (1240, "1,240"), (12_345_678, "12,345,678")] {
            assert_eq!(grouped(number), expected);
        }
        for (number, expected) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_500, "1.5 kB"),
            (20_000_000, "20.0 MB"),
            (5_000_000_000_000, "5.0 TB"),
        ] {
            assert_eq!(bytes(number), expected);
        }
        for (seconds, expected) in [
            (0.42, "0.4s"),
            (12.4, "12s"),
            (59.9, "1m 00s"),
            (125.0, "2m 05s"),
            (9660.0, "2h 41m"),
            (90_000.0, "1d 01h"),
        ] {
            assert_eq!(time(Duration::from_secs_f64(seconds)), expected);
        }
    }
}
