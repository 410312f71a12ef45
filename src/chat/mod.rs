//! Conversations: the template that turns messages into the text that a model was trained on, and all around it.
//!
//! A template is a program of the model's maker, so it is not trusted: it runs in a process of its own with little memory and
//! time ([`sandbox`]), has no files and no clock but the one it is given, and counts what it does.

mod conversation;
mod json;
mod python;
pub mod sandbox;
mod template;
mod templates;

pub use conversation::{Conversation, Message, Prompt, Speech};
pub use templates::{Templates, read_file, read_json};
