//! Thrift's compact protocol, as far as parquet's metadata needs it.

/// A value whose meaning the reader knows from its place.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    /// Fields by their number.
    Struct(Vec<(i16, Value)>),
}

impl Value {
    /// The field of a struct.
    pub(super) fn field(&self, number: i16) -> Option<&Value> {
        match self {
            Value::Struct(fields) => {
                fields.iter().find(|(other, _)| *other == number).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    /// The number in a field of a struct.
    pub(super) fn number(&self, field: i16) -> Option<i64> {
        match self.field(field)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// The list in a field of a struct; none is an empty one.
    pub(super) fn list(&self, field: i16) -> &[Value] {
        match self.field(field) {
            Some(Value::List(values)) => values,
            _ => &[],
        }
    }

    /// Bytes as text.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// How deep values may lie in each other.
const MAX_DEPTH: usize = 16;

/// Reads a struct from the start of `bytes`; nothing if they end before it does, or are none.
pub(super) fn read_struct(bytes: &mut &[u8]) -> Option<Value> {
    read_fields(bytes, MAX_DEPTH)
}

fn read_fields(bytes: &mut &[u8], depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    let mut fields = Vec::new();
    let mut number = 0i16;
    loop {
        let head = byte(bytes)?;
        if head == 0 {
            return Some(Value::Struct(fields));
        }
        number = match head >> 4 {
            0 => i16::try_from(zigzag(bytes)?).ok()?,
            step => number.checked_add(i16::from(step))?,
        };
        // A switch has its value in its kind.
        let value = match head & 0x0f {
            1 => Value::Number(1),
            2 => Value::Number(0),
            kind => read_value(bytes, kind, depth)?,
        };
        fields.push((number, value));
    }
}

fn read_value(bytes: &mut &[u8], kind: u8, depth: usize) -> Option<Value> {
    Some(match kind {
        1..=3 => Value::Number(i64::from(byte(bytes)? as i8)),
        4..=6 => Value::Number(zigzag(bytes)?),
        7 => {
            // A fraction, which nothing here needs.
            take(bytes, 8)?;
            Value::Number(0)
        }
        8 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Value::Bytes(take(bytes, length)?.to_vec())
        }
        9 | 10 => {
            let depth = depth.checked_sub(1)?;
            let head = byte(bytes)?;
            let length = match head >> 4 {
                15 => usize::try_from(varint(bytes)?).ok()?,
                length => usize::from(length),
            };
            // Every value has at least a byte.
            if length > bytes.len() {
                return None;
            }
            let values = (0..length).map(|_| read_value(bytes, head & 0x0f, depth));
            Value::List(values.collect::<Option<_>>()?)
        }
        12 => read_fields(bytes, depth)?,
        _ => return None,
    })
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

fn byte(bytes: &mut &[u8]) -> Option<u8> {
    take(bytes, 1).map(|taken| taken[0])
}

/// A number in seven bits a byte, lowest first.
pub(super) fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = byte(bytes)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// A signed number, its sign in the lowest bit.
pub(super) fn zigzag(bytes: &mut &[u8]) -> Option<i64> {
    varint(bytes).map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
}
