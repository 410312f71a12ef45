//! Encoding on several threads: the same tokens in the same order, however many there are.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::special::Wanted;
use crate::{Kind, Result, TextCuts, Tokenizer};

/// Text is shared out in parts of about this many bytes: enough to make starting one cheap, few enough to end together.
const PART_BYTES: usize = 1 << 20;

impl Tokenizer {
    /// The tokens of each text as [`encode`](Self::encode) gives them, found on up to `threads` threads.
    ///
    /// Of several errors that of the first text is returned.
    pub fn encode_batch<T: AsRef<[u8]> + Sync>(&self, texts: &[T], threads: usize) -> Result<Vec<Vec<u32>>> {
        in_order(texts, threads, |text, out| self.encode(text.as_ref(), out))
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
        let encoded = in_order(&parts, threads, |part, out| encode(part.as_bytes(), out))?;
        out.reserve(encoded.iter().map(Vec::len).sum());
        encoded.iter().for_each(|ids| out.extend_from_slice(ids));
        Ok(())
    }

    /// Parts of `text` that have the tokens of the whole; none if it cannot be cut, or if a part could fail, since an error
    /// says where in the text it is.
    fn parts<'t>(&self, text: &'t [u8], with_special: bool) -> Result<Vec<&'t str>> {
        let pattern = self.pattern().filter(|_| self.kind() == Kind::Bpe);
        let (Some(pattern), Ok(mut rest)) = (pattern, std::str::from_utf8(text)) else {
            return Ok(Vec::new());
        };
        let wanted = if with_special { Wanted::All } else { Wanted::Ordinary };
        let Some(special) = self.specials().plain_texts(wanted) else { return Ok(Vec::new()) };
        let cuts = TextCuts::new(pattern, &special, false)?;
        let mut parts = Vec::new();
        let mut n_bytes = PART_BYTES;
        while rest.len() > n_bytes {
            match cuts.last(&rest[..rest.floor_char_boundary(n_bytes)]) {
                Some(cut) => {
                    let (part, behind) = rest.split_at(cut);
                    parts.push(part);
                    rest = behind;
                    n_bytes = PART_BYTES;
                }
                None => n_bytes *= 2,
            }
        }
        parts.push(rest);
        Ok(parts)
    }
}

/// What `work` makes of each item, in order. Threads take the next item when they are done with one.
fn in_order<T: Sync>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T, &mut Vec<u32>) -> Result<()> + Sync,
) -> Result<Vec<Vec<u32>>> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        while let Some((idx, item)) = {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            items.get(idx).map(|item| (idx, item))
        } {
            let mut ids = Vec::new();
            let result = work(item, &mut ids);
            done.push((idx, result.map(|()| ids)));
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
    done.into_iter().map(|(_, ids)| ids).collect()
}
