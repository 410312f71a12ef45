//! Templates: sentences with holes, and how the holes are filled.
//!
//! `{hero}` is a fact of the story, `{friend.his}` a pronoun of one of its people (`{his}` alone is the
//! hero's), `{~walked}` a new word from a list, `{%pass}` a phrase of the story's need, `[a|b]` either
//! side, and `{a}` the article that the next word asks for. A capital letter capitalises.

use super::random::Random;
use super::world::World;

/// One way of telling a beat.
pub(super) struct Template(Vec<Part>);

enum Part {
    Text(&'static str),
    Fact(Fact, Case),
    Pronoun(Role, Form, Case),
    Draw(ListId, Case),
    Phrase(Phrase),
    Article(Case),
    Either(Vec<Template>),
}

/// Whether a filled hole starts with a capital letter of its own.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    AsIs,
    Capital,
}

/// The index of a word list in the world.
#[derive(Clone, Copy)]
pub(super) struct ListId(pub(super) usize);

/// Declares an enum whose variants are known in the templates by a name.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq)]
        pub(super) enum $type { $($variant,)* }

        impl $type {
            pub(super) const NAMED: &'static [(&'static str, $type)] = &[$(($name, $type::$variant),)*];

            pub(super) fn from_name(name: &str) -> Option<$type> {
                Self::NAMED.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
            }
        }
    };
}

named! {
    /// What is fixed for the length of a story.
    Fact {
        Hero = "hero", Friend = "friend", Rival = "rival", Helper = "helper", Elder = "elder",
        Elder2 = "elder2", Kind = "kind", NewKind = "newkind", Job = "job", Animal = "animal",
        Trait = "trait", Habit = "habit", Deed = "deed", Lesson = "lesson", Flaw = "flaw", Virtue = "virtue",
        Place = "place", At = "at", Sight = "sight", Sight2 = "sight2", Home = "home",
        Want = "want", Block = "block", Blocked = "blocked", Tool = "tool", Right = "right",
        GardenTool = "tool2", Treasure = "treasure", Colour = "colour", Hue = "hue", Garment = "garment",
        Material = "material", Cake = "cake", Snack = "snack", Pet = "pet", Missing = "missing",
        Crop = "crop", Skill = "skill", Event = "event", Contest = "contest", Prize = "prize",
        Clue = "clue", Culprit = "culprit",
    }
}

named! {
    /// The people of a story.
    Role { Hero = "hero", Friend = "friend", Rival = "rival", Helper = "helper", Elder = "elder", }
}

named! {
    /// The forms of a pronoun.
    Form { He = "he", Him = "him", His = "his", Himself = "himself", }
}

named! {
    /// The phrases that depend on what an obstacle asks for.
    Phrase { Meet = "meet", Pass = "pass", Stuck = "stuck", Free = "free", }
}

/// Grammatical gender of a person.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Gender {
    Female,
    Male,
}

/// Everything that holes are filled with.
pub(super) struct Facts {
    pub(super) words: [&'static str; Fact::NAMED.len()],
    pub(super) genders: [Gender; Role::NAMED.len()],
    /// The index of the story's need in the world.
    pub(super) need_idx: usize,
    /// Which of the need's predicaments the animal is in.
    pub(super) stuck_idx: usize,
}

impl Facts {
    pub(super) fn set(&mut self, fact: Fact, word: &'static str) {
        self.words[fact as usize] = word;
    }
}

impl Template {
    /// Reads a template; `list` finds a word list by name.
    ///
    /// # Panics
    /// On a hole that nothing is known to fill: the templates are part of the program.
    pub(super) fn parse(text: &'static str, list: &dyn Fn(&str) -> Option<ListId>) -> Template {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find(['{', '[']) {
            if start > 0 {
                parts.push(Part::Text(&rest[..start]));
            }
            let close = if rest[start..].starts_with('{') { '}' } else { ']' };
            let Some(length) = rest[start..].find(close) else { panic!("unclosed hole in: {text}") };
            let inside = &rest[start + 1..start + length];
            rest = &rest[start + length + 1..];
            if close == ']' {
                parts.push(Part::Either(inside.split('|').map(|side| Template::parse(side, list)).collect()));
                continue;
            }
            let Some(part) = hole(inside, list) else { panic!("unknown hole {{{inside}}} in: {text}") };
            if matches!(part, Part::Article(_)) {
                // The article brings its own space, because its spelling waits for the next word.
                rest = rest.strip_prefix(' ').unwrap_or(rest);
            }
            parts.push(part);
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest));
        }
        Template(parts)
    }
}

