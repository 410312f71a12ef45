//! The samples of one step, in buffers that are filled again and again.

/// A target that does not exist: nothing follows, or what follows belongs to another document.
pub const IGNORED: u32 = u32::MAX;

/// The samples of one step. All but `samples` hold `rows × length` numbers.
///
/// [`Loader::fill`](crate::Loader::fill) may exchange the buffers for others that were filled ahead, so that nothing is copied.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Token ids.
    pub ids: Vec<u32>,
    /// What follows each token, or [`IGNORED`].
    pub targets: Vec<u32>,
    /// The samples' numbers, one a row, of which the low 32 bits are kept (they key random numbers on the device).
    pub samples: Vec<u32>,
    positions: Vec<u32>,
    borders: Vec<u32>,
    /// Room for the stored bytes of a row and the token behind it.
    stored: Vec<u8>,
    length: usize,
    /// Whether the positions and borders are those of rows of one document. They need not be written again then, and nobody else
    /// can change them: half of what a step of windows would write.
    is_plain: bool,
}

impl Batch {
    /// Room for `rows` samples of at most `length` tokens.
    pub fn new(rows: usize, length: usize) -> Batch {
        let [ids, targets, positions, borders] = [(); 4].map(|()| vec![0; rows * length]);
        let stored = vec![0; (length + 1) * size_of::<u32>()];
        Batch { ids, targets, samples: vec![0; rows], positions, borders, stored, length, is_plain: false }
    }

    /// The samples of the step.
    pub fn rows(&self) -> usize {
        self.samples.len()
    }

    /// The tokens of a sample.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The position of each token: 0, 1, 2 … from the start of the row; if packed, from the start of its document.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// For each token, where in its row its document begins. Tokens of a row belong to the same document if and only if their
    /// borders are equal; padding is a document of its own. All zero if the loader has no borders.
    pub fn borders(&self) -> &[u32] {
        &self.borders
    }

    /// Makes the samples as long as those of a step, within what was once allocated.
    pub(crate) fn set_length(&mut self, length: usize) {
        let numbers = self.rows() * length;
        for buffer in [&mut self.ids, &mut self.targets, &mut self.positions, &mut self.borders] {
            buffer.resize(numbers, 0);
        }
        self.is_plain &= self.length == length;
        self.length = length;
    }

    /// Says that every row is one document.
    pub(crate) fn mark_plain(&mut self) {
        if !self.is_plain {
            for row_idx in 0..self.rows() {
                let mut row = self.row(row_idx);
                row.mark_document(0, row.tokens.ids.len());
            }
            self.is_plain = true;
        }
    }

    /// The ids and targets of a row.
    pub(crate) fn tokens(&mut self, row_idx: usize) -> RowTokens<'_> {
        let here = row_idx * self.length..(row_idx + 1) * self.length;
        let (ids, targets) = (&mut self.ids[here.clone()], &mut self.targets[here]);
        RowTokens { ids, targets, stored: &mut self.stored }
    }

    /// A row, to be given documents of its own.
    pub(crate) fn row(&mut self, row_idx: usize) -> Row<'_> {
        self.is_plain = false;
        let here = row_idx * self.length..(row_idx + 1) * self.length;
        Row {
            tokens: RowTokens {
                ids: &mut self.ids[here.clone()],
                targets: &mut self.targets[here.clone()],
                stored: &mut self.stored,
            },
            positions: &mut self.positions[here.clone()],
            borders: &mut self.borders[here],
        }
    }
}

/// The tokens of one row of a batch.
pub(crate) struct RowTokens<'a> {
    pub(crate) ids: &'a mut [u32],
    pub(crate) targets: &'a mut [u32],
    /// Room for them as they are stored.
    pub(crate) stored: &'a mut Vec<u8>,
}

impl RowTokens<'_> {
    /// The same for a while.
    pub(crate) fn reborrow(&mut self) -> RowTokens<'_> {
        RowTokens { ids: self.ids, targets: self.targets, stored: self.stored }
    }
}

/// One row of a batch.
pub(crate) struct Row<'a> {
    pub(crate) tokens: RowTokens<'a>,
    pub(crate) positions: &'a mut [u32],
    pub(crate) borders: &'a mut [u32],
}

impl Row<'_> {
    /// Says that the places `begin..end` are one document.
    pub(crate) fn mark_document(&mut self, begin: usize, end: usize) {
        self.borders[begin..end].fill(begin as u32);
        for (position, slot) in self.positions[begin..end].iter_mut().enumerate() {
            *slot = position as u32;
        }
    }
}
