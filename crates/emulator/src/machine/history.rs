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
    /// In the launch that runs: which bytes, and by which block.
    writes: OfBlocks,
    reads: OfBlocks,
}

impl Mark {
    /// What was done to the word by a launch of which nothing is known to have ended.
    fn launch_in_the_way(
        &self,
        writes: bool,
        is_unknown: impl Fn(u16) -> bool,
    ) -> Option<(u16, &'static str)> {
        let reader = self.read.into_iter().find(|&reader| writes && is_unknown(reader));
        let writer = is_unknown(self.written).then_some((self.written, "wrote"));
        writer.or(reader.map(|reader| (reader, "reads")))
    }

    /// What another block of the same launch did to some bytes of the word.
    fn block_in_the_way(&self, writes: bool, bytes: u8, block: u32) -> Option<&'static str> {
        if self.writes.has_others(bytes, block) {
            return Some("wrote");
        }
        (writes && self.reads.has_others(bytes, block)).then_some("reads")
    }

    /// A launch reads or writes the word.
    fn add(&mut self, writes: bool, number: u16, is_unknown: impl Fn(u16) -> bool) {
        if writes {
            (self.written, self.read) = (number, [0; 2]);
        } else if !self.read.contains(&number) {
            let other = self.read.into_iter().find(|&reader| is_unknown(reader)).unwrap_or(0);
            self.read = [number, other];
        }
    }
}

/// Bytes of a word that blocks of a launch touched.
#[derive(Clone, Copy, Default)]
struct OfBlocks {
    bytes: u8,
    /// Those that surely more than one block touched.
    shared: u8,
    /// The one that did, or several.
    block: u32,
}

impl OfBlocks {
    const SEVERAL: u32 = u32::MAX;

    fn add(&mut self, bytes: u8, block: u32) {
        if self.has_others(bytes, block) {
            self.shared |= self.bytes & bytes;
        }
        self.block = if self.bytes == 0 || self.block == block { block } else { Self::SEVERAL };
        self.bytes |= bytes;
    }

    /// Whether another block than this one surely touched some of these bytes.
    fn has_others(self, bytes: u8, block: u32) -> bool {
        let is_anothers = self.block != block && self.block != Self::SEVERAL;
        self.shared & bytes != 0 || is_anothers && self.bytes & bytes != 0
    }
}

