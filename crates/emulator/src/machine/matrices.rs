//! Products of matrices by warps and warpgroups, and how their factors come from shared memory.
//!
//! In the words of PTX, lane l has g = l/4 and t = l%4. Products of halves and of bytes are exact in single precision; sums are rounded after
//! every addition, where a card's matrix units cut some of them off.

use std::sync::LazyLock;

use super::{accesses::Touch, launch::Blocks, memory::raw, order::Part, tensor::swizzled, warp::Warp};
use crate::{
    lanes::{LANES, Words, has_wide_vectors, lanes_of},
    numbers::{E4M3, E5M2, from_bf16, from_f16},
    program::{Element, GroupProduct, Left, Product, Program, Slot},
};

type Outcome<T> = Result<T, String>;

/// Rows of a warp's part of a product.
const ROWS: usize = 16;
/// Bytes of a row of a matrix that comes from shared memory.
const ROW_BYTES: usize = 16;

static HALVES: LazyLock<Box<[f32]>> = LazyLock::new(|| (0..=u16::MAX).map(from_f16).collect());
static E4M3_BYTES: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|bits| E4M3.value(bits as u8)));
static E5M2_BYTES: LazyLock<[f32; 256]> =
    LazyLock::new(|| std::array::from_fn(|bits| E5M2.value(bits as u8)));

impl Element {
    fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::E4m3 | Element::E5m2 => 1,
        }
    }

    /// The elements of words, each in its turn.
    #[inline]
    fn values(self, words: &[u32], mut take: impl FnMut(usize, f32)) {
        let halves = words.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]).enumerate();
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).enumerate();
        match self {
            Element::Bf16 => halves.for_each(|(index, bits)| take(index, from_bf16(bits))),
            Element::F16 => {
                let table = &**HALVES;
                halves.for_each(|(index, bits)| take(index, table[bits as usize]));
            }
            Element::E4m3 => {
                let table = &*E4M3_BYTES;
                bytes.for_each(|(index, bits)| take(index, table[bits as usize]));
            }
            Element::E5m2 => {
                let table = &*E5M2_BYTES;
                bytes.for_each(|(index, bits)| take(index, table[bits as usize]));
            }
        }
    }
}

/// The left factor of a warp by rows of 16 terms, from its registers: a[0] has rows g, a[1] rows g + 8, both with terms 2t and the next;
/// a[2] and a[3] those eight terms further.
fn left_of_registers(of: Element, a: [&Words; 4]) -> [f32; ROWS * 16] {
    let mut left = [0.0; ROWS * 16];
    for (index, registers) in a.into_iter().enumerate() {
        of.values(registers, |place, value| {
            let lane = place / 2;
            let (row, term) = (lane / 4 + index % 2 * 8, lane % 4 * 2 + place % 2 + index / 2 * 8);
            left[row * 16 + term] = value;
        });
    }
    left
}

/// Adds products to sums of `columns`, term by term: `left` by rows, `right` by terms.
fn add_products(sums: &mut [f32], left: &[f32], right: &[f32], columns: usize) {
    #[inline(always)]
    fn all(sums: &mut [f32], left: &[f32], right: &[f32], columns: usize) {
        let terms = right.len() / columns;
        for (sums, left) in sums.chunks_exact_mut(columns).zip(left.chunks_exact(terms)) {
            for (eight, sums) in sums.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let mut own = *sums;
                for (a, right) in left.iter().zip(right.chunks_exact(columns)) {
                    let right = &right.as_chunks::<8>().0[eight];
                    for (sum, b) in own.iter_mut().zip(right) {
                        *sum += a * b;
                    }
                }
                *sums = own;
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(sums: &mut [f32], left: &[f32], right: &[f32], columns: usize) {
            all(sums, left, right, columns);
        }
        if has_wide_vectors() {
            #[expect(unsafe_code, reason = "a function that not every processor can run")]
            // SAFETY: the processor was asked.
            return unsafe { wide(sums, left, right, columns) };
        }
    }
    all(sums, left, right, columns);
}

/// Where a lane's number of a register of sums belongs: of every eight columns registers have two numbers of row g and two of row g + 8.
fn place_of_sum(index: usize, lane: usize) -> (usize, usize) {
    (lane / 4 + index / 2 % 2 * 8, index / 4 * 8 + lane % 4 * 2 + index % 2)
}

/// Sums by rows, as registers have them.
fn get_sums<'a>(sums: &mut [f32], columns: usize, d: impl Iterator<Item = &'a Words>) {
    for (index, register) in d.enumerate() {
        for (lane, &bits) in register.iter().enumerate() {
            let (row, column) = place_of_sum(index, lane);
            sums[row * columns + column] = f32::from_bits(bits);
        }
    }
}

