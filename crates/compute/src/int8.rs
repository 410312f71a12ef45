//! Weights of eight bits: whole numbers, and a scale for every group of terms of a sum.
//!
//! A row of a matrix is cut into groups of [`GROUP`] numbers from its beginning. The scale of a group is a 127th of its largest
//! magnitude, and every number becomes the nearest multiple of it. Scales are f32, so a number takes 8.5 bits.

/// Numbers of a row that share a scale.
pub const GROUP: usize = 64;

/// The largest whole number that a weight becomes.
pub(crate) const MOST_OF_WEIGHTS: f32 = 127.0;

/// What the numbers of a group are counted in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// What one stands for; not a number where one of the group is infinite or none, so that every sum with it says so.
    pub size: f32,
    per_one: f32,
}

impl Scale {
    /// The scale that makes a group's largest magnitude this whole number.
    pub fn of(group: &[f32], most: f32) -> Self {
        // Magnitudes are in the order of their bits, behind which come infinity and what is no number.
        let largest = group.iter().fold(0, |largest, x| (x.to_bits() as i32 & i32::MAX).max(largest));
        let largest = f32::from_bits(largest as u32);
        let per_one = most / largest;
        if !largest.is_finite() {
            Scale { size: f32::NAN, per_one: 0.0 }
        } else if !per_one.is_finite() {
            // Nothing but zeros, or so little that its inverse does not exist.
            Scale { size: 0.0, per_one: 0.0 }
        } else {
            Scale { size: largest / most, per_one }
        }
    }

    /// The nearest whole number, of two the even one.
    #[inline(always)]
    pub fn count(self, x: f32) -> i32 {
        // So far from zero the numbers of f32 are whole, and their last bits are those of the whole number.
        const FAR: f32 = 12_582_912.0;
        ((x * self.per_one + FAR).to_bits() as i32).wrapping_sub(FAR.to_bits() as i32)
    }
}

/// Replaces the numbers of a row by those that their eight bits stand for.
pub(crate) fn round_row(row: &mut [f32]) {
    for group in row.chunks_mut(GROUP) {
        let scale = Scale::of(group, MOST_OF_WEIGHTS);
        group.iter_mut().for_each(|x| *x = scale.count(*x) as i8 as f32 * scale.size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_move_by_half_a_scale_at_most_and_the_largest_stays() {
        let row: Vec<f32> = (0..200).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013).collect();
        let mut rounded = row.clone();
        round_row(&mut rounded);
        for (row, rounded) in row.chunks(GROUP).zip(rounded.chunks(GROUP)) {
            let largest = row.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            for (x, y) in row.iter().zip(rounded) {
                assert!((x - y).abs() <= largest / 127.0 * 0.5001, "{x} became {y}");
                assert!(x.abs() < largest || (x - y).abs() <= largest * f32::EPSILON, "{x} became {y}");
            }
        }
    }

    #[test]
    fn zeros_stay_and_what_is_not_finite_spoils_its_group_alone() {
        let mut row = vec![0.0; 3 * GROUP];
        row[GROUP + 5] = f32::INFINITY;
        row[2 * GROUP] = 1e-44;
        round_row(&mut row);
        assert!(row[..GROUP].iter().chain(&row[2 * GROUP..]).all(|&x| x == 0.0));
        assert!(row[GROUP..2 * GROUP].iter().all(|x| x.is_nan()));
    }
}
