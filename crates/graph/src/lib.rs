//! Build a program of ops, derive its backward, fuse, plan its memory, run it.
