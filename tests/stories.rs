//! User stories: what people do with the program, done through the real binary on kilobytes.

#[path = "stories/program.rs"]
mod program;

/// From text to a tokenizer, to ids and back.
#[path = "stories/train_a_tokenizer.rs"]
mod train_a_tokenizer;

/// From text to shards, checked and looked into.
#[path = "stories/prepare_a_dataset.rs"]
mod prepare_a_dataset;

/// What a configuration comes to.
#[path = "stories/read_a_configuration.rs"]
mod read_a_configuration;

/// Every mistake of a user: what is said, and the exit code.
#[path = "stories/explain_my_mistake.rs"]
mod explain_my_mistake;
