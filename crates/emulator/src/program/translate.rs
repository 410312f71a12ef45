//! Statements into codes. Whatever a statement has that is not known here is an error: nothing is passed over.

use std::collections::HashMap;

use super::{
    Code, Count, Meeting, Product, Program, Registers, SHARED_BASE, SharedLayout, Shuffle, Slot, Special,
    Step, Vote, engines::element,
};
use crate::{
    arithmetic,
    error::Result,
    lanes::{ALL, LANES, Lanewise},
    ptx::{Class, Function, Label, Operand, Register, Source, Statement, Variable},
};

/// A kernel's program before its registers have places.
pub fn translate(source: &Source, function: &Function) -> Result<Program> {
    let (shared_at, shared) = lay_out_shared(source, function);
    let mut translator = Translator {
        source,
        classes: Vec::new(),
        steps: Vec::new(),
        statements: Vec::new(),
        words: Vec::new(),
        word_places: HashMap::new(),
        doubles: Vec::new(),
        double_places: HashMap::new(),
        shared_at,
        parameter_at: HashMap::new(),
    };
    let mut parameters = Vec::new();
    let mut end = 0usize;
    for Variable { name, bytes, alignment, .. } in &function.parameters {
        let offset = end.next_multiple_of(*alignment);
        end = offset + bytes;
        parameters.push((offset, *bytes));
        translator.parameter_at.insert(name.clone(), offset);
    }
    let frame = Frame { first_register: 0, passed: HashMap::new() };
    translator.function(function, &frame)?;
    // A kernel may end without saying so.
    let statement = translator.statements.len();
    translator.statements.push((0, "the end".into()));
    translator.steps.push(Step { guard: None, code: Code::Exit, statement });
    let lanes = |numbers: Vec<u32>| numbers.into_iter().map(|number| [number; LANES]).collect();
    Ok(Program {
        name: function.name.clone(),
        steps: translator.steps,
        statements: translator.statements,
        registers: Registers::default(),
        words: lanes(translator.words),
        doubles: translator.doubles.into_iter().map(|number| [number; LANES]).collect(),
        predicates: [0, ALL],
        parameters,
        shared,
        cluster: function.cluster,
        most_threads: function.most_threads,
    })
}

/// Where the variables in shared memory are that a kernel names. Those without a size begin behind all others.
fn lay_out_shared(source: &Source, function: &Function) -> (HashMap<String, usize>, SharedLayout) {
    let mut names = Vec::new();
    fn names_of<'a>(operand: &'a Operand, names: &mut Vec<&'a str>) {
        match operand {
            Operand::Name(name) => names.push(name),
            Operand::List(all) => all.iter().for_each(|operand| names_of(operand, names)),
            Operand::Place { base, coordinates, .. } => {
                names_of(base, names);
                coordinates.iter().for_each(|operand| names_of(operand, names));
            }
            _ => (),
        }
    }
    for operand in function.statements.iter().flat_map(|statement| &statement.operands) {
        names_of(operand, &mut names);
    }
    let is_used = |variable: &&Variable| names.contains(&variable.name.as_str());
    let used: Vec<&Variable> = function.shared.iter().chain(&source.shared).filter(is_used).collect();
    let mut places = HashMap::new();
    let mut end = SHARED_BASE;
    for variable in used.iter().filter(|variable| variable.bytes > 0) {
        end = end.next_multiple_of(variable.alignment);
        places.insert(variable.name.clone(), end);
        end += variable.bytes;
    }
    let own_bytes = end - SHARED_BASE;
    let open = used.iter().filter(|variable| variable.bytes == 0);
    let alignment = open.clone().map(|variable| variable.alignment).max().unwrap_or(1);
    let dynamic_at = end.next_multiple_of(alignment);
    places.extend(open.map(|variable| (variable.name.clone(), dynamic_at)));
    (places, SharedLayout { own_bytes, dynamic_at })
}

pub(super) struct Translator<'a> {
    pub source: &'a Source,
    /// Of all registers so far: a function that is called adds its own.
    pub classes: Vec<Class>,
    pub steps: Vec<Step>,
    pub statements: Vec<(u32, String)>,
    pub words: Vec<u32>,
    pub word_places: HashMap<u32, Slot>,
    pub doubles: Vec<u64>,
    pub double_places: HashMap<u64, Slot>,
    pub shared_at: HashMap<String, usize>,
    pub parameter_at: HashMap<String, usize>,
}

