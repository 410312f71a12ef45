//! Something about pages of global memory, made when a page is asked for first.

use std::collections::HashMap;

/// Pages by their number, of which the last is found without looking for it.
pub struct Pages<T> {
    places: HashMap<u64, usize>,
    pages: Vec<T>,
    last: (u64, usize),
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Pages { places: HashMap::new(), pages: Vec::new(), last: (u64::MAX, 0) }
    }
}

impl<T> Pages<T> {
    /// The page of a number.
    #[inline]
    pub fn get(&mut self, number: u64, new: impl FnOnce() -> T) -> &mut T {
        if self.last.0 != number {
            let pages = &mut self.pages;
            let place = *self.places.entry(number).or_insert_with(|| {
                pages.push(new());
                pages.len() - 1
            });
            self.last = (number, place);
        }
        &mut self.pages[self.last.1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_stay_what_they_were_made() {
        let mut pages = Pages::default();
        *pages.get(7, || 70) += 1;
        *pages.get(3, || 30) += 1;
        assert_eq!((*pages.get(3, || 0), *pages.get(7, || 0)), (31, 71));
    }
}