fn put_sums(warp: &mut Warp, sums: &[f32], columns: usize, d: &[Slot], active: u32) {
    for (index, slot) in d.iter().enumerate() {
        let register = std::array::from_fn(|lane| {
            let (row, column) = place_of_sum(index, lane);
            sums[row * columns + column].to_bits()
        });
        warp.put_word(*slot, &register, active);
    }
}

/// 16 rows, 8 columns, 16 terms. b[0] has terms 2t and the next of column g, b[1] those eight further.
pub fn product(warp: &mut Warp, program: &Program, product: &Product, active: u32) {
    const COLUMNS: usize = 8;
    let left = left_of_registers(product.of, product.a.map(|slot| warp.word(program, slot)));
    let mut right = [0.0; 16 * COLUMNS];
    for (index, slot) in product.b.into_iter().enumerate() {
        product.of.values(warp.word(program, slot), |place, value| {
            let lane = place / 2;
            let (term, column) = (lane % 4 * 2 + place % 2 + index * 8, lane / 4);
            right[term * COLUMNS + column] = value;
        });
    }
    let mut sums = [0.0; ROWS * COLUMNS];
    get_sums(&mut sums, COLUMNS, product.c.iter().map(|&slot| warp.word(program, slot)));
    add_products(&mut sums, &left, &right, COLUMNS);
    put_sums(warp, &sums, COLUMNS, &product.d, active);
}

/// A factor in shared memory, as its description says.
struct Described {
    start: u32,
    /// Bytes from 64 columns of a row to the next, where rows are terms.
    leading: u32,
    /// Bytes from eight rows to the next.
    stride: u32,
}

impl Described {
    fn new(description: u64) -> Outcome<Self> {
        let field = |from: u32| ((description >> from) as u32 & 0x3fff) << 4;
        let (swizzle, offset) = (description >> 62, description >> 49 & 7);
        if swizzle != 1 || offset != 0 {
            return Err(format!(
                "a factor with the description {description:#x}: only rows of 128 bytes are known"
            ));
        }
        Ok(Described { start: field(0), leading: field(16), stride: field(32) })
    }

    /// Where a piece of 16 bytes lies: the piece of a row of 128 bytes, which lie in eights.
    fn place(&self, row: usize, piece: usize) -> u32 {
        let row = row as u32;
        let sheets = piece as u32 / 8 * self.leading;
        swizzled(self.start + row / 8 * self.stride + row % 8 * 128 + sheets + piece as u32 % 8 * 16)
    }

