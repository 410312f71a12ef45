//! Statements that others than the warp carry out: products of warpgroups, the copy engine, and barriers that it counts at.

use super::{
    BoxLoad, Code, Element, GroupProduct, Left, Slot,
    translate::{Reading, Translator},
};
use crate::{
    error::Result,
    ptx::{Class, Operand},
};

impl Translator<'_> {
    /// `d, a, b, adds, 1, 1` and behind them, for halves, whether factors lie the other way round.
    pub fn group_product(&mut self, reading: &Reading<'_>, shape: &str, of: [&str; 2]) -> Result<Code> {
        let elements = of.map(element);
        let [Some(left_of), Some(right_of)] = elements else { return Err(reading.wrong("these elements")) };
        let is_half = matches!(left_of, Element::F16 | Element::Bf16);
        let terms = if is_half { "k16" } else { "k32" };
        let columns = shape.strip_prefix("m64n").and_then(|rest| rest.strip_suffix(terms));
        let columns: usize =
            columns.and_then(|n| n.parse().ok()).ok_or_else(|| reading.wrong("this shape"))?;
        let slot = |operand| self.result(reading, operand, Class::Word);
        let d: Result<Vec<Slot>> = reading.list(0)?.iter().map(slot).collect();
        let d = d?;
        if d.len() != columns / 2 || !columns.is_multiple_of(8) {
            return Err(reading.wrong(format!("{} sums of {columns} columns", d.len())));
        }
        let in_registers = matches!(reading.operand(1)?, Operand::List(_));
        let mut turns =
            (6..reading.count()).map(|index| reading.number(index)).collect::<Result<Vec<_>>>()?;
        let expected = match (is_half, in_registers) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        };
        if turns.len() != expected || reading.number(4)? != 1 || reading.number(5)? != 1 {
            return Err(reading.wrong("these factors"));
        }
        let right_turned = turns.pop().is_some_and(|turn| turn == 1);
        let left_turned = turns.pop().is_some_and(|turn| turn == 1);
        let left = if in_registers {
            Left::Registers(self.words(reading, reading.list(1)?)?)
        } else {
            Left::Shared(self.double(reading, reading.operand(1)?)?, left_turned)
        };
        Ok(Code::GroupProduct(Box::new(GroupProduct {
            of: [left_of, right_of],
            columns,
            d,
            left,
            right: self.double(reading, reading.operand(2)?)?,
            right_turned,
            adds: self.plain_predicate(reading, reading.operand(3)?)?,
        })))
    }

    /// Copies that go on while the thread does.
    pub fn copy(&mut self, reading: &Reading<'_>, rest: &[&str]) -> Result<Code> {
        const BY_BARRIER: [&str; 3] = ["global", "mbarrier::complete_tx::bytes", "L2::cache_hint"];
        Ok(match rest {
            ["commit_group"] => Code::CopiesCommit,
            ["wait_group"] => Code::CopiesWait(reading.number(0)? as usize),
            ["wait_all"] => Code::CopiesWait(0),
            ["cg" | "ca", "shared", "global"] => {
                let there = match reading.count() {
                    3 => None,
                    _ => Some(self.word(reading, reading.operand(3)?)?),
                };
                let (to, from) =
                    (self.place(reading, 0, Class::Word)?, self.place(reading, 1, Class::Double)?);
                Code::Copy { to, from, bytes: reading.number(2)? as usize, there }
            }
            ["bulk", "prefetch", "L2", "global"] => Code::Nothing,
            ["bulk", "commit_group"] => Code::StoresCommit,
            ["bulk", "wait_group"] | ["bulk", "wait_group", "read"] => {
                Code::StoresWait(reading.number(0)? as usize)
            }
            ["bulk", "shared::cluster", how @ ..] if BY_BARRIER.starts_with(how) && how.len() > 1 => {
                let (to, from) =
                    (self.place(reading, 0, Class::Word)?, self.place(reading, 1, Class::Double)?);
                let bytes = self.word(reading, reading.operand(2)?)?;
                Code::BulkLoad([to, from, bytes, self.place(reading, 3, Class::Word)?])
            }
            [
                "bulk",
                "tensor",
                dimensions,
                "shared::cluster",
                "global",
                "tile",
                "mbarrier::complete_tx::bytes",
                how @ ..,
            ] => {
                let is_for_all = match how {
                    [] | ["L2::cache_hint"] => false,
                    ["multicast::cluster"] => true,
                    _ => return Err(reading.wrong("this copy")),
                };
                let (map, at) = self.tensor_place(reading, 1, dimensions)?;
                let blocks = if is_for_all { Some(self.word(reading, reading.operand(3)?)?) } else { None };
                let (to, barrier) =
                    (self.place(reading, 0, Class::Word)?, self.place(reading, 2, Class::Word)?);
                Code::BoxLoad(Box::new(BoxLoad { to, map, at, barrier, blocks }))
            }
            ["bulk", "tensor", dimensions, "global", "shared::cta", "bulk_group"] => {
                let (map, at) = self.tensor_place(reading, 0, dimensions)?;
                Code::BoxStore(map, self.place(reading, 1, Class::Word)?, at)
            }
            _ => return Err(reading.wrong("this copy")),
        })
    }

    fn tensor_place(
        &mut self,
        reading: &Reading<'_>,
        index: usize,
        dimensions: &str,
    ) -> Result<(Slot, Vec<Slot>)> {
        let Operand::Place { base, offset: 0, coordinates } = reading.operand(index)? else {
            return Err(reading.wrong("a tensor's place is expected"));
        };
        if format!("{}d", coordinates.len()) != dimensions {
            return Err(reading.wrong(format!("{} coordinates", coordinates.len())));
        }
        let at: Result<Vec<Slot>> = coordinates.iter().map(|operand| self.word(reading, operand)).collect();
        Ok((self.double(reading, base)?, at?))
    }

    /// Barriers in shared memory.
    pub fn barrier(&mut self, reading: &Reading<'_>, rest: &[&str]) -> Result<Code> {
        Ok(match rest {
            ["init", "shared::cta", "b64"] => {
                let barrier = self.place(reading, 0, Class::Word)?;
                Code::BarrierBegin(barrier, self.word(reading, reading.operand(1)?)?)
            }
            ["arrive", "expect_tx", "shared::cta", "b64"] => {
                let barrier = self.place(reading, 1, Class::Word)?;
                Code::BarrierArrive(barrier, Some(self.word(reading, reading.operand(2)?)?))
            }
            ["arrive", "shared::cta" | "shared::cluster", "b64"] if reading.count() == 2 => {
                Code::BarrierArrive(self.place(reading, 1, Class::Word)?, None)
            }
            ["try_wait" | "test_wait", "parity", "shared::cta", "b64"] => {
                let barrier = self.place(reading, 1, Class::Word)?;
                let parity = self.word(reading, reading.operand(2)?)?;
                Code::BarrierTest([
                    self.result(reading, reading.operand(0)?, Class::Predicate)?,
                    barrier,
                    parity,
                ])
            }
            _ => return Err(reading.wrong("this barrier")),
        })
    }
}

pub fn element(name: &str) -> Option<Element> {
    Some(match name {
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "e4m3" => Element::E4m3,
        "e5m2" => Element::E5m2,
        _ => return None,
    })
}
