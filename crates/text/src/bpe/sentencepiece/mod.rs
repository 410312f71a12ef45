//! Byte-pair encoding over characters, as SentencePiece has it and Llama 2 and Gemma use it.
//!
//! A space is a character like any other, written `▁`, and nothing cuts a text into pieces: in principle all of it is merged at
//! once. A character without a token becomes the tokens of its bytes.
//!
//! Here `▁` is a space in tokens and text alike, so that most text is encoded as it stands. Text is cut where no token crosses
//! ([`cuts`]), which leaves pieces about as long as words, and these are looked up like those of byte-level vocabularies.

mod cuts;
pub(crate) mod json;

use std::borrow::Cow;

use hashbrown::HashMap;

use super::encode::{Id, Model, Pool};
use super::merge::{Characters, MergeTable};
use crate::characters::valid_text;
use crate::frame::Frame;
use crate::special::Specials;
use crate::{Error, Result};
use cuts::Cuts;

/// How files write a space.
const SPACE: char = '▁';

/// Where a space is put before a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Nowhere.
    Never,
    /// Before every stretch between special tokens.
    Always,
    /// Before every stretch between special tokens that does not start with one.
    Missing,
    /// Before the start of a text that does not start with one.
    MissingAtStart,
}

impl Prefix {
    /// Whether it is put before special tokens of normalised text are looked for.
    fn is_normal(self) -> bool {
        matches!(self, Self::Never | Self::Always)
    }
}

/// What a [`SentencePiece`] vocabulary is made of, before it is checked.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    /// By id, as files write them.
    pub(crate) names: Vec<Option<Box<str>>>,
    /// Whether the merges know the name; others are special tokens alone.
    pub(crate) is_in_model: Vec<bool>,
    /// Pairs of ids, in order of rank.
    pub(crate) merges: Vec<(u32, u32)>,
    pub(crate) specials: Specials,
    pub(crate) frame: Frame,
    pub(crate) settings: Settings,
}

/// What a vocabulary does beside merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) prefix: Prefix,
    /// Whether text is cut before every space, whatever the merges say.
    pub(crate) cuts_words: bool,
    /// Whether one space at the start of decoded text is left out.
    pub(crate) strips_space: bool,
    /// What becomes of a character that has no token.
    pub(crate) unknown: Option<u32>,
    /// Whether several such characters in a row are one token.
    pub(crate) fuses_unknown: bool,
    /// Whether a character that has no token becomes the tokens of its bytes.
    pub(crate) byte_fallback: bool,
    /// Whether a text that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
}

/// A vocabulary of SentencePiece's kind with everything needed to encode and decode.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    names: Vec<Option<Box<str>>>,
    is_in_model: Vec<bool>,
    /// What tokens are in decoded text.
    bytes: Vec<Option<Box<[u8]>>>,
    specials: Specials,
    frame: Frame,
    settings: Settings,
    model: Model,
    cuts: Cuts,
    /// Texts that are a token whatever the merges say.
    whole_texts: HashMap<Box<[u8]>, u32>,
    encoders: Pool,
}

