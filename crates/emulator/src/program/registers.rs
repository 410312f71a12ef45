//! Which registers an instruction has, and what happens to them.

use super::{Address, Code, Count, GroupProduct, Left, Product, Slot, Space, Special, Vote};
use crate::ptx::Class;

/// What an instruction does with a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Needs what is in it.
    Reads,
    /// Puts something into it.
    Writes,
    /// Both.
    Changes,
}

impl Code {
    /// All registers, each place of one once, with their classes and what happens to them.
    pub fn visit(&mut self, see: &mut dyn FnMut(&mut Slot, Class, Role)) {
        use Class::{Double, Predicate, Word};
        use Role::{Changes, Reads, Writes};
        let base = |address: &mut Address, see: &mut dyn FnMut(&mut Slot, Class, Role)| {
            let class = if address.space == Space::Shared { Word } else { Double };
            see(&mut address.base, class, Reads);
        };
        let of_bytes = |bytes: usize| if bytes == 8 { Double } else { Word };
        match self {
            Code::Lanes(operation, d, from) => {
                let (result, classes) = operation.classes();
                for (slot, class) in from.iter_mut().zip(classes) {
                    see(slot, *class, Reads);
                }
                see(d, result, Writes);
            }
            Code::SelectWord([d, a, b, by]) => {
                visit_all(see, &mut [(a, Word), (b, Word), (by, Predicate)], d, Word)
            }
            Code::SelectDouble([d, a, b, by]) => {
                visit_all(see, &mut [(a, Double), (b, Double), (by, Predicate)], d, Double);
            }
            Code::InsertWord([d, a, b, at, count]) => {
                visit_all(see, &mut [(a, Word), (b, Word), (at, Word), (count, Word)], d, Word);
            }
            Code::InsertDouble([d, a, b, at, count]) => {
                visit_all(see, &mut [(a, Double), (b, Double), (at, Word), (count, Word)], d, Double);
            }
            Code::Logic(_, [d, a, b]) => visit_all(see, &mut [(a, Predicate), (b, Predicate)], d, Predicate),
            Code::Special(Special::Clock, d) | Code::ParameterAddress(d, _) => see(d, Double, Writes),
            Code::Special(_, d) => see(d, Word, Writes),
            Code::Parameter { d, bytes, .. } => see(d, of_bytes(*bytes), Writes),
            Code::Pack([d, a, b]) => visit_all(see, &mut [(a, Word), (b, Word)], d, Double),
            Code::Unpack(a, parts) => {
                see(a, Double, Reads);
                parts.iter_mut().flatten().for_each(|d| see(d, Word, Writes));
            }
            Code::PackHalves([d, a, b]) => visit_all(see, &mut [(a, Word), (b, Word)], d, Word),
            Code::UnpackHalves(a, parts) => {
                see(a, Word, Reads);
                parts.iter_mut().flatten().for_each(|d| see(d, Word, Writes));
            }
            Code::Load { from, bytes, to, .. } => {
                base(from, see);
                to.iter_mut().for_each(|d| see(d, of_bytes(*bytes), Writes));
            }
            Code::Store { to, bytes, from, .. } => {
                base(to, see);
                from.iter_mut().for_each(|a| see(a, of_bytes(*bytes), Reads));
            }
            Code::Atomic { at, before, by, other, .. } => {
                base(at, see);
                by.iter_mut().chain(other).for_each(|a| see(a, Word, Reads));
                before.iter_mut().for_each(|d| see(d, Word, Writes));
            }
            Code::Branch(_)
            | Code::Exit
            | Code::CopiesCommit
            | Code::CopiesWait(_)
            | Code::StoresCommit
            | Code::StoresWait(_)
            | Code::ClusterArrive
            | Code::ClusterWait
            | Code::ProductsCommit
            | Code::ProductsWait(_)
            | Code::FenceForEngines
            | Code::FenceThreads
            | Code::WaitForKernelBefore
            | Code::LetNextBegin
            | Code::Nothing => (),
            Code::Meet(meeting) => {
                see(&mut meeting.barrier, Word, Reads);
                meeting.threads.iter_mut().for_each(|a| see(a, Word, Reads));
                if let Some((count, of, _, d)) = &mut meeting.count {
                    see(of, Predicate, Reads);
                    see(d, if *count == Count::Population { Word } else { Predicate }, Writes);
                }
            }
            Code::MeetLanes(mask) => see(mask, Word, Reads),
            Code::Exchange(_, [d, a, b, c, mask], counts) => {
                visit_all(see, &mut [(a, Word), (b, Word), (c, Word), (mask, Word)], d, Word);
                counts.iter_mut().for_each(|p| see(p, Predicate, Writes));
            }
            Code::Vote(vote, d, of, _, mask) => {
                let class = if *vote == Vote::Ballot { Word } else { Predicate };
                visit_all(see, &mut [(of, Predicate), (mask, Word)], d, class);
            }
            Code::Greatest([d, a, mask]) => visit_all(see, &mut [(a, Word), (mask, Word)], d, Word),
            Code::Product(product) => {
                let Product { d, a, b, c, .. } = &mut **product;
                a.iter_mut().chain(b).chain(c).for_each(|slot| see(slot, Word, Reads));
                d.iter_mut().for_each(|slot| see(slot, Word, Writes));
            }
            Code::LoadMatrices(to, from, _) => {
                see(from, Word, Reads);
                to.iter_mut().for_each(|d| see(d, Word, Writes));
            }
            Code::StoreMatrices(from, to, _) => {
                see(to, Word, Reads);
                from.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::GroupProduct(product) => {
                let GroupProduct { d, left, right, adds, .. } = &mut **product;
                match left {
                    Left::Registers(a) => a.iter_mut().for_each(|slot| see(slot, Word, Reads)),
                    Left::Shared(description, _) => see(description, Double, Reads),
                }
                see(right, Double, Reads);
                see(adds, Predicate, Reads);
                d.iter_mut().for_each(|slot| see(slot, Word, Changes));
            }
            Code::Copy { to, from, there, .. } => {
                see(to, Word, Reads);
                see(from, Double, Reads);
                there.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BulkLoad([to, from, bytes, barrier]) => {
                see(from, Double, Reads);
                [to, bytes, barrier].into_iter().for_each(|a| see(a, Word, Reads));
            }
            Code::BoxLoad(load) => {
                see(&mut load.map, Double, Reads);
                let words = [&mut load.to, &mut load.barrier].into_iter().chain(&mut load.at);
                words.chain(&mut load.blocks).for_each(|a| see(a, Word, Reads));
            }
            Code::BoxStore(map, from, at) => {
                see(map, Double, Reads);
                see(from, Word, Reads);
                at.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BarrierBegin(barrier, count) => {
                see(barrier, Word, Reads);
                see(count, Word, Reads);
            }
            Code::BarrierArrive(barrier, bytes) => {
                see(barrier, Word, Reads);
                bytes.iter_mut().for_each(|a| see(a, Word, Reads));
            }
            Code::BarrierTest([d, barrier, parity]) => {
                visit_all(see, &mut [(barrier, Word), (parity, Word)], d, Predicate);
            }
            Code::Elsewhere([d, a, block]) => visit_all(see, &mut [(a, Word), (block, Word)], d, Word),
            Code::SharedAsGlobal([d, a]) | Code::GlobalAsShared([d, a]) => {
                visit_all(see, &mut [(a, Double)], d, Double);
            }
        }
    }

    /// Whether the warp may go on elsewhere than behind it.
    pub fn target(&self) -> Option<usize> {
        match self {
            Code::Branch(target) => Some(*target),
            _ => None,
        }
    }
}

fn visit_all(
    see: &mut dyn FnMut(&mut Slot, Class, Role),
    reads: &mut [(&mut Slot, Class)],
    d: &mut Slot,
    result: Class,
) {
    for (slot, class) in reads {
        see(slot, *class, Role::Reads);
    }
    see(d, result, Role::Writes);
}
