//! Statements that read and write memory.

use super::{
    Address, Change, Code, Slot, Space, Strength,
    translate::{Reading, Translator},
};
use crate::{
    arithmetic,
    error::Result,
    ptx::{Class, Operand},
};

/// How an access says where and what it is of.
struct Access {
    /// Parameters are apart.
    space: Place,
    bytes: usize,
    signed: bool,
    count: usize,
    /// Whether a policy comes last.
    has_policy: bool,
    strength: Strength,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Parameter,
    Shared,
    Anywhere,
}

impl Access {
    /// From the parts of a name behind its first.
    fn new(reading: &Reading<'_>) -> Result<Self> {
        let mut access = Access {
            space: Place::Anywhere,
            bytes: 0,
            signed: false,
            count: 1,
            has_policy: false,
            strength: Strength::Weak,
        };
        for part in &reading.parts[1..] {
            match *part {
                "param" => access.space = Place::Parameter,
                "shared" | "shared::cta" | "shared::cluster" => access.space = Place::Shared,
                "global" => access.space = Place::Anywhere,
                "v2" => access.count = 2,
                "v4" => access.count = 4,
                "L2::cache_hint" => access.has_policy = true,
                // How caches are to be used, and orders that this machine keeps by itself.
                "nc" | "ca" | "cg" | "cs" | "L1::no_allocate" | "weak" | "cta" | "cluster" | "gpu"
                | "sys" => (),
                "volatile" | "relaxed" => access.strength = Strength::Relaxed,
                "acquire" | "release" => access.strength = Strength::Ordered,
                "b8" | "u8" => access.bytes = 1,
                "s8" => (access.bytes, access.signed) = (1, true),
                "b16" | "u16" | "f16" | "bf16" => access.bytes = 2,
                "s16" => (access.bytes, access.signed) = (2, true),
                "b32" | "u32" | "s32" | "f32" => access.bytes = 4,
                "b64" | "u64" | "s64" | "f64" => access.bytes = 8,
                other => return Err(reading.wrong(format!("`{other}` is not known"))),
            }
        }
        if access.bytes == 0 {
            return Err(reading.wrong("no type"));
        }
        Ok(access)
    }

    fn class(&self) -> Class {
        if self.bytes == 8 { Class::Double } else { Class::Word }
    }
}

