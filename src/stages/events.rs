//! TensorBoard's event files: records that TensorBoard itself reads, written and cut back by us.
//!
//! A record is a length (u64), the masked CRC-32C of its bytes, an `Event` of TensorFlow's `event.proto`, and the masked CRC-32C
//! of that. The first event names the version of the format; every other one has a step and what was measured at it. Of the
//! protocol only what is written here is known: three wire types and nested messages.

use crate::failure::{Failure, Result};
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// How the names of event files begin; TensorBoard looks for it.
const PREFIX: &str = "events.out.tfevents.";
/// The version that the first event names.
const VERSION: &str = "brain.Event:2";

/// What lines of `metrics.jsonl` are called in TensorBoard, where tags before a slash make groups.
const TAGS: [(&str, &str); 19] = [
    ("loss", "loss/train"),
    ("validation_loss", "loss/validation"),
    ("perplexity", "loss/perplexity"),
    ("bits_per_byte", "loss/bits_per_byte"),
    ("learning_rate", "optimizer/learning_rate"),
    ("norm", "optimizer/gradient_norm"),
    ("tokens", "data/tokens"),
    ("epoch", "data/epoch"),
    ("data_seen", "data/share_seen"),
    ("wait_seconds", "data/wait_seconds"),
    ("seconds", "speed/step_seconds"),
    ("tokens_per_s", "speed/tokens_per_s"),
    ("mfu", "speed/mfu"),
    ("used_bytes", "memory/used_bytes"),
    ("planned_bytes", "memory/planned_bytes"),
    ("host_bytes", "memory/host_bytes"),
    ("gpu_utilization", "gpu/utilization"),
    ("gpu_watts", "gpu/watts"),
    ("gpu_memory_bytes", "gpu/memory_bytes"),
];

/// The event file of a run, open for appending.
pub struct Events {
    path: PathBuf,
    file: File,
}

impl Events {
    /// Opens the event file of a folder and cuts it back to what was written up to `step`, or begins one at this time.
    pub fn open(folder: &Path, step: u64, now: f64) -> Result<Events> {
        let path =
            find(folder).unwrap_or_else(|| folder.join(format!("{PREFIX}{:010}.ironmill", now as u64)));
        let fail = |error: std::io::Error| Failure::write(&path, &error);
        let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(fail)?;
        let bytes = std::fs::read(&path).map_err(|error| Failure::read(&path, &error))?;
        let kept: usize = records(&bytes)
            .take_while(|event| step_of(event) <= step)
            .map(|event| event.len() + FRAME_BYTES)
            .sum();
        if kept < bytes.len() {
            file.set_len(kept as u64).map_err(fail)?;
        }
        if kept == 0 {
            let mut first = event(now, None);
            put_bytes(&mut first, 3, VERSION.as_bytes());
            file.write_all(&framed(&first)).map_err(fail)?;
        }
        Ok(Events { path, file })
    }

    /// Appends the numbers of a line of metrics.
    pub fn append(&mut self, line: &Value) -> Result<()> {
        let mut summary = Vec::new();
        for (key, tag) in TAGS {
            if let Some(number) = line[key].as_f64() {
                put_bytes(&mut summary, 1, &scalar(tag, number as f32));
            }
        }
        for (group, norms) in line["groups"].as_object().into_iter().flatten() {
            for (kind, number) in norms.as_object().into_iter().flatten() {
                if let Some(number) = number.as_f64() {
                    put_bytes(&mut summary, 1, &scalar(&format!("{kind}_norm/{group}"), number as f32));
                }
            }
        }
        self.write(
            line["time"].as_f64().unwrap_or_default(),
            line["step"].as_u64().unwrap_or_default(),
            &summary,
        )
    }

    /// Appends a text, such as a sample or the configuration.
    pub fn append_text(&mut self, now: f64, step: u64, tag: &str, text: &str) -> Result<()> {
        let mut summary = Vec::new();
        put_bytes(&mut summary, 1, &string(tag, text));
        self.write(now, step, &summary)
    }

    fn write(&mut self, now: f64, step: u64, summary: &[u8]) -> Result<()> {
        let mut event = event(now, Some(step));
        put_bytes(&mut event, 5, summary);
        self.file.write_all(&framed(&event)).map_err(|error| Failure::write(&self.path, &error))
    }
}

/// The event file of a folder, the first by name if there are several.
fn find(folder: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    names
        .filter(|path| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(PREFIX))
        })
        .min()
}

/// An event so far: its time and, if it has one, its step.
fn event(now: f64, step: Option<u64>) -> Vec<u8> {
    let mut event = vec![1 << 3 | 1];
    event.extend(now.to_le_bytes());
    if let Some(step) = step {
        event.push(2 << 3);
        put_varint(&mut event, step);
    }
    event
}

fn scalar(tag: &str, number: f32) -> Vec<u8> {
    let mut value = Vec::new();
    put_bytes(&mut value, 1, tag.as_bytes());
    value.push(2 << 3 | 5);
    value.extend(number.to_le_bytes());
    value
}

