//! Drawing the facts of a story and telling it.

use super::grammar::{Fact, Facts, Gender, Role, Teller};
use super::random::Random;
use super::world::{Condition, Place, Trait, World};

/// An endless supply of stories, cut off at a size.
///
/// The same seed gives the same stories in the same order; a smaller size is a prefix of a larger one.
///
/// ```
/// let stories: Vec<String> = ironmill_data::builtin::Stories::new(1, 10_000).collect();
/// let bytes: usize = stories.iter().map(String::len).sum();
/// assert!((10_000..12_000).contains(&bytes));
/// ```
pub struct Stories {
    world: World,
    seed: u64,
    /// The index of the next story.
    next_idx: u64,
    told_bytes: u64,
    wanted_bytes: u64,
}

impl Stories {
    /// About `bytes` bytes of stories: the last one is the first to reach that size.
    pub fn new(seed: u64, bytes: u64) -> Stories {
        Stories { world: World::new(), seed, next_idx: 0, told_bytes: 0, wanted_bytes: bytes }
    }
}

impl std::fmt::Debug for Stories {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stories")
            .field("seed", &self.seed)
            .field("next_idx", &self.next_idx)
            .field("told_bytes", &self.told_bytes)
            .field("wanted_bytes", &self.wanted_bytes)
            .finish_non_exhaustive()
    }
}

impl Iterator for Stories {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        if self.told_bytes >= self.wanted_bytes {
            return None;
        }
        let mut random = Random::for_story(self.seed, self.next_idx);
        let story = tell_story(&self.world, &mut random);
        self.next_idx += 1;
        self.told_bytes += story.len() as u64;
        Some(story)
    }
}

fn tell_story(world: &World, random: &mut Random) -> String {
    let plot = random.pick(&world.plots);
    let hero_trait = random.pick(&world.traits);
    let has_right_tool = random.coin();
    let is_for_family = random.coin();
    let facts = draw_facts(world, random, hero_trait, plot.is_rescue, has_right_tool);
    let holds = |condition| match condition {
        Condition::Tool => has_right_tool,
        Condition::Good => hero_trait.good,
        Condition::Family => is_for_family,
    };

    let mut teller = Teller::new(world, &facts, random);
    for beat in &plot.beats {
        let applies = beat.conditions.iter().all(|&(condition, wanted)| holds(condition) == wanted);
        if !applies || (beat.maybe && teller.random.coin()) {
            continue;
        }
        if !teller.story.is_empty() {
            teller.story.push_str(if beat.starts_paragraph { "\n\n" } else { " " });
        }
        let line = teller.random.pick(&beat.lines);
        teller.tell(line);
    }
    teller.story
}

fn draw_facts(
    world: &World,
    random: &mut Random,
    hero: &Trait,
    is_rescue: bool,
    has_right_tool: bool,
) -> Facts {
    let place = random.pick(&world.places);
    let block = random.pick(&place.blocks);
    let need_idx = if is_rescue { *random.pick(&world.stuck_needs) } else { block.need_idx };
    let need = &world.needs[need_idx];
    let mut facts = Facts {
        words: [""; Fact::NAMED.len()],
        genders: [Gender::Male; Role::NAMED.len()],
        need_idx,
        stuck_idx: random.below(need.n_predicaments().max(1)),
    };
    for &(fact, list) in &world.plain_facts {
        facts.set(fact, random.word(world.words(list)));
    }
    facts.set(Fact::Trait, hero.name);
    facts.set(Fact::Habit, hero.habit);
    facts.set(Fact::Deed, hero.deed);
    facts.set(Fact::Lesson, hero.lesson);
    facts.set(Fact::Block, block.obstacle);
    facts.set(Fact::Blocked, block.afterwards);
    draw_people(world, random, &mut facts);
    draw_place(place, random, &mut facts);

    let right = random.word(&need.tools);
    let other_idx = (need_idx + 1 + random.below(world.needs.len() - 1)) % world.needs.len();
    let other = random.word(&world.needs[other_idx].tools);
    facts.set(Fact::Right, right);
    facts.set(Fact::Tool, if has_right_tool { right } else { other });
    let &(clue, culprit) = random.pick(&world.clues);
    facts.set(Fact::Clue, clue);
    facts.set(Fact::Culprit, culprit);
    facts
}

fn draw_people(world: &World, random: &mut Random, facts: &mut Facts) {
    let people = &world.people;
    let mut names: Vec<&'static str> = Vec::with_capacity(4);
    for (role, fact) in [
        (Role::Hero, Fact::Hero),
        (Role::Friend, Fact::Friend),
        (Role::Rival, Fact::Rival),
        (Role::Helper, Fact::Helper),
    ] {
        let gender = if random.coin() { Gender::Female } else { Gender::Male };
        let list = world.words(if gender == Gender::Female { people.female } else { people.male });
        let name = loop {
            let name = random.word(list);
            if !names.contains(&name) {
                break name;
            }
        };
        names.push(name);
        facts.set(fact, name);
        facts.genders[role as usize] = gender;
    }
    for (fact, role) in [(Fact::Kind, Role::Hero), (Fact::NewKind, Role::Rival)] {
        let child = if facts.genders[role as usize] == Gender::Female { "girl" } else { "boy" };
        let kind = match random.below(3) {
            0 => child,
            1 => random.word(world.words(people.beast)),
            _ => random.word(world.words(people.trade)),
        };
        facts.set(fact, kind);
    }
    facts.genders[Role::Elder as usize] = draw_elder(world, random, facts, Fact::Elder);
    draw_elder(world, random, facts, Fact::Elder2);
}

