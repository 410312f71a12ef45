//! The products' library: what a program that opens `libcublasLt.so` finds here. Matrices are column by column.
#![expect(unsafe_code, reason = "an interface of C")]

use std::{
    collections::HashMap,
    ffi::{c_int, c_void},
    ptr,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

use crate::{
    driver::{Work, functions, give, state},
    lanes::has_wide_vectors,
    machine::{Table, raw},
    numbers::{E4M3, E5M2, from_bf16, from_f16, to_bf16, to_f16},
};

type Status = i32;
const INVALID_VALUE: Status = 7;
const NOT_SUPPORTED: Status = 15;
/// What an algorithm of ours begins with.
const ONLY_WAY: u64 = 0x10_01;

/// What numbers are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Real {
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
}

impl Real {
    fn new(code: c_int) -> Option<Self> {
        Some(match code {
            0 => Real::F32,
            2 => Real::F16,
            14 => Real::Bf16,
            28 => Real::E4m3,
            29 => Real::E5m2,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Real::F32 => 4,
            Real::F16 | Real::Bf16 => 2,
            Real::E4m3 | Real::E5m2 => 1,
        }
    }

    fn read(self, at: u64) -> f32 {
        let bits = raw::read(at, self.bytes());
        match self {
            Real::F32 => f32::from_bits(bits as u32),
            Real::F16 => from_f16(bits as u16),
            Real::Bf16 => from_bf16(bits as u16),
            Real::E4m3 => E4M3.value(bits as u8),
            Real::E5m2 => E5M2.value(bits as u8),
        }
    }

    fn write(self, at: u64, x: f32) {
        let bits = match self {
            Real::F32 => x.to_bits().into(),
            Real::F16 => to_f16(x).into(),
            Real::Bf16 => to_bf16(x).into(),
            Real::E4m3 => E4M3.round(x).into(),
            Real::E5m2 => E5M2.round(x).into(),
        };
        raw::write(at, self.bytes(), bits);
    }
}

/// A matrix.
#[derive(Clone, Copy, Debug)]
struct Layout {
    of: Real,
    rows: usize,
    columns: usize,
    /// Elements from one column to the next.
    leading: usize,
}

impl Layout {
    fn place(&self, start: u64, row: usize, column: usize) -> u64 {
        start + ((row + column * self.leading) * self.of.bytes()) as u64
    }

