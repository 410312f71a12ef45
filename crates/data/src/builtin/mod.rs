//! The built-in corpus: small English stories, generated, so that a first model needs no download.
//!
//! `builtin:stories:20MB` in a list of inputs stands for about twenty megabytes of them. A story is a
//! handful of facts (a hero with a trait, a place with its obstacle, a tool that fits or does not) told
//! through one of the plots. Who succeeds, and by whose help, follows from those facts, so a model has
//! to remember the beginning of a story to guess its end. The words and plots are the text files
//! beside this one; [`Stories`] only draws from them.

mod grammar;
mod random;
mod stories;
mod world;

pub use stories::Stories;