/// Who touches memory in the launch that runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// Whether it has waited for the end of the kernel before.
    pub has_waited: bool,
    /// The block, where nothing that it does may be in the way of another block.
    pub block: Option<u32>,
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
    pub fn touch(&mut self, address: u64, bytes: usize, writes: bool, by: By) -> Result<(), String> {
        let number = self.names.len() as u16;
        let known = if by.has_waited { &self.begin.behind_wait } else { &self.begin.at_once };
        let unknown = |other: u16| other != 0 && other != number && !known.holds(usize::from(other) - 1);
        let does = if writes { "written" } else { "read" };
        let end = address + bytes as u64;
        let mut at = address / WORD;
        while at * WORD < end {
            let page = at / (PAGE / WORD);
            let new = || vec![Mark::default(); (PAGE / WORD) as usize].into_boxed_slice();
            let marks = self.pages.get(page, new);
            let first = page * (PAGE / WORD);
            let behind = end.div_ceil(WORD).min(first + PAGE / WORD);
            for (word, mark) in (at..behind).zip(&mut marks[(at - first) as usize..(behind - first) as usize])
            {
                if let Some((other, did)) = mark.launch_in_the_way(writes, unknown) {
                    let other = usize::from(other);
                    return Err(format!(
                        "{bytes} bytes at {address:#x} of global memory are {does}, which launch {other} of the graph, `{}`, {did}, and \
                         nothing waited for its end",
                        self.names[other - 1]
                    ));
                }
                if mark.written != number && !mark.read.contains(&number) {
                    (mark.writes, mark.reads) = Default::default();
                }
                if let Some(block) = by.block {
                    let start = (word * WORD).max(address) - word * WORD;
                    let stop = (word * WORD + WORD).min(end) - word * WORD;
                    let own = ((1u8 << stop) - 1) & !((1u8 << start) - 1);
                    if let Some(did) = mark.block_in_the_way(writes, own, block) {
                        return Err(format!(
                            "{bytes} bytes at {address:#x} of global memory are {does} by block {block}, which another block of the same \
                             launch {did}, and nothing orders the two"
                        ));
                    }
                    if writes { &mut mark.writes } else { &mut mark.reads }.add(own, block);
                }
                mark.add(writes, number, unknown);
            }
            at = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(has_waited: bool) -> By {
        By { has_waited, block: None }
    }

    fn history() -> History {
        let mut history = History::default();
        history.begin("first".into(), &[], None);
        history.touch(4096, 256, true, by(false)).unwrap();
        history.end(Told::default());
        history
    }

    #[test]
    fn who_begins_early_waits_before_it_touches_what_others_wrote() {
        let mut history = history();
        history.begin("second".into(), &[], Some(0));
        assert!(history.touch(4100, 4, false, by(false)).unwrap_err().contains("`first`"));
        history.touch(4352, 4, false, by(false)).expect("what nobody wrote");
        history.touch(4100, 4, false, by(true)).unwrap();
        // The third may begin when the second has begun: what that one waited for it does not know, unless it was told.
        history.end(Told { at_end: true, to_next: false });
        history.begin("third".into(), &[], Some(1));
        assert!(history.touch(4100, 4, true, by(false)).is_err());
        history.touch(4100, 4, true, by(true)).expect("the second has ended, and it had waited");
        history.end(Told { at_end: true, to_next: true });
        history.begin("fourth".into(), &[], Some(2));
        assert!(history.touch(4100, 4, false, by(false)).is_err());
        history.touch(4104, 4, false, by(false)).expect("the third had waited before it let this begin");
    }

    #[test]
    fn streams_that_parted_know_nothing_of_each_other() {
        let mut history = history();
        history.begin("left".into(), &[0], None);
        history.touch(4096, 4, false, by(false)).unwrap();
        history.touch(8192, 4, true, by(false)).unwrap();
        history.end(Told::default());
        history.begin("right".into(), &[0], None);
        history.touch(4096, 4, false, by(false)).expect("both read");
        assert!(history.touch(8192, 4, false, by(false)).is_err());
        assert!(history.touch(4096, 4, true, by(false)).is_err());
        history.end(Told::default());
        history.begin("both".into(), &[1, 2], None);
        history.touch(8192, 4, true, by(false)).unwrap();
        history.touch(4096, 4, true, by(false)).unwrap();
    }

    #[test]
    fn blocks_of_a_launch_keep_out_of_each_others_way() {
        let of = |block| By { has_waited: true, block: Some(block) };
        let mut history = history();
        history.begin("second".into(), &[0], None);
        history.touch(4096, 8, true, of(1)).unwrap();
        history.touch(4104, 6, true, of(2)).unwrap();
        history.touch(4110, 2, true, of(3)).expect("the other half of a word");
        assert!(history.touch(4100, 4, false, of(2)).unwrap_err().contains("wrote"));
        assert!(history.touch(4104, 4, true, of(1)).unwrap_err().contains("wrote"));
        history.touch(4200, 4, false, of(1)).unwrap();
        history.touch(4200, 4, false, of(2)).expect("both read");
        for block in [1, 2, 3] {
            assert!(
                history.touch(4200, 4, true, of(block)).unwrap_err().contains("reads"),
                "another read it"
            );
        }
        history.touch(4204, 4, false, of(1)).unwrap();
        assert!(history.touch(4204, 4, true, of(2)).unwrap_err().contains("reads"));
        history.touch(4096, 4, false, By { has_waited: true, block: None }).expect("it has met the other");
        history.end(Told::default());
        history.begin("third".into(), &[1], None);
        history.touch(4100, 4, false, of(2)).expect("that launch has ended");
    }
}
