//! The stages of the pipeline, as the commands and the whole run use them.

pub mod corpus;
pub mod data;
pub mod metrics;
pub mod model;
pub mod run_folder;
pub mod sampling;
pub mod tokenizer;
pub mod training;
