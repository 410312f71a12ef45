//! The stages of the pipeline, as the commands and the whole run use them.

pub mod corpus;
pub mod cuda;
pub mod data;
pub mod machine;
pub mod metrics;
pub mod model;
pub mod plan;
pub mod run_folder;
pub mod sampling;
pub mod tokenizer;
pub mod training;
