//! Encoding on several threads: the same tokens in the same order, however many there are.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::special::Wanted;
use crate::{Kind, Result, TextCuts, Tokenizer};

/// Text is shared out in parts of about this many bytes: enough to make starting one cheap, few enough to end together.
const PART_BYTES: usize = 1 << 20;

impl Tokenizer {
    /// The tokens of each text as [`encode`](Self::encode) gives them, found on up to `threads` threads.
    ///
    /// Of several errors that of the first text is returned.
    pub fn encode_batch<T: AsRef<[u8]> + Sync>(&self, texts: &[T], threads: usize) -> Result<Vec<Vec<u32>>> {
        in_order(texts, threads, |_, text| {
            let mut ids = Vec::new();
            self.encode(text.as_ref(), &mut ids).map(|()| ids)
        })
    }

    /// Appends what [`encode`](Self::encode) gives, or with `with_special` what
    /// [`encode_with_special`](Self::encode_with_special) gives, found on up to `threads` threads.
    ///
    /// A long text is cut where its pieces do not change by it. Text that cannot be cut so, such as that of a regular
    /// expression of the user's, is encoded on one thread, and so is text of other kinds than BPE.
    pub fn encode_parallel(
        &self,
        text: &[u8],
        with_special: bool,
        threads: usize,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let encode = |text: &[u8], out: &mut Vec<u32>| {
            if with_special { self.encode_with_special(text, out) } else { self.encode(text, out) }
        };
        let parts = self.parts(text, with_special)?;
        if threads < 2 || parts.len() < 2 {
            return encode(text, out);
        }
        let joined = Joined { out, n_joined: 0, waiting: BTreeMap::new(), spare: Vec::new() };
        let joined = Mutex::new(joined);
        in_order(&parts, threads, |idx, part| {
            let lock = || joined.lock().unwrap_or_else(PoisonError::into_inner);
            let mut ids = lock().spare.pop().unwrap_or_default();
            encode(part, &mut ids)?;
            lock().join(idx, ids);
            Ok(())
        })?;
        Ok(())
    }

    /// Parts of `text` that have the tokens of the whole; none if it cannot be cut. Whether they are text is for those to see who
    /// encode them, which one thread would take long for.
    fn parts<'t>(&self, text: &'t [u8], with_special: bool) -> Result<Vec<&'t [u8]>> {
        let Some(pattern) = self.pattern().filter(|_| self.kind() == Kind::Bpe) else {
            return Ok(Vec::new());
        };
        let wanted = if with_special { Wanted::All } else { Wanted::Ordinary };
        let Some(special) = self.specials().plain_texts(wanted) else { return Ok(Vec::new()) };
        let cuts = TextCuts::new(pattern, &special, false)?;
        let mut parts = Vec::new();
        let (mut rest, mut n_bytes) = (text, PART_BYTES);
        while rest.len() > n_bytes {
            match cuts.last_of_bytes(&rest[..n_bytes]) {
                Some(cut) => {
                    let (part, behind) = rest.split_at(cut);
                    parts.push(part);
                    (rest, n_bytes) = (behind, PART_BYTES);
                }
                None => n_bytes *= 2,
            }
        }
        parts.push(rest);
        Ok(parts)
    }
}

/// The tokens of parts, joined in order while other parts are still in work. Their memory goes round, because memory that has
/// been written before costs a fraction of fresh pages.
struct Joined<'o> {
    out: &'o mut Vec<u32>,
    /// How many parts are in `out`.
    n_joined: usize,
    /// Parts that others have to come before.
    waiting: BTreeMap<usize, Vec<u32>>,
    /// Empty ones with room.
    spare: Vec<Vec<u32>>,
}

impl Joined<'_> {
    fn join(&mut self, idx: usize, ids: Vec<u32>) {
        self.waiting.insert(idx, ids);
        while let Some(mut next) = self.waiting.remove(&self.n_joined) {
            self.out.append(&mut next);
            self.spare.push(next);
            self.n_joined += 1;
        }
    }
}

/// What `work` makes of each item and its index, in order. Threads take the next item when they are done with one. Of several
/// errors that of the first item is returned.
fn in_order<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(usize, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((idx, item)) = {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            items.get(idx).map(|item| (idx, item))
        } {
            done.push((idx, work(idx, item)));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(run)).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_unstable_by_key(|&(idx, _)| idx);
    done.into_iter().map(|(_, result)| result).collect()
}
