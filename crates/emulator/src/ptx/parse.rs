//! From pieces of text to functions and variables.

use std::collections::{HashMap, HashSet};

use super::{
    Class, Function, Label, Operand, Register, Source, Statement, Variable,
    tokens::{Token, tokens},
};
use crate::error::{Error, Result};

/// Reads a file as the compiler writes it.
pub fn parse(text: &str) -> Result<Source> {
    let is_unordered = |(index, line): (usize, &str)| line.ends_with(UNORDERED).then_some(index as u32 + 1);
    let unordered = text.lines().enumerate().filter_map(is_unordered).collect();
    let mut parser = Parser { tokens: tokens(text), at: 0, unordered };
    let mut source = Source::default();
    while parser.at < parser.tokens.len() {
        parser.top_level(&mut source)?;
    }
    Ok(source)
}

/// The comment behind an instruction that may read what others write meanwhile.
const UNORDERED: &str = "// unordered";

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    /// Lines with that comment.
    unordered: HashSet<u32>,
}

/// Names between a pair of braces.
struct Scope<'a> {
    parent: usize,
    registers: HashMap<&'a str, Operand>,
    /// Registers that are declared by the dozen: what their names begin with, how many, and the first.
    ranges: Vec<(&'a str, u32, u32)>,
    labels: HashMap<&'a str, Label>,
}

