//! The stages of the pipeline, as the commands and the whole run use them.

pub mod data;
pub mod tokenizer;
