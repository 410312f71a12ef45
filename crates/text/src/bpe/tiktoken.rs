//! tiktoken's rank files: a line a token, its bytes in base64, a space, its id, which is also its rank.
//!
//! Such a file says neither how text is cut nor which special tokens there are. Published files are known by their hash; for
//! any other the caller says it.
//!
//! There, any two neighbours that together are a token may merge, at the rank of the token, and a piece that is a token needs
//! no merging. The merges that this comes to are found by encoding each token with those before it: one that ends as two
//! tokens is their merge, and one that does not is only ever a whole piece.

use super::merge::MergeTable;
use super::{Bpe, Parts, ids_of_ordinary_tokens};
use crate::frame::Frame;
use crate::normal::Normalization;
use crate::pattern::Pattern;
use crate::special::Specials;
use crate::{Error, Result};

/// What a rank file does not say.
#[derive(Debug, Clone)]
pub struct RankFileSettings {
    /// How text is cut into pieces.
    pub pattern: Pattern,
    /// Special tokens and their ids.
    pub special: Vec<(String, u32)>,
}

/// A published rank file: the BLAKE3 of its bytes, the name of its pattern, its special tokens.
struct Published {
    name: &'static str,
    hash: &'static str,
    pattern: Pattern,
    normalization: Normalization,
    special: &'static [(&'static str, u32)],
}

