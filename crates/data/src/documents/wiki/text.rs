//! Wikitext as plain text: what a reader of the article would read aloud.
//!
//! One pass over the text keeps a stack of what is open (templates, links, tables), each with what was written inside it. What
//! closes is replaced by its text, or by nothing; what never closes becomes ordinary text, so that a forgotten brace costs no
//! more than itself. The pass is linear whatever the text. A second one goes over the lines: headings (those with nothing
//! below them are left out), list marks, entities, blank lines.

use std::borrow::Cow;

use memchr::memmem;

/// Names before the colon of links that are no text: files and categories, in the language of the dump and in English.
#[derive(Debug)]
pub(super) struct Namespaces {
    silent: Vec<String>,
}

impl Namespaces {
    /// Those that the beginning of a dump lists under the numbers of files and categories.
    pub(super) fn of_dump(head: &[u8]) -> Namespaces {
        let mut silent: Vec<String> = ["file", "image", "media", "category"].map(str::to_string).to_vec();
        for key in [r#"key="6""#, r#"key="14""#, r#"key="-2""#] {
            let Some(at) = memmem::find(head, key.as_bytes()) else { continue };
            let rest = &head[at..];
            if let (Some(open), Some(close)) =
                (memchr::memchr(b'>', rest), memmem::find(rest, b"</namespace>"))
                && let Some(name) = rest.get(open + 1..close)
            {
                silent.push(String::from_utf8_lossy(name).to_lowercase());
            }
        }
        Namespaces { silent }
    }

    fn is_silent(&self, name: &str) -> bool {
        let name = name.trim().to_lowercase();
        self.silent.contains(&name)
    }
}

/// The plain text of an article; empty if there is none.
pub(super) fn plain(wikitext: &str, namespaces: &Namespaces) -> String {
    let mut stripper =
        Stripper { text: wikitext, at: 0, frames: Vec::new(), root: String::new(), namespaces };
    tidy(&stripper.run())
}

/// What can be open.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Open {
    /// `{{ … }}`
    Template,
    /// `{{{ … }}}`
    Parameter,
    /// `{| … |}`
    Table,
    /// `[[ … ]]`
    Link,
    /// `[https://… label]`
    External,
}

struct Frame {
    open: Open,
    text: String,
}

struct Stripper<'a> {
    text: &'a str,
    at: usize,
    frames: Vec<Frame>,
    root: String,
    namespaces: &'a Namespaces,
}

/// Elements that are left out with all that is inside them.
const SILENT_TAGS: [&str; 18] = [
    "ref",
    "math",
    "gallery",
    "timeline",
    "syntaxhighlight",
    "source",
    "score",
    "imagemap",
    "graph",
    "mapframe",
    "maplink",
    "chem",
    "ce",
    "hiero",
    "table",
    "section",
    "references",
    "templatestyles",
];

impl<'a> Stripper<'a> {
    fn run(&mut self) -> String {
        // Where a closing tag was looked for in vain, so that it is not looked for again and again.
        let mut unclosed: Vec<&str> = Vec::new();
        let bytes = self.text.as_bytes();
        while self.at < bytes.len() {
            let plain = bytes[self.at..].iter().position(|byte| b"{}[]<'|\n".contains(byte));
            let Some(plain) = plain else {
                self.keep_to(bytes.len());
                break;
            };
            self.keep_to(self.at + plain);
            let rest = &bytes[self.at..];
            match rest[0] {
                b'{' => self.open_brace(rest),
                b'}' => self.close_brace(rest),
                b'[' => self.open_bracket(rest),
                b']' => self.close_bracket(rest),
                b'\'' => self.quotes(rest),
                b'|' if rest.starts_with(b"|}") && self.is_line_start() && self.is_open(Open::Table) => {
                    self.close(Open::Table);
                    self.at += 2;
                }
                b'<' => self.tag(rest, &mut unclosed),
                byte => {
                    if byte == b'\n' {
                        let is_external = |frame: &Frame| frame.open == Open::External;
                        let kept = self.frames.iter().rposition(|frame| !is_external(frame));
                        self.forget_from(kept.map_or(0, |idx| idx + 1));
                    }
                    self.keep_to(self.at + 1);
                }
            }
        }
        self.forget_from(0);
        std::mem::take(&mut self.root)
    }

