//! Scores beyond the loss: which of some choices a model finds likeliest, and how well it answers.

mod answers;
mod choices;
mod examples;
mod framing;
mod interval;
mod squad;

pub use answers::score_answers;
pub use choices::score_choices;
pub use examples::{AnswerExample, ChoiceExample, read};
pub use framing::Framing;
