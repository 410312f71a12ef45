//! Barriers that lie in shared memory: eight bytes that count who has arrived and which bytes have come.

/// A barrier, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// How many must arrive in every phase.
    expected: u32,
    /// How many have yet to arrive in this one.
    pending: u32,
    /// Bytes that were announced and have not come, or the other way round.
    bytes: i32,
    /// Whether the phase is an odd one.
    phase: bool,
}

/// Bits of a count.
const COUNT: u32 = 15;
/// What tells a barrier from any other eight bytes: no poison has it.
const MARK: u64 = 1 << 62;

impl Arrivals {
    /// A barrier for so many.
    pub fn new(count: u32) -> Result<Self, String> {
        if count == 0 || count >= 1 << COUNT {
            return Err(format!("a barrier for {count}"));
        }
        Ok(Arrivals { expected: count, pending: count, bytes: 0, phase: false })
    }

    /// What eight bytes say.
    pub fn from_bits(bits: u64) -> Result<Self, String> {
        if bits & (MARK | MARK << 1) != MARK {
            return Err("a barrier that never began".into());
        }
        let count = |from: u32| (bits >> from) as u32 & ((1 << COUNT) - 1);
        // The upper 31 bits without the mark, as a number with a sign.
        let bytes = (bits >> (2 * COUNT + 1)) as u32 & 0x7fff_ffff;
        let bytes = ((bytes << 1) as i32) >> 1;
        Ok(Arrivals { expected: count(0), pending: count(COUNT), bytes, phase: bits >> (2 * COUNT) & 1 == 1 })
    }

    /// The same as eight bytes.
    pub fn bits(self) -> u64 {
        let bytes = u64::from(self.bytes as u32 & 0x7fff_ffff) << (2 * COUNT + 1);
        MARK | u64::from(self.expected)
            | u64::from(self.pending) << COUNT
            | u64::from(self.phase) << (2 * COUNT)
            | bytes & (MARK - 1)
    }

    /// So many arrive, who announce bytes.
    pub fn arrive(&mut self, count: u32, announced: u32) -> Result<(), String> {
        if count > self.pending {
            return Err("one more arrives at a barrier than it is for".into());
        }
        self.bytes += announced as i32;
        self.pending -= count;
        self.end_phase();
        Ok(())
    }

    /// Bytes have come.
    pub fn come(&mut self, bytes: u32) {
        self.bytes -= bytes as i32;
        self.end_phase();
    }

    /// Whether the phase that goes on is an odd one.
    pub fn phase(self) -> bool {
        self.phase
    }

    /// Whether the phase with a parity has passed.
    pub fn has_passed(self, parity: u32) -> bool {
        self.phase != (parity & 1 == 1)
    }

    fn end_phase(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.pending = self.expected;
            self.phase = !self.phase;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_ends_when_all_have_arrived_and_all_bytes_have_come() {
        let mut barrier = Arrivals::new(2).unwrap();
        let again = |barrier: Arrivals| Arrivals::from_bits(barrier.bits()).unwrap();
        // Bytes may come before they are announced.
        barrier.come(1 << 16);
        barrier = again(barrier);
        barrier.arrive(1, 3 << 16).unwrap();
        barrier = again(barrier);
        barrier.arrive(1, 0).unwrap();
        assert!(!barrier.has_passed(0) && barrier.has_passed(1));
        assert!(barrier.arrive(1, 0).is_err(), "nobody is left to arrive");
        barrier = again(barrier);
        barrier.come(2 << 16);
        assert!(again(barrier).has_passed(0) && !again(barrier).has_passed(1));
        assert_eq!(barrier.pending, 2);
    }

    #[test]
    fn what_never_began_is_no_barrier() {
        assert!(Arrivals::from_bits(0).is_err());
        assert!(Arrivals::from_bits(u64::MAX).is_err());
        assert!(Arrivals::new(0).is_err());
    }
}