    fn out(&mut self) -> &mut String {
        match self.frames.last_mut() {
            Some(frame) => &mut frame.text,
            None => &mut self.root,
        }
    }

    fn keep_to(&mut self, end: usize) {
        let text = &self.text[self.at..end];
        self.out().push_str(text);
        self.at = end;
    }

    fn is_line_start(&self) -> bool {
        let before = &self.text.as_bytes()[self.at.saturating_sub(MAX_INDENT)..self.at];
        let line = match memchr::memrchr(b'\n', before) {
            Some(end) => &before[end + 1..],
            None if before.len() < MAX_INDENT => before,
            None => return false,
        };
        line.iter().all(|byte| b" \t:*#".contains(byte))
    }

    fn is_open(&self, open: Open) -> bool {
        self.frames.iter().any(|frame| frame.open == open)
    }

    fn push(&mut self, open: Open, n_bytes: usize) {
        self.at += n_bytes;
        if self.frames.len() < MAX_DEPTH {
            self.frames.push(Frame { open, text: String::new() });
        }
    }

    /// What is open from this place of the stack on is no mark after all: its text goes on in what it stands in.
    fn forget_from(&mut self, idx: usize) {
        let forgotten: String = self.frames.drain(idx..).map(|frame| frame.text).collect();
        self.out().push_str(&forgotten);
    }

    /// Closes the innermost of its kind, and says what its text comes to.
    fn close(&mut self, open: Open) {
        if let Some(idx) = self.frames.iter().rposition(|frame| frame.open == open) {
            self.forget_from(idx + 1);
        }
        let Some(Frame { text, .. }) = self.frames.pop() else { return };
        let shown = match open {
            Open::Template => template(&text),
            Open::Link => self.link(&text),
            Open::External => text,
            Open::Table | Open::Parameter => String::new(),
        };
        self.out().push_str(&shown);
    }

    fn open_brace(&mut self, rest: &[u8]) {
        let run = rest.iter().take_while(|&&byte| byte == b'{').count();
        if run == 3 {
            self.push(Open::Parameter, 3);
        } else if run >= 2 {
            self.push(Open::Template, 2);
        } else if rest.starts_with(b"{|") && self.is_line_start() {
            self.push(Open::Table, 2);
        } else {
            self.keep_to(self.at + 1);
        }
    }

    fn close_brace(&mut self, rest: &[u8]) {
        if rest.starts_with(b"}}}") && self.frames.last().is_some_and(|frame| frame.open == Open::Parameter) {
            self.close(Open::Parameter);
            self.at += 3;
        } else if rest.starts_with(b"}}") && self.is_open(Open::Template) {
            self.close(Open::Template);
            self.at += 2;
        } else {
            self.at += 1;
        }
    }

    fn open_bracket(&mut self, rest: &[u8]) {
        if rest.starts_with(b"[[") {
            return self.push(Open::Link, 2);
        }
        let address = &rest[1..];
        let is_address = [&b"http://"[..], b"https://", b"//", b"ftp://", b"mailto:"].iter().any(|scheme| {
            address.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        });
        if !is_address {
            return self.keep_to(self.at + 1);
        }
        let length = address.iter().position(|byte| b" ]\n\t".contains(byte)).unwrap_or(address.len());
        let space = usize::from(address.get(length) == Some(&b' '));
        self.push(Open::External, 1 + length + space);
    }

    fn close_bracket(&mut self, rest: &[u8]) {
        let mut open = self.frames.iter().rev().map(|frame| frame.open);
        let innermost = open.find(|open| matches!(open, Open::Link | Open::External));
        match innermost {
            Some(Open::Link) if rest.starts_with(b"]]") => {
                self.close(Open::Link);
                self.at += 2;
            }
            Some(Open::External) => {
                self.close(Open::External);
                self.at += 1;
            }
            _ if rest.starts_with(b"]]") => self.at += 2,
            _ => self.keep_to(self.at + 1),
        }
    }

    /// Two, three and five quotes are slanted, bold and both; a fourth one, and those beyond five, are quotes.
    fn quotes(&mut self, rest: &[u8]) {
        let run = rest.iter().take_while(|&&byte| byte == b'\'').count();
        let shown = match run {
            1 => 1,
            2 | 3 | 5 => 0,
            4 => 1,
            more => more - 5,
        };
        self.at += run;
        (0..shown).for_each(|_| self.out().push('\''));
    }

