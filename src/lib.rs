//! Raw text to a trained language model, in one binary and library.