impl SentencePiece {
    /// Checks the parts: names must differ, results of merges must be tokens, and bytes must have tokens all or none.
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let Parts { names, is_in_model, merges, specials, frame, mut settings } = parts;
        frame.check(|id| names.get(id as usize).is_some_and(Option::is_some))?;
        let ids = ids_by_name(&names, &is_in_model)?;
        let byte_ids = if settings.byte_fallback { byte_ids(&ids)? } else { None };
        settings.byte_fallback = byte_ids.is_some();
        let table = merge_table(&names, &ids, &merges, byte_ids, settings)?;
        let cuts = Cuts::new(joined_names(&names, &merges), settings.cuts_words, settings.ignore_merges);
        let is_byte = |name: &str| settings.byte_fallback && byte_of(name).is_some();
        let text_of = |(name, &is_known): (&Option<Box<str>>, &bool)| {
            let name = name.as_deref().filter(|name| is_known && !name.contains(' ') && !is_byte(name))?;
            Some(name.replace(SPACE, " ").into_bytes().into())
        };
        let texts: Vec<Option<Box<[u8]>>> = names.iter().zip(&is_in_model).map(text_of).collect();
        let bytes_of = |(name, id): (&Option<Box<str>>, u32)| {
            let name = name.as_deref()?;
            let is_prefixed = settings.prefix == Prefix::Always && specials.is_normalized(id);
            Some(match byte_of(name).filter(|_| settings.byte_fallback) {
                Some(byte) => [byte].into(),
                None => with_spaces(name.as_bytes(), is_prefixed).into_owned().into(),
            })
        };
        let bytes = names.iter().zip(0..).map(bytes_of).collect();
        let by_text = || texts.iter().zip(0..).filter_map(|(text, id)| Some((text.clone()?, id))).collect();
        let (whole_texts, whole_pieces) = match (settings.ignore_merges, settings.cuts_words) {
            (false, _) => (HashMap::new(), HashMap::new()),
            (true, false) => (by_text(), HashMap::new()),
            (true, true) => (HashMap::new(), by_text()),
        };
        let n_ordinary = ids.len();
        drop(ids);
        let model = Model { tokens: texts, merges, table, n_ordinary, whole_pieces };
        let encoders = Pool::default();
        Ok(Self { names, is_in_model, bytes, specials, frame, settings, model, cuts, whole_texts, encoders })
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.specials
    }

    pub(crate) fn frame(&self) -> &Frame {
        &self.frame
    }

    pub(crate) fn n_merges(&self) -> usize {
        self.model.merges.len()
    }

    pub(crate) fn tokens(&self) -> &[Option<Box<[u8]>>] {
        &self.bytes
    }

    /// What characters without a token become, if not the tokens of their bytes.
    pub(crate) fn unknown_id(&self) -> Option<u32> {
        self.settings.unknown.filter(|_| !self.settings.byte_fallback)
    }

    /// The bytes of a token at the start of a text.
    pub(crate) fn first_bytes<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        if self.settings.strips_space { bytes.strip_prefix(b" ").unwrap_or(bytes) } else { bytes }
    }

    /// The text in which special tokens of normalised text are looked for.
    pub(crate) fn normalise<'t>(&self, text: &'t [u8]) -> Cow<'t, [u8]> {
        match self.settings.prefix {
            prefix if prefix.is_normal() => with_spaces(text, prefix == Prefix::Always),
            _ => Cow::Borrowed(text),
        }
    }

    /// Appends the tokens of normalised text, in which special tokens mean nothing, and says how many characters became
    /// `unknown`; without it, one that has no token is an error, which counts bytes from `base`.
    pub(crate) fn encode<I: Id>(
        &self,
        text: &[u8],
        is_start: bool,
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<I>,
    ) -> Result<u64> {
        let text = match self.settings.prefix {
            prefix if prefix.is_normal() => Cow::Borrowed(text),
            prefix => {
                let is_missing = !text.is_empty()
                    && !text.starts_with(b" ")
                    && !text.starts_with(SPACE.encode_utf8(&mut [0; 4]).as_bytes());
                with_spaces(text, is_missing && (is_start || prefix == Prefix::Missing))
            }
        };
        if let Some(&id) = self.whole_texts.get(&*text) {
            out.push(I::narrowed(id));
            return Ok(0);
        }
        if self.settings.byte_fallback {
            let (model, cuts) = (&self.model, &self.cuts);
            self.encoders.with_encoder(model, |encoder| encoder.encode_cut_by(model, cuts, &text, out));
            return Ok(0);
        }
        self.encode_with_unknown(&text, base, unknown, out)
    }

    /// Encodes piece by piece, and looks at every character first.
    fn encode_with_unknown<I: Id>(
        &self,
        text: &[u8],
        base: usize,
        unknown: Option<u32>,
        out: &mut Vec<I>,
    ) -> Result<u64> {
        let text = valid_text(text, base)?;
        let is_unknown = |character| !self.is_known(character);
        let (mut ids, mut n_unknown, mut is_after_unknown) = (Vec::new(), 0, false);
        let mut offset = base;
        for piece in self.cuts.pieces(text) {
            // Only within a word, if text is cut into words, do unknown characters become one.
            is_after_unknown &= !(self.settings.cuts_words && piece.starts_with(' '));
            ids.clear();
            let mut rest = piece;
            if let Some(&id) = self.model.whole_pieces.get(piece.as_bytes()) {
                ids.push(id);
                rest = "";
                is_after_unknown = false;
            }
            while !rest.is_empty() {
                let (known, behind) = rest.split_at(rest.find(is_unknown).unwrap_or(rest.len()));
                self.model.table.encode_piece(known.as_bytes(), &mut ids);
                is_after_unknown &= known.is_empty();
                let Some(character) = behind.chars().next() else { break };
                let at = offset + piece.len() - behind.len();
                let id = unknown.ok_or(Error::UnknownCharacter { character, offset: at })?;
                if !(is_after_unknown && self.settings.fuses_unknown) {
                    ids.push(id);
                    n_unknown += 1;
                }
                is_after_unknown = true;
                rest = &behind[character.len_utf8()..];
            }
            out.extend(ids.iter().map(|&id| I::narrowed(id)));
            offset += piece.len();
        }
        Ok(n_unknown)
    }

    fn is_known(&self, character: char) -> bool {
        self.model.table.characters().is_some_and(|characters| characters.tokens.contains_key(&character))
    }
}

