//! Outputs cut into tiles, one per call of a job.
//!
//! Threads write to one output at a time, each to tiles of its own. The cut is a regular grid, so tiles with different
//! indices are disjoint, and [`for_tiles`] hands out every index once: kernels write in parallel without unsafe code.
#![expect(unsafe_code, reason = "threads write to disjoint tiles of one slice")]

use std::{marker::PhantomData, ops::Range};

use super::pool::Pool;

/// A stack of matrices cut into tiles.
pub(super) struct Grid<'a, T = f32> {
    pointer: *mut T,
    /// Matrices, rows and columns.
    size: [usize; 3],
    /// Elements from one matrix to the next, and from one row to the next.
    strides: [usize; 2],
    /// Rows and columns of a tile; the last ones may be smaller.
    tile: [usize; 2],
    is_column_major: bool,
    data: PhantomData<&'a mut [T]>,
}

// SAFETY: a grid is an exclusive slice, and the threads that share it get disjoint parts of it (see `for_tiles`), which is
// sending parts of the slice to them.
unsafe impl<T: Send> Sync for Grid<'_, T> {}

impl<'a, T> Grid<'a, T> {
    /// Contiguous matrices `size = [matrices, rows, columns]` in tiles of `[rows, columns]`. Tiles are numbered matrix by
    /// matrix, inside a matrix by rows of tiles.
    pub fn new(data: &'a mut [T], size: [usize; 3], tile: [usize; 2]) -> Self {
        let [_, rows, columns] = size;
        assert_eq!(size.iter().product::<usize>(), data.len(), "the grid covers the slice");
        Grid {
            pointer: data.as_mut_ptr(),
            size,
            strides: [rows * columns, columns],
            tile: tile.map(|length| length.max(1)),
            is_column_major: false,
            data: PhantomData,
        }
    }

    /// One matrix in tiles of whole rows.
    pub fn rows(data: &'a mut [T], columns: usize, tile_rows: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Grid::new(data, [1, rows, columns], [tile_rows, columns])
    }

    /// A vector in tiles of `length` elements.
    pub fn elements(data: &'a mut [T], length: usize) -> Self {
        let len = data.len();
        Grid::new(data, [1, 1, len], [1, length])
    }

    /// Numbers the tiles of a matrix by columns of tiles.
    pub fn by_columns(self) -> Self {
        Grid { is_column_major: true, ..self }
    }

    /// Only some columns of every matrix.
    pub fn columns(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.size[2]);
        if range.is_empty() {
            return Grid { size: [0, 0, 0], ..self };
        }
        // SAFETY: the range lies inside the first row, so the result points into the slice.
        let pointer = unsafe { self.pointer.add(range.start) };
        Grid { pointer, size: [self.size[0], self.size[1], range.len()], ..self }
    }

    /// Every matrix cut between columns into parts of these widths.
    ///
    /// # Panics
    /// When the widths do not add up to the columns.
    pub fn side_by_side<const N: usize>(self, widths: [usize; N]) -> [Self; N] {
        assert_eq!(widths.iter().sum::<usize>(), self.size[2], "the parts cover the columns");
        let mut start = 0;
        widths.map(|width| {
            let range = start..start + width;
            start = range.end;
            // The parts are disjoint columns of what this grid had alone, so each may be written beside the others.
            let whole = Grid { data: PhantomData, ..self };
            whole.columns(range)
        })
    }

    /// The same matrices in tiles of other sizes.
    pub fn in_tiles(self, tile: [usize; 2]) -> Self {
        Grid { tile: tile.map(|length| length.max(1)), ..self }
    }

    /// How many tiles there are.
    pub fn count(&self) -> usize {
        let [rows, columns] = self.tiles_per_matrix();
        self.size[0] * rows * columns
    }

    fn tiles_per_matrix(&self) -> [usize; 2] {
        [self.size[1].div_ceil(self.tile[0]), self.size[2].div_ceil(self.tile[1])]
    }

    /// The tile with this index.
    ///
    /// # Safety
    /// While the tile is used, no other tile with this index may be.
    unsafe fn tile(&self, index: usize) -> Tile<'_, T> {
        assert!(index < self.count());
        let [down, across] = self.tiles_per_matrix();
        let (matrix, inside) = (index / (down * across), index % (down * across));
        let (i, j) = if self.is_column_major {
            (inside % down, inside / down)
        } else {
            (inside / across, inside % across)
        };
        let (row, column) = (i * self.tile[0], j * self.tile[1]);
        let offset = matrix * self.strides[0] + row * self.strides[1] + column;
        Tile {
            // SAFETY: the index is in range, so matrix, row and column are, and the offset lies inside the slice.
            pointer: unsafe { self.pointer.add(offset) },
            rows: self.tile[0].min(self.size[1] - row),
            columns: self.tile[1].min(self.size[2] - column),
            stride: self.strides[1],
            matrix,
            row,
            column,
            data: PhantomData,
        }
    }
}