    fn tag(&mut self, rest: &'a [u8], unclosed: &mut Vec<&'a str>) {
        if rest.starts_with(b"<!--") {
            self.at += memmem::find(rest, b"-->").map_or(rest.len(), |end| end + 3);
            return;
        }
        let is_closing = rest.get(1) == Some(&b'/');
        let from = 1 + usize::from(is_closing);
        let length = rest[from..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let within = &rest[..rest.len().min(MAX_TAG_BYTES)];
        let end = within.get(from..).and_then(|tag| memchr::memchr(b'>', tag)).map(|at| from + at);
        let Some(end) = end.filter(|_| length > 0) else {
            return self.keep_to(self.at + 1);
        };
        let name = &self.text[self.at + from..self.at + from + length];
        let is_alone = rest[end - 1] == b'/';
        let inside = &rest[end + 1..];
        let lower = name.to_ascii_lowercase();
        self.at += end + 1;
        if lower == "br" || lower == "p" {
            self.out().push('\n');
        }
        let is_literal = lower == "nowiki" || lower == "pre";
        if is_closing || is_alone || !(is_literal || SILENT_TAGS.contains(&lower.as_str())) {
            return;
        }
        if unclosed.contains(&name) {
            return;
        }
        let closing = format!("</{name}");
        let Some(length) = memmem::find(inside, closing.as_bytes()) else {
            unclosed.push(name);
            return;
        };
        if is_literal {
            self.keep_to(self.at + length);
        } else {
            self.at += length;
        }
    }

    fn link(&self, text: &str) -> String {
        let (is_named, text) = match text.strip_prefix(':') {
            Some(text) => (true, text),
            None => (false, text),
        };
        let (target, label) = match text.split_once('|') {
            Some((target, _)) => (target, text.rsplit('|').next().unwrap_or_default()),
            None => (text, text),
        };
        if let Some((name, _)) = target.split_once(':').filter(|_| !is_named) {
            let is_language = (2..=3).contains(&name.len())
                && name.bytes().all(|byte| byte.is_ascii_lowercase())
                && label == text;
            if self.namespaces.is_silent(name) || is_language {
                return String::new();
            }
        }
        if label.trim().is_empty() { target.to_string() } else { label.to_string() }
    }
}

/// How much can be open at once; what is opened beyond it is text.
const MAX_DEPTH: usize = 48;

/// How far into a line a table may start.
const MAX_INDENT: usize = 64;

/// How long a tag may be.
const MAX_TAG_BYTES: usize = 4 << 10;

/// What a template shows. Without its definition that is known of a few that stand inside sentences.
fn template(text: &str) -> String {
    let mut parameters = text.split('|').map(str::trim);
    let name = parameters.next().unwrap_or_default().to_lowercase();
    let mut plain = parameters.filter(|parameter| !parameter.contains('='));
    let mut next = || plain.next().unwrap_or_default().to_string();
    match name.as_str() {
        "lang" | "langx" | "transl" | "transliteration" => {
            next();
            next()
        }
        "nowrap" | "nobr" | "em" | "strong" | "abbr" | "small" | "big" | "sic" => next(),
        "convert" | "cvt" => format!("{} {}", next(), next()),
        "ndash" | "spaced ndash" | "snd" => " – ".into(),
        "mdash" => "—".into(),
        "'" => "'".into(),
        name if name.starts_with("lang-") => next(),
        _ => String::new(),
    }
}

/// Goes over the lines.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Headings that wait for a line below them.
    let mut headings: Vec<(usize, String)> = Vec::new();
    let mut is_new_paragraph = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some((level, heading)) = heading(line) {
            while headings.last().is_some_and(|&(above, _)| above >= level) {
                headings.pop();
            }
            headings.push((level, tidy_line(heading)));
            continue;
        }
        let line = tidy_line(line.trim_start_matches(['*', '#', ':', ';']).trim());
        if line.is_empty() || line.starts_with(['|', '!']) || line.bytes().all(|byte| byte == b'-') {
            is_new_paragraph = true;
            continue;
        }
        for (_, heading) in headings.drain(..) {
            if !out.is_empty() {
                out.push('\n');
            }
            out += &heading;
            out.push('\n');
            is_new_paragraph = false;
        }
        if is_new_paragraph && !out.is_empty() {
            out.push('\n');
        }
        is_new_paragraph = false;
        out += &line;
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

/// The level and the text of a heading.
fn heading(line: &str) -> Option<(usize, &str)> {
    let before = line.bytes().take_while(|&byte| byte == b'=').count();
    let after = line.bytes().rev().take_while(|&byte| byte == b'=').count();
    let level = before.min(after).min(6);
    let text = line.get(level..line.len().checked_sub(level)?).filter(|_| level > 0)?.trim();
    (!text.is_empty()).then_some((level, text))
}

/// A line without entities, switches and the holes that templates leave.
fn tidy_line(line: &str) -> String {
    let line = unescape(line, true);
    let line = without_switches(&line);
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        let c = if c == '\t' || c == '\u{a0}' { ' ' } else { c };
        // A template that said how a word is spoken leaves "( , born 1815)" or "()" behind.
        match c {
            ' ' if out.ends_with([' ', '(']) => continue,
            ',' | ';' if out.ends_with('(') => continue,
            ')' if out.ends_with('(') => {
                out.pop();
                if out.ends_with(' ') {
                    out.pop();
                }
                continue;
            }
            ',' | '.' | ')' if out.ends_with(' ') => {
                out.pop();
            }
            _ => {}
        }
        out.push(c);
    }
    out.truncate(out.trim_end().len());
    out
}

