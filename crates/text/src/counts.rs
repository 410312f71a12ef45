//! How often each distinct piece occurs in a corpus: all that BPE and word training need to know of it.

use hashbrown::HashMap;

use crate::pattern::Pattern;
use crate::special::{Part, Specials};
use crate::splitter::Splitter;
use crate::{Error, Result};

/// Exact counts of the distinct pieces of any number of documents.
///
/// The counts do not depend on the order of the documents, nor on how they were shared out between tables
/// that were merged afterwards. Special tokens found in a document are removed, and the text around them is
/// cut separately.
#[derive(Debug, Clone)]
pub struct PieceCounts {
    splitter: Splitter,
    specials: Specials,
    counts: HashMap<Box<[u8]>, u64>,
    total: u64,
}

impl PieceCounts {
    /// An empty table for pieces of `pattern`; `special` tokens are removed from documents before counting.
    pub fn new(pattern: &Pattern, special: &[String]) -> Result<Self> {
        Ok(Self {
            splitter: Splitter::new(pattern)?,
            specials: Specials::numbered(special)?,
            counts: HashMap::new(),
            total: 0,
        })
    }

    /// Counts the pieces of one document. Pieces never cross documents.
    ///
    /// After an error the document may be counted in part.
    pub fn add_document(&mut self, document: &[u8]) -> Result<()> {
        let Self { splitter, specials, counts, total } = self;
        specials.for_each_part(document, |part| match part {
            Part::Special(..) => Ok(()),
            Part::Text(text) => splitter.for_each_piece(text, |piece| add(counts, total, piece, 1)),
        })
    }

    /// Adds the counts of `other`, which must have been made with the same pattern and special tokens.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        self.check_settings(other.pattern(), other.specials.texts())?;
        let Self { counts, total, .. } = self;
        other.counts.into_iter().try_for_each(|(piece, count)| add(counts, total, &piece, count))
    }

    /// The pattern that cuts the documents.
    pub fn pattern(&self) -> &Pattern {
        self.splitter.pattern()
    }

    /// How many pieces were counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// How many of them are distinct.
    pub fn distinct(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Every distinct piece and its count, in the order of the pieces' bytes.
    pub fn sorted(&self) -> Vec<(&[u8], u64)> {
        let mut pieces: Vec<_> = self.counts.iter().map(|(piece, &count)| (&**piece, count)).collect();
        pieces.sort_unstable();
        pieces
    }

    /// Refuses a use of these counts with another pattern or other special tokens than they were made with.
    pub(crate) fn check_settings<'s>(
        &self,
        pattern: &Pattern,
        special: impl Iterator<Item = &'s str>,
    ) -> Result<()> {
        // Two names may stand for the same regular expression, and the pieces are what counts.
        if self.pattern().regex() != pattern.regex() {
            let counted = format!("the pattern {}", self.pattern());
            return Err(Error::CountsDiffer { counted, wanted: format!("the pattern {pattern}") });
        }
        self.specials.check_same(special)
    }
}

fn add(counts: &mut HashMap<Box<[u8]>, u64>, total: &mut u64, piece: &[u8], count: u64) -> Result<()> {
    let overflow = || Error::CountOverflow("all pieces".to_owned());
    // The total bounds every single count, so it alone needs the check.
    *total = total.checked_add(count).ok_or_else(overflow)?;
    match counts.get_mut(piece) {
        Some(so_far) => *so_far += count,
        None => _ = counts.insert(piece.into(), count),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(documents: &[&str]) -> PieceCounts {
        let mut counts = PieceCounts::new(&Pattern::Gpt2, &["<|x|>".to_owned()]).unwrap();
        documents.iter().for_each(|document| counts.add_document(document.as_bytes()).unwrap());
        counts
    }

    #[test]
    fn pieces_are_counted_and_come_out_sorted() {
        let counts = counts(&["b a a", " a"]);
        assert_eq!(counts.sorted(), [(&b" a"[..], 3), (b"b", 1)]);
        assert_eq!((counts.total(), counts.distinct()), (4, 2));
    }

    #[test]
    fn special_tokens_are_removed_and_cut_the_text() {
        assert_eq!(counts(&["a<|x|>b<|x|>"]).sorted(), counts(&["a", "b"]).sorted());
    }

    #[test]
    fn merged_tables_equal_one_table() {
        let mut first = counts(&["one two", "three"]);
        first.merge(counts(&["two three", "four"])).unwrap();
        let whole = counts(&["one two", "three", "two three", "four"]);
        assert_eq!(first.sorted(), whole.sorted());
        assert_eq!(first.total(), whole.total());
    }

    #[test]
    fn tables_with_other_settings_do_not_merge() {
        let mut first = counts(&["a"]);
        let other_pattern = PieceCounts::new(&Pattern::Cl100k, &["<|x|>".to_owned()]).unwrap();
        let other_special = PieceCounts::new(&Pattern::Gpt2, &[]).unwrap();
        assert!(matches!(first.merge(other_pattern), Err(Error::CountsDiffer { .. })));
        assert!(matches!(first.merge(other_special), Err(Error::CountsDiffer { .. })));
    }

    #[test]
    fn a_total_beyond_64_bits_is_an_error() {
        let mut first = counts(&["a"]);
        add(&mut first.counts, &mut first.total, b"b", u64::MAX - 1).unwrap();
        assert!(matches!(first.add_document(b"c"), Err(Error::CountOverflow(_))));
    }
}
