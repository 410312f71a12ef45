//! Wikipedia as people have it: MediaWiki's XML dumps, and what WikiExtractor made of them.
//!
//! Of a dump the articles are taken: pages of namespace 0 that redirect nowhere and are wikitext. A document is the title, an
//! empty line and the article as [plain text](text). A page is what is held at once. Nothing but the elements that are
//! needed is looked at, so a dump of any version since 2010 is read; one that does not end with its closing tag is damaged.

mod text;

use memchr::memmem;

use super::split::{Chunks, JsonLines};
use super::{BadUtf8, RawDocument};
use crate::error::{Error, Result};
use text::Namespaces;

/// The articles of a dump.
pub(super) struct WikiDump {
    chunks: Chunks,
    on_bad_utf8: BadUtf8,
    /// Known once the beginning of the file has been read.
    namespaces: Option<Namespaces>,
    /// Where in the file the last page ended.
    position: u64,
    ended: bool,
}

/// What separates pages.
const PAGE_END: &[u8] = b"</page>";

/// What is wrong with a dump that was cut.
const UNENDED: &str = "the dump does not end with </mediawiki>";

impl WikiDump {
    pub(super) fn new(chunks: Chunks, on_bad_utf8: BadUtf8) -> WikiDump {
        let chunks = chunks.separated_by(PAGE_END);
        WikiDump { chunks, on_bad_utf8, namespaces: None, position: 0, ended: false }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.chunks.bytes_read()
    }

    /// The next article. One that is not UTF-8 is passed on as it is where the policy will refuse or skip it.
    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        while !self.ended {
            let name = self.chunks.name().to_string();
            let Some(chunk) = self.chunks.next()? else {
                return Err(Error::DamagedInput {
                    file: name,
                    offset: self.position,
                    reason: UNENDED.into(),
                });
            };
            self.position = chunk.position + (chunk.bytes.len() + PAGE_END.len()) as u64;
            let bad = |position, reason: &str| Error::BadElement {
                file: name.clone(),
                position,
                reason: reason.into(),
            };
            let bytes = chunk.bytes;
            let namespaces = match &self.namespaces {
                Some(namespaces) => namespaces,
                None if memmem::find(bytes, b"<mediawiki").is_none() => {
                    return Err(bad(0, "this is no MediaWiki dump, the only XML that can be read"));
                }
                None => self.namespaces.insert(Namespaces::of_dump(bytes)),
            };
            if !chunk.is_closed {
                self.ended = true;
                if memmem::find(bytes, b"</mediawiki>").is_none() {
                    let offset = chunk.position + bytes.len() as u64;
                    return Err(Error::DamagedInput { file: name, offset, reason: UNENDED.into() });
                }
                break;
            }
            let Some(start) = memmem::rfind(bytes, b"<page>") else {
                return Err(bad(chunk.position, "a page ends that did not start"));
            };
            let position = chunk.position + start as u64;
            let Some((title, text)) = article(&bytes[start..]) else { continue };
            let written = match (std::str::from_utf8(text), self.on_bad_utf8) {
                (Ok(text), _) => std::borrow::Cow::Borrowed(text),
                (Err(_), BadUtf8::Replace) => String::from_utf8_lossy(text),
                (Err(_), _) => return Ok(Some(RawDocument { position, bytes: text.to_vec() })),
            };
            let body = text::plain(&text::unescape_xml(&written), namespaces);
            if !body.is_empty() {
                let title = text::unescape_xml(&String::from_utf8_lossy(title)).trim().to_string();
                let bytes = format!("{title}\n\n{body}\n").into_bytes();
                return Ok(Some(RawDocument { position, bytes }));
            }
        }
        Ok(None)
    }
}

/// The title and the text of a page's last revision, if it is an article.
fn article(page: &[u8]) -> Option<(&[u8], &[u8])> {
    let head = &page[..memmem::find(page, b"<revision>").unwrap_or(page.len())];
    if element(head, b"<ns>", b"</ns>").is_some_and(|ns| ns.trim_ascii() != b"0")
        || memmem::find(head, b"<redirect").is_some()
        || element(page, b"<model>", b"</model>").is_some_and(|model| model != b"wikitext")
    {
        return None;
    }
    let title = element(head, b"<title>", b"</title>")?;
    let tag = memmem::rfind(page, b"<text")?;
    let opened = tag + memchr::memchr(b'>', &page[tag..])?;
    if page[opened - 1] == b'/' {
        return None;
    }
    let text = &page[opened + 1..];
    let text = &text[..memmem::find(text, b"</text>")?];
    let is_redirect =
        text.trim_ascii_start().get(..9).is_some_and(|start| start.eq_ignore_ascii_case(b"#redirect"));
    (!is_redirect).then_some((title, text))
}

/// What stands between the first opening tag and its closing one.
fn element<'a>(within: &'a [u8], open: &[u8], close: &[u8]) -> Option<&'a [u8]> {
    let start = memmem::find(within, open)? + open.len();
    let length = memmem::find(&within[start..], close)?;
    Some(&within[start..start + length])
}

/// A file of WikiExtractor: `<doc …>` elements, or JSON lines, which its beginning tells.
pub(super) enum Extracted {
    Docs(Chunks),
    Rows(JsonLines),
}

const DOC_END: &[u8] = b"</doc>";

impl Extracted {
    pub(super) fn new(mut chunks: Chunks, text_key: &str, on_bad_utf8: BadUtf8) -> Result<Extracted> {
        let is_docs = chunks.peek()?.trim_ascii_start().starts_with(b"<doc");
        Ok(if is_docs {
            Extracted::Docs(chunks.separated_by(DOC_END))
        } else {
            Extracted::Rows(JsonLines::of(chunks.separated_by(b"\n"), text_key, on_bad_utf8))
        })
    }

    pub(super) fn bytes_read(&self) -> u64 {
        match self {
            Extracted::Docs(chunks) => chunks.bytes_read(),
            Extracted::Rows(rows) => rows.bytes_read(),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<RawDocument>> {
        let chunks = match self {
            Extracted::Rows(rows) => return rows.next(),
            Extracted::Docs(chunks) => chunks,
        };
        let name = chunks.name().to_string();
        let Some(chunk) = chunks.next()? else { return Ok(None) };
        let blank = chunk.bytes.len() - chunk.bytes.trim_ascii_start().len();
        let position = chunk.position + blank as u64;
        let element = &chunk.bytes[blank..];
        if !chunk.is_closed {
            return match element {
                [] => Ok(None),
                _ => {
                    let offset = chunk.position + chunk.bytes.len() as u64;
                    let reason = "the file ends inside a <doc>".into();
                    Err(Error::DamagedInput { file: name, offset, reason })
                }
            };
        }
        let opened = memchr::memchr(b'>', element).filter(|_| element.starts_with(b"<doc"));
        let Some(opened) = opened else {
            return Err(Error::BadElement { file: name, position, reason: "a <doc> is expected".into() });
        };
        let content = element[opened + 1..].trim_ascii();
        // The policy sees the bytes as they are; what is escaped in them is ASCII.
        let bytes = match std::str::from_utf8(content) {
            Ok(text) => text::unescape_xml(text).into_owned().into_bytes(),
            Err(_) => content.to_vec(),
        };
        Ok(Some(RawDocument { position, bytes }))
    }
}