    /// The elements of lines `first..first + lines`, of which each has so many terms: by line and term.
    fn read(
        &self,
        (warp, blocks): (&Warp, &mut Blocks<'_>),
        of: Element,
        (first, lines, terms): (usize, usize, usize),
        turned: bool,
        mut take: impl FnMut(usize, usize, f32),
    ) -> Outcome<()> {
        let each = 16 / of.bytes();
        let touch = Touch::of(warp, Part::Products, false);
        let mut fetch = |place: u32| -> Outcome<[u32; 4]> {
            let from = blocks.shared(warp.block, place, 16)?;
            blocks.touch_shared(from, 16, &touch)?;
            let piece = from..from + 16;
            warp.since.read_piece(&piece, None).map_err(|step| blocks.not_met("a product", step))?;
            Ok(std::array::from_fn(|word| raw::read(from + 4 * word as u64, 4) as u32))
        };
        if turned {
            // A row has one term of all lines.
            for term in 0..terms {
                for line in (first..first + lines).step_by(each) {
                    let piece = fetch(self.place(term, line / each))?;
                    of.values(&piece, |index, value| take(line - first + index, term, value));
                }
            }
        } else {
            for line in first..first + lines {
                for term in (0..terms).step_by(each) {
                    let piece = fetch(self.place(line, term / each))?;
                    of.values(&piece, |index, value| take(line - first, term + index, value));
                }
            }
        }
        Ok(())
    }
}

/// A warp's 16 of the 64 rows of a product.
pub fn group_product(
    warp: &mut Warp,
    blocks: &mut Blocks<'_>,
    product: &GroupProduct,
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    let [left_of, right_of] = product.of;
    let terms = 32 / left_of.bytes();
    let description = |warp: &Warp, slot: Slot| -> Outcome<Described> {
        let all = warp.double(program, slot);
        if lanes_of(active).any(|lane| all[lane] != all[0]) {
            return Err("lanes of a warp describe different factors".into());
        }
        Described::new(all[0])
    };
    let columns = product.columns;
    let mut left = vec![0.0; ROWS * terms];
    match &product.left {
        Left::Registers(a) => {
            left.copy_from_slice(&left_of_registers(left_of, a.map(|slot| warp.word(program, slot))));
        }
        Left::Shared(slot, turned) => {
            let rows = (warp.number % 4 * ROWS, ROWS, terms);
            let take = |row, term, value| left[row * terms + term] = value;
            description(warp, *slot)?.read((warp, blocks), left_of, rows, *turned, take)?;
        }
    }
    let mut right = vec![0.0; terms * columns];
    let all = (0, columns, terms);
    let is_turned = product.right_turned;
    let take = |column, term, value| right[term * columns + column] = value;
    description(warp, product.right)?.read((warp, blocks), right_of, all, is_turned, take)?;
    let adds = warp.predicate(program, product.adds) & active;
    let mut sums = vec![0.0; ROWS * columns];
    if adds == active {
        get_sums(&mut sums, columns, product.d.iter().map(|&slot| warp.word(program, slot)));
    } else if adds != 0 {
        return Err("lanes of a warp differ in whether sums go on".into());
    }
    add_products(&mut sums, &left, &right, columns);
    put_sums(warp, &sums, columns, &product.d, active);
    Ok(())
}

/// Four matrices of eight rows of 16 bytes: lanes 8i.. say where those of matrix i are; lane l gets elements 2t and the next of row g, or
/// of column g if they are turned.
pub fn load(
    warp: &mut Warp,
    blocks: &mut Blocks<'_>,
    to: [Slot; 4],
    from: Slot,
    turned: bool,
    active: u32,
) -> Outcome<()> {
    let rows = *warp.word(blocks.launch.program, from);
    touch_rows(warp, blocks, &rows, false)?;
    for (matrix, d) in to.into_iter().enumerate() {
        let mut found: Words = [0; LANES];
        for (lane, found) in found.iter_mut().enumerate() {
            for half in 0..2 {
                let place = place_of_half(blocks, warp.block, &rows[8 * matrix..], lane, half, turned)?;
                *found |= (raw::read(place, 2) as u32) << (16 * half);
            }
        }
        warp.put_word(d, &found, active);
    }
    Ok(())
}

/// The other way.
pub fn store(
    warp: &mut Warp,
    blocks: &mut Blocks<'_>,
    from: [Slot; 4],
    to: Slot,
    turned: bool,
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    let rows = *warp.word(program, to);
    touch_rows(warp, blocks, &rows, true)?;
    for (matrix, slot) in from.into_iter().enumerate() {
        let values = warp.word(program, slot);
        for lane in lanes_of(active) {
            for half in 0..2 {
                let place = place_of_half(blocks, warp.block, &rows[8 * matrix..], lane, half, turned)?;
                raw::write(place, 2, u64::from(values[lane] >> (16 * half) & 0xffff));
            }
        }
    }
    Ok(())
}

/// Rows of four matrices are read or written.
fn touch_rows(warp: &mut Warp, blocks: &mut Blocks<'_>, rows: &Words, writes: bool) -> Outcome<()> {
    for &row in rows {
        let place = blocks.shared(warp.block, row, ROW_BYTES)?;
        blocks.touch_shared(place, ROW_BYTES, &Touch::of(warp, Part::Itself, writes))?;
        let piece = place..place + ROW_BYTES as u64;
        match writes {
            true => warp.since.write_piece(piece, None, warp.at),
            false => {
                warp.since.read_piece(&piece, None).map_err(|step| blocks.not_met("all lanes' part", step))?
            }
        }
    }
    Ok(())
}

fn place_of_half(
    blocks: &Blocks<'_>,
    block: usize,
    rows: &[u32],
    lane: usize,
    half: usize,
    turned: bool,
) -> Outcome<u64> {
    let (mut row, mut column) = (lane / 4, lane % 4 * 2 + half);
    if turned {
        (row, column) = (column, row);
    }
    if !rows[row].is_multiple_of(16) {
        return Err(format!("a row of a matrix at {:#x}, no multiple of 16", rows[row]));
    }
    Ok(blocks.shared(block, rows[row], 16)? + 2 * column as u64)
}