    fn exists(&self, start: u64, table: &Table) -> bool {
        let end = self.place(start, self.rows - 1, self.columns - 1) + self.of.bytes() as u64;
        table.find(start).is_some_and(|(_, behind)| end <= behind)
    }
}

/// What is said about a product besides its matrices.
#[derive(Clone, Copy, Debug, Default)]
struct Description {
    turned: [bool; 2],
    epilogue: u32,
    bias: u64,
    auxiliary: u64,
    auxiliary_leading: usize,
    units: [u64; 2],
}

const NO_EPILOGUE: u32 = 1;
const BIAS: u32 = 4;
const GELU: u32 = 32;
const GELU_SLOPE: u32 = 64;
const AUXILIARY: u32 = 128;

/// A product with its addresses: `d = op(a)·op(b) + beta·c` and what follows it.
#[derive(Clone, Debug)]
pub struct Product {
    description: Description,
    layouts: [Layout; 4],
    at: [u64; 4],
    beta: f32,
}

#[derive(Default)]
struct Handles {
    last: usize,
    layouts: HashMap<usize, Layout>,
    descriptions: HashMap<usize, Description>,
}

static HANDLES: LazyLock<Mutex<Handles>> = LazyLock::new(Mutex::default);

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the library says of a way to compute a product.
#[repr(C)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

functions! {
    /// The version, which no real one has.
    fn cublasLtGetVersion() { 1 }

    /// The library, ready.
    fn cublasLtCreate(handle: *mut usize) {
        state().disturb("opened the library of products");
        // SAFETY: the caller's promise.
        unsafe { ptr::write(handle, 1) };
        0
    }

    /// Gives it back.
    fn cublasLtDestroy(_handle: usize) {
        state().disturb("closed the library of products");
        0
    }

    /// A description. Sums are in single precision.
    fn cublasLtMatmulDescCreate(desc: *mut usize, compute: c_int, scale: c_int) {
        const COMPUTE_F32: c_int = 68;
        if compute != COMPUTE_F32 || Real::new(scale) != Some(Real::F32) {
            return NOT_SUPPORTED;
        }
        let mut all = handles();
        all.last += 1;
        let handle = all.last;
        all.descriptions.insert(handle, Description { epilogue: NO_EPILOGUE, ..Description::default() });
        // SAFETY: the caller's promise.
        unsafe { ptr::write(desc, handle) };
        0
    }

    /// Gives it back.
    fn cublasLtMatmulDescDestroy(desc: usize) {
        if handles().descriptions.remove(&desc).is_some() { 0 } else { INVALID_VALUE }
    }

    /// Says something about a product.
    fn cublasLtMatmulDescSetAttribute(desc: usize, attribute: c_int, value: *const c_void, bytes: usize) {
        let number = match bytes {
            // SAFETY: the caller says how many bytes there are.
            1 => u64::from(unsafe { *value.cast::<u8>() }),
            // SAFETY: as above.
            4 => u64::from(unsafe { value.cast::<u32>().read_unaligned() }),
            // SAFETY: as above.
            8 => unsafe { value.cast::<u64>().read_unaligned() },
            _ => return INVALID_VALUE,
        };
        let mut all = handles();
        let Some(description) = all.descriptions.get_mut(&desc) else { return INVALID_VALUE };
        match attribute {
            3 => description.turned[0] = number != 0,
            4 => description.turned[1] = number != 0,
            7 => description.epilogue = number as u32,
            8 => description.bias = number,
            11 => description.auxiliary = number,
            12 => description.auxiliary_leading = number as usize,
            17 => description.units[0] = number,
            18 => description.units[1] = number,
            // How exact sums of eight bits are: always as exact as they can be.
            25 => (),
            _ => return NOT_SUPPORTED,
        }
        0
    }

    /// A matrix.
    fn cublasLtMatrixLayoutCreate(layout: *mut usize, of: c_int, rows: u64, columns: u64, leading: i64) {
        let Some(of) = Real::new(of) else { return NOT_SUPPORTED };
        if leading < rows as i64 || rows == 0 || columns == 0 {
            return INVALID_VALUE;
        }
        let mut all = handles();
        all.last += 1;
        let handle = all.last;
        let matrix =
            Layout { of, rows: rows as usize, columns: columns as usize, leading: leading as usize };
        all.layouts.insert(handle, matrix);
        // SAFETY: the caller's promise.
        unsafe { ptr::write(layout, handle) };
        0
    }

    /// Gives it back.
    fn cublasLtMatrixLayoutDestroy(layout: usize) {
        if handles().layouts.remove(&layout).is_some() { 0 } else { INVALID_VALUE }
    }

    /// What is preferred, which nobody asks.
    fn cublasLtMatmulPreferenceCreate(preference: *mut usize) {
        // SAFETY: the caller's promise.
        unsafe { ptr::write(preference, 1) };
        0
    }

    /// Gives it back.
    fn cublasLtMatmulPreferenceDestroy(_preference: usize) { 0 }

    /// Says it.
    fn cublasLtMatmulPreferenceSetAttribute(
        _preference: usize, _attribute: c_int, _value: *const c_void, _bytes: usize,
    ) { 0 }

    /// Ways to compute a product: the one there is.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: usize, desc: usize, a: usize, b: usize, c: usize, d: usize, _preference: usize, wanted: c_int,
        results: *mut Heuristic, found: *mut c_int,
    ) {
        let status = match product(desc, [a, b, c, d], [0; 4], 0.0) {
            Ok(_) if wanted > 0 => 0,
            Ok(_) => INVALID_VALUE,
            Err(status) => status,
        };
        let mut algorithm = [0; 8];
        algorithm[0] = ONLY_WAY;
        // SAFETY: the caller has room for as many results as are wanted, which is one at least.
        unsafe {
            ptr::write(found, c_int::from(status == 0));
            if status == 0 {
                let way = Heuristic { algorithm, workspace_bytes: 0, status: 0, waves: 1.0, reserved: [0; 4] };
                ptr::write(results, way);
            }
        }
        status
    }

    /// There is nothing to set.
    fn cublasLtMatmulAlgoConfigSetAttribute(
        _algorithm: *mut [u64; 8], _attribute: c_int, _value: *const c_void, _bytes: usize,
    ) { NOT_SUPPORTED }