/// Their hashes are those of files whose SHA-256 is the published one.
const PUBLISHED: [Published; 6] = [
    Published {
        name: "r50k",
        hash: "5e60c911b5da8606450a7854ebe49de4952c86da03f51cea2ad9a3f3d40395e5",
        pattern: Pattern::Gpt2,
        normalization: Normalization::None,
        special: &[("<|endoftext|>", 50_256)],
    },
    Published {
        name: "p50k",
        hash: "d698d47c87c56af122ed68f3e74e06e3bd122a8cc66472a52d760012c6ea9100",
        pattern: Pattern::Gpt2,
        normalization: Normalization::None,
        special: &[("<|endoftext|>", 50_256)],
    },
    Published {
        name: "cl100k",
        hash: "65afa6a4947e558c7e52ca1dc682285a6aff053a60ce9ba951bf154da0cb980f",
        pattern: Pattern::Cl100k,
        normalization: Normalization::None,
        special: &[
            ("<|endoftext|>", 100_257),
            ("<|fim_prefix|>", 100_258),
            ("<|fim_middle|>", 100_259),
            ("<|fim_suffix|>", 100_260),
            ("<|endofprompt|>", 100_276),
        ],
    },
    Published {
        name: "o200k",
        hash: "77500c1d2b9e0f606d2ab99ff39e9ebaed9221b4531c6d83a503c36def0b8be8",
        pattern: Pattern::O200k,
        normalization: Normalization::None,
        special: &[("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)],
    },
    // Those special tokens that are the same in all models of the family.
    Published {
        name: "llama3",
        hash: "18ccd965a0a1d18e354230d63b9463c57418909feeb822be68b8bf8d496be9da",
        pattern: Pattern::Llama3,
        normalization: Normalization::None,
        special: &[
            ("<|begin_of_text|>", 128_000),
            ("<|end_of_text|>", 128_001),
            ("<|start_header_id|>", 128_006),
            ("<|end_header_id|>", 128_007),
            ("<|eot_id|>", 128_009),
        ],
    },
    Published {
        name: "qwen",
        hash: "6d8cbc295dd0e4dd91c7e4c071e8417aa0d2c5f78d89a38853b10dd516ebbca9",
        pattern: Pattern::Qwen2,
        normalization: Normalization::Nfc,
        special: &[("<|endoftext|>", 151_643), ("<|im_start|>", 151_644), ("<|im_end|>", 151_645)],
    },
];

/// The longest line: the longest token that makes sense, with room to spare.
const MAX_LINE_BYTES: usize = 1 << 16;

/// Whether the text looks like a rank file: its first line is base64, a space and a number.
pub(crate) fn is_rank_file(text: &[u8]) -> bool {
    let first = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    first.len() < MAX_LINE_BYTES && parse_line(first).is_some()
}

/// Reads a rank file. Without `settings` it must be a published one.
pub(crate) fn from_ranks(text: &[u8], settings: Option<&RankFileSettings>) -> Result<Bpe> {
    let published;
    let (settings, normalization) = match settings {
        Some(settings) => (settings, Normalization::None),
        None => {
            published = published_settings(text)?;
            (&published.0, published.1)
        }
    };
    let specials = Specials::new(settings.special.clone())?;
    let mut ranked: Vec<(u32, Vec<u8>)> = Vec::new();
    for (line, number) in text.split(|&byte| byte == b'\n').zip(1..) {
        if !line.is_empty() {
            let bad = || Error::Format(format!("line {number} is not base64, a space and a rank"));
            ranked.push(parse_line(line).ok_or_else(bad)?);
        }
    }
    ranked.sort_unstable();
    // Ids may have holes, but not more of them than tokens: a file of a few lines must not ask for gigabytes.
    let n_ids =
        ranked.iter().map(|&(rank, _)| rank).chain(specials.as_slice().iter().map(|&(_, id)| id)).max();
    let n_ids = n_ids.map_or(0, |last| last as usize + 1);
    if n_ids > 2 * (ranked.len() + specials.as_slice().len()) {
        return Err(Error::Format(format!("it has ids up to {n_ids}, but most of them are unused")));
    }
    let mut tokens: Vec<Option<Box<[u8]>>> = vec![None; n_ids];
    let texts = specials.as_slice().iter().map(|(text, id)| (*id, text.clone().into_bytes()));
    for (id, bytes) in ranked.iter().cloned().chain(texts) {
        if tokens[id as usize].replace(bytes.into()).is_some() {
            return Err(Error::Format(format!("the rank {id} occurs twice")));
        }
    }
    let merges = merges_of(&tokens, &specials, &ranked)?;
    let pattern = settings.pattern.clone();
    let frame = Frame::default();
    Bpe::new(Parts { pattern, normalization, specials, frame, tokens, merges, ignore_merges: true })
}

fn merges_of(
    tokens: &[Option<Box<[u8]>>],
    specials: &Specials,
    ranked: &[(u32, Vec<u8>)],
) -> Result<Vec<(u32, u32)>> {
    let ordinary = ids_of_ordinary_tokens(tokens, specials)?;
    let mut table = MergeTable::of_bytes(&ordinary, ranked.len())?;
    let mut merges = Vec::with_capacity(ranked.len());
    let mut encoded = Vec::new();
    for (id, bytes) in ranked.iter().filter(|(_, bytes)| bytes.len() > 1) {
        encoded.clear();
        table.encode_piece(bytes, &mut encoded);
        if let [left, right] = *encoded {
            table.add(left, right, merges.len() as u32, *id);
            merges.push((left, right));
        }
    }
    Ok(merges)
}

fn published_settings(text: &[u8]) -> Result<(RankFileSettings, Normalization)> {
    let hash = blake3::hash(text).to_hex();
    let Some(known) = PUBLISHED.iter().find(|known| known.hash == hash.as_str()) else {
        let names = PUBLISHED.map(|known| known.name).join(", ");
        return Err(Error::UnknownRankFile { known: names });
    };
    let special = known.special.iter().map(|&(text, id)| (text.to_owned(), id)).collect();
    Ok((RankFileSettings { pattern: known.pattern.clone(), special }, known.normalization))
}

/// The vocabulary as a rank file, if the ranks alone give the same tokens.
pub(crate) fn to_ranks(bpe: &Bpe) -> Result<String> {
    let mut text = String::new();
    let specials = bpe.specials().as_slice();
    let is_special = |id: u32| specials.binary_search_by_key(&id, |&(_, id)| id).is_ok();
    for (token, id) in bpe.tokens().iter().zip(0..).filter(|&(_, id)| !is_special(id)) {
        if let Some(bytes) = token {
            encode_base64(bytes, &mut text);
            text += &format!(" {id}\n");
        }
    }
    let settings =
        RankFileSettings { pattern: bpe.pattern().clone(), special: bpe.specials().as_slice().to_vec() };
    let again = from_ranks(text.as_bytes(), Some(&settings))?;
    if !again.encodes_as(bpe) {
        let what = "merges whose order is not that of the ids, which a rank file cannot say";
        return Err(Error::Unsupported(what.to_owned()));
    }
    Ok(text)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn encode_base64(bytes: &[u8], out: &mut String) {
    for three in bytes.chunks(3) {
        let word =
            three.iter().zip([16, 8, 0]).fold(0, |word, (&byte, shift)| word | u32::from(byte) << shift);
        for (idx, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let digit = ALPHABET[(word >> shift & 63) as usize];
            out.push(if idx <= three.len() { char::from(digit) } else { '=' });
        }
    }
}

/// The rank and the bytes of a line; `None` for anything but a well-formed one.
fn parse_line(line: &[u8]) -> Option<(u32, Vec<u8>)> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > MAX_LINE_BYTES {
        return None;
    }
    let space = memchr::memchr(b' ', line)?;
    let rank = std::str::from_utf8(&line[space + 1..]).ok()?;
    let is_number = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
    let rank = rank.parse().ok().filter(|&rank| is_number && rank < u32::MAX / 2)?;
    let bytes = decode_base64(&line[..space])?;
    (!bytes.is_empty()).then_some((rank, bytes))
}

fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) || digits.len() % 4 == 1 || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.chunks(4) {
        let mut word = 0;
        for (&digit, shift) in four.iter().zip([18, 12, 6, 0]) {
            word |= value_of(digit)? << shift;
        }
        bytes.extend_from_slice(&word.to_be_bytes()[1..four.len()]);
    }
    Some(bytes)
}