impl Translator<'_> {
    pub fn load(&mut self, reading: &Reading<'_>) -> Result<()> {
        let access = Access::new(reading)?;
        let mut to = Vec::new();
        // A short element may go to a double, which it then fills up.
        let mut widened = Vec::new();
        for operand in reading.list(0)? {
            if access.class() == Class::Word && self.is_double(reading, operand) {
                let word = self.fresh(Class::Word);
                widened.push((self.result(reading, operand, Class::Double)?, word));
                to.push(word);
            } else {
                to.push(self.result(reading, operand, access.class())?);
            }
        }
        self.load_to(reading, &access, to)?;
        for (double, word) in widened {
            let opcode = if access.signed { "cvt.s64.s32" } else { "cvt.u64.u32" };
            self.push_operation(reading, opcode, double, word)?;
        }
        Ok(())
    }

    fn load_to(&mut self, reading: &Reading<'_>, access: &Access, to: Vec<Slot>) -> Result<()> {
        if to.len() != access.count || reading.count() != 2 + usize::from(access.has_policy) {
            return Err(reading.wrong(format!("{} registers", to.len())));
        }
        let Operand::Place { base, offset, .. } = reading.operand(1)? else {
            return Err(reading.wrong("an address is expected"));
        };
        if access.space == Place::Parameter {
            let passed = match &**base {
                Operand::Passed(register) => Some(self.register(reading, *register, access.class())?),
                Operand::Name(name) => self.passed(reading, name).map(|register| register.0),
                _ => None,
            };
            if let Some(from) = passed {
                return self.copy_register(reading, access.class(), to[0], from);
            }
            if let Operand::Name(name) = &**base {
                let start =
                    self.parameter(name).ok_or_else(|| reading.wrong(format!("no parameter `{name}`")))?;
                for (index, d) in to.into_iter().enumerate() {
                    let offset = start + (*offset as usize) + index * access.bytes;
                    self.push(Code::Parameter { d, offset, bytes: access.bytes });
                }
                return Ok(());
            }
        }
        let from = self.address(reading, access, base, *offset)?;
        let Access { bytes, signed, strength, .. } = *access;
        let is_unordered = reading.statement.is_unordered;
        self.push(Code::Load { from, bytes, signed, strength, is_unordered, to });
        Ok(())
    }

    pub fn store(&mut self, reading: &Reading<'_>) -> Result<()> {
        let access = Access::new(reading)?;
        let mut from = Vec::new();
        for operand in reading.list(1)? {
            from.push(match access.class() {
                Class::Double => self.double(reading, operand)?,
                _ if self.is_double(reading, operand) => self.narrowed(reading, operand)?,
                _ => self.word(reading, operand)?,
            });
        }
        if from.len() != access.count || reading.count() != 2 + usize::from(access.has_policy) {
            return Err(reading.wrong(format!("{} registers", from.len())));
        }
        let Operand::Place { base, offset, .. } = reading.operand(0)? else {
            return Err(reading.wrong("an address is expected"));
        };
        if access.space == Place::Parameter {
            let to = match &**base {
                Operand::Passed(register) => self.register(reading, *register, access.class())?,
                Operand::Name(name) => match self.passed(reading, name) {
                    Some(register) => register.0,
                    None => return Err(reading.wrong(format!("no result `{name}`"))),
                },
                other => return Err(reading.wrong(format!("{other:?} is not passed"))),
            };
            return self.copy_register(reading, access.class(), to, from[0]);
        }
        let to = self.address(reading, &access, base, *offset)?;
        self.push(Code::Store { to, bytes: access.bytes, strength: access.strength, from });
        Ok(())
    }

    fn copy_register(&mut self, reading: &Reading<'_>, class: Class, to: Slot, from: Slot) -> Result<()> {
        let opcode = if class == Class::Double { "mov.b64" } else { "mov.b32" };
        self.push_operation(reading, opcode, to, from)
    }

    fn push_operation(&mut self, reading: &Reading<'_>, opcode: &str, to: Slot, from: Slot) -> Result<()> {
        let operation = arithmetic::operation(opcode).ok_or_else(|| reading.wrong(opcode))?;
        self.push(Code::Lanes(operation, to, [from, 0, 0]));
        Ok(())
    }

    /// The lower word of a double.
    fn narrowed(&mut self, reading: &Reading<'_>, operand: &Operand) -> Result<Slot> {
        let wide = self.double(reading, operand)?;
        let narrow = self.fresh(Class::Word);
        self.push_operation(reading, "cvt.u32.u64", narrow, wide)?;
        Ok(narrow)
    }

    fn address(
        &mut self,
        reading: &Reading<'_>,
        access: &Access,
        base: &Operand,
        offset: i64,
    ) -> Result<Address> {
        if let Operand::Name(name) = base {
            let place =
                self.shared_place(name).ok_or_else(|| reading.wrong(format!("`{name}` is not known")))?;
            return Ok(Address { space: Space::Shared, base: self.constant_word(place as u32), offset });
        }
        // The compiler may keep an address in shared memory in a double.
        if access.space == Place::Shared {
            let base = match self.is_double(reading, base) {
                true => self.narrowed(reading, base)?,
                false => self.word(reading, base)?,
            };
            return Ok(Address { space: Space::Shared, base, offset });
        }
        Ok(Address { space: Space::Global, base: self.double(reading, base)?, offset })
    }

    /// `atom.…` gives what was there, `red.…` does not.
    pub fn atomic(&mut self, reading: &Reading<'_>) -> Result<()> {
        let gives = reading.parts[0] == "atom";
        let (mut change, mut of, mut count, mut space) = (None, None, 1, Place::Anywhere);
        let mut strength = Strength::Relaxed;
        for part in &reading.parts[1..] {
            match *part {
                "shared" | "shared::cta" => space = Place::Shared,
                "global" | "relaxed" | "cta" | "gpu" | "sys" => (),
                "acquire" | "release" | "acq_rel" => strength = Strength::Ordered,
                "v2" => count = 2,
                "v4" => count = 4,
                "b32" | "u32" | "s32" | "f32" => of = Some(*part),
                "add" | "min" | "max" | "cas" | "exch" | "and" | "or" => change = Some(*part),
                other => return Err(reading.wrong(format!("`{other}` is not known"))),
            }
        }
        let change = match (change, of) {
            (Some("add"), Some("u32" | "s32")) => Change::Add,
            (Some("add"), Some("f32")) => Change::AddSingle,
            (Some("min"), Some("u32")) => Change::Min,
            (Some("min"), Some("s32")) => Change::MinSigned,
            (Some("max"), Some("u32")) => Change::Max,
            (Some("max"), Some("s32")) => Change::MaxSigned,
            (Some("cas"), Some("b32")) => Change::Swap,
            (Some("exch"), Some("b32")) => Change::Exchange,
            (Some("and"), Some("b32")) => Change::And,
            (Some("or"), Some("b32")) => Change::Or,
            _ => return Err(reading.wrong("this change")),
        };
        let first = usize::from(gives);
        let Operand::Place { base, offset, .. } = reading.operand(first)? else {
            return Err(reading.wrong("an address is expected"));
        };
        let access = Access { space, bytes: 4, signed: false, count, has_policy: false, strength };
        let at = self.address(reading, &access, base, *offset)?;
        let mut by = Vec::new();
        for operand in reading.list(first + 1)? {
            by.push(self.word(reading, operand)?);
        }
        let other = match change {
            Change::Swap => Some(self.word(reading, reading.operand(first + 2)?)?),
            _ => None,
        };
        if by.len() != count || reading.count() != first + 2 + usize::from(other.is_some()) {
            return Err(reading.wrong("its operands"));
        }
        let before = match reading.operand(0)? {
            operand if gives => Some(self.result(reading, operand, Class::Word)?),
            _ => None,
        };
        self.push(Code::Atomic { change, strength, at, before, by, other });
        Ok(())
    }
}
