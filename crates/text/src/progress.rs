//! How long calls tell their caller where they are.

/// Receives the progress of a long call. Libraries never print; a caller that wants a bar draws it here.
///
/// A call reports one or more phases, each as one `start`, any number of `advance` and one `finish`.
pub trait Progress: Sync {
    /// A phase begins; `total` is its amount of work in `unit`s when that is known.
    fn start(&self, phase: &str, total: Option<u64>, unit: &str);
    /// The phase has come to the `number`-th of so many files; told before `advance`.
    fn at_file(&self, number: u64, total: u64) {
        let _ = (number, total);
    }
    /// `amount` more units are done; none at all says only that the phase goes on.
    fn advance(&self, amount: u64);
    /// The phase has ended; it may have ended before its total.
    fn finish(&self);
}

/// Ignores all progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _phase: &str, _total: Option<u64>, _unit: &str) {}
    fn advance(&self, _amount: u64) {}
    fn finish(&self) {}
}