/// A function as far as it was read.
struct Body<'a> {
    function: Function,
    scopes: Vec<Scope<'a>>,
    scope: usize,
    /// Branches whose label may come later: the statement and the scope that it stands in.
    branches: Vec<(usize, usize)>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| *token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at.min(self.tokens.len().saturating_sub(1))).map_or(0, |(_, line)| *line)
    }

    fn next(&mut self) -> Result<Token<'a>> {
        let token = self.peek().ok_or_else(|| self.wrong("the text ends too early"))?;
        self.at += 1;
        Ok(token)
    }

    fn wrong(&self, detail: impl Into<String>) -> Error {
        Error::Text { line: self.line(), detail: detail.into() }
    }

    fn takes(&mut self, token: Token<'_>) -> bool {
        let is_next = self.peek() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    fn takes_mark(&mut self, mark: char) -> bool {
        self.takes(Token::Mark(mark))
    }

    fn expect(&mut self, mark: char) -> Result<()> {
        if self.takes_mark(mark) {
            return Ok(());
        }
        Err(self.wrong(format!("`{mark}` is expected, not {:?}", self.peek())))
    }

    fn word(&mut self) -> Result<&'a str> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(self.wrong(format!("a name is expected, not {other:?}"))),
        }
    }

    fn count(&mut self) -> Result<usize> {
        let negative = self.takes_mark('-');
        match self.next()? {
            Token::Number(text) if !negative => {
                text.parse().map_err(|_| self.wrong(format!("{text} is not a count")))
            }
            other => Err(self.wrong(format!("a count is expected, not {other:?}"))),
        }
    }

    fn top_level(&mut self, source: &mut Source) -> Result<()> {
        let mut is_entry = false;
        loop {
            match self.word()? {
                ".version" => return self.next().map(drop),
                ".address_size" => return self.next().map(drop),
                ".target" => {
                    self.word()?;
                    while self.takes_mark(',') {
                        self.word()?;
                    }
                    return Ok(());
                }
                ".visible" | ".weak" | ".extern" => (),
                ".shared" => {
                    source.shared.push(self.variable()?);
                    return self.expect(';');
                }
                ".global" | ".const" => {
                    source.global.push(self.variable()?);
                    return self.expect(';');
                }
                kind @ (".entry" | ".func") => {
                    is_entry |= kind == ".entry";
                    if let Some(function) = self.function(is_entry)? {
                        source.functions.insert(function.name.clone(), function);
                    }
                    return Ok(());
                }
                other => return Err(self.wrong(format!("`{other}` is not known"))),
            }
        }
    }

    /// What stands behind the space of a variable: `.align 4 .b8 name[16] = {…}`.
    fn variable(&mut self) -> Result<Variable> {
        let mut alignment = None;
        let mut element = self.word()?;
        if element == ".align" {
            alignment = Some(self.count()?);
            element = self.word()?;
        }
        let element_bytes = type_bytes(element).ok_or_else(|| self.wrong(format!("the type `{element}`")))?;
        let name = self.word()?.to_string();
        let mut bytes = element_bytes;
        if self.takes_mark('[') {
            bytes = 0;
            if !self.takes_mark(']') {
                bytes = element_bytes * self.count()?;
                self.expect(']')?;
            }
        }
        let mut content = Vec::new();
        if self.takes_mark('=') {
            let is_list = self.takes_mark('{');
            loop {
                let number = match self.operand_number()? {
                    Operand::Integer(bits) | Operand::Double(bits) => bits,
                    Operand::Single(bits) => bits.into(),
                    _ => return Err(self.wrong("an address in a variable")),
                };
                content.extend_from_slice(&number.to_le_bytes()[..element_bytes]);
                if !is_list || !self.takes_mark(',') {
                    break;
                }
            }
            if is_list {
                self.expect('}')?;
            }
        }
        Ok(Variable { name, alignment: alignment.unwrap_or(element_bytes), bytes, content })
    }

    fn variables_in_parentheses(&mut self) -> Result<Vec<Variable>> {
        let mut variables = Vec::new();
        if !self.takes_mark('(') {
            return Ok(variables);
        }
        while !self.takes_mark(')') {
            let space = self.word()?;
            if space != ".param" {
                return Err(self.wrong(format!("`{space}` among parameters")));
            }
            variables.push(self.variable()?);
            self.takes_mark(',');
        }
        Ok(variables)
    }

    /// A function, or nothing for one that is only announced.
    fn function(&mut self, is_entry: bool) -> Result<Option<Function>> {
        let results = if is_entry { Vec::new() } else { self.variables_in_parentheses()? };
        let name = self.word()?.to_string();
        let parameters = self.variables_in_parentheses()?;
        let mut function = Function { name, is_entry, parameters, results, ..Function::default() };
        while let Some(Token::Word(directive)) = self.peek() {
            self.at += 1;
            let mut numbers = Vec::new();
            while let Some(Token::Number(_)) = self.peek() {
                numbers.push(self.count()? as u32);
                self.takes_mark(',');
            }
            match directive {
                ".maxntid" | ".reqntid" => function.most_threads = Some(numbers.iter().product()),
                ".reqnctapercluster" => function.cluster = Some(numbers.iter().product()),
                ".minnctapersm" | ".explicitcluster" | ".maxnreg" => (),
                other => return Err(self.wrong(format!("`{other}` is not known"))),
            }
        }
        if self.takes_mark(';') {
            return Ok(None);
        }
        self.expect('{')?;
        self.body(function).map(Some)
    }

    fn body(&mut self, function: Function) -> Result<Function> {
        let mut body = Body { function, scopes: Vec::new(), scope: 0, branches: Vec::new() };
        body.open();
        let mut depth = 1;
        while depth > 0 {
            match self.peek() {
                Some(Token::Mark('{')) => {
                    self.at += 1;
                    depth += 1;
                    body.open();
                }
                Some(Token::Mark('}')) => {
                    self.at += 1;
                    depth -= 1;
                    body.scope = body.scopes[body.scope].parent;
                }
                Some(Token::Word(".reg")) => self.registers(&mut body)?,
                Some(Token::Word(".shared")) => {
                    self.at += 1;
                    let variable = self.variable()?;
                    body.function.shared.push(variable);
                    self.expect(';')?;
                }
                Some(Token::Word(".param")) => {
                    self.at += 1;
                    let Variable { name, bytes, .. } = self.variable()?;
                    let class = if bytes == 8 { Class::Double } else { Class::Word };
                    let register = body.register(class);
                    // The text outlives the body; the variable's own copy of its name does not.
                    let name = self.name_before(&name)?;
                    body.scopes[body.scope].registers.insert(name, Operand::Passed(register));
                    self.expect(';')?;
                }
                Some(Token::Word(".pragma")) => {
                    while !self.takes_mark(';') {
                        self.next()?;
                    }
                }
                Some(Token::Word(label))
                    if self.tokens.get(self.at + 1).map(|t| t.0) == Some(Token::Mark(':')) =>
                {
                    self.at += 2;
                    let here = Label(body.function.statements.len());
                    body.scopes[body.scope].labels.insert(label, here);
                }
                _ => self.statement(&mut body)?,
            }
        }
        for (statement, scope) in std::mem::take(&mut body.branches) {
            let Some(Operand::Name(name)) = body.function.statements[statement].operands.first() else {
                return Err(self.wrong("a branch without a label"));
            };
            let label = body.label(scope, name).ok_or_else(|| self.wrong(format!("no label `{name}`")))?;
            body.function.statements[statement].operands[0] = Operand::Label(label);
        }
        Ok(body.function)
    }

    /// The name that was just read, as it stands in the text.
    fn name_before(&self, name: &str) -> Result<&'a str> {
        match self.tokens[..self.at].iter().rev().find(|(token, _)| *token == Token::Word(name)) {
            Some((Token::Word(word), _)) => Ok(word),
            _ => Err(self.wrong(format!("`{name}` has no name"))),
        }
    }

    /// `.reg .f32 %f<12>, other;`
    fn registers(&mut self, body: &mut Body<'a>) -> Result<()> {
        self.at += 1;
        let kind = self.word()?;
        let class = match (kind, type_bytes(kind)) {
            (".pred", _) => Class::Predicate,
            (_, Some(8)) => Class::Double,
            (_, Some(1..=4)) => Class::Word,
            _ => return Err(self.wrong(format!("registers of the type `{kind}`"))),
        };
        loop {
            let name = self.word()?;
            if self.takes_mark('<') {
                let count = self.count()? as u32;
                self.expect('>')?;
                let first = body.function.classes.len() as u32;
                body.function.classes.extend(std::iter::repeat_n(class, count as usize));
                body.scopes[body.scope].ranges.push((name, count, first));
            } else {
                let register = body.register(class);
                body.scopes[body.scope].registers.insert(name, Operand::Register(register));
            }
            if !self.takes_mark(',') {
                return self.expect(';');
            }
        }
    }

    fn statement(&mut self, body: &mut Body<'a>) -> Result<()> {
        let mut guard = None;
        if self.takes_mark('@') {
            let wanted = !self.takes_mark('!');
            let name = self.word()?;
            let Some(Operand::Register(register)) = body.look_up(name) else {
                return Err(self.wrong(format!("the guard `{name}` is no register")));
            };
            guard = Some((register, wanted));
        }
        let line = self.line();
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        while !self.takes_mark(';') {
            operands.push(self.operand(body)?);
            self.takes_mark(',');
        }
        if opcode == "bra" || opcode == "bra.uni" {
            body.branches.push((body.function.statements.len(), body.scope));
        }
        let is_unordered = self.unordered.contains(&line);
        body.function.statements.push(Statement { guard, opcode, operands, line, is_unordered });
        Ok(())
    }

    fn operand(&mut self, body: &Body<'a>) -> Result<Operand> {
        let first = self.single_operand(body)?;
        if !self.takes_mark('|') {
            return Ok(first);
        }
        let second = self.single_operand(body)?;
        Ok(Operand::Pair(Box::new([first, second])))
    }

    fn single_operand(&mut self, body: &Body<'a>) -> Result<Operand> {
        match self.peek() {
            Some(Token::Mark('{')) => self.list(body, '}'),
            Some(Token::Mark('(')) => self.list(body, ')'),
            Some(Token::Mark('[')) => self.place(body),
            Some(Token::Mark('!')) => {
                self.at += 1;
                let name = self.word()?;
                match body.look_up(name) {
                    Some(Operand::Register(register)) => Ok(Operand::Not(register)),
                    _ => Err(self.wrong(format!("`{name}` is no predicate"))),
                }
            }
            Some(Token::Word("_")) => {
                self.at += 1;
                Ok(Operand::Nobody)
            }
            Some(Token::Word(name)) => {
                self.at += 1;
                Ok(body.look_up(name).unwrap_or_else(|| Operand::Name(name.into())))
            }
            _ => self.operand_number(),
        }
    }

    fn list(&mut self, body: &Body<'a>, end: char) -> Result<Operand> {
        self.at += 1;
        let mut all = Vec::new();
        while !self.takes_mark(end) {
            all.push(self.operand(body)?);
            self.takes_mark(',');
        }
        Ok(Operand::List(all))
    }

    /// `[%rd1+4]`, `[name]`, `[%rd1, {%r1, %r2}]`.
    fn place(&mut self, body: &Body<'a>) -> Result<Operand> {
        self.expect('[')?;
        let base = Box::new(self.single_operand(body)?);
        let (mut offset, mut coordinates) = (0, Vec::new());
        loop {
            if self.takes_mark(']') {
                return Ok(Operand::Place { base, offset, coordinates });
            } else if self.takes_mark('+') {
                match self.operand_number()? {
                    Operand::Integer(bytes) => offset += bytes as i64,
                    _ => return Err(self.wrong("an offset that is no whole number")),
                }
            } else if self.takes_mark('-') {
                offset -= self.count()? as i64;
            } else {
                self.expect(',')?;
                match self.operand(body)? {
                    Operand::List(all) => coordinates = all,
                    other => coordinates = vec![other],
                }
            }
        }
    }

    fn operand_number(&mut self) -> Result<Operand> {
        let negative = self.takes_mark('-');
        let Token::Number(text) = self.next()? else {
            return Err(self.wrong("an operand is expected"));
        };
        let wrong = |parser: &Self| parser.wrong(format!("{text} is not a number"));
        let hexadecimal = |digits: &str| u64::from_str_radix(digits, 16);
        if let Some(digits) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
            return hexadecimal(digits).map(|bits| Operand::Single(bits as u32)).map_err(|_| wrong(self));
        }
        if let Some(digits) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
            return hexadecimal(digits).map(Operand::Double).map_err(|_| wrong(self));
        }
        if text.contains('.') {
            let number: f64 = text.parse().map_err(|_| wrong(self))?;
            return Ok(Operand::Double(number.to_bits()));
        }
        let number = match text.strip_prefix("0x") {
            Some(digits) => hexadecimal(digits).map_err(|_| wrong(self))?,
            None => text.trim_end_matches('U').parse().map_err(|_| wrong(self))?,
        };
        Ok(Operand::Integer(if negative { number.wrapping_neg() } else { number }))
    }
}

