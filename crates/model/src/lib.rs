//! Architectures, objectives, optimisers, trainer, checkpoints and generation.
