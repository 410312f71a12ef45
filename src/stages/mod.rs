//! The stages of the pipeline, as the commands and the whole run use them.

pub mod chatting;
pub mod corpus;
pub mod cuda;
pub mod data;
pub mod events;
pub mod interchange;
pub mod machine;
pub mod metrics;
pub mod model;
pub mod peak;
pub mod plan;
pub mod quality;
pub mod run_folder;
pub mod sampling;
pub mod stop_text;
pub mod sweep;
pub mod tokenizer;
pub mod training;