/// Part of a matrix that one thread may write.
pub(super) struct Tile<'a, T = f32> {
    pointer: *mut T,
    rows: usize,
    columns: usize,
    stride: usize,
    /// The matrix it is part of.
    pub matrix: usize,
    /// The first row in the matrix.
    pub row: usize,
    /// The first column in the matrix.
    pub column: usize,
    data: PhantomData<&'a mut [T]>,
}

impl<'a, T> Tile<'a, T> {
    /// A whole slice as a tile.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert!(rows * columns <= data.len());
        Tile {
            pointer: data.as_mut_ptr(),
            rows,
            columns,
            stride: columns,
            matrix: 0,
            row: 0,
            column: 0,
            data: PhantomData,
        }
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns there are.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Elements from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The first element. Row `i` is at `i * stride` and belongs to the tile for `columns` elements.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.pointer
    }

    /// The rows in the matrix.
    pub fn row_range(&self) -> Range<usize> {
        self.row..self.row + self.rows
    }

    /// The columns in the matrix.
    pub fn column_range(&self) -> Range<usize> {
        self.column..self.column + self.columns
    }

    /// A row.
    pub fn row_mut(&mut self, index: usize) -> &mut [T] {
        assert!(index < self.rows);
        // SAFETY: the row lies inside the tile, whose elements nobody else uses while it lives, and `&mut self` keeps
        // rows from being borrowed twice.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(index * self.stride), self.columns) }
    }

    /// All elements of a tile whose rows follow each other.
    pub fn into_slice(self) -> &'a mut [T] {
        assert!(self.rows <= 1 || self.stride == self.columns, "the tile is contiguous");
        // SAFETY: the rows are contiguous, the elements are the tile's own, and the tile is consumed.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.rows * self.columns) }
    }

    /// Part of the tile.
    pub fn part(&mut self, rows: Range<usize>, columns: Range<usize>) -> Tile<'_, T> {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        assert!(columns.start <= columns.end && columns.end <= self.columns);
        let is_empty = rows.is_empty() || columns.is_empty();
        let offset = if is_empty { 0 } else { rows.start * self.stride + columns.start };
        Tile {
            // SAFETY: the ranges lie inside the tile, so the offset does; an empty part stays at the start.
            pointer: unsafe { self.pointer.add(offset) },
            rows: rows.len(),
            columns: columns.len(),
            stride: self.stride,
            matrix: self.matrix,
            row: self.row + rows.start,
            column: self.column + columns.start,
            data: PhantomData,
        }
    }
}

/// Calls `body` for every tile index, with the tiles of all grids that have it and the thread's scratch.
///
/// # Panics
/// When the grids do not have equally many tiles.
pub(super) fn for_tiles<T: Send, const N: usize>(
    pool: &mut Pool,
    grids: [Grid<'_, T>; N],
    body: impl Fn([Tile<'_, T>; N], &mut [f32]) + Sync,
) {
    let count = grids.first().map_or(0, Grid::count);
    assert!(grids.iter().all(|grid| grid.count() == count), "all grids have the same number of tiles");
    pool.run(count, &|index, scratch| {
        // SAFETY: the pool calls this once for each index, and the tiles do not outlive the call.
        let tiles = std::array::from_fn(|i| unsafe { grids[i].tile(index) });
        body(tiles, scratch);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_element_once_in_both_orders() {
        let mut pool = Pool::new(2).unwrap();
        for by_columns in [false, true] {
            let mut data = vec![0.0f32; 3 * 5 * 7];
            let mut grid = Grid::new(&mut data, [3, 5, 7], [2, 3]);
            if by_columns {
                grid = grid.by_columns();
            }
            assert_eq!(grid.count(), 3 * 3 * 3);
            for_tiles(&mut pool, [grid], |[mut tile], _| {
                for row in 0..tile.rows() {
                    let place = (tile.matrix * 35 + (tile.row + row) * 7 + tile.column) as f32;
                    for (column, x) in tile.row_mut(row).iter_mut().enumerate() {
                        *x += 1.0 + place + column as f32;
                    }
                }
            });
            assert!(data.iter().enumerate().all(|(i, &x)| x == 1.0 + i as f32));
        }
    }

    #[test]
    fn a_window_of_columns_leaves_the_others_alone() {
        let mut pool = Pool::new(2).unwrap();
        let mut data = vec![0.0f32; 4 * 6];
        for_tiles(&mut pool, [Grid::rows(&mut data, 6, 3).columns(2..5)], |[mut tile], _| {
            (0..tile.rows()).for_each(|row| tile.row_mut(row).fill(1.0));
        });
        assert!(data.iter().enumerate().all(|(i, &x)| x == f32::from((2..5).contains(&(i % 6)))));
    }
}
