//! Tensors as the copy engine knows them. What the driver puts into 128 bytes is its own business; this is ours.

use super::memory::raw;

/// Bytes of a description.
pub const TENSOR_BYTES: usize = 128;
/// The most dimensions.
pub const DIMENSIONS: usize = 5;
/// What descriptions begin with.
const MAGIC: u32 = 0x7e05_0a9d;

/// A tensor in memory and the boxes of it that are copied. Dimensions are counted from the innermost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tensor {
    /// Where it begins.
    pub address: u64,
    /// Of an element.
    pub bytes: usize,
    /// How many dimensions it has.
    pub rank: usize,
    /// Elements along each.
    pub sizes: [u64; DIMENSIONS],
    /// Bytes from one element to the next along each.
    pub strides: [u64; DIMENSIONS],
    /// Elements of a box along each.
    pub boxes: [u32; DIMENSIONS],
}

impl Tensor {
    /// Writes the description to an address.
    pub fn write(&self, to: u64) {
        let header = [MAGIC, self.bytes as u32, self.rank as u32, 0];
        for (index, word) in header.into_iter().chain(self.boxes).enumerate() {
            raw::write(to + 4 * index as u64, 4, word.into());
        }
        let numbers = [self.address].into_iter().chain(self.sizes).chain(self.strides[1..].iter().copied());
        for (index, number) in numbers.enumerate() {
            raw::write(to + 40 + 8 * index as u64, 8, number);
        }
    }

    /// Reads one from an address.
    pub fn read(from: u64) -> Result<Self, String> {
        let word = |index: u64| raw::read(from + 4 * index, 4);
        let number = |index: usize| raw::read(from + 40 + 8 * index as u64, 8);
        if word(0) != MAGIC.into() {
            return Err("a copy of a tensor that nobody described".into());
        }
        let mut tensor = Tensor {
            address: number(0),
            bytes: word(1) as usize,
            rank: word(2) as usize,
            ..Tensor::default()
        };
        tensor.strides[0] = tensor.bytes as u64;
        for dimension in 0..DIMENSIONS {
            tensor.boxes[dimension] = word(4 + dimension as u64) as u32;
            tensor.sizes[dimension] = number(1 + dimension);
            if dimension > 0 {
                tensor.strides[dimension] = number(DIMENSIONS + dimension);
            }
        }
        Ok(tensor)
    }

    /// Bytes of a box.
    pub fn box_bytes(&self) -> usize {
        self.boxes[..self.rank].iter().map(|&size| size as usize).product::<usize>() * self.bytes
    }

    /// The rows of a box that begins at `first`: for each in turn its number, and of the elements that exist the first, how many they
    /// are and where they lie.
    pub fn rows(&self, first: &[i32]) -> impl Iterator<Item = (usize, Option<(usize, usize, u64)>)> {
        let tensor = *self;
        let first: [i64; DIMENSIONS] = std::array::from_fn(|d| first.get(d).map_or(0, |&at| at.into()));
        let rows: usize = tensor.boxes[1..tensor.rank].iter().map(|&size| size as usize).product();
        let begin = (-first[0]).clamp(0, tensor.boxes[0].into());
        let end = (tensor.sizes[0] as i64 - first[0]).clamp(begin, tensor.boxes[0].into());
        (0..rows).map(move |row| {
            let (mut rest, mut address, mut exists) = (row, tensor.address as i64, end > begin);
            for (dimension, &first) in first.iter().enumerate().take(tensor.rank).skip(1) {
                let size = tensor.boxes[dimension] as usize;
                let at = first + (rest % size) as i64;
                rest /= size;
                exists &= (0..tensor.sizes[dimension] as i64).contains(&at);
                address += at * tensor.strides[dimension] as i64;
            }
            address += (first[0] + begin) * tensor.bytes as i64;
            (row, exists.then_some((begin as usize, (end - begin) as usize, address as u64)))
        })
    }
}

/// Where a byte of a box lies whose rows of 128 bytes have their pieces of 16 bytes mixed by the number of the row.
pub fn swizzled(address: u32) -> u32 {
    address ^ (address >> 7 & 7) << 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Region;

    #[test]
    fn boxes_end_where_their_tensor_does() {
        let tensor = Tensor {
            address: 1 << 20,
            bytes: 2,
            rank: 3,
            sizes: [10, 3, 2, 0, 0],
            strides: [2, 32, 128, 0, 0],
            boxes: [8, 2, 2, 0, 0],
        };
        let place = Region::new(TENSOR_BYTES);
        tensor.write(place.address());
        assert_eq!(Tensor::read(place.address()), Ok(tensor));
        let rows: Vec<_> = tensor.rows(&[4, 2, -1]).collect();
        assert_eq!(rows[0], (0, None));
        assert_eq!(rows[2], (2, Some((0, 6, (1 << 20) + 8 + 64))));
        assert_eq!(rows[3], (3, None));
        let left: Vec<_> = tensor.rows(&[-3, 0, 1]).collect();
        assert_eq!(left[0], (0, Some((3, 5, (1 << 20) + 128))));
        assert!(Tensor::read(place.address() + 8).is_err());
    }
}
