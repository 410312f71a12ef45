//! User stories: what people do with the program, done through the real binary on kilobytes.

#![expect(clippy::unwrap_used, reason = "what goes wrong in a test is a failed test, also in its helpers")]

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

/// From a configuration to a trained model, in one command or in steps.
#[path = "stories/train_a_small_model.rs"]
mod train_a_small_model;

/// Kills, signals, damage: what is saved, and what a resumed run repeats.
#[path = "stories/resume_after_a_kill.rs"]
mod resume_after_a_kill;

/// Text from a trained model.
#[path = "stories/sample_text.rs"]
mod sample_text;

/// What the machine can do, and how much of it is used.
#[path = "stories/measure_the_machine.rs"]
mod measure_the_machine;
