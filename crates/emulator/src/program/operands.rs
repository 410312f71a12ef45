//! What a statement is given: registers, constants and places.

use super::{
    CONSTANT, Slot,
    translate::{Reading, Translator},
};
use crate::{
    error::{Error, Result},
    ptx::{Class, Operand, Register},
};

impl Reading<'_> {
    pub fn operand(&self, index: usize) -> Result<&Operand> {
        self.statement.operands.get(index).ok_or_else(|| self.wrong(format!("no operand {index}")))
    }

    pub fn wrong(&self, detail: impl Into<String>) -> Error {
        Error::Instruction {
            line: self.statement.line,
            statement: self.statement.opcode.clone(),
            detail: detail.into(),
        }
    }

    pub fn count(&self) -> usize {
        self.statement.operands.len()
    }

    /// A number that stands in the code.
    pub fn number(&self, index: usize) -> Result<u64> {
        match self.operand(index)? {
            Operand::Integer(number) => Ok(*number),
            other => Err(self.wrong(format!("a number is expected, not {other:?}"))),
        }
    }

    pub fn list(&self, index: usize) -> Result<&[Operand]> {
        match self.operand(index)? {
            Operand::List(all) => Ok(all),
            single => Ok(std::slice::from_ref(single)),
        }
    }
}

impl Translator<'_> {
    pub fn register(&self, reading: &Reading<'_>, register: Register, class: Class) -> Result<Slot> {
        let slot = register.0 + reading.frame.first_register;
        if self.classes[slot as usize] == class {
            return Ok(slot);
        }
        Err(reading
            .wrong(format!("a register of {:?} where {class:?} is expected", self.classes[slot as usize])))
    }

    /// Whether an operand is a register of 64 bits.
    pub fn is_double(&self, reading: &Reading<'_>, operand: &Operand) -> bool {
        match operand {
            Operand::Register(Register(number)) | Operand::Passed(Register(number)) => {
                self.classes[(number + reading.frame.first_register) as usize] == Class::Double
            }
            _ => false,
        }
    }

    pub fn result(&self, reading: &Reading<'_>, operand: &Operand, class: Class) -> Result<Slot> {
        match operand {
            Operand::Register(register) => self.register(reading, *register, class),
            Operand::Passed(register) => self.register(reading, *register, class),
            other => Err(reading.wrong(format!("a register is expected, not {other:?}"))),
        }
    }

    /// The register behind what a call is given, seen from the function that is called.
    pub fn passed(&self, reading: &Reading<'_>, name: &str) -> Option<Register> {
        reading.frame.passed.get(name).copied()
    }

    pub fn word(&mut self, reading: &Reading<'_>, operand: &Operand) -> Result<Slot> {
        match operand {
            Operand::Register(register) => self.register(reading, *register, Class::Word),
            Operand::Integer(number) => Ok(self.constant_word(*number as u32)),
            Operand::Single(bits) => Ok(self.constant_word(*bits)),
            Operand::Name(name) => match self.shared_at.get(name) {
                Some(&place) => Ok(self.constant_word(place as u32)),
                None => Err(reading.wrong(format!("`{name}` is not known"))),
            },
            other => Err(reading.wrong(format!("a word is expected, not {other:?}"))),
        }
    }

    pub fn double(&mut self, reading: &Reading<'_>, operand: &Operand) -> Result<Slot> {
        match operand {
            Operand::Register(register) => self.register(reading, *register, Class::Double),
            Operand::Integer(number) | Operand::Double(number) => Ok(self.constant_double(*number)),
            Operand::Name(name) => match self.shared_at.get(name) {
                Some(&place) => Ok(self.constant_double(place as u64)),
                None => Err(reading.wrong(format!("`{name}` is not known"))),
            },
            other => Err(reading.wrong(format!("a double is expected, not {other:?}"))),
        }
    }

    /// A predicate, and whether its opposite is meant.
    pub fn predicate(&mut self, reading: &Reading<'_>, operand: &Operand) -> Result<(Slot, bool)> {
        match operand {
            Operand::Register(register) => Ok((self.register(reading, *register, Class::Predicate)?, false)),
            Operand::Not(register) => Ok((self.register(reading, *register, Class::Predicate)?, true)),
            Operand::Integer(number) => Ok((CONSTANT | Slot::from(*number != 0), false)),
            other => Err(reading.wrong(format!("a predicate is expected, not {other:?}"))),
        }
    }

    pub fn plain_predicate(&mut self, reading: &Reading<'_>, operand: &Operand) -> Result<Slot> {
        match self.predicate(reading, operand)? {
            (slot, false) => Ok(slot),
            (_, true) => Err(reading.wrong("the opposite of a predicate")),
        }
    }

    pub fn constant_word(&mut self, number: u32) -> Slot {
        let words = &mut self.words;
        *self.word_places.entry(number).or_insert_with(|| {
            words.push(number);
            CONSTANT | (words.len() - 1) as Slot
        })
    }

    pub fn constant_double(&mut self, number: u64) -> Slot {
        let doubles = &mut self.doubles;
        *self.double_places.entry(number).or_insert_with(|| {
            doubles.push(number);
            CONSTANT | (doubles.len() - 1) as Slot
        })
    }

    /// A register that no statement names.
    pub fn fresh(&mut self, class: Class) -> Slot {
        self.classes.push(class);
        (self.classes.len() - 1) as Slot
    }

    pub fn parameter(&self, name: &str) -> Option<usize> {
        self.parameter_at.get(name).copied()
    }

    pub fn shared_place(&self, name: &str) -> Option<usize> {
        self.shared_at.get(name).copied()
    }

    /// The register of an address in brackets without an offset.
    pub fn place(&mut self, reading: &Reading<'_>, index: usize, class: Class) -> Result<Slot> {
        match reading.operand(index)? {
            Operand::Place { base, offset: 0, coordinates } if coordinates.is_empty() => match class {
                Class::Word => self.word(reading, base),
                _ => self.double(reading, base),
            },
            other => Err(reading.wrong(format!("a plain address is expected, not {other:?}"))),
        }
    }

    pub fn words<const N: usize>(
        &mut self,
        reading: &Reading<'_>,
        operands: &[Operand],
    ) -> Result<[Slot; N]> {
        let slots: Result<Vec<Slot>> = operands.iter().map(|operand| self.word(reading, operand)).collect();
        slots?.try_into().map_err(|_| reading.wrong(format!("{N} registers are expected")))
    }

    pub fn result_words<const N: usize>(
        &self,
        reading: &Reading<'_>,
        operands: &[Operand],
    ) -> Result<[Slot; N]> {
        let slot = |operand| self.result(reading, operand, Class::Word);
        let slots: Result<Vec<Slot>> = operands.iter().map(slot).collect();
        slots?.try_into().map_err(|_| reading.wrong(format!("{N} registers are expected")))
    }

    // ---- Statements ----
}