fn value_of(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_reads_back_and_refuses_what_is_none() {
        for n_bytes in 0..20u8 {
            let bytes: Vec<u8> = (0..n_bytes).map(|byte| byte.wrapping_mul(83)).collect();
            let mut text = String::new();
            encode_base64(&bytes, &mut text);
            assert_eq!(decode_base64(text.as_bytes()), Some(bytes));
        }
        for bad in ["A", "AB", "ABC", "A===", "AB=C", "A B=", "ABé"] {
            assert_eq!(decode_base64(bad.as_bytes()), None, "{bad}");
        }
    }

    fn ranks(extra: &[&[u8]]) -> String {
        let mut text = String::new();
        let bytes: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        let all = bytes.iter().map(Vec::as_slice).chain(extra.iter().copied());
        for (token, rank) in all.zip(0..) {
            encode_base64(token, &mut text);
            text += &format!(" {rank}\n");
        }
        text
    }

    fn settings() -> RankFileSettings {
        RankFileSettings { pattern: Pattern::Gpt2, special: vec![("<|end|>".to_owned(), 300)] }
    }

    fn encode(bpe: &Bpe, text: &str) -> Vec<u32> {
        let mut ids: Vec<u32> = Vec::new();
        bpe.encode(text.as_bytes(), &mut ids).unwrap();
        ids
    }

    #[test]
    fn ranks_are_merges_and_a_token_that_no_merge_makes_is_a_whole_piece() {
        let text = ranks(&[b"ab", b"cd", b"abc", b"bcd"]);
        let bpe = from_ranks(text.as_bytes(), Some(&settings())).unwrap();
        assert_eq!(encode(&bpe, "ab"), [256]);
        assert_eq!(encode(&bpe, "abcd"), [256, 257]);
        assert_eq!(encode(&bpe, "abc"), [258]);
        // cd goes before bcd, so bcd is made of b and cd; xbcd has it too.
        assert_eq!(encode(&bpe, "xbcd"), [120, 259]);
        assert_eq!(to_ranks(&bpe).unwrap(), text);
    }

    #[test]
    fn hostile_files_are_refused() {
        let huge = ranks(&[]) + "YWI= 4000000\n";
        let twice = ranks(&[b"ab", b"ab"]);
        let same = ranks(&[]) + "YWI= 7\n";
        for (text, expected) in [
            (&huge[..], "unused"),
            (&twice, "same bytes"),
            (&same, "occurs twice"),
            ("YQ== 0\n", "unused"),
            ("YQ== 99999999999\n", "line 1"),
            ("YQ==\n", "line 1"),
            ("=== 1\n", "line 1"),
        ] {
            let error = from_ranks(text.as_bytes(), Some(&settings())).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = from_ranks(b"YQ== 0\n", None).unwrap_err();
        assert!(error.to_string().contains("cl100k"), "{error}");
    }
}
