//! User stories: what people do with the program, done through the real binary on kilobytes.

#![expect(clippy::unwrap_used, reason = "what goes wrong in a test is a failed test, also in its helpers")]

#[path = "stories/program.rs"]
mod program;

/// From text to a tokenizer, to ids and back.
#[path = "stories/train_a_tokenizer.rs"]
mod train_a_tokenizer;

/// Tokenizers from more text than fits memory, in parts, and again after a kill.
#[path = "stories/train_at_any_size.rs"]
mod train_at_any_size;

/// From text to shards, checked and looked into.
#[path = "stories/prepare_a_dataset.rs"]
mod prepare_a_dataset;

/// What a configuration comes to.
#[path = "stories/read_a_configuration.rs"]
mod read_a_configuration;

/// Every mistake of a user: what is said, and the exit code.
#[path = "stories/explain_my_mistake.rs"]
mod explain_my_mistake;

/// Every mistake around configurations, runs and models.
#[path = "stories/explain_my_training.rs"]
mod explain_my_training;

/// Anything else: whatever is typed, the program ends in order.
#[path = "stories/survive_anything.rs"]
mod survive_anything;

/// Models from elsewhere and to elsewhere.
#[path = "stories/bring_a_model.rs"]
mod bring_a_model;

/// Every command for other programs.
#[path = "stories/speak_json.rs"]
mod speak_json;

/// Help, completions, manual pages, the doctor, and what a tokenizer is.
#[path = "stories/find_my_way.rs"]
mod find_my_way;

/// From a configuration to a trained model, in one command or in steps.
#[path = "stories/train_a_small_model.rs"]
mod train_a_small_model;

/// What a person sees of a run: lines, events, figures of the machine, the page.
#[path = "stories/see_a_run.rs"]
mod see_a_run;

/// Many runs over lists and ranges of keys, and which is best.
#[path = "stories/compare_runs.rs"]
mod compare_runs;

/// Kills, signals, damage: what is saved, and what a resumed run repeats.
#[path = "stories/resume_after_a_kill.rs"]
mod resume_after_a_kill;

/// Full disks, dying saves, short memory, signals in every phase: nothing that was learnt is lost.
#[path = "stories/keep_my_work.rs"]
mod keep_my_work;

/// Text from a trained model.
#[path = "stories/sample_text.rs"]
mod sample_text;

/// A model that answers, line by line.
#[path = "stories/hold_a_conversation.rs"]
mod hold_a_conversation;

/// Choices and answers of a model.
#[path = "stories/ask_a_model.rs"]
mod ask_a_model;

/// One table: every key of a configuration, a value that is not its default, and where the difference shows.
#[path = "stories/every_key_has_an_effect.rs"]
mod every_key_has_an_effect;

/// One table: every flag of the commands that train and use models, and what it changes.
#[path = "stories/every_flag_has_an_effect.rs"]
mod every_flag_has_an_effect;

/// Llama and encoder models, every sampler, tokenizer kind and optimiser.
#[path = "stories/train_other_models.rs"]
mod train_other_models;

/// Named sizes, one dial for the size, and the plan of a run.
#[path = "stories/choose_a_size.rs"]
mod choose_a_size;

/// What the machine can do, and how much of it is used.
#[path = "stories/measure_the_machine.rs"]
mod measure_the_machine;