    /// So what was set is not there.
    fn cublasLtMatmulAlgoCheck(
        _handle: usize, _desc: usize, _a: usize, _b: usize, _c: usize, _d: usize, _algorithm: *const [u64; 8],
        _result: *mut Heuristic,
    ) { NOT_SUPPORTED }

    /// A product.
    fn cublasLtMatmul(
        _handle: usize, desc: usize, alpha: *const f32, a: u64, a_layout: usize, b: u64, b_layout: usize,
        beta: *const f32, c: u64, c_layout: usize, d: u64, d_layout: usize, algorithm: *const [u64; 8],
        _workspace: u64, _workspace_bytes: usize, stream: usize,
    ) {
        state().disturb("ran the library's products");
        // SAFETY: the caller's promise.
        let (alpha, beta, algorithm) = unsafe { (*alpha, *beta, *algorithm) };
        if alpha != 1.0 || algorithm[0] != ONLY_WAY {
            return NOT_SUPPORTED;
        }
        match product(desc, [a_layout, b_layout, c_layout, d_layout], [a, b, c, d], beta) {
            Ok(product) => match give(stream, Work::Product(Box::new(product))) {
                0 => 0,
                _ => 13,
            },
            Err(status) => status,
        }
    }
}

/// A product as handles say, if there is such a one.
fn product(desc: usize, layouts: [usize; 4], at: [u64; 4], beta: f32) -> Result<Product, Status> {
    let all = handles();
    let description = *all.descriptions.get(&desc).ok_or(INVALID_VALUE)?;
    let mut found = [None; 4];
    for (found, handle) in found.iter_mut().zip(layouts) {
        *found = all.layouts.get(&handle).copied();
    }
    let [Some(a), Some(b), Some(c), Some(d)] = found else { return Err(INVALID_VALUE) };
    let product = Product { description, layouts: [a, b, c, d], at, beta };
    let [rows, terms] = product.of_left();
    let [more_terms, columns] = product.of_right();
    if terms != more_terms || [d.rows, d.columns] != [rows, columns] || [c.rows, c.columns] != [rows, columns]
    {
        return Err(INVALID_VALUE);
    }
    let eights = [a, b].map(|factor| factor.of.bytes() == 1);
    let known = [NO_EPILOGUE, BIAS, GELU | AUXILIARY, GELU | AUXILIARY | BIAS, GELU_SLOPE | AUXILIARY];
    let is_known = known.contains(&description.epilogue)
        && match eights {
            // As the real library has it: both with their terms side by side, and not both with the longer exponent.
            [true, true] => {
                description.turned == [true, false]
                    && terms.is_multiple_of(16)
                    && rows.is_multiple_of(16)
                    && [a.of, b.of] != [Real::E5m2; 2]
            }
            [false, false] => a.of == b.of,
            _ => false,
        };
    if is_known { Ok(product) } else { Err(NOT_SUPPORTED) }
}

impl Product {
    /// Rows and terms of the left factor.
    fn of_left(&self) -> [usize; 2] {
        let Layout { rows, columns, .. } = self.layouts[0];
        if self.description.turned[0] { [columns, rows] } else { [rows, columns] }
    }

    /// Terms and columns of the right one.
    fn of_right(&self) -> [usize; 2] {
        let Layout { rows, columns, .. } = self.layouts[1];
        if self.description.turned[1] { [columns, rows] } else { [rows, columns] }
    }

    /// The pieces of memory that it reads and writes, column by column: address, bytes, whether it writes.
    pub fn touched(&self) -> Vec<(u64, usize, bool)> {
        let [a, b, c, d] = &self.layouts;
        let Description { epilogue, bias, auxiliary, auxiliary_leading, .. } = self.description;
        let rows = d.rows;
        let beside = Layout { leading: auxiliary_leading.max(rows), ..*d };
        let vector = Layout { columns: 1, leading: rows, ..*d };
        [
            (a, self.at[0], true, false),
            (b, self.at[1], true, false),
            (c, self.at[2], self.beta != 0.0, false),
            (&vector, bias, epilogue & BIAS != 0, false),
            (&beside, auxiliary, epilogue & AUXILIARY != 0, epilogue & GELU != 0),
            (d, self.at[3], true, true),
        ]
        .into_iter()
        .filter(|&(_, _, is_used, _)| is_used)
        .flat_map(|(of, at, _, writes)| {
            (0..of.columns).map(move |column| (of.place(at, 0, column), of.rows * of.of.bytes(), writes))
        })
        .collect()
    }

