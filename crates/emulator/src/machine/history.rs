//! What launches of a graph did to global memory, and which of them have surely ended when another touches it.
//!
//! A kernel may begin before the one before it has ended, and streams that parted run beside each other. Here everything runs in turn, so
//! each launch says what a card would not have waited for: who touches what a launch wrote, or writes what one touched, must be
//! behind its end.

use super::pages::Pages;

/// Launches of a graph, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launches(Vec<u64>);

impl Launches {
    pub fn holds(&self, index: usize) -> bool {
        self.0.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 == 1)
    }

    pub fn insert(&mut self, index: usize) {
        if self.0.len() <= index / 64 {
            self.0.resize(index / 64 + 1, 0);
        }
        self.0[index / 64] |= 1 << (index % 64);
    }

    pub fn join(&mut self, other: &Launches) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }
}

/// What has ended when a launch begins, and when it has waited for the one before.
#[derive(Clone, Debug, Default)]
pub struct Begin {
    pub at_once: Launches,
    pub behind_wait: Launches,
}

/// What a launch has told of the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// It has waited for its end, so that has come when this launch ends.
    pub at_end: bool,
    /// It had when it let the next begin.
    pub to_next: bool,
}

/// Bytes of which is known together who touched them, and of a page of them.
const WORD: u64 = 4;
const PAGE: u64 = 1 << 16;

/// Who wrote a word last and who read it since, as far as they did not follow each other: numbers of launches, from one on. More than two
/// streams do not part here.
#[derive(Clone, Copy, Default)]
struct Mark {
    written: u16,
    read: [u16; 2],
}

/// A graph that runs.
#[derive(Default)]
pub struct History {
    pages: Pages<Box<[Mark]>>,
    /// What has ended when each launch ends, and when it lets the next begin.
    ended: Vec<[Launches; 2]>,
    names: Vec<String>,
    /// Of the launch that runs.
    begin: Begin,
}

impl History {
    /// A launch begins behind others, of which it need not have waited for one to end.
    pub fn begin(&mut self, name: String, behind: &[usize], early_behind: Option<usize>) {
        let mut begin = Begin::default();
        for &index in behind {
            begin.at_once.join(&self.ended[index][0]);
            begin.at_once.insert(index);
        }
        if let Some(index) = early_behind {
            begin.behind_wait.join(&self.ended[index][0]);
            begin.behind_wait.insert(index);
            begin.at_once.join(&self.ended[index][1]);
        }
        begin.behind_wait.join(&begin.at_once);
        self.begin = begin;
        self.names.push(name);
    }

    /// It has ended.
    pub fn end(&mut self, told: Told) {
        let Begin { at_once, behind_wait } = &self.begin;
        self.ended.push(
            [told.at_end, told.to_next].map(|is_told| if is_told { behind_wait } else { at_once }.clone()),
        );
    }

    /// The launch touches bytes. What it is not behind comes back in words.
    pub fn touch(
        &mut self,
        address: u64,
        bytes: usize,
        writes: bool,
        has_waited: bool,
    ) -> Result<(), String> {
        let number = self.names.len() as u16;
        let known = if has_waited { &self.begin.behind_wait } else { &self.begin.at_once };
        let unknown = |other: u16| other != 0 && other != number && !known.holds(usize::from(other) - 1);
        let (mut at, end) = (address / WORD, (address + bytes as u64).div_ceil(WORD));
        while at < end {
            let page = at / (PAGE / WORD);
            let new = || vec![Mark::default(); (PAGE / WORD) as usize].into_boxed_slice();
            let marks = self.pages.get(page, new);
            let first = page * (PAGE / WORD);
            let behind = end.min(first + PAGE / WORD);
            for mark in &mut marks[(at - first) as usize..(behind - first) as usize] {
                let reader = mark.read.into_iter().find(|&reader| writes && unknown(reader));
                let writer = unknown(mark.written).then_some((mark.written, "wrote"));
                let other = writer.or(reader.map(|reader| (reader, "reads")));
                if let Some((other, did)) = other {
                    let (does, other) = (if writes { "written" } else { "read" }, usize::from(other) - 1);
                    return Err(format!(
                        "{bytes} bytes at {address:#x} of global memory are {does}, which launch {} of the graph, `{}`, {did}, and nothing \
                         waited for its end",
                        other + 1,
                        self.names[other]
                    ));
                }
                if writes {
                    *mark = Mark { written: number, read: [0; 2] };
                } else if !mark.read.contains(&number) {
                    let other = mark.read.into_iter().find(|&reader| unknown(reader)).unwrap_or(0);
                    mark.read = [number, other];
                }
            }
            at = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History::default();
        history.begin("first".into(), &[], None);
        history.touch(4096, 256, true, false).unwrap();
        history.end(Told::default());
        history
    }

    #[test]
    fn who_begins_early_waits_before_it_touches_what_others_wrote() {
        let mut history = history();
        history.begin("second".into(), &[], Some(0));
        assert!(history.touch(4100, 4, false, false).unwrap_err().contains("`first`"));
        history.touch(4352, 4, false, false).expect("what nobody wrote");
        history.touch(4100, 4, false, true).unwrap();
        // The third may begin when the second has begun: what that one waited for it does not know, unless it was told.
        history.end(Told { at_end: true, to_next: false });
        history.begin("third".into(), &[], Some(1));
        assert!(history.touch(4100, 4, true, false).is_err());
        history.touch(4100, 4, true, true).expect("the second has ended, and it had waited");
        history.end(Told { at_end: true, to_next: true });
        history.begin("fourth".into(), &[], Some(2));
        assert!(history.touch(4100, 4, false, false).is_err());
        history.touch(4104, 4, false, false).expect("the third had waited before it let this begin");
    }

    #[test]
    fn streams_that_parted_know_nothing_of_each_other() {
        let mut history = history();
        history.begin("left".into(), &[0], None);
        history.touch(4096, 4, false, false).unwrap();
        history.touch(8192, 4, true, false).unwrap();
        history.end(Told::default());
        history.begin("right".into(), &[0], None);
        history.touch(4096, 4, false, false).expect("both read");
        assert!(history.touch(8192, 4, false, false).is_err());
        assert!(history.touch(4096, 4, true, false).is_err());
        history.end(Told::default());
        history.begin("both".into(), &[1, 2], None);
        history.touch(8192, 4, true, false).unwrap();
        history.touch(4096, 4, true, false).unwrap();
    }
}
