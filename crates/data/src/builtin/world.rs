//! The world of the stories, read from the text files that are part of the program.
//!
//! # Panics
//! The readers here panic on a malformed line, naming it: only a change of the text files can bring
//! that about, and every test of this module would see it.

use super::grammar::{Fact, Facts, ListId, Phrase, Template};
use std::collections::BTreeMap;

/// Places, people, needs and plots.
pub(super) struct World {
    lists: Vec<Vec<&'static str>>,
    /// Facts that are nothing but a word of a list.
    pub(super) plain_facts: Vec<(Fact, ListId)>,
    pub(super) people: People,
    pub(super) traits: Vec<Trait>,
    pub(super) clues: Vec<(&'static str, &'static str)>,
    pub(super) places: Vec<Place>,
    pub(super) needs: Vec<Need>,
    /// Needs in which an animal can be stuck.
    pub(super) stuck_needs: Vec<usize>,
    pub(super) plots: Vec<Plot>,
    meet: Vec<Template>,
}

pub(super) struct People {
    pub(super) female: ListId,
    pub(super) male: ListId,
    pub(super) beast: ListId,
    pub(super) trade: ListId,
    pub(super) elder_female: ListId,
    pub(super) elder_male: ListId,
}

pub(super) struct Trait {
    pub(super) name: &'static str,
    pub(super) good: bool,
    pub(super) habit: &'static str,
    pub(super) deed: &'static str,
    pub(super) lesson: &'static str,
}

pub(super) struct Place {
    pub(super) name: &'static str,
    /// The name with its preposition: "at the old harbour".
    pub(super) at: &'static str,
    pub(super) sights: Vec<&'static str>,
    pub(super) animals: Vec<&'static str>,
    pub(super) jobs: Vec<&'static str>,
    pub(super) wants: Vec<&'static str>,
    pub(super) blocks: Vec<Block>,
}

pub(super) struct Block {
    pub(super) need_idx: usize,
    pub(super) obstacle: &'static str,
    pub(super) afterwards: &'static str,
}

pub(super) struct Need {
    name: &'static str,
    pub(super) tools: Vec<&'static str>,
    pass: Vec<Template>,
    meet: Vec<Template>,
    /// Each predicament is a list of one, like the other phrases.
    stuck: Vec<[Template; 1]>,
    free: Vec<[Template; 1]>,
}

impl Need {
    pub(super) fn n_predicaments(&self) -> usize {
        self.stuck.len()
    }
}

pub(super) struct Plot {
    /// A plot about a stuck animal takes its need from the animal, not from the place.
    pub(super) is_rescue: bool,
    pub(super) beats: Vec<Beat>,
}

#[derive(Default)]
pub(super) struct Beat {
    /// Each condition with the value it must have.
    pub(super) conditions: Vec<(Condition, bool)>,
    pub(super) maybe: bool,
    pub(super) starts_paragraph: bool,
    pub(super) lines: Vec<Template>,
}

#[derive(Clone, Copy)]
pub(super) enum Condition {
    /// The hero's own tool meets the need.
    Tool,
    /// The hero's trait is a virtue.
    Good,
    /// The deed is done for the elder rather than for the friend.
    Family,
}

const PLAIN_FACTS: &[(Fact, &str)] = &[
    (Fact::Home, "home"),
    (Fact::Flaw, "flaw"),
    (Fact::Virtue, "virtue"),
    (Fact::GardenTool, "gardentool"),
    (Fact::Treasure, "treasure"),
    (Fact::Colour, "colour"),
    (Fact::Hue, "colour"),
    (Fact::Garment, "garment"),
    (Fact::Material, "material"),
    (Fact::Cake, "cake"),
    (Fact::Snack, "snack"),
    (Fact::Pet, "pet"),
    (Fact::Missing, "missing"),
    (Fact::Crop, "crop"),
    (Fact::Skill, "skill"),
    (Fact::Event, "event"),
    (Fact::Contest, "contest"),
    (Fact::Prize, "prize"),
];

impl World {
    pub(super) fn new() -> World {
        let mut lists = Vec::new();
        let mut list_ids = BTreeMap::new();
        let mut clues = Vec::new();
        for line in lines(include_str!("words.txt")) {
            let (name, words) = halves(line, ":");
            if name == "clue" {
                clues = commas(words).iter().map(|pair| halves(pair, "=")).collect();
                continue;
            }
            list_ids.insert(name, ListId(lists.len()));
            lists.push(commas(words));
        }
        let find = |name: &str| list_ids.get(name).copied();
        let list = |name: &str| find(name).unwrap_or_else(|| panic!("no list of words is called {name}"));

        let needs = read_needs(include_str!("needs.txt"), &find);
        let places = read_places(include_str!("places.txt"), &needs);
        let (mut shared, plots) = read_plots(include_str!("plots.txt"), &find);
        World {
            plain_facts: PLAIN_FACTS.iter().map(|&(fact, name)| (fact, list(name))).collect(),
            people: People {
                female: list("female"),
                male: list("male"),
                beast: list("beast"),
                trade: list("trade"),
                elder_female: list("elder_female"),
                elder_male: list("elder_male"),
            },
            traits: lines(include_str!("traits.txt")).map(read_trait).collect(),
            stuck_needs: (0..needs.len()).filter(|&idx| needs[idx].n_predicaments() > 0).collect(),
            meet: shared
                .remove("meet")
                .unwrap_or_default()
                .iter()
                .map(|line| Template::parse(line, &find))
                .collect(),
            clues,
            places,
            needs,
            plots,
            lists,
        }
    }

