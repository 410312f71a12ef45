//! Kernels that work row by row or element by element.
//!
//! B samples, T positions, C columns, V vocabulary, N = B·T rows. Every kernel cuts its output into tiles of about
//! [`TILE_ELEMENTS`] elements by shape alone; sums over rows have one owner per column or per row of a table.

pub(super) mod copy;
pub(super) mod draw;
pub(super) mod embed;
pub(super) mod loss;
pub(super) mod muon;
pub(super) mod norm;
pub(super) mod pointwise;
pub(super) mod update;

/// Elements of a tile: 64 KiB, enough to make claiming one cheap and few enough to share the work evenly.
pub(super) const TILE_ELEMENTS: usize = 16 * 1024;

/// Rows of a tile.
pub(super) fn tile_rows(columns: usize) -> usize {
    (TILE_ELEMENTS / columns.max(1)).max(1)
}
