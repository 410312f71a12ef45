//! Which views meet, and who reads what others wrote.

use crate::device::{Launch, View, overlap};

/// Whether two views have bytes in common.
pub(super) fn meet(a: &View, b: &View) -> bool {
    overlap(a, a.of.dtype.bytes(), b, b.of.dtype.bytes())
}

/// Whether some launches read a value before others take its place.
pub(super) fn is_read(value: &View, launches: &[Launch]) -> bool {
    let meets = |view: &View| meet(view, value);
    let first = launches.iter().find(|launch| launch.inputs.iter().chain(&launch.outputs).any(meets));
    first.is_some_and(|launch| launch.inputs.iter().any(meets))
}