fn hole(inside: &'static str, list: &dyn Fn(&str) -> Option<ListId>) -> Option<Part> {
    let capital = inside.contains(|c: char| c.is_ascii_uppercase());
    let case = if capital { Case::Capital } else { Case::AsIs };
    let name = inside.to_ascii_lowercase();
    if let Some(name) = name.strip_prefix('~') {
        return Some(Part::Draw(list(name)?, case));
    }
    if let Some(name) = name.strip_prefix('%') {
        return Some(Part::Phrase(Phrase::from_name(name)?));
    }
    if name == "a" {
        return Some(Part::Article(case));
    }
    if let Some((role, form)) = name.split_once('.') {
        return Some(Part::Pronoun(Role::from_name(role)?, Form::from_name(form)?, case));
    }
    if let Some(form) = Form::from_name(&name) {
        return Some(Part::Pronoun(Role::Hero, form, case));
    }
    Some(Part::Fact(Fact::from_name(&name)?, case))
}

/// A story while it is being told.
pub(super) struct Teller<'a> {
    pub(super) world: &'a World,
    pub(super) facts: &'a Facts,
    pub(super) random: &'a mut Random,
    pub(super) story: String,
    waiting_article: Option<Case>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(world: &'a World, facts: &'a Facts, random: &'a mut Random) -> Self {
        // Most stories are shorter than this, so the text grows without moving.
        let story = String::with_capacity(1536);
        Teller { world, facts, random, story, waiting_article: None }
    }

    /// Adds one template, filled.
    pub(super) fn tell(&mut self, template: &Template) {
        for part in &template.0 {
            match part {
                Part::Text(text) => self.write(text, Case::AsIs),
                Part::Fact(fact, case) => self.write(self.facts.words[*fact as usize], *case),
                Part::Pronoun(role, form, case) => {
                    self.write(pronoun(self.facts.genders[*role as usize], *form), *case);
                }
                Part::Draw(list, case) => {
                    let word = self.random.word(self.world.words(*list));
                    self.write(word, *case);
                }
                Part::Phrase(phrase) => {
                    let lines = self.world.phrase(*phrase, self.facts);
                    let line = &lines[self.random.below(lines.len())];
                    self.tell(line);
                }
                Part::Article(case) => self.waiting_article = Some(*case),
                Part::Either(sides) => {
                    let side = &sides[self.random.below(sides.len())];
                    self.tell(side);
                }
            }
        }
    }

    fn write(&mut self, text: &str, case: Case) {
        if let Some(article) = self.waiting_article.take() {
            let word = if takes_an(text) { "an " } else { "a " };
            self.push(word, article);
        }
        self.push(text, case);
    }

    fn push(&mut self, text: &str, case: Case) {
        match text.chars().next() {
            Some(first) if case == Case::Capital => {
                self.story.extend(first.to_uppercase());
                self.story.push_str(&text[first.len_utf8()..]);
            }
            _ => self.story.push_str(text),
        }
    }
}

fn pronoun(gender: Gender, form: Form) -> &'static str {
    match (gender, form) {
        (Gender::Female, Form::He) => "she",
        (Gender::Female, Form::Him | Form::His) => "her",
        (Gender::Female, Form::Himself) => "herself",
        (Gender::Male, Form::He) => "he",
        (Gender::Male, Form::Him) => "him",
        (Gender::Male, Form::His) => "his",
        (Gender::Male, Form::Himself) => "himself",
    }
}

/// Whether "an" goes before this text. Spelling decides, but for words that sound otherwise.
pub(super) fn takes_an(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or(text).to_ascii_lowercase();
    const SILENT_H: &[&str] = &["hour", "hourglass", "honest", "honour", "heir"];
    const SOUNDS_LIKE_YOU_OR_ONE: &[&str] =
        &["one", "once", "unicycle", "uniform", "unicorn", "ukulele", "useful", "usual"];
    if SILENT_H.contains(&word.as_str()) {
        return true;
    }
    word.starts_with(['a', 'e', 'i', 'o', 'u']) && !SOUNDS_LIKE_YOU_OR_ONE.contains(&word.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_article_follows_the_sound_of_the_next_word() {
        for word in ["apple", "egg", "honest", "hourglass", "old", "umbrella", "icy gate", "honest-looking"] {
            assert!(takes_an(word), "{word}");
        }
        for word in ["bear", "ukulele", "unicycle", "house", "one-eyed cat", "yak", "useful"] {
            assert!(!takes_an(word), "{word}");
        }
    }

    #[test]
    #[should_panic(expected = "unknown hole {heroo}")]
    fn an_unknown_hole_is_a_bug_that_names_itself() {
        Template::parse("Once {heroo} was here.", &|_| None);
    }
}
