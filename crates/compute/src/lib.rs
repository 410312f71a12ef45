//! Buffers, kernels and the backends that run them.
