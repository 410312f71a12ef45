//! Pre-tokenise, count, train BPE, encode and decode.
//!
//! A document is cut into *pieces* by a [`Pattern`]; [`PieceCounts`] counts the distinct ones; [`train_bpe`]
//! learns a [`Tokenizer`] from the counts alone, so that any split of the corpus gives the same one. BPE
//! works on bytes: whatever is encoded decodes to itself. So does the byte kind ([`Tokenizer::byte`]), which
//! needs no training. The char and word kinds ([`train_char`], [`train_word`]) know the characters or words
//! of their corpus; another one is an error, or the special token [`UNKNOWN`] if the user asks for it, and is
//! then counted.
//!
//! ```
//! use ironmill_text::{BpeOptions, Pattern, PieceCounts, Silent, Tokenizer, train_bpe};
//!
//! # fn main() -> ironmill_text::Result<()> {
//! let special = vec!["<|endoftext|>".to_owned()];
//! let mut counts = PieceCounts::new(&Pattern::Gpt2, &special)?;
//! for document in ["the cat sat on the mat", "the dog sat on the log"] {
//!     counts.add_document(document.as_bytes())?;
//! }
//! let options = BpeOptions { special, ..BpeOptions::new(270) };
//! let (tokenizer, report) = train_bpe(&counts, &options, &Silent)?;
//! assert_eq!((report.merges, report.total_pieces), (13, 12));
//!
//! let mut ids = Vec::new();
//! tokenizer.encode_with_special("the cog 🐈<|endoftext|>".as_bytes(), &mut ids)?;
//! assert_eq!(ids.last().copied(), tokenizer.end_of_text());
//! assert_eq!(tokenizer.decode(&ids)?, "the cog 🐈<|endoftext|>".as_bytes());
//!
//! let mut decoder = tokenizer.decoder();
//! let mut text = String::new();
//! for id in ids {
//!     text += decoder.push(id)?; // Only whole characters come out.
//! }
//! assert_eq!(text + &decoder.finish(), "the cog 🐈<|endoftext|>");
//!
//! let reloaded = Tokenizer::from_json(&tokenizer.to_json())?; // Hugging Face reads it too.
//! assert_eq!(reloaded.hash(), tokenizer.hash());
//! # Ok(())
//! # }
//! ```
//!
//! [`PieceCounter`] and [`learn_bpe`] do the same on any amount of text, in a memory that is given, with scratch files for
//! what does not fit.
//!
//! Everything here is deterministic; nothing prints, reads the environment or keeps global state. Unsafe code is found in the
//! loops of scanning and encoding, in prefetching and in advice about memory only.

mod batch;
mod bpe;
mod byte_level;
mod bytes;
mod characters;
mod count;
mod counts;
mod cuts;
mod decode;
pub mod durable;
mod error;
mod frame;
mod frequent;
mod gguf;
mod hugging_face;
mod inspect;
mod items;
mod llama2c;
mod normal;
mod own_json;
mod pages;
mod pattern;
mod prefetch;
mod progress;
mod scan;
mod scratch;
mod special;
mod splitter;
mod stretches;
mod tokenizer;
mod wordpiece;
mod words;

pub use bpe::learn::{LearnRoom, PieceSource, learn_bpe};
pub use bpe::reference::train_bpe as train_bpe_plainly;
pub use bpe::tiktoken::RankFileSettings;
pub use bpe::train::{BpeOptions, Ties, TrainReport, train_bpe};
pub use characters::{CharCounts, CharOptions, CharReport, train_char};
pub use count::{
    CountSettings, CountTotals, CountedPieces, CounterRoom, CountsFile, Loss, PieceCounter, merge_counts,
};
pub use counts::PieceCounts;
pub use cuts::TextCuts;
pub use decode::StreamDecoder;
pub use error::{Error, Result};
pub use frequent::FrequentPieces;
pub use gguf::GgufVocabulary;
pub use inspect::{Inspection, Sample, inspect};
pub use items::{Encoded, UNKNOWN, VocabularyReport};
pub use pattern::Pattern;
pub use progress::{Progress, Silent};
pub use tokenizer::{Kind, Tokenizer};
pub use words::{WordOptions, train_word};
