//! Products of matrices by warps and warpgroups, and how their factors come from shared memory.
//!
//! In the words of PTX, lane l has g = l/4 and t = l%4. Products of halves and of bytes are exact in single precision; sums are rounded after
//! every addition, where a card's matrix units cut some of them off.

use std::sync::LazyLock;

use super::{launch::Blocks, memory::raw, tensor::swizzled, warp::Warp};
use crate::{
    lanes::{LANES, Words, has_wide_vectors, lanes_of},
    numbers::{E4M3, E5M2, from_bf16, from_f16},
    program::{Element, GroupProduct, Left, Product, Program, Slot},
};

type Outcome<T> = Result<T, String>;

/// Rows of a warp's part of a product.
const ROWS: usize = 16;
/// The most terms that one instruction adds up, and the most columns that it has.
const MOST_TERMS: usize = 32;
const MOST_COLUMNS: usize = 256;

static HALVES: LazyLock<Box<[f32]>> = LazyLock::new(|| (0..=u16::MAX).map(from_f16).collect());
static E4M3_BYTES: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|bits| E4M3.value(bits as u8)));
static E5M2_BYTES: LazyLock<[f32; 256]> = LazyLock::new(|| std::array::from_fn(|bits| E5M2.value(bits as u8)));

impl Element {
    fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::E4m3 | Element::E5m2 => 1,
        }
    }

    fn value(self, bits: u16) -> f32 {
        match self {
            Element::F16 => HALVES[bits as usize],
            Element::Bf16 => from_bf16(bits),
            Element::E4m3 => E4M3_BYTES[bits as usize & 0xff],
            Element::E5m2 => E5M2_BYTES[bits as usize & 0xff],
        }
    }

    /// The elements of bytes.
    fn values(self, bytes: &[u8], mut take: impl FnMut(usize, f32)) {
        match self.bytes() {
            1 => bytes.iter().enumerate().for_each(|(index, &bits)| take(index, self.value(bits.into()))),
            _ => {
                let pairs = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
                pairs.enumerate().for_each(|(index, bits)| take(index, self.value(bits)));
            }
        }
    }
}

/// The left factor of a warp by rows, from its registers: a[0] has rows g, a[1] rows g + 8, both with terms 2t and the next; a[2] and a[3]
/// those eight terms further.
fn left_of_registers(of: Element, a: [&Words; 4]) -> [[f32; MOST_TERMS]; ROWS] {
    let mut left = [[0.0; MOST_TERMS]; ROWS];
    for (index, registers) in a.into_iter().enumerate() {
        for (lane, &pair) in registers.iter().enumerate() {
            let (row, term) = (lane / 4 + index % 2 * 8, lane % 4 * 2 + index / 2 * 8);
            left[row][term] = of.value(pair as u16);
            left[row][term + 1] = of.value((pair >> 16) as u16);
        }
    }
    left
}