    pub(super) fn words(&self, list: ListId) -> &[&'static str] {
        &self.lists[list.0]
    }

    /// The ways of saying a phrase, given what the story is about.
    pub(super) fn phrase(&self, phrase: Phrase, facts: &Facts) -> &[Template] {
        let need = &self.needs[facts.need_idx];
        match phrase {
            Phrase::Meet if need.meet.is_empty() => &self.meet,
            Phrase::Meet => &need.meet,
            Phrase::Pass => &need.pass,
            Phrase::Stuck => &need.stuck[facts.stuck_idx],
            Phrase::Free => &need.free[facts.stuck_idx],
        }
    }
}

fn read_trait(line: &'static str) -> Trait {
    let fields: Vec<&'static str> = line.split('|').map(str::trim).collect();
    let [name, worth, habit, deed, lesson] = fields[..] else { panic!("a trait has five fields: {line}") };
    Trait { name, good: worth == "good", habit, deed, lesson }
}

fn read_needs(text: &'static str, find: &dyn Fn(&str) -> Option<ListId>) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::new();
    for line in lines(text) {
        if let Some(name) = line.strip_prefix("need ") {
            let (tools, pass, meet, stuck, free) = Default::default();
            needs.push(Need { name, tools, pass, meet, stuck, free });
            continue;
        }
        let (key, value) = halves(line, ":");
        let Some(need) = needs.last_mut() else { panic!("a need must be named before: {line}") };
        match key {
            "tools" => need.tools = commas(value),
            "pass" => need.pass.push(Template::parse(value, find)),
            "meet" => need.meet.push(Template::parse(value, find)),
            "stuck" => {
                let (stuck, free) = halves(value, "|");
                need.stuck.push([Template::parse(stuck, find)]);
                need.free.push([Template::parse(free, find)]);
            }
            _ => panic!("a need has no {key}: {line}"),
        }
    }
    needs
}

fn read_places(text: &'static str, needs: &[Need]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for line in lines(text) {
        if let Some(at) = line.strip_prefix("place ") {
            let (_preposition, name) = halves(at, " ");
            let (sights, animals, jobs, wants, blocks) = Default::default();
            places.push(Place { name, at, sights, animals, jobs, wants, blocks });
            continue;
        }
        let (key, value) = halves(line, ":");
        let Some(place) = places.last_mut() else { panic!("a place must be named before: {line}") };
        match key {
            "sights" => place.sights = commas(value),
            "animals" => place.animals = commas(value),
            "jobs" => place.jobs = commas(value),
            "wants" => place.wants = commas(value),
            "block" => {
                let (need, rest) = halves(value, "|");
                let (obstacle, afterwards) = halves(rest, "|");
                let Some(need_idx) = needs.iter().position(|n| n.name == need) else {
                    panic!("unknown need: {line}")
                };
                place.blocks.push(Block { need_idx, obstacle, afterwards });
            }
            _ => panic!("a place has no {key}: {line}"),
        }
    }
    places
}

type SharedBeats = BTreeMap<&'static str, Vec<&'static str>>;

fn read_plots(text: &'static str, find: &dyn Fn(&str) -> Option<ListId>) -> (SharedBeats, Vec<Plot>) {
    let mut shared = SharedBeats::new();
    let mut plots: Vec<Plot> = Vec::new();
    let mut filling = None;
    for line in lines(text) {
        if let Some(name) = line.strip_prefix("shared ") {
            filling = Some(name);
            shared.insert(name, Vec::new());
        } else if let Some(name) = line.strip_prefix("plot ") {
            filling = None;
            plots.push(Plot { is_rescue: name == "rescue", beats: Vec::new() });
        } else if let Some(lines) = filling.and_then(|name| shared.get_mut(name)) {
            lines.push(line);
        } else {
            let Some(plot) = plots.last_mut() else { panic!("a plot must be named before: {line}") };
            read_plot_line(line, plot, &shared, find);
        }
    }
    (shared, plots)
}

fn read_plot_line(
    line: &'static str,
    plot: &mut Plot,
    shared: &SharedBeats,
    find: &dyn Fn(&str) -> Option<ListId>,
) {
    if let Some(conditions) = line.strip_prefix('*') {
        plot.beats.push(read_conditions(conditions));
        return;
    }
    let Some(beat) = plot.beats.last_mut() else { panic!("a beat must begin before: {line}") };
    let Some(name) = line.strip_prefix("use ") else {
        beat.lines.push(Template::parse(line, find));
        return;
    };
    let Some(lines) = shared.get(name) else { panic!("no shared beat is called {name}") };
    beat.lines.extend(lines.iter().map(|line| Template::parse(line, find)));
}

fn read_conditions(words: &'static str) -> Beat {
    let mut beat = Beat::default();
    for word in words.split_whitespace() {
        match word {
            "maybe" => beat.maybe = true,
            "para" => beat.starts_paragraph = true,
            _ => {
                let (name, wanted) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
                let condition = match name {
                    "tool" => Condition::Tool,
                    "good" => Condition::Good,
                    "family" => Condition::Family,
                    _ => panic!("unknown condition: {word}"),
                };
                beat.conditions.push((condition, wanted));
            }
        }
    }
    beat
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn halves(text: &'static str, mark: &str) -> (&'static str, &'static str) {
    let Some((left, right)) = text.split_once(mark) else { panic!("expected {mark:?} in: {text}") };
    (left.trim(), right.trim())
}

fn commas(text: &'static str) -> Vec<&'static str> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).collect()
}
