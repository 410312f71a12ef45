//! The numbers behind the stories: SplitMix64, keyed by seed and story.

/// A small generator of its own, so that the corpus never changes with a dependency.
pub(super) struct Random(u64);

impl Random {
    /// The generator of one story: it depends on nothing but the seed and the story's index, so stories
    /// can be told in any order.
    pub(super) fn for_story(seed: u64, index: u64) -> Self {
        Random(mix(mix(seed).wrapping_add(index)))
    }

    /// A number below `n`. The bias of the multiplication is far below what a corpus could show.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let high = mix(self.0) >> 32;
        ((high * n as u64) >> 32) as usize
    }

    /// One of `items`, which must not be empty.
    pub(super) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// One of `words`, which must not be empty.
    pub(super) fn word(&mut self, words: &[&'static str]) -> &'static str {
        words[self.below(words.len())]
    }

    /// True half of the time.
    pub(super) fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_picked_about_equally_often() {
        let mut random = Random::for_story(1, 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[random.below(7)] += 1;
        }
        assert!(counts.iter().all(|&n| (9_500..10_500).contains(&n)), "{counts:?}");
    }

    #[test]
    fn neighbouring_stories_and_seeds_draw_different_numbers() {
        let first = |seed, index| Random::for_story(seed, index).below(1 << 30);
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
        assert_ne!(first(0, 1), first(1, 0));
    }
}