/// Sums of `columns`, to which products of so many terms are added, term by term.
fn add_products(
    sums: &mut [[f32; MOST_COLUMNS]; ROWS],
    left: &[[f32; MOST_TERMS]; ROWS],
    right: &[[f32; MOST_COLUMNS]; MOST_TERMS],
    terms: usize,
    columns: usize,
) {
    #[inline(always)]
    fn all(
        sums: &mut [[f32; MOST_COLUMNS]; ROWS],
        left: &[[f32; MOST_TERMS]; ROWS],
        right: &[[f32; MOST_COLUMNS]; MOST_TERMS],
        terms: usize,
        columns: usize,
    ) {
        for (sums, left) in sums.iter_mut().zip(left) {
            for eight in (0..columns).step_by(8) {
                let mut own: [f32; 8] = std::array::from_fn(|i| sums[eight + i]);
                for (a, right) in left[..terms].iter().zip(right) {
                    for (i, sum) in own.iter_mut().enumerate() {
                        *sum += a * right[eight + i];
                    }
                }
                sums[eight..eight + 8].copy_from_slice(&own);
            }
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(
            sums: &mut [[f32; MOST_COLUMNS]; ROWS],
            left: &[[f32; MOST_TERMS]; ROWS],
            right: &[[f32; MOST_COLUMNS]; MOST_TERMS],
            terms: usize,
            columns: usize,
        ) {
            all(sums, left, right, terms, columns);
        }
        if has_wide_vectors() {
            #[expect(unsafe_code, reason = "a function that not every processor can run")]
            // SAFETY: the processor was asked.
            return unsafe { wide(sums, left, right, terms, columns) };
        }
    }
    all(sums, left, right, terms, columns);
}

/// Sums as registers have them: of every eight columns two numbers of row g and two of row g + 8.
fn sums_from(d: &[&Words]) -> Box<[[f32; MOST_COLUMNS]; ROWS]> {
    let mut sums = Box::new([[0.0; MOST_COLUMNS]; ROWS]);
    for (index, register) in d.iter().enumerate() {
        for (lane, &bits) in register.iter().enumerate() {
            let (row, column) = place_of_sum(index, lane);
            sums[row][column] = f32::from_bits(bits);
        }
    }
    sums
}

fn place_of_sum(index: usize, lane: usize) -> (usize, usize) {
    (lane / 4 + index / 2 % 2 * 8, index / 4 * 8 + lane % 4 * 2 + index % 2)
}

fn put_sums(warp: &mut Warp, sums: &[[f32; MOST_COLUMNS]; ROWS], d: &[Slot], active: u32) {
    for (index, slot) in d.iter().enumerate() {
        let register = std::array::from_fn(|lane| {
            let (row, column) = place_of_sum(index, lane);
            sums[row][column].to_bits()
        });
        warp.put_word(*slot, &register, active);
    }
}

/// 16 rows, 8 columns, 16 terms. b[0] has terms 2t and the next of column g, b[1] those eight further.
pub fn product(warp: &mut Warp, program: &Program, product: &Product, active: u32) {
    let left = left_of_registers(product.of, product.a.map(|slot| warp.word(program, slot)));
    let mut right = [[0.0; MOST_COLUMNS]; MOST_TERMS];
    for (index, slot) in product.b.into_iter().enumerate() {
        for (lane, &pair) in warp.word(program, slot).iter().enumerate() {
            let (term, column) = (lane % 4 * 2 + index * 8, lane / 4);
            right[term][column] = product.of.value(pair as u16);
            right[term + 1][column] = product.of.value((pair >> 16) as u16);
        }
    }
    let mut sums = sums_from(&product.c.map(|slot| warp.word(program, slot)));
    add_products(&mut sums, &left, &right, 16, 8);
    put_sums(warp, &sums, &product.d, active);
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
            return Err(format!("a factor with the description {description:#x}: only rows of 128 bytes are known"));
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
        blocks: &Blocks<'_>,
        block: usize,
        of: Element,
        (first, lines, terms): (usize, usize, usize),
        turned: bool,
        mut take: impl FnMut(usize, usize, f32),
    ) -> Outcome<()> {
        let each = 16 / of.bytes();
        let mut piece = [0u8; 16];
        let mut fetch = |place: u32| -> Outcome<[u8; 16]> {
            let from = blocks.shared(block, place, 16)?;
            raw::copy(piece.as_mut_ptr() as u64, from, 16);
            Ok(piece)
        };
        if turned {
            // A row has one term of all lines.
            for term in 0..terms {
                for line in (first..first + lines).step_by(each) {
                    let bytes = fetch(self.place(term, line / each))?;
                    of.values(&bytes, |index, value| take(line - first + index, term, value));
                }
            }
        } else {
            for line in first..first + lines {
                for term in (0..terms).step_by(each) {
                    let bytes = fetch(self.place(line, term / each))?;
                    of.values(&bytes, |index, value| take(line - first, term + index, value));
                }
            }
        }
        Ok(())
    }
}

/// A warp's 16 of the 64 rows of a product.
pub fn group_product(warp: &mut Warp, blocks: &Blocks<'_>, product: &GroupProduct, active: u32) -> Outcome<()> {
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
    let left = match &product.left {
        Left::Registers(a) => left_of_registers(left_of, a.map(|slot| warp.word(program, slot))),
        Left::Shared(slot, turned) => {
            let mut left = [[0.0; MOST_TERMS]; ROWS];
            let rows = (warp.number % 4 * ROWS, ROWS, terms);
            description(warp, *slot)?.read(blocks, warp.block, left_of, rows, *turned, |row, term, value| {
                left[row][term] = value;
            })?;
            left
        }
    };
    let mut right = Box::new([[0.0; MOST_COLUMNS]; MOST_TERMS]);
    let columns = (0, product.columns, terms);
    description(warp, product.right)?.read(
        blocks,
        warp.block,
        right_of,
        columns,
        product.right_turned,
        |column, term, value| right[term][column] = value,
    )?;
    let adds = warp.predicate(program, product.adds) & active;
    let mut sums = if adds == active {
        let d: Vec<&Words> = product.d.iter().map(|&slot| warp.word(program, slot)).collect();
        sums_from(&d)
    } else if adds == 0 {
        Box::new([[0.0; MOST_COLUMNS]; ROWS])
    } else {
        return Err("lanes of a warp differ in whether sums go on".into());
    };
    add_products(&mut sums, &left, &right, terms, product.columns);
    put_sums(warp, &sums, &product.d, active);
    Ok(())
}

/// Four matrices of eight rows of 16 bytes: lanes 8i.. say where those of matrix i are; lane l gets elements 2t and the next of row g, or
/// of column g if they are turned.
pub fn load(
    warp: &mut Warp,
    blocks: &Blocks<'_>,
    to: [Slot; 4],
    from: Slot,
    turned: bool,
    active: u32,
) -> Outcome<()> {
    let rows = *warp.word(blocks.launch.program, from);
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
    blocks: &Blocks<'_>,
    from: [Slot; 4],
    to: Slot,
    turned: bool,
    active: u32,
) -> Outcome<()> {
    let program = blocks.launch.program;
    let rows = *warp.word(program, to);
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
    if rows[row] % 16 != 0 {
        return Err(format!("a row of a matrix at {:#x}, no multiple of 16", rows[row]));
    }
    Ok(blocks.shared(block, rows[row], 16)? + 2 * column as u64)
}
