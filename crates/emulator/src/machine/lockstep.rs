//! Lanes of a warp that read what others of them wrote to shared memory. Here they go in step, so it is there; on a card it is when they have
//! met, by a barrier or `__syncwarp`. That words are exchanged by registers orders nothing.

use std::ops::Range;

use crate::lanes::lanes_of;

/// A piece of shared memory that a lane wrote, or all lanes together.
#[derive(Clone, Debug)]
struct Written {
    piece: Range<u64>,
    lane: Option<usize>,
    step: usize,
}

/// What lanes wrote since they met.
#[derive(Clone, Debug, Default)]
pub struct Since(Vec<Written>);

/// More than these nobody looks through.
const MOST: usize = 512;

impl Since {
    pub fn lanes_met(&mut self) {
        self.0.clear();
    }

    /// Lanes write so many bytes each.
    pub fn write(&mut self, places: &[u64], bytes: usize, step: usize, active: u32) {
        for lane in lanes_of(active) {
            self.write_piece(places[lane]..places[lane] + bytes as u64, Some(lane), step);
        }
    }

    /// A lane writes a piece, or none by itself.
    pub fn write_piece(&mut self, piece: Range<u64>, lane: Option<usize>, step: usize) {
        if self.0.len() < MOST {
            self.0.push(Written { piece, lane, step });
        }
    }

    /// Lanes read so many bytes each. What one of them reads that another wrote comes back: the lane and the step of the write.
    pub fn read(&self, places: &[u64], bytes: usize, active: u32) -> Result<(), (usize, usize)> {
        if self.0.is_empty() {
            return Ok(());
        }
        lanes_of(active).try_for_each(|lane| {
            let piece = places[lane]..places[lane] + bytes as u64;
            self.read_piece(&piece, Some(lane)).map_err(|step| (lane, step))
        })
    }

    /// The same of a piece that a lane reads, or all together, or what works for them.
    pub fn read_piece(&self, piece: &Range<u64>, lane: Option<usize>) -> Result<(), usize> {
        let overlaps = |of: &Range<u64>| of.start < piece.end && piece.start < of.end;
        let is_others = |of: &&Written| (of.lane.is_none() || of.lane != lane) && overlaps(&of.piece);
        self.0.iter().find(is_others).map_or(Ok(()), |of| Err(of.step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_read_what_they_wrote_themselves_until_they_have_met() {
        let mut since = Since::default();
        let places: Vec<u64> = (0..32).map(|lane| 1024 + 4 * lane).collect();
        let turned: Vec<u64> = (0..32).map(|lane| 1024 + 4 * (31 - lane)).collect();
        since.write(&places, 4, 9, u32::MAX);
        assert_eq!(since.read(&places, 4, u32::MAX), Ok(()));
        assert_eq!(since.read(&turned, 4, u32::MAX), Err((0, 9)));
        assert_eq!(since.read(&places, 8, 1), Err((0, 9)), "two words, of which one is another's");
        since.lanes_met();
        assert_eq!(since.read(&turned, 4, u32::MAX), Ok(()));
        since.write_piece(1024..1040, None, 3);
        assert_eq!(since.read(&places, 4, 1), Err((0, 3)), "all wrote it together");
    }
}