/// The text with spaces for `▁`, and with one before it if there is to be a `prefix` and any text.
fn with_spaces(text: &[u8], prefix: bool) -> Cow<'_, [u8]> {
    let mut encoded = [0; 4];
    let mark = SPACE.encode_utf8(&mut encoded).as_bytes();
    let has_prefix = prefix && !text.is_empty();
    if !has_prefix && memchr::memmem::find(text, mark).is_none() {
        return Cow::Borrowed(text);
    }
    let mut with_spaces = Vec::with_capacity(text.len() + 1);
    with_spaces.extend(has_prefix.then_some(b' '));
    let mut start = 0;
    for at in memchr::memmem::find_iter(text, mark) {
        with_spaces.extend_from_slice(&text[start..at]);
        with_spaces.push(b' ');
        start = at + mark.len();
    }
    with_spaces.extend_from_slice(&text[start..]);
    Cow::Owned(with_spaces)
}

fn ids_by_name<'n>(names: &'n [Option<Box<str>>], is_in_model: &[bool]) -> Result<HashMap<&'n str, u32>> {
    let mut ids = HashMap::with_capacity(names.len());
    let known = names.iter().zip(0..).zip(is_in_model).filter(|&(_, &is_known)| is_known);
    for (name, id) in known.filter_map(|((name, id), _)| Some((name.as_deref()?, id))) {
        if name.is_empty() {
            return Err(Error::Format(format!("token {id} is empty")));
        }
        if let Some(first) = ids.insert(name, id) {
            return Err(Error::Format(format!("tokens {first} and {id} are both {name:?}")));
        }
    }
    Ok(ids)
}

/// The byte that a name such as `<0x0A>` stands for.
fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hex.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// The tokens of all bytes, or `None` if no byte has one.
fn byte_ids(ids: &HashMap<&str, u32>) -> Result<Option<Box<[u32; 256]>>> {
    let mut byte_ids = Box::new([0; 256]);
    let mut n_found = 0;
    for (byte_id, byte) in byte_ids.iter_mut().zip(0..=u8::MAX) {
        if let Some(&id) = ids.get(&*format!("<0x{byte:02X}>")) {
            *byte_id = id;
            n_found += 1;
        }
    }
    match n_found {
        0 => Ok(None),
        256 => Ok(Some(byte_ids)),
        _ => Err(Error::Unsupported(format!("byte fallback with tokens for {n_found} of the 256 bytes"))),
    }
}

fn name_of(names: &[Option<Box<str>>], id: u32) -> &str {
    names.get(id as usize).and_then(Option::as_deref).unwrap_or_default()
}

/// The names that merges make.
fn joined_names<'n>(
    names: &'n [Option<Box<str>>],
    merges: &'n [(u32, u32)],
) -> impl Iterator<Item = String> + 'n {
    merges.iter().map(|&(left, right)| [name_of(names, left), name_of(names, right)].concat())
}

fn merge_table(
    names: &[Option<Box<str>>],
    ids: &HashMap<&str, u32>,
    merges: &[(u32, u32)],
    byte_ids: Option<Box<[u32; 256]>>,
    settings: Settings,
) -> Result<MergeTable> {
    let mut tokens = HashMap::new();
    for (name, id) in names.iter().zip(0..) {
        let mut characters = name.as_deref().unwrap_or_default().chars();
        if let (Some(character), None) = (characters.next(), characters.next())
            && character != ' '
            && ids.get(character.encode_utf8(&mut [0; 4]) as &str) == Some(&id)
        {
            tokens.insert(if character == SPACE { ' ' } else { character }, id);
        }
    }
    let has_bytes = byte_ids.is_some();
    let is_made_of_nothing = |id: u32| {
        if has_bytes { byte_of(name_of(names, id)).is_some() } else { settings.unknown == Some(id) }
    };
    let mut table = MergeTable::of_characters(Characters { tokens, bytes: byte_ids }, merges.len())?;
    for ((&(left, right), joined), rank) in merges.iter().zip(joined_names(names, merges)).zip(0..) {
        if is_made_of_nothing(left) || is_made_of_nothing(right) {
            return Err(Error::Unsupported(format!("the merge {joined:?} of bytes or of the unknown token")));
        }
        let no_token = || Error::Format(format!("merge {rank} makes {joined:?}, which is no token"));
        let result = *ids.get(&*joined).ok_or_else(no_token)?;
        if !table.add(left, right, rank, result) {
            return Err(Error::Format(format!("merge {rank} of tokens {left} and {right} occurs twice")));
        }
    }
    Ok(table)
}
