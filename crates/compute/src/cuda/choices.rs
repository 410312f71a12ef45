//! The file that keeps what was chosen for a card, so that runs on it choose alike.

use std::collections::BTreeMap;

use super::cudnn;

/// The file of choices as it was last read or written: those of products, and those of attentions.
#[derive(Default)]
pub(super) struct Kept {
    pub products: String,
    pub attentions: String,
}

impl Kept {
    /// Takes what another file has; what it does not have stays.
    pub fn take(&mut self, other: Kept) {
        for (own, found) in [(&mut self.products, other.products), (&mut self.attentions, other.attentions)] {
            if !found.is_empty() {
                *own = found;
            }
        }
    }

    pub fn new(text: &str) -> Self {
        let is_heading = |line: &&str| line.split(' ').next() == Some(cudnn::CHOICES);
        let products: usize =
            text.split_inclusive('\n').take_while(|line| !is_heading(line)).map(str::len).sum();
        let (products, attentions) = text.split_at(products);
        Kept { products: products.into(), attentions: attentions.into() }
    }
}

/// Our choices and those of a file, under a heading that names the library's version; those of another version are dropped.
/// Where both have one, the file's stays.
pub(super) fn merged(own: &str, there: &str) -> String {
    if own.is_empty() || own.lines().next() != there.lines().next() {
        return if own.is_empty() { there.into() } else { own.into() };
    }
    let (heading, _) = own.split_once('\n').unwrap_or((own, ""));
    let lines = own.lines().chain(there.lines()).filter_map(|line| line.split_once('\t'));
    let choices: BTreeMap<&str, &str> = lines.collect();
    let lines: String = choices.iter().map(|(key, choice)| format!("{key}\t{choice}\n")).collect();
    format!("{heading}\n{lines}")
}

/// The name of the file that keeps a card's choices in the kernel cache.
pub(super) fn choices_name(card: &str, version: i32) -> String {
    let card = card.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    format!("choices-{card}-{version}.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_of_two_runs_are_kept_together_and_the_earlier_one_stays() {
        let there = "cublaslt 13\nb\told\nc\t3\n";
        assert_eq!(merged("cublaslt 13\na\t1\nb\tnew\n", there), "cublaslt 13\na\t1\nb\told\nc\t3\n");
        assert_eq!(merged("cublaslt 14\na\t1\n", there), "cublaslt 14\na\t1\n");
        assert_eq!(merged("", there), there);
        assert_eq!(merged("cublaslt 13\na\t1\n", ""), "cublaslt 13\na\t1\n");
    }
}
