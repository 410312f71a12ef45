//! The JSON header: parsed with repeated names noticed, and written in a given order.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

use super::{Dtype, TensorInfo};

/// One tensor as the header lists it: `begin..end` counts from the end of the header.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) info: TensorInfo,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// A parsed header, tensors in the order of their data.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) metadata: Vec<(String, String)>,
    pub(super) entries: Vec<Entry>,
}

impl Header {
    /// Parses a header and checks that its tensors cover exactly `data_bytes`.
    pub(super) fn parse(json: &[u8], data_bytes: u64) -> Result<Header, String> {
        if json.first() != Some(&b'{') {
            return Err("its header does not start with {".into());
        }
        let mut header: Header =
            serde_json::from_slice(json).map_err(|error| format!("its header cannot be read ({error})"))?;
        header.entries.sort_by(|a, b| (a.begin, a.end, &a.info.name).cmp(&(b.begin, b.end, &b.info.name)));
        let mut expected = 0;
        for entry in &header.entries {
            let name = &entry.info.name;
            if entry.begin != expected {
                let fault = if entry.begin < expected {
                    "overlaps the one before"
                } else {
                    "leaves a hole before it"
                };
                return Err(format!("tensor {name} {fault} (starts at {}, not {expected})", entry.begin));
            }
            if entry.end < entry.begin || entry.end > data_bytes {
                return Err(format!("tensor {name} ends at {}, the data have {data_bytes} bytes", entry.end));
            }
            if entry.info.bytes() != Some(entry.end - entry.begin) {
                let (dtype, shape) = (entry.info.dtype.name(), &entry.info.shape);
                return Err(format!(
                    "tensor {name} has {} bytes, which is not {dtype} of shape {shape:?}",
                    entry.end - entry.begin
                ));
            }
            expected = entry.end;
        }
        if expected != data_bytes {
            return Err(format!("{} bytes after the last tensor belong to none", data_bytes - expected));
        }
        let mut names: Vec<&str> = header.entries.iter().map(|entry| entry.info.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("tensor {} is listed twice", pair[0]));
        }
        Ok(header)
    }

    /// The header as JSON, padded so that the data start at a multiple of eight.
    pub(super) fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut json = Vec::from(b"{\"__metadata__\":{");
        for (idx, (key, value)) in self.metadata.iter().enumerate() {
            if idx > 0 {
                json.push(b',');
            }
            serde_json::to_writer(&mut json, key)?;
            json.push(b':');
            serde_json::to_writer(&mut json, value)?;
        }
        json.push(b'}');
        for Entry { info, begin, end } in &self.entries {
            json.push(b',');
            serde_json::to_writer(&mut json, &info.name)?;
            json.extend(format!(":{{\"dtype\":\"{}\",\"shape\":", info.dtype.name()).bytes());
            serde_json::to_writer(&mut json, &info.shape)?;
            json.extend(format!(",\"data_offsets\":[{begin},{end}]}}").bytes());
        }
        json.push(b'}');
        json.resize(json.len().next_multiple_of(8), b' ');
        Ok(json)
    }
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map from names to tensors")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let mut header = Header::default();
                let mut metadata = None;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if metadata.replace(map.next_value::<Metadata>()?).is_some() {
                            return Err(M::Error::custom("__metadata__ is listed twice"));
                        }
                        continue;
                    }
                    let Fields { dtype, shape, data_offsets: [begin, end] } = map.next_value()?;
                    let dtype = Dtype::from_name(&dtype).ok_or_else(|| {
                        M::Error::custom(format!("tensor {name} has the unknown dtype {dtype}"))
                    })?;
                    header.entries.push(Entry { info: TensorInfo { name, dtype, shape }, begin, end });
                }
                header.metadata = metadata.map(|Metadata(pairs)| pairs).unwrap_or_default();
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// `__metadata__`, in the order of the file.
struct Metadata(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Metadata;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a map from strings to strings")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Metadata, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry::<String, String>()? {
                    pairs.push(pair);
                }
                Ok(Metadata(pairs))
            }
        }
        deserializer.deserialize_map(PairsVisitor)
    }
}