    /// Computes it.
    pub fn run(&self, table: &Table) -> Result<(), String> {
        let [a, b, c, d] = &self.layouts;
        let Description { turned, epilogue, bias, auxiliary, auxiliary_leading, units } = self.description;
        let ([rows, terms], [_, columns]) = (self.of_left(), self.of_right());
        let auxiliary_matrix = Layout { leading: auxiliary_leading.max(rows), ..*d };
        let bias_vector = Layout { columns: 1, leading: rows, ..*d };
        let needs = [
            ("left factor", a, self.at[0], true),
            ("right factor", b, self.at[1], true),
            ("what is added", c, self.at[2], self.beta != 0.0),
            ("result", d, self.at[3], true),
            ("bias", &bias_vector, bias, epilogue & BIAS != 0),
            ("argument of GELU", &auxiliary_matrix, auxiliary, epilogue & AUXILIARY != 0),
        ];
        if let Some((what, ..)) = needs.iter().find(|(_, of, at, used)| *used && !of.exists(*at, table)) {
            return Err(format!("the {what} does not exist"));
        }
        let unit: f32 = units.iter().filter(|&&at| at != 0).map(|&at| Real::F32.read(at)).product();
        // The left factor by terms, a column of it in a row.
        let mut left = vec![0.0; terms * rows];
        for term in 0..terms {
            for row in 0..rows {
                let (i, j) = if turned[0] { (term, row) } else { (row, term) };
                left[term * rows + row] = a.of.read(a.place(self.at[0], i, j));
            }
        }
        let mut sums = vec![0.0f32; rows];
        let mut right = vec![0.0f32; terms];
        for column in 0..columns {
            for (term, right) in right.iter_mut().enumerate() {
                let (i, j) = if turned[1] { (column, term) } else { (term, column) };
                *right = b.of.read(b.place(self.at[1], i, j));
            }
            add_column(&mut sums, &left, &right);
            for (row, sum) in sums.iter().enumerate() {
                let mut value = sum * unit;
                if self.beta != 0.0 {
                    value += self.beta * c.of.read(c.place(self.at[2], row, column));
                }
                if epilogue & BIAS != 0 {
                    value += d.of.read(bias_vector.place(bias, row, 0));
                }
                let beside = auxiliary_matrix.place(auxiliary, row, column);
                if epilogue & GELU != 0 {
                    d.of.write(beside, value);
                    value = gelu(value);
                }
                if epilogue & GELU_SLOPE != 0 {
                    value *= gelu_slope(d.of.read(beside));
                }
                d.of.write(d.place(self.at[3], row, column), value);
            }
        }
        Ok(())
    }
}

/// Terms that are added up before they meet the sum of those before: one long chain would round more than the real library does.
const CHAIN: usize = 64;

/// A column of the result: columns of the left factor times numbers.
fn add_column(sums: &mut [f32], left: &[f32], right: &[f32]) {
    #[inline(always)]
    fn all(sums: &mut [f32], left: &[f32], right: &[f32]) {
        sums.fill(0.0);
        let mut parts = vec![0.0f32; sums.len()];
        for (left, right) in left.chunks(CHAIN * sums.len()).zip(right.chunks(CHAIN)) {
            parts.fill(0.0);
            for (column, factor) in left.chunks_exact(sums.len()).zip(right) {
                for (part, x) in parts.iter_mut().zip(column) {
                    *part = x.mul_add(*factor, *part);
                }
            }
            sums.iter_mut().zip(&parts).for_each(|(sum, part)| *sum += part);
        }
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma")]
        fn wide(sums: &mut [f32], left: &[f32], right: &[f32]) {
            all(sums, left, right);
        }
        if has_wide_vectors() {
            // SAFETY: the processor was asked.
            return unsafe { wide(sums, left, right) };
        }
    }
    all(sums, left, right);
}

/// √(2/π) and what the cube is multiplied with: GELU by the hyperbolic tangent.
const SCALE: f64 = 0.797_884_560_802_865_4;
const CUBE: f64 = 0.044_715;

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + (SCALE * (x + CUBE * x.powi(3))).tanh())) as f32
}

fn gelu_slope(x: f32) -> f32 {
    let x = f64::from(x);
    let tanh = (SCALE * (x + CUBE * x.powi(3))).tanh();
    let inner = SCALE * (1.0 + 3.0 * CUBE * x * x);
    (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner) as f32
}
