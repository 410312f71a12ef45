//! Texts that end a sample, found across the borders of tokens.

/// Text on its way out that may end in a stop text. What could be the beginning of one is held back until it is known.
#[derive(Clone, Debug)]
pub struct StopText {
    stops: Vec<String>,
    held: String,
    is_found: bool,
}

impl StopText {
    /// Watches for some texts; empty ones never end anything.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        StopText { stops, held: String::new(), is_found: false }
    }

    /// Whether a stop text was found.
    pub fn is_found(&self) -> bool {
        self.is_found
    }

    /// Takes more text and gives what can be shown: all before the first stop text, and nothing that may belong to one.
    pub fn push(&mut self, text: &str) -> String {
        if self.is_found {
            return String::new();
        }
        self.held += text;
        if let Some(start) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.is_found = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let kept = self.stops.iter().map(|stop| beginning(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - kept;
        let held = self.held.split_off(shown);
        std::mem::replace(&mut self.held, held)
    }

    /// What was held back for nothing, at the end of the text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// The bytes at the end of a text that are the beginning of `stop`, but not all of it.
fn beginning(text: &str, stop: &str) -> usize {
    let most = text.len().min(stop.len() - 1);
    let ends_so = |&length: &usize| text.as_bytes().ends_with(&stop.as_bytes()[..length]);
    (1..=most).rev().find(ends_so).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(stops: &[&str], pieces: &[&str]) -> (Vec<String>, String, bool) {
        let stops: Vec<String> = stops.iter().map(ToString::to_string).collect();
        let mut watch = StopText::new(&stops);
        let shown = pieces.iter().map(|piece| watch.push(piece)).collect();
        (shown, watch.finish(), watch.is_found())
    }

    fn owned(texts: &[&str]) -> Vec<String> {
        texts.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_stop_text_is_found_across_pieces_and_never_shown() {
        let (pieces, rest, found) = shown(&["END"], &["a E", "N", "D b", "c"]);
        assert_eq!((pieces, rest.as_str(), found), (owned(&["a ", "", "", ""]), "", true));
    }

    #[test]
    fn what_only_looked_like_one_is_shown_in_the_end() {
        let (pieces, rest, found) = shown(&["END", "NO"], &["EE", "NE", "x N"]);
        assert_eq!((pieces, rest.as_str(), found), (owned(&["E", "EN", "Ex "]), "N", false));
    }

    #[test]
    fn the_earliest_of_several_counts() {
        let (pieces, _, found) = shown(&["three", "two"], &["one two three"]);
        assert_eq!((pieces, found), (owned(&["one "]), true));
    }

    #[test]
    fn letters_of_several_bytes_stay_whole() {
        let (pieces, rest, found) = shown(&["éà"], &["aé", "éè"]);
        assert_eq!((pieces, rest.as_str(), found), (owned(&["a", "ééè"]), "", false));
        assert_eq!(shown(&[""], &["x"]).0, owned(&["x"]));
    }
}
