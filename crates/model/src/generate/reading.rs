//! How prompts are cut into runs of programs.
//!
//! A program has a fixed number of rows and positions, and what no prompt fills is computed for nothing. A run also reads all weights
//! once, which takes as long as the arithmetic of some tokens. So each run is the one that reads the most tokens in its time: prompts of
//! one length together in one run, short ones before the long ones that would make them wait for nothing.

/// Rows times positions of a run at most, unless one row alone has more: more would only take memory.
const MOST_TOKENS: usize = 2048;
/// Positions of a run at most.
const MOST_POSITIONS: usize = 1024;

/// What a device reads prompts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    /// The fewest positions of a run.
    least: usize,
    /// Numbers of positions from a power of two to the next: one means powers of two.
    shapes: usize,
    /// Tokens whose arithmetic takes as long as what a run costs whatever it reads.
    run: usize,
}

impl Reading {
    /// A program is built in less time than a token takes, so there is one for nearly every length. Weights are read in the time of
    /// about twelve tokens, in f32 and in bf16.
    pub const PROCESSOR: Reading = Reading { least: 4, shapes: 8, run: 12 };
    /// A program is timed and captured before it runs, so there are few. By reckoning the launches of small models, and the weights of
    /// large ones, take as long as 256 tokens.
    pub const CARD: Reading = Reading { least: 16, shapes: 1, run: 256 };

    /// The rows, counted from the first, and the positions of the next run for prompts of so many tokens, each of which is in a row
    /// of its own of `rows` that a program may have.
    pub fn next(self, prompts: &[usize], rows: usize, context: usize) -> [usize; 2] {
        let mut best = ([prompts.len().min(1), self.least], 0, 1);
        for &longest in prompts {
            let positions = self.positions(longest).min(context);
            let powers = (0..usize::BITS).map(|power| 1 << power).take_while(|&count| count < prompts.len());
            for count in powers.chain([prompts.len()]) {
                let computed = bucket(count, rows) * positions;
                if count > 1 && computed > MOST_TOKENS {
                    continue;
                }
                let read: usize = prompts[..count].iter().map(|&tokens| tokens.min(positions)).sum();
                let time = self.run + computed;
                // Of runs that are as good the larger one leaves less to do.
                if (read * best.2, read) > (best.1 * time, best.1) {
                    best = ([count, positions], read, time);
                }
            }
        }
        best.0
    }

    /// Positions of a run that reads so many tokens of a row, or the most that there are.
    fn positions(self, tokens: usize) -> usize {
        let step = tokens.next_power_of_two() / (2 * self.shapes);
        tokens.next_multiple_of(step.max(self.least)).min(MOST_POSITIONS)
    }
}

/// The rows of the program for so many, of all that there are.
pub(super) fn bucket(chosen: usize, rows: usize) -> usize {
    chosen.next_power_of_two().min(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: usize = 4096;

    /// All runs that read these prompts, one in each row.
    fn runs(of: Reading, mut prompts: Vec<usize>) -> Vec<[usize; 2]> {
        let (rows, mut runs) = (prompts.len(), Vec::new());
        while !prompts.is_empty() {
            let [count, positions] = of.next(&prompts, rows, CONTEXT);
            assert!((1..=prompts.len()).contains(&count) && positions > 0, "something is read");
            assert!(count == 1 || bucket(count, rows) * positions <= MOST_TOKENS);
            prompts[..count].iter_mut().for_each(|tokens| *tokens -= positions.min(*tokens));
            prompts.retain(|tokens| *tokens > 0);
            runs.push([count, positions]);
        }
        runs
    }

    #[test]
    fn a_processor_computes_little_that_no_prompt_fills() {
        for (tokens, positions) in [(2, 4), (8, 8), (9, 12), (33, 36), (100, 104), (600, 640)] {
            assert_eq!(runs(Reading::PROCESSOR, vec![tokens]), [[1, positions]]);
        }
        assert_eq!(runs(Reading::PROCESSOR, vec![1500]), [[1, 1024], [1, 480]]);
        let shapes: std::collections::BTreeSet<usize> =
            (1..=MOST_POSITIONS).map(|tokens| Reading::PROCESSOR.positions(tokens)).collect();
        assert!(shapes.len() < 50, "{} programs", shapes.len());
    }

    #[test]
    fn a_card_has_programs_for_powers_of_two() {
        for (tokens, positions) in [(2, 16), (16, 16), (31, 32), (33, 64), (600, 1024)] {
            assert_eq!(runs(Reading::CARD, vec![tokens]), [[1, positions]]);
        }
        assert_eq!(runs(Reading::CARD, vec![31; 64]), [[64, 32]]);
    }

    #[test]
    fn short_prompts_do_not_wait_for_long_ones_where_that_would_cost_more() {
        assert_eq!(runs(Reading::PROCESSOR, vec![20, 500]), [[2, 20], [1, 480]]);
        assert_eq!(runs(Reading::CARD, vec![20, 500]), [[2, 512]]);
        // A program of four rows would compute one that nobody needs, but where there are three rows one of three exists.
        assert_eq!(runs(Reading::PROCESSOR, vec![100; 3]), [[3, 104]]);
        assert_eq!(runs(Reading::PROCESSOR, vec![100, 100, 100, 1]), [[2, 104], [1, 104], [1, 4]]);
        assert_eq!(runs(Reading::PROCESSOR, vec![1000; 5]), [[2, 1024], [2, 1024], [1, 1024]]);
    }
}