impl<'a> Body<'a> {
    fn open(&mut self) {
        let empty = Scope {
            parent: self.scope,
            registers: HashMap::new(),
            ranges: Vec::new(),
            labels: HashMap::new(),
        };
        self.scopes.push(empty);
        self.scope = self.scopes.len() - 1;
    }

    fn register(&mut self, class: Class) -> Register {
        self.function.classes.push(class);
        Register(self.function.classes.len() as u32 - 1)
    }

    /// Scopes from one outwards.
    fn outwards(&self, scope: usize) -> impl Iterator<Item = &Scope<'a>> {
        let parent = |&scope: &usize| (scope > 0).then(|| self.scopes[scope].parent);
        std::iter::successors(Some(scope), parent).map(|scope| &self.scopes[scope])
    }

    /// A register by its name.
    fn look_up(&self, name: &str) -> Option<Operand> {
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (stem, number) = name.split_at(digits);
        let number: Option<u32> = number.parse().ok();
        self.outwards(self.scope).find_map(|scope| {
            let in_range = |&(begins, count, first): &(&str, u32, u32)| {
                let number = number.filter(|&number| begins == stem && number < count)?;
                Some(Operand::Register(Register(first + number)))
            };
            scope.registers.get(name).cloned().or_else(|| scope.ranges.iter().find_map(in_range))
        })
    }

    fn label(&self, scope: usize, name: &str) -> Option<Label> {
        self.outwards(scope).find_map(|scope| scope.labels.get(name).copied())
    }
}

/// The bytes of a type such as `.u32`.
pub fn type_bytes(name: &str) -> Option<usize> {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    match name {
        ".bf16" | ".f16" => Some(2),
        ".f16x2" | ".bf16x2" => Some(4),
        _ => {
            digits.parse::<usize>().ok().filter(|bits| matches!(bits, 8 | 16 | 32 | 64)).map(|bits| bits / 8)
        }
    }
}