/// A tensor of one text, shown by the plugin for text.
fn string(tag: &str, text: &str) -> Vec<u8> {
    const DT_STRING: u8 = 7;
    let (mut plugin, mut metadata, mut value) = (Vec::new(), Vec::new(), Vec::new());
    put_bytes(&mut plugin, 1, b"text");
    put_bytes(&mut metadata, 1, &plugin);
    let mut tensor = vec![1 << 3, DT_STRING];
    put_bytes(&mut tensor, 2, &[]);
    put_bytes(&mut tensor, 8, text.as_bytes());
    put_bytes(&mut value, 1, tag.as_bytes());
    put_bytes(&mut value, 8, &tensor);
    put_bytes(&mut value, 9, &metadata);
    value
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_varint(out, field << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// Bytes of a record besides its event: the length and two sums.
const FRAME_BYTES: usize = 16;

fn framed(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(event.len() + FRAME_BYTES);
    record.extend(length);
    record.extend(masked(crc32c(&length)).to_le_bytes());
    record.extend(event);
    record.extend(masked(crc32c(event)).to_le_bytes());
    record
}

/// The events of a file up to the first record that is damaged or not whole.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (length_sum, rest) = rest.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*length_sum) != masked(crc32c(length)) {
            return None;
        }
        let (event, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let (sum, rest) = rest.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*sum) != masked(crc32c(event)) {
            return None;
        }
        bytes = rest;
        Some(event)
    })
}

/// The step of an event of ours: its second field if it has one, behind the nine bytes of its time.
fn step_of(event: &[u8]) -> u64 {
    match event.get(9..) {
        Some([tag, rest @ ..]) if *tag == 2 << 3 => varint(rest).0,
        _ => 0,
    }
}

/// A number and how many bytes it takes.
fn varint(bytes: &[u8]) -> (u64, usize) {
    let len = bytes.iter().take(10).position(|byte| byte & 0x80 == 0).map_or(0, |last| last + 1);
    let number =
        bytes[..len].iter().enumerate().fold(0, |sum, (idx, byte)| sum | u64::from(byte & 0x7f) << (7 * idx));
    (number, len)
}

/// Castagnoli's checksum.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |sum: u32, &byte| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut idx = 0;
    while idx < 256 {
        let (mut sum, mut bit) = (idx as u32, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { 0x82f6_3b78 ^ sum >> 1 } else { sum >> 1 };
            bit += 1;
        }
        table[idx] = sum;
        idx += 1;
    }
    table
}

/// As TensorFlow stores checksums, so that those of data that holds checksums are no less good.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn checksums_are_castagnoli_s() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(masked(0), 0xa282_ead8);
    }

    #[test]
    fn numbers_of_any_size_read_back() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, number);
            assert_eq!(varint(&bytes), (number, bytes.len()));
        }
    }

    /// The step and the tags with their numbers of every event of a folder's file.
    fn read(folder: &Path) -> Vec<(u64, Vec<(String, f32)>)> {
        let bytes = std::fs::read(find(folder).unwrap()).unwrap();
        let fields = |mut bytes: &[u8]| {
            let mut fields = Vec::new();
            while !bytes.is_empty() {
                let (key, len) = varint(bytes);
                bytes = &bytes[len..];
                let (start, end) = match key & 7 {
                    0 => (0, varint(bytes).1),
                    1 => (0, 8),
                    5 => (0, 4),
                    _ => {
                        let (size, len) = varint(bytes);
                        (len, len + size as usize)
                    }
                };
                fields.push((key >> 3, bytes[start..end].to_vec()));
                bytes = &bytes[end..];
            }
            fields
        };
        let pick = |fields: &[(u64, Vec<u8>)], wanted| {
            fields.iter().find(|(field, _)| *field == wanted).map(|(_, bytes)| bytes.clone())
        };
        let numbers = |event: &[u8]| {
            let summary = pick(&fields(event), 5).unwrap_or_default();
            let values = fields(&summary).into_iter().map(|(_, value)| fields(&value));
            let number = |value: Vec<(u64, Vec<u8>)>| {
                let tag = String::from_utf8(pick(&value, 1).unwrap()).unwrap();
                Some((tag, f32::from_le_bytes(pick(&value, 2)?.try_into().unwrap())))
            };
            values.filter_map(number).collect()
        };
        records(&bytes).map(|event| (step_of(event), numbers(event))).collect()
    }

    #[test]
    fn a_resumed_file_is_cut_back_to_the_step_and_a_broken_tail_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let line = |step: u64, loss: f64| json!({"step": step, "loss": loss, "time": 7.5, "other": 1});
        let mut events = Events::open(folder.path(), 0, 1_000.0).unwrap();
        for step in 1..=3 {
            events.append(&line(step, step as f64)).unwrap();
        }
        events.append_text(8.0, 3, "samples", "Once").unwrap();
        events.append(&line(4, 4.0)).unwrap();
        drop(events);
        let path = find(folder.path()).unwrap();
        assert!(path.ends_with("events.out.tfevents.0000001000.ironmill"));
        let steps = || read(folder.path()).iter().map(|event| event.0).collect::<Vec<u64>>();
        assert_eq!(steps(), [0, 1, 2, 3, 3, 4]);
        // Half a record, as a kill leaves it.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        Events::open(folder.path(), 9, 2_000.0).unwrap();
        assert_eq!(steps(), [0, 1, 2, 3, 3]);
        let mut events = Events::open(folder.path(), 2, 2_000.0).unwrap();
        events.append(&line(3, 0.5)).unwrap();
        assert_eq!(steps(), [0, 1, 2, 3]);
        assert_eq!(read(folder.path())[3].1, [("loss/train".to_string(), 0.5)]);
    }

    #[test]
    fn groups_and_everything_that_has_a_tag_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut events = Events::open(folder.path(), 0, 1_000.0).unwrap();
        let mut line = json!({"step": 1, "time": 1.0, "groups": {"head": {"gradient": 0.5, "weight": 2.0}}});
        for (key, _) in TAGS {
            line[key] = 1.0.into();
        }
        events.append(&line).unwrap();
        let numbers = &read(folder.path())[1].1;
        assert_eq!(numbers.len(), TAGS.len() + 2);
        assert_eq!(
            numbers[TAGS.len()..],
            [("gradient_norm/head".into(), 0.5), ("weight_norm/head".into(), 2.0)]
        );
    }
}
