//! Pre-tokenise, count, train BPE, encode and decode.