/// Without `__NOTOC__` and the like.
fn without_switches(line: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let (mut kept, mut from) = (0, 0);
    while let Some(start) = line[from..].find("__").map(|at| from + at) {
        let name = line[start + 2..].bytes().take_while(u8::is_ascii_uppercase).count();
        from = start + 2 + name;
        if name > 0 && line[from..].starts_with("__") {
            out.push_str(&line[kept..start]);
            (kept, from) = (from + 2, from + 2);
        }
    }
    if kept == 0 {
        return Cow::Borrowed(line);
    }
    out.push_str(&line[kept..]);
    Cow::Owned(out)
}

/// Text of XML as it is meant.
pub(super) fn unescape_xml(text: &str) -> Cow<'_, str> {
    unescape(text, false)
}

/// Replaces entities: those of XML, and with `html` the common ones of HTML.
fn unescape(text: &str, html: bool) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'&', text.as_bytes()) else { return Cow::Borrowed(text) };
    let mut out = String::with_capacity(text.len());
    out.push_str(&text[..first]);
    let mut rest = &text[first..];
    while let Some(after) = rest.strip_prefix('&') {
        let end = after.bytes().take(MAX_ENTITY_BYTES).position(|byte| byte == b';');
        let named = end.and_then(|end| Some((entity(after.get(..end)?, html)?, end)));
        match named {
            Some((character, end)) => {
                out.push(character);
                rest = &after[end + 1..];
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
        let next = memchr::memchr(b'&', rest.as_bytes()).unwrap_or(rest.len());
        out.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(out)
}

/// The longest name between `&` and `;`.
const MAX_ENTITY_BYTES: usize = 12;

fn entity(name: &str, html: bool) -> Option<char> {
    if let Some(number) = name.strip_prefix('#') {
        let hex = number.strip_prefix(['x', 'X']);
        let number = hex.map_or_else(|| number.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok());
        return number.and_then(char::from_u32);
    }
    Some(match name {
        "lt" => '<',
        "gt" => '>',
        "amp" => '&',
        "quot" => '"',
        "apos" => '\'',
        _ if !html => return None,
        "nbsp" | "thinsp" | "ensp" | "emsp" => ' ',
        "ndash" => '–',
        "mdash" => '—',
        "minus" => '−',
        "times" => '×',
        "middot" => '·',
        "bull" => '•',
        "deg" => '°',
        "hellip" => '…',
        "lsquo" => '‘',
        "rsquo" => '’',
        "ldquo" => '“',
        "rdquo" => '”',
        "laquo" => '«',
        "raquo" => '»',
        "prime" => '′',
        "Prime" => '″',
        "frac12" => '½',
        "sup2" => '²',
        "sup3" => '³',
        "pound" => '£',
        "euro" => '€',
        "copy" => '©',
        "alpha" => 'α',
        "beta" => 'β',
        "gamma" => 'γ',
        "pi" => 'π',
        "mu" => 'μ',
        "rarr" => '→',
        "larr" => '←',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(wikitext: &str, expected: &str) {
        let namespaces = Namespaces::of_dump(
            br#"<namespace key="6" case="first-letter">Datei</namespace><namespace key="14">Kategorie</namespace>"#,
        );
        assert_eq!(plain(wikitext, &namespaces), expected, "{wikitext:?}");
    }

    #[test]
    fn marks_go_and_words_stay() {
        for (wikitext, expected) in [
            ("'''Anna''' was a ''smith''.", "Anna was a smith."),
            ("''''x'''' and '''''y'''''", "'x' and y"),
            ("[[cat]]s and [[dog|hounds]], [[:Category:Pets]]", "cats and hounds, Category:Pets"),
            ("See [https://a.b/c the page] or [http://d.e].", "See the page or."),
            ("[not a link] [1]", "[not a link] [1]"),
            ("a<ref>b {{c}}</ref>, d<ref name=x />, e<!-- f -->.", "a, d, e."),
            ("x<br/>y <b>bold</b> <span style=\"a\">z</span>", "x\ny bold z"),
            ("2 &lt; 3&nbsp;km &amp; &#8211; &#x2013; &bogus; AT&T", "2 < 3 km & – – &bogus; AT&T"),
            ("<nowiki>[[x]]</nowiki> <math>a^2</math>b", "[[x]] b"),
            ("a < b and 3 <4", "a < b and 3 <4"),
            ("__NOTOC__a __B c__", "a __B c__"),
        ] {
            check(wikitext, expected);
        }
    }

    #[test]
    fn templates_tables_and_pictures_are_left_out_however_nested() {
        for (wikitext, expected) in [
            ("a {{b|c={{d|[[e]]}}|f}}g", "a g"),
            ("{{lang|fr|chat}} {{convert|5|km|mi}} {{nowrap|x y}}{{ndash}}z", "chat 5 km x y – z"),
            ("{{{parameter|x}}}y", "y"),
            ("before\n{| class=x\n|-\n| {{a}} || b\n{|\n| inner\n|}\n|}\nafter", "before\n\nafter"),
            ("[[File:a.jpg|thumb|A [[cat]] and {{x}}]]b", "b"),
            ("[[Datei:a.jpg|mini]]b [[Kategorie:C]] [[fr:Chat]]", "b"),
            ("Paris ({{IPA|x}}; born) and Rome ({{x}}) end", "Paris (born) and Rome end"),
        ] {
            check(wikitext, expected);
        }
    }

    #[test]
    fn headings_need_something_below_them_and_lists_lose_their_marks() {
        check(
            "Intro.\n== One ==\n=== Empty ===\n== Two ==\n=== Deep ===\n* a\n** b\n#c\n\n\n\ntext\n== See also ==\n{{x}}\n----\n",
            "Intro.\n\nTwo\n\nDeep\na\nb\nc\n\ntext",
        );
    }

    #[test]
    fn what_is_never_closed_is_text() {
        for (wikitext, expected) in [
            ("a {{b c", "a b c"),
            ("a [[b c\nd", "a b c\nd"),
            ("a }} b ]] c", "a b c"),
            ("{| a\nb", "a\nb"),
            ("a {{b [[c}} d", "a d"),
            ("x [http://a b\nc] d", "x b\nc] d"),
            ("a<ref>b", "ab"),
            ("a<!-- b", "a"),
        ] {
            check(wikitext, expected);
        }
    }

    #[test]
    fn hostile_text_takes_linear_time() {
        for mark in [
            "{{",
            "[[",
            "{|\n",
            "<ref>",
            "[http://a ",
            "''",
            "}}",
            "{{a|",
            "[[{{",
            "<!--",
            "__A",
            "__A__",
            "&",
            "(",
            "<a",
            "|}",
            "]]",
        ] {
            for text in [mark.repeat(200_000), mark.repeat(100_000) + &"]]}}".repeat(100_000)] {
                let _ = plain(&text, &Namespaces::of_dump(b""));
            }
        }
    }
}