/// A function that is being translated, as it was called.
pub(super) struct Frame {
    /// What its registers are counted from.
    pub first_register: u32,
    /// Registers that hold what it is given and gives back, by name.
    pub passed: HashMap<String, Register>,
}

/// A statement being translated, with its name taken apart.
pub(super) struct Reading<'a> {
    pub statement: &'a Statement,
    /// What stands between dots.
    pub parts: Vec<&'a str>,
    pub frame: &'a Frame,
}

impl Translator<'_> {
    fn function(&mut self, function: &Function, frame: &Frame) -> Result<()> {
        self.classes.extend_from_slice(&function.classes);
        let mut begins = Vec::new();
        let mut branches = Vec::new();
        let mut returns = Vec::new();
        let is_called = frame.first_register > 0;
        for statement in &function.statements {
            begins.push(self.steps.len());
            let parts = statement.opcode.split('.').collect();
            let reading = Reading { statement, parts, frame };
            let first = self.steps.len();
            self.statements.push((statement.line, statement.opcode.clone()));
            match &reading.parts[..] {
                ["bra"] | ["bra", "uni"] => {
                    let Operand::Label(Label(target)) = *reading.operand(0)? else {
                        return Err(reading.wrong("a label is expected"));
                    };
                    branches.push((self.steps.len(), target));
                    self.push(Code::Branch(0));
                }
                ["ret"] | ["ret", "uni"] if is_called => {
                    returns.push(self.steps.len());
                    self.push(Code::Branch(0));
                }
                ["call"] | ["call", "uni"] => self.call(&reading)?,
                _ => self.statement(&reading)?,
            }
            if let Some((register, wanted)) = statement.guard {
                let guard = self.register(&reading, register, Class::Predicate)?;
                // Those of a function that is called may hang on predicates of their own.
                if reading.parts[0] == "call" {
                    return Err(reading.wrong("a call under a condition"));
                }
                self.steps[first..].iter_mut().for_each(|step| step.guard = Some((guard, wanted)));
            }
        }
        begins.push(self.steps.len());
        for (step, target) in branches {
            self.steps[step].code = Code::Branch(begins[target]);
        }
        for step in returns {
            self.steps[step].code = Code::Branch(self.steps.len());
        }
        Ok(())
    }

    /// A function's body in the place of its call.
    fn call(&mut self, reading: &Reading<'_>) -> Result<()> {
        let Operand::Name(name) = reading.operand(1)? else {
            return Err(reading.wrong("a call of no function, or without a result"));
        };
        let source = self.source;
        let function =
            source.functions.get(name).ok_or_else(|| reading.wrong(format!("no function `{name}`")))?;
        let mut passed = HashMap::new();
        let pairs = [(&function.results, 0), (&function.parameters, 2)];
        for (variables, index) in pairs {
            for (variable, operand) in variables.iter().zip(reading.list(index)?) {
                let Operand::Passed(Register(number)) = operand else {
                    return Err(reading.wrong(format!("{operand:?} is not passed")));
                };
                passed.insert(variable.name.clone(), Register(number + reading.frame.first_register));
            }
        }
        let frame = Frame { first_register: self.classes.len() as u32, passed };
        self.function(function, &frame)
    }

    pub fn push(&mut self, code: Code) {
        self.steps.push(Step { guard: None, code, statement: self.statements.len() - 1 });
    }

    // ---- Operands ----

    fn statement(&mut self, reading: &Reading<'_>) -> Result<()> {
        let code = match &reading.parts[..] {
            ["ret"] | ["exit"] => Code::Exit,
            ["ld", ..] => return self.load(reading),
            ["st", ..] => return self.store(reading),
            ["atom" | "red", ..] => return self.atomic(reading),
            ["mov", of] => self.mov(reading, of)?,
            ["setp", how, of] => {
                let operation =
                    arithmetic::comparison(how, of).ok_or_else(|| reading.wrong("this comparison"))?;
                return self.lanewise(reading, operation);
            }
            ["selp", of] => self.select(reading, of)?,
            [operation @ ("and" | "or" | "xor" | "not"), "pred"] => self.logic(reading, operation)?,
            ["bfi", of @ ("b32" | "b64")] => self.insert(reading, of)?,
            ["bar" | "barrier", ..] => self.meet(reading)?,
            ["shfl", "sync", how, "b32"] => self.shuffle(reading, how)?,
            ["vote", "sync", how, of] => self.vote(reading, how, of)?,
            ["redux", "sync", "max", "u32"] => {
                let [a, mask] = self.words(reading, &reading.statement.operands[1..])?;
                Code::Greatest([self.result(reading, reading.operand(0)?, Class::Word)?, a, mask])
            }
            ["mma", "sync", "aligned", "m16n8k16", "row", "col", "f32", left, right, "f32"]
                if left == right =>
            {
                let of = element(left).ok_or_else(|| reading.wrong("these elements"))?;
                Code::Product(Box::new(Product {
                    of,
                    d: self.result_words(reading, reading.list(0)?)?,
                    a: self.words(reading, reading.list(1)?)?,
                    b: self.words(reading, reading.list(2)?)?,
                    c: self.words(reading, reading.list(3)?)?,
                }))
            }
            ["wgmma", "mma_async", "sync", "aligned", shape, "f32", left, right] => {
                self.group_product(reading, shape, [left, right])?
            }
            ["ldmatrix", "sync", "aligned", "m8n8", "x4", rest @ ..] => {
                let turned = is_turned(reading, rest)?;
                let to = self.result_words(reading, reading.list(0)?)?;
                Code::LoadMatrices(to, self.place(reading, 1, Class::Word)?, turned)
            }
            ["stmatrix", "sync", "aligned", "m8n8", "x4", rest @ ..] => {
                let turned = is_turned(reading, rest)?;
                let from = self.words(reading, reading.list(1)?)?;
                Code::StoreMatrices(from, self.place(reading, 0, Class::Word)?, turned)
            }
            ["cp", "async", rest @ ..] => self.copy(reading, rest)?,
            ["mbarrier", rest @ ..] => self.barrier(reading, rest)?,
            ["mapa", "shared::cluster", "u32"] => {
                let [a, block] = self.words(reading, &reading.statement.operands[1..])?;
                Code::Elsewhere([self.result(reading, reading.operand(0)?, Class::Word)?, a, block])
            }
            ["cvta", "shared", "u64"] => {
                let a = self.double(reading, reading.operand(1)?)?;
                Code::SharedAsGlobal([self.result(reading, reading.operand(0)?, Class::Double)?, a])
            }
            ["cvta", "to", "shared", "u64"] => {
                let a = self.double(reading, reading.operand(1)?)?;
                Code::GlobalAsShared([self.result(reading, reading.operand(0)?, Class::Double)?, a])
            }
            // A policy is any number; nobody looks at it.
            ["createpolicy", "fractional", "L2::evict_first", "b64"] => {
                let policy = self.constant_double(0);
                let copy = arithmetic::operation("mov.b64").ok_or_else(|| reading.wrong("a copy"))?;
                let d = self.result(reading, reading.operand(0)?, Class::Double)?;
                Code::Lanes(copy, d, [policy, 0, 0])
            }
            ["wgmma", "commit_group", "sync", "aligned"] => Code::ProductsCommit,
            ["wgmma", "wait_group", "sync", "aligned"] => Code::ProductsWait(reading.number(0)? as usize),
            ["fence", "proxy", "async", ..] => Code::FenceForEngines,
            ["nanosleep", "u32"] => Code::Nothing,
            ["griddepcontrol", "wait"] => Code::WaitForKernelBefore,
            ["griddepcontrol", "launch_dependents"] => Code::LetNextBegin,
            // The machine keeps the order of a program, and has all registers.
            ["fence", "acq_rel" | "sc" | "release" | "acquire", ..] | ["membar", ..] => Code::FenceThreads,
            ["fence", "mbarrier_init", ..]
            | ["prefetch" | "setmaxnreg", ..]
            | ["wgmma", "fence", "sync", "aligned"] => Code::Nothing,
            _ => {
                let operation = arithmetic::operation(&reading.statement.opcode)
                    .ok_or_else(|| reading.wrong("the machine has no such instruction"))?;
                return self.lanewise(reading, operation);
            }
        };
        self.push(code);
        Ok(())
    }

    fn lanewise(&mut self, reading: &Reading<'_>, operation: Lanewise) -> Result<()> {
        let (result, classes) = operation.classes();
        if reading.count() != classes.len() + 1 {
            return Err(reading.wrong(format!("{} operands", reading.count())));
        }
        let d = self.result(reading, reading.operand(0)?, result)?;
        let mut from = [0; 3];
        for (index, class) in classes.iter().enumerate() {
            let operand = reading.operand(index + 1)?;
            from[index] = match class {
                Class::Word => self.word(reading, operand)?,
                _ => self.double(reading, operand)?,
            };
        }
        self.push(Code::Lanes(operation, d, from));
        Ok(())
    }

    fn mov(&mut self, reading: &Reading<'_>, of: &str) -> Result<Code> {
        let (to, from) = (reading.operand(0)?, reading.operand(1)?);
        let parts = |translator: &Self, all: &[Operand]| -> Result<[Option<Slot>; 2]> {
            let [low, high] = all else { return Err(reading.wrong("two parts are expected")) };
            let part = |operand: &Operand| match operand {
                Operand::Nobody => Ok(None),
                operand => translator.result(reading, operand, Class::Word).map(Some),
            };
            Ok([part(low)?, part(high)?])
        };
        Ok(match (of, to, from) {
            ("b64", Operand::List(all), _) => Code::Unpack(self.double(reading, from)?, parts(self, all)?),
            ("b32", Operand::List(all), _) => {
                Code::UnpackHalves(self.word(reading, from)?, parts(self, all)?)
            }
            ("b64", _, Operand::List(all)) => {
                let [low, high] = self.words(reading, all)?;
                Code::Pack([self.result(reading, to, Class::Double)?, low, high])
            }
            ("b32", _, Operand::List(all)) => {
                let [low, high] = self.words(reading, all)?;
                Code::PackHalves([self.result(reading, to, Class::Word)?, low, high])
            }
            ("pred", _, _) => {
                let a = self.plain_predicate(reading, from)?;
                Code::Logic(|a, _| a, [self.result(reading, to, Class::Predicate)?, a, a])
            }
            (_, _, Operand::Name(name)) if name.starts_with('%') => {
                let special = special(name).ok_or_else(|| reading.wrong(format!("`{name}`")))?;
                let class = if special == Special::Clock { Class::Double } else { Class::Word };
                Code::Special(special, self.result(reading, to, class)?)
            }
            ("b64" | "u64", _, Operand::Name(name)) if self.parameter(name).is_some() => {
                let place = self.parameter(name).unwrap_or_default();
                Code::ParameterAddress(self.result(reading, to, Class::Double)?, place)
            }
            _ => {
                let copy = arithmetic::operation(&reading.statement.opcode)
                    .ok_or_else(|| reading.wrong("this type"))?;
                self.lanewise(reading, copy)?;
                return self.steps.pop().map(|step| step.code).ok_or_else(|| reading.wrong("nothing"));
            }
        })
    }

    fn select(&mut self, reading: &Reading<'_>, of: &str) -> Result<Code> {
        let by = self.plain_predicate(reading, reading.operand(3)?)?;
        let (a, b) = (reading.operand(1)?, reading.operand(2)?);
        Ok(match of {
            "b64" | "u64" | "s64" | "f64" => {
                let (a, b) = (self.double(reading, a)?, self.double(reading, b)?);
                Code::SelectDouble([self.result(reading, reading.operand(0)?, Class::Double)?, a, b, by])
            }
            "b32" | "u32" | "s32" | "f32" | "b16" | "u16" | "s16" => {
                let (a, b) = (self.word(reading, a)?, self.word(reading, b)?);
                Code::SelectWord([self.result(reading, reading.operand(0)?, Class::Word)?, a, b, by])
            }
            _ => return Err(reading.wrong("this type")),
        })
    }

    fn logic(&mut self, reading: &Reading<'_>, operation: &str) -> Result<Code> {
        let d = self.result(reading, reading.operand(0)?, Class::Predicate)?;
        let a = self.plain_predicate(reading, reading.operand(1)?)?;
        let function: fn(u32, u32) -> u32 = match operation {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            "xor" => |a, b| a ^ b,
            _ => return Ok(Code::Logic(|a, _| !a, [d, a, a])),
        };
        Ok(Code::Logic(function, [d, a, self.plain_predicate(reading, reading.operand(2)?)?]))
    }

    fn insert(&mut self, reading: &Reading<'_>, of: &str) -> Result<Code> {
        let [at, count] = self.words(reading, &reading.statement.operands[3..])?;
        let (from, into) = (reading.operand(1)?, reading.operand(2)?);
        Ok(if of == "b64" {
            let (from, into) = (self.double(reading, from)?, self.double(reading, into)?);
            let d = self.result(reading, reading.operand(0)?, Class::Double)?;
            Code::InsertDouble([d, from, into, at, count])
        } else {
            let (from, into) = (self.word(reading, from)?, self.word(reading, into)?);
            Code::InsertWord([self.result(reading, reading.operand(0)?, Class::Word)?, from, into, at, count])
        })
    }

    /// Barriers of a block, a warp and a cluster.
    fn meet(&mut self, reading: &Reading<'_>) -> Result<Code> {
        let mut meeting = Meeting { barrier: 0, threads: None, only_arrives: false, count: None };
        match &reading.parts[1..] {
            ["warp", "sync"] => return Ok(Code::MeetLanes(self.word(reading, reading.operand(0)?)?)),
            ["cluster", "arrive", "release" | "relaxed", "aligned"] | ["cluster", "arrive", "aligned"] => {
                return Ok(Code::ClusterArrive);
            }
            ["cluster", "wait", "acquire", "aligned"] | ["cluster", "wait", "aligned"] => {
                return Ok(Code::ClusterWait);
            }
            [how @ ("sync" | "arrive")] | [how @ ("sync" | "arrive"), "aligned"] => {
                meeting.only_arrives = *how == "arrive";
                meeting.barrier = self.word(reading, reading.operand(0)?)?;
                if reading.count() > 1 {
                    meeting.threads = Some(self.word(reading, reading.operand(1)?)?);
                }
            }
            ["red", how, of] | ["red", how, "aligned", of] => {
                let count = match (*how, *of) {
                    ("popc", "u32") => Count::Population,
                    ("or", "pred") => Count::Or,
                    ("and", "pred") => Count::And,
                    _ => return Err(reading.wrong("what is found out")),
                };
                let class = if count == Count::Population { Class::Word } else { Class::Predicate };
                let d = self.result(reading, reading.operand(0)?, class)?;
                meeting.barrier = self.word(reading, reading.operand(1)?)?;
                let last = reading.count() - 1;
                if last == 3 {
                    meeting.threads = Some(self.word(reading, reading.operand(2)?)?);
                }
                let (of, opposite) = self.predicate(reading, reading.operand(last)?)?;
                meeting.count = Some((count, of, opposite, d));
            }
            _ => return Err(reading.wrong("this barrier")),
        }
        Ok(Code::Meet(Box::new(meeting)))
    }

    fn shuffle(&mut self, reading: &Reading<'_>, how: &str) -> Result<Code> {
        let shuffle = match how {
            "bfly" => Shuffle::Butterfly,
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "idx" => Shuffle::Index,
            _ => return Err(reading.wrong("this way")),
        };
        let (d, counts) = match reading.operand(0)? {
            Operand::Pair(pair) => (&pair[0], Some(self.result(reading, &pair[1], Class::Predicate)?)),
            single => (single, None),
        };
        let d = self.result(reading, d, Class::Word)?;
        let [a, b, c, mask] = self.words(reading, &reading.statement.operands[1..])?;
        Ok(Code::Exchange(shuffle, [d, a, b, c, mask], counts))
    }

    fn vote(&mut self, reading: &Reading<'_>, how: &str, of: &str) -> Result<Code> {
        let (vote, class) = match (how, of) {
            ("ballot", "b32") => (Vote::Ballot, Class::Word),
            ("any", "pred") => (Vote::Any, Class::Predicate),
            ("all", "pred") => (Vote::All, Class::Predicate),
            _ => return Err(reading.wrong("this vote")),
        };
        let d = self.result(reading, reading.operand(0)?, class)?;
        let (predicate, opposite) = self.predicate(reading, reading.operand(1)?)?;
        Ok(Code::Vote(vote, d, predicate, opposite, self.word(reading, reading.operand(2)?)?))
    }
}

fn is_turned(reading: &Reading<'_>, rest: &[&str]) -> Result<bool> {
    match rest {
        ["shared", "b16"] => Ok(false),
        ["trans", "shared", "b16"] => Ok(true),
        _ => Err(reading.wrong("these matrices")),
    }
}

fn special(name: &str) -> Option<Special> {
    let (stem, direction) = name.split_once('.').unwrap_or((name, ""));
    let direction = || ["x", "y", "z"].iter().position(|&of| of == direction);
    Some(match stem {
        "%tid" => Special::Thread(direction()?),
        "%ntid" => Special::Threads(direction()?),
        "%ctaid" => Special::Block(direction()?),
        "%nctaid" => Special::Blocks(direction()?),
        "%cluster_ctarank" => Special::RankInCluster,
        "%cluster_nctarank" => Special::BlocksOfCluster,
        "%laneid" => Special::Lane,
        "%globaltimer" | "%clock64" => Special::Clock,
        _ => return None,
    })
}
