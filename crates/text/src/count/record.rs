//! A piece and its count as bytes: length, piece, count, the numbers in seven bits a byte.

use std::io::{self, Read};

/// The most bytes a number takes.
const MAX_NUMBER: usize = 10;

/// Appends a record.
pub(super) fn write(piece: &[u8], count: u64, out: &mut Vec<u8>) {
    write_number(piece.len() as u64, out);
    out.extend_from_slice(piece);
    write_number(count, out);
}

fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads the record at the start of `source` into `piece` and gives its count. A piece longer than `max_bytes` is refused
/// before room is made for it.
pub(super) fn read(source: &mut impl Read, piece: &mut Vec<u8>, max_bytes: u64) -> io::Result<u64> {
    let n_bytes = read_number(source)?;
    if n_bytes == 0 || n_bytes > max_bytes {
        return Err(damaged("a piece has an impossible length"));
    }
    let n_bytes = usize::try_from(n_bytes).map_err(|_| damaged("a piece does not fit memory"))?;
    piece.resize(n_bytes, 0);
    source.read_exact(piece)?;
    match read_number(source)? {
        0 => Err(damaged("a piece has no count")),
        count => Ok(count),
    }
}

fn read_number(source: &mut impl Read) -> io::Result<u64> {
    let mut number = 0u64;
    for idx in 0..MAX_NUMBER {
        let mut byte = [0];
        source.read_exact(&mut byte)?;
        let bits = u64::from(byte[0] & 0x7f);
        if idx == MAX_NUMBER - 1 && bits > 1 || idx > 0 && byte[0] == 0 {
            break;
        }
        number |= bits << (7 * idx);
        if byte[0] < 0x80 {
            return Ok(number);
        }
    }
    Err(damaged("a number is malformed"))
}

fn damaged(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_read_back_up_to_the_largest_count() {
        let mut bytes = Vec::new();
        let counts = [1, 127, 128, 1 << 32, (1 << 40) + 1, u64::MAX];
        counts.iter().for_each(|&count| write(b"piece", count, &mut bytes));
        let (mut source, mut piece) = (&bytes[..], Vec::new());
        for count in counts {
            assert_eq!(read(&mut source, &mut piece, 5).unwrap(), count);
            assert_eq!(piece, b"piece");
        }
        assert!(read(&mut source, &mut piece, 5).is_err());
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let refused: [&[u8]; 7] = [
            b"\0\x01",
            b"\x05pie",
            b"\x06pieces\x01",
            b"\x01a\0",
            b"\x01a\x80\0",
            b"\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"",
        ];
        for bytes in refused {
            assert!(read(&mut &bytes[..], &mut Vec::new(), 5).is_err(), "{bytes:?}");
        }
    }
}