fn draw_elder(world: &World, random: &mut Random, facts: &mut Facts, fact: Fact) -> Gender {
    let (gender, list) = if random.coin() {
        (Gender::Female, world.people.elder_female)
    } else {
        (Gender::Male, world.people.elder_male)
    };
    facts.set(fact, random.word(world.words(list)));
    gender
}

fn draw_place(place: &Place, random: &mut Random, facts: &mut Facts) {
    facts.set(Fact::Place, place.name);
    facts.set(Fact::At, place.at);
    let n_sights = place.sights.len();
    let first = random.below(n_sights);
    let second = (first + 1 + random.below(n_sights - 1)) % n_sights;
    facts.set(Fact::Sight, place.sights[first]);
    facts.set(Fact::Sight2, place.sights[second]);
    facts.set(Fact::Animal, random.word(&place.animals));
    facts.set(Fact::Job, random.word(&place.jobs));
    facts.set(Fact::Want, random.word(&place.wants));
}

#[cfg(test)]
mod tests {
    use super::super::grammar::takes_an;
    use super::*;
    use std::collections::BTreeSet;

    fn stories(seed: u64, bytes: u64) -> Vec<String> {
        Stories::new(seed, bytes).collect()
    }

    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !(c.is_alphabetic() || c == '\'' || c == '-')).filter(|word| !word.is_empty())
    }

    #[test]
    fn one_seed_tells_the_same_stories_again() {
        assert_eq!(stories(7, 50_000), stories(7, 50_000));
        assert_ne!(stories(7, 50_000), stories(8, 50_000));
    }

    #[test]
    fn a_smaller_size_is_a_prefix_of_a_larger_one() {
        let small = stories(3, 20_000);
        let large = stories(3, 200_000);
        assert_eq!(small, large[..small.len()]);
    }

    #[test]
    fn the_size_is_met_within_one_story() {
        for wanted in [0, 1, 1_000, 50_000, 1_000_000] {
            let told: usize = stories(1, wanted).iter().map(String::len).sum();
            assert!((wanted..wanted + 3_000).contains(&(told as u64)), "{told} for {wanted}");
        }
    }

    #[test]
    fn stories_differ_and_have_a_reader_s_length() {
        let all = stories(5, 1_000_000);
        let distinct: BTreeSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        for story in &all {
            let n_words = words(story).count();
            assert!((80..=280).contains(&n_words), "{n_words} words in: {story}");
        }
    }

    #[test]
    fn thousands_of_words_are_used() {
        let all = stories(1, 2_000_000).join(" ").to_lowercase();
        let distinct: BTreeSet<&str> = words(&all).collect();
        assert!(distinct.len() >= 2_500, "{}", distinct.len());
    }

    #[test]
    fn no_hole_is_left_open_and_every_story_ends() {
        for story in stories(2, 2_000_000) {
            assert!(!story.contains(['{', '}', '[', ']', '|', '~', '%', '*']), "{story}");
            assert!(!story.contains("  ") && !story.contains(" ,") && !story.contains(" ."), "{story}");
            assert!(story.ends_with(['.', '"', '!', '?']), "{story}");
            assert!(story.starts_with(char::is_uppercase), "{story}");
        }
    }

    #[test]
    fn sentences_begin_with_a_capital() {
        for story in stories(4, 500_000) {
            for (at, _) in story.match_indices(". ") {
                let next = story[at + 2..].trim_start_matches('"').chars().next();
                assert!(
                    next.is_some_and(char::is_uppercase),
                    "{}",
                    &story[at.saturating_sub(60)..(at + 20).min(story.len())]
                );
            }
        }
    }

    #[test]
    fn a_and_an_are_right_everywhere() {
        for story in stories(6, 2_000_000) {
            let all: Vec<&str> = words(&story).collect();
            for pair in all.windows(2) {
                match pair[0] {
                    "a" | "A" => assert!(!takes_an(pair[1]), "{pair:?} in {story}"),
                    "an" | "An" => assert!(takes_an(pair[1]), "{pair:?} in {story}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn the_people_of_a_story_have_different_names() {
        let world = World::new();
        for idx in 0..2_000 {
            let mut random = Random::for_story(9, idx);
            let facts = draw_facts(&world, &mut random, &world.traits[0], false, true);
            let names =
                [Fact::Hero, Fact::Friend, Fact::Rival, Fact::Helper].map(|fact| facts.words[fact as usize]);
            assert_eq!(BTreeSet::from(names).len(), 4, "{names:?}");
            assert!(facts.words.iter().all(|word| !word.is_empty()));
        }
    }

    #[test]
    fn the_hero_s_tool_helps_exactly_when_it_fits() {
        let world = World::new();
        for idx in 0..500 {
            for fits in [true, false] {
                let mut random = Random::for_story(11, idx);
                let facts = draw_facts(&world, &mut random, &world.traits[0], idx % 2 == 0, fits);
                let tools = &world.needs[facts.need_idx].tools;
                assert_eq!(tools.contains(&facts.words[Fact::Tool as usize]), fits);
                assert!(tools.contains(&facts.words[Fact::Right as usize]));
            }
        }
    }
}
