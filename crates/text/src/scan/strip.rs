//! The masks of a strip of text, made ahead of the windows that look at them.
//!
//! Where a window starts is known when the one before it is done. Masks of text that starts there would be made only then, and
//! every window would wait for them. So they are made of text in blocks, whose places are known, and a window takes its bits
//! from any place of them.

use super::Vectors;
use super::rules::Starts;
use super::window::{Masks, WINDOW};

/// The most blocks of a strip: two kilobytes of text, about what a batch of pieces has.
const MAX_BLOCKS: usize = 32;

/// So many blocks lie between what is made and what is looked at: bits that were only just written take long to read.
const AHEAD: usize = 3;

/// A mask has a bit a byte of text, and is read eight of its bytes at a time.
const MASK_BYTES: usize = MAX_BLOCKS * WINDOW / 8;

/// The masks of a strip of text.
#[derive(Debug)]
pub(super) struct Strip {
    n_blocks: usize,
    letter: Mask,
    number: Mask,
    space: Mask,
    blank: Mask,
    apostrophe: Mask,
    wide: Mask,
    newline: Mask,
    upper: Mask,
    lower: Mask,
    slash: Mask,
}

#[derive(Debug, Clone, Copy)]
#[repr(align(8))]
struct Mask([u8; MASK_BYTES]);

impl Mask {
    #[inline(always)]
    fn set(&mut self, block: usize, bits: u64) {
        if let Some(room) = self.0.as_chunks_mut().0.get_mut(block) {
            *room = bits.to_le_bytes();
        }
    }

    /// The bits from a byte's first on.
    #[inline(always)]
    fn get(&self, byte: usize) -> u64 {
        let byte = byte.min(MASK_BYTES - 8);
        self.0[byte..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

impl Strip {
    /// An empty strip.
    pub(super) fn new() -> Self {
        let none = Mask([0; MASK_BYTES]);
        Self {
            n_blocks: 0,
            letter: none,
            number: none,
            space: none,
            blank: none,
            apostrophe: none,
            wide: none,
            newline: none,
            upper: none,
            lower: none,
            slash: none,
        }
    }

    /// Begins anew and gives the blocks to [`add`](Self::add): those that are whole, as many as there is room for.
    pub(super) fn lay<'t>(&mut self, text: &'t [u8]) -> impl Iterator<Item = &'t [u8; WINDOW]> + use<'t> {
        self.n_blocks = 0;
        text.as_chunks().0.iter().take(MAX_BLOCKS)
    }

    /// Adds the blocks that are to be ahead of windows.
    #[inline(always)]
    pub(super) fn add_ahead<'t, S: Starts>(
        &mut self,
        blocks: &mut impl Iterator<Item = &'t [u8; WINDOW]>,
        vectors: impl Vectors,
    ) {
        for _ in 0..AHEAD {
            self.add::<S>(blocks, vectors);
        }
    }

    /// Adds the next block, if there is one. Once before every window is enough, because windows start less than a block apart.
    #[inline(always)]
    pub(super) fn add<'t, S: Starts>(
        &mut self,
        blocks: &mut impl Iterator<Item = &'t [u8; WINDOW]>,
        vectors: impl Vectors,
    ) {
        let Some(block) = blocks.next() else { return };
        let masks = vectors.masks(block);
        self.letter.set(self.n_blocks, masks.letter);
        self.number.set(self.n_blocks, masks.number);
        self.space.set(self.n_blocks, masks.space);
        self.blank.set(self.n_blocks, masks.blank);
        self.apostrophe.set(self.n_blocks, masks.apostrophe);
        self.wide.set(self.n_blocks, masks.wide);
        if S::TELLS_NEWLINES {
            self.newline.set(self.n_blocks, masks.newline);
        }
        if S::TELLS_CASES {
            self.upper.set(self.n_blocks, masks.upper);
            self.lower.set(self.n_blocks, masks.lower);
            self.slash.set(self.n_blocks, masks.slash);
        }
        self.n_blocks += 1;
    }

    /// The masks of the window that starts `at` bytes from the start, without those that the rules do not ask for, and how many
    /// bytes they show, 57 at least. `None` if less than a window is there.
    #[inline(always)]
    pub(super) fn window<S: Starts>(&self, at: usize) -> Option<(Masks, usize)> {
        if self.n_blocks * WINDOW < at + WINDOW {
            return None;
        }
        let bits = |mask: &Mask| mask.get(at / 8) >> (at % 8);
        let mut masks = Masks {
            letter: bits(&self.letter),
            number: bits(&self.number),
            space: bits(&self.space),
            blank: bits(&self.blank),
            apostrophe: bits(&self.apostrophe),
            wide: bits(&self.wide),
            ..Masks::default()
        };
        if S::TELLS_NEWLINES {
            masks.newline = bits(&self.newline);
        }
        if S::TELLS_CASES {
            masks.upper = bits(&self.upper);
            masks.lower = bits(&self.lower);
            masks.slash = bits(&self.slash);
        }
        Some((masks, WINDOW - at % 8))
    }
}
