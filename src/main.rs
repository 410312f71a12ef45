//! The `ironmill` command.
fn main() {}
