//! How often each distinct piece occurs in a corpus: all that BPE training needs to know of it.
//!
//! [`PieceCounts`](crate::PieceCounts) is the plain twin of what is here.

mod counter;
mod file;
mod hot;
pub(crate) mod key;
mod record;
mod spill;
mod table;

pub use counter::{CountedPieces, CounterRoom, Loss, PieceCounter};
pub use file::{CountSettings, CountTotals, CountsFile, merge_counts};
