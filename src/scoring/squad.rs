//! SQuAD's scores of an answer: exact match and F1 over words, after its normalisation.

/// What may be missing from an answer or be too much in it.
const ARTICLES: [&str; 3] = ["a", "an", "the"];

/// The answer in small letters without punctuation and articles, its words separated by single spaces.
pub fn normalise(answer: &str) -> String {
    let plain: String = answer.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut out = String::with_capacity(plain.len());
    // Runs of letters and digits are words; what lies between them stays.
    let mut rest = &*plain;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_alphanumeric();
        let start = rest.find(is_word).unwrap_or(rest.len());
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        out.push_str(if ARTICLES.contains(&&rest[..end]) { " " } else { &rest[..end] });
        rest = &rest[end..];
    }
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether an answer is one of the references.
pub fn is_match(answer: &str, references: &[String]) -> bool {
    let answer = normalise(answer);
    references.iter().any(|reference| normalise(reference) == answer)
}

/// The best F1 against any of the references.
pub fn f1(answer: &str, references: &[String]) -> f64 {
    let answer = normalise(answer);
    references.iter().map(|reference| f1_of(&answer, &normalise(reference))).fold(0.0, f64::max)
}

fn f1_of(answer: &str, reference: &str) -> f64 {
    let sorted = |text: &str| {
        let mut words: Vec<String> =
            text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        words.sort_unstable();
        words
    };
    let (answer, reference) = (sorted(answer), sorted(reference));
    if answer.is_empty() || reference.is_empty() {
        return f64::from(u8::from(answer == reference));
    }
    let (mut a, mut r, mut same) = (0, 0, 0);
    while a < answer.len() && r < reference.len() {
        match answer[a].cmp(&reference[r]) {
            std::cmp::Ordering::Less => a += 1,
            std::cmp::Ordering::Greater => r += 1,
            std::cmp::Ordering::Equal => (a, r, same) = (a + 1, r + 1, same + 1),
        }
    }
    // Twice the product of precision and recall over their sum comes to this.
    2.0 * f64::from(same) / (answer.len() + reference.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_normalised_as_squad_s_own_script_does() {
        for (answer, normal) in [
            ("The Cat!", "cat"),
            ("a man, a plan", "man plan"),
            ("  An\tapple\na  day ", "apple day"),
            ("theatre and anthem", "theatre and anthem"),
            ("U.S. Army", "us army"),
            ("$4.5-million", "45million"),
            ("the", ""),
            ("Émile's", "émiles"),
            ("the–end", "–end"),
            ("3 a.m.", "3 am"),
        ] {
            assert_eq!(normalise(answer), normal, "{answer:?}");
        }
    }

    #[test]
    fn the_best_reference_counts() {
        let references = ["the Denver Broncos".to_owned(), "Broncos".to_owned()];
        assert!(is_match("Broncos.", &references) && !is_match("Denver", &references));
        assert!((f1("Denver", &references) - 2.0 / 3.0).abs() < 1e-12);
        assert!((f1("the team of Denver Broncos", &references) - 4.0 / 6.0).abs() < 1e-12);
        assert_eq!(f1("no no", &["no".to_owned()]), 2.0 / 3.0);
        assert_eq!(
            (f1("", &["the".to_owned()]), f1("x", &["the".to_owned()]), f1("x", &[])),
            (1.0, 0.0, 0.0)
        );
    }
}
