//! What of a long text a model still sees.

/// The tokens of a text that fit into a context: some that always stay, and the last ones.
///
/// A window only grows until the context is full. Then it keeps what stays and the last half of the rest of the context,
/// and grows again. Positions are counted inside the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Leading tokens that stay.
    keep: usize,
    /// Where the tokens behind them begin in the text.
    start: usize,
    context: usize,
}

impl Window {
    /// The window of a text that begins with `keep` tokens that stay. At least one position is left for others.
    pub fn new(keep: usize, context: usize) -> Self {
        let keep = keep.min(context.saturating_sub(1));
        Window { keep, start: keep, context }
    }

    /// Follows a text to a length; says how many tokens fell out, if any did.
    pub fn follow(&mut self, length: usize) -> Option<usize> {
        if self.keep + length.saturating_sub(self.start) <= self.context {
            return None;
        }
        let start = length - ((self.context - self.keep) / 2).max(1);
        let dropped = start - self.start;
        self.start = start;
        Some(dropped)
    }

    /// The tokens of the text that it shows.
    pub fn of(&self, tokens: &[u32]) -> Vec<u32> {
        let kept = self.keep.min(tokens.len());
        let rest = self.start.min(tokens.len());
        [&tokens[..kept], &tokens[rest..]].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_window_keeps_what_stays_and_the_last_half() {
        let tokens: Vec<u32> = (0..30).collect();
        let mut window = Window::new(2, 10);
        assert_eq!((window.follow(10), window.of(&tokens[..10])), (None, (0..10).collect()));
        assert_eq!(window.follow(11), Some(5));
        assert_eq!(window.of(&tokens[..11]), [0, 1, 7, 8, 9, 10]);
        assert_eq!((window.follow(15), window.of(&tokens[..15]).len()), (None, 10));
        assert_eq!(window.follow(16), Some(5));
        let mut long = Window::new(0, 8);
        assert_eq!((long.follow(30), long.of(&tokens)), (Some(26), (26..30).collect()));
    }

    #[test]
    fn what_stays_leaves_a_position() {
        let tokens: Vec<u32> = (0..9).collect();
        let mut window = Window::new(99, 4);
        assert_eq!(window.follow(9), Some(5));
        assert_eq!(window.of(&tokens), [0, 1, 2, 8]);
    }
}
