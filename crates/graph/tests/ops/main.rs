//! What the ops, the passes and the backends promise, checked on small programs.
//!
//! `cases` declares every op once, with odd shapes; the checks that follow all run over that one list.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

/// The cases, how to fill their operands, and what makes the list complete.
mod cases;
/// Builds, fills and runs a case on a device.
mod harness;
/// How far apart two results may be.
mod tolerance;

/// Every backend against the reference.
mod backends;
/// Derivatives against central differences in double precision.
mod derivatives;

/// A GPT-2-like model of a few thousand numbers, for whole programs.
mod tiny;

/// Keys and values in a cache against attention over the whole sequence.
mod cache;
/// Attention inside documents against attention of each alone.
mod documents;
mod eight_bits;
/// Weights that are never written again.
mod frozen;
mod gates;
/// Heads and losses in shapes that fusing must get right or leave alone.
mod heads;
/// The optimisers' kernels.
mod optimiser;
/// Programs with passes on against programs with passes off.
mod passes;
/// Working types narrower than f32.
mod precision;
/// Values that the backward computes again.
mod recompute;
/// Memory that does not suffice.
mod short_memory;
/// Accumulation, frozen parameters, thread counts, and what cannot be trained.
mod training;
