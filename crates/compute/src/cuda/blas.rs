//! Matrix products through cuBLASLt: which candidates there are for a shape, which of them is fastest here, and running it.
//!
//! Our matrices are row by row, the library's column by column, so it is asked for the transposed product: its first factor is
//! our right one.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{c_int, c_void},
    fmt::Write as _,
    ptr,
    sync::Arc,
};

use super::{
    call::Arg,
    driver::{Driver, missing},
    library::{self, Needed, Places},
    symbols::symbols,
};
use crate::{
    error::{Error, Result},
    tensor::DType,
};

symbols! {
    /// The library's functions.
    Api {
        cublasLtGetVersion();
        cublasLtCreate(handle: *mut usize);
        cublasLtDestroy(handle: usize);
        cublasLtMatmulDescCreate(desc: *mut usize, compute: c_int, scale: c_int);
        cublasLtMatmulDescDestroy(desc: usize);
        cublasLtMatmulDescSetAttribute(desc: usize, attribute: c_int, value: *const c_void, bytes: usize);
        cublasLtMatrixLayoutCreate(layout: *mut usize, of: c_int, rows: u64, columns: u64, leading: i64);
        cublasLtMatrixLayoutDestroy(layout: usize);
        cublasLtMatmulPreferenceCreate(preference: *mut usize);
        cublasLtMatmulPreferenceDestroy(preference: usize);
        cublasLtMatmulPreferenceSetAttribute(preference: usize, attribute: c_int, value: *const c_void, bytes: usize);
        cublasLtMatmulAlgoGetHeuristic(
            handle: usize, desc: usize, a: usize, b: usize, c: usize, d: usize, preference: usize,
            wanted: c_int, results: *mut Heuristic, found: *mut c_int,
        );
        cublasLtMatmulAlgoConfigSetAttribute(
            algorithm: *mut Algorithm, attribute: c_int, value: *const c_void, bytes: usize,
        );
        cublasLtMatmulAlgoCheck(
            handle: usize, desc: usize, a: usize, b: usize, c: usize, d: usize, algorithm: *const Algorithm,
            result: *mut Heuristic,
        );
        cublasLtMatmul(
            handle: usize, desc: usize, alpha: *const f32, a: u64, a_layout: usize, b: u64, b_layout: usize,
            beta: *const f32, c: u64, c_layout: usize, d: u64, d_layout: usize, algorithm: *const Algorithm,
            workspace: u64, workspace_bytes: usize, stream: usize,
        );
    }
}

/// How the library computes a product: a value of its own that can be stored and given back.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Algorithm([u64; 8]);

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace_bytes: usize,
    status: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

/// Memory that products may use: enough for the parts of a weight's gradient whose rows are shared out.
const WORKSPACE_BYTES: usize = 128 << 20;
/// How many of the library's proposals are tried.
const CANDIDATES: usize = 24;
/// Products below this many multiplications take the library's first proposal: timing them would cost more than it wins.
pub(super) const WORTH_TIMING: f64 = 1e8;

/// Runs of what is timed that follow each other without a pause.
pub(super) const IN_A_ROW: usize = 10;

/// Into how many parts the rows of a long sum are shared out, besides what the library proposes itself.
const PARTS: [u32; 5] = [2, 3, 4, 6, 8];
/// What the number of a way is written behind, where an algorithm has its words.
const WAY: &str = "way ";

mod attribute {
    use std::ffi::c_int;
    pub const TRANSPOSE_A: c_int = 3;
    pub const TRANSPOSE_B: c_int = 4;
    pub const EPILOGUE: c_int = 7;
    pub const BIAS: c_int = 8;
    pub const AUXILIARY: c_int = 11;
    pub const AUXILIARY_LEADING: c_int = 12;
    pub const UNIT_A: c_int = 17;
    pub const UNIT_B: c_int = 18;
    pub const FAST_SUMS: c_int = 25;
    pub const MAX_WORKSPACE: c_int = 1;
    /// Of an algorithm: the parts of a sum, and how they are added up.
    pub const PARTS: c_int = 2;
    pub const ADDITION: c_int = 3;
    /// Of a, b, c and d.
    pub const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
}

/// A factor of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor {
    pub at: Arg,
    pub of: DType,
    /// Elements from one stored row to the next.
    pub leading: usize,
    /// Whether it is stored the other way round.
    pub transposed: bool,
    /// Where the number lies that its elements are multiplied by; those of eight bits have one.
    pub unit: Option<Arg>,
}

/// What happens to a sum before it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Epilogue {
    Nothing,
    /// Adds a value per column.
    Bias(Arg),
    /// Adds a bias if there is one, stores that in `before`, and its GELU as the result.
    Gelu {
        before: Arg,
        bias: Option<Arg>,
    },
    /// Multiplies by GELU's slope at `before`.
    GeluSlope {
        before: Arg,
    },
}

impl Epilogue {
    /// The library's number for it.
    fn code(&self) -> u32 {
        const BIAS: u32 = 4;
        const GELU_AUX: u32 = 32 | 128;
        match self {
            Epilogue::Nothing => 1,
            Epilogue::Bias(_) => BIAS,
            Epilogue::Gelu { bias: None, .. } => GELU_AUX,
            Epilogue::Gelu { bias: Some(_), .. } => GELU_AUX | BIAS,
            Epilogue::GeluSlope { .. } => 64 | 128,
        }
    }

    fn bias(&self) -> Option<Arg> {
        match *self {
            Epilogue::Bias(at) => Some(at),
            Epilogue::Gelu { bias, .. } => bias,
            Epilogue::Nothing | Epilogue::GeluSlope { .. } => None,
        }
    }

    fn before(&self) -> Option<Arg> {
        match *self {
            Epilogue::Gelu { before, .. } | Epilogue::GeluSlope { before } => Some(before),
            Epilogue::Nothing | Epilogue::Bias(_) => None,
        }
    }
}

/// `out [rows, columns] = left [rows, inner] · right [inner, columns]`, or that added to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub rows: usize,
    pub columns: usize,
    pub inner: usize,
    pub left: Factor,
    pub right: Factor,
    pub out: Arg,
    pub out_type: DType,
    /// Elements from one row of the result to the next.
    pub out_leading: usize,
    pub add: bool,
    pub epilogue: Epilogue,
}

impl Product {
    /// Everything that the choice of an algorithm depends on.
    fn key(&self) -> String {
        let side = |factor: &Factor| {
            format!("{}/{}{}", factor.of, factor.leading, if factor.transposed { "t" } else { "" })
        };
        format!(
            "{}x{}x{} {} {} {}/{} {} e{}",
            self.rows,
            self.columns,
            self.inner,
            side(&self.left),
            side(&self.right),
            self.out_type,
            self.out_leading,
            if self.add { "add" } else { "set" },
            self.epilogue.code(),
        )
    }

    /// Whether sums may stay in the matrix unit, which keeps about 14 bits of them, to their end: right for short ones of eight bits.
    fn sums_are_fast(&self) -> bool {
        const LONGEST: usize = 8192;
        self.left.unit.is_some() && self.inner <= LONGEST
    }

    /// Whether elements of the result are sums over many more numbers than there are rows or columns, as in a weight's gradient.
    fn is_long_sum(&self) -> bool {
        self.inner > 2 * self.rows.max(self.columns) && self.multiplications() >= WORTH_TIMING
    }

    fn multiplications(&self) -> f64 {
        self.rows as f64 * self.columns as f64 * self.inner as f64
    }

    /// Bytes of the right factor, the left one and the result.
    fn bytes(&self) -> [usize; 3] {
        let of = |factor: &Factor, rows: usize, columns: usize| {
            factor.leading * factor.of.bytes() * if factor.transposed { columns } else { rows }
        };
        [
            of(&self.right, self.inner, self.columns),
            of(&self.left, self.rows, self.inner),
            self.rows * self.out_leading * self.out_type.bytes(),
        ]
    }
}

/// The library's descriptions of a product's operands, given back when dropped.
struct Description {
    api: Arc<Library>,
    desc: usize,
    /// Of a, b and c; d is like c.
    layouts: [usize; 3],
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the handles are ours and forgotten.
        unsafe {
            (self.api.api.cublasLtMatmulDescDestroy)(self.desc);
            for layout in self.layouts {
                (self.api.api.cublasLtMatrixLayoutDestroy)(layout);
            }
        }
    }
}

/// A product that the library can compute, without its addresses.
pub(super) struct Prepared {
    product: Product,
    description: Description,
    candidates: Vec<Algorithm>,
}

/// A product that is ready to run.
pub(super) struct ProductPlan {
    description: Description,
    algorithm: Algorithm,
    a: u64,
    b: u64,
    c: u64,
    beta: f32,
}

struct Library {
    api: Api,
    handle: usize,
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and forgotten.
        unsafe { (self.api.cublasLtDestroy)(self.handle) };
    }
}

/// The library, opened, with the choices made so far.
pub(super) struct Blas {
    library: Arc<Library>,
    driver: Arc<Driver>,
    workspace: u64,
    choices: BTreeMap<String, Algorithm>,
    /// Products whose chosen kernels are loaded.
    ready: BTreeSet<String>,
    /// Of launches that can be run in several ways, the number of the fastest.
    ways: BTreeMap<String, usize>,
    chosen_anew: bool,
    /// Pieces of memory with random numbers to time candidates on.
    timing: Vec<(u64, usize)>,
}

impl Blas {
    pub fn open(driver: Arc<Driver>, places: &Places) -> Result<Self> {
        let found = library::open(Needed::BlasLt, places)
            .ok_or_else(|| missing(Needed::BlasLt, "it was not found"))?;
        let api = Api::load(found.library)
            .map_err(|symbol| missing(Needed::BlasLt, &format!("the one found has no {symbol}")))?;
        let mut handle = 0;
        // SAFETY: the library writes one handle.
        check("cublasLtCreate", unsafe { (api.cublasLtCreate)(&mut handle) })?;
        let library = Arc::new(Library { api, handle });
        let workspace = driver.allocate(WORKSPACE_BYTES)?;
        Ok(Blas {
            library,
            driver,
            workspace,
            choices: BTreeMap::new(),
            ready: BTreeSet::new(),
            ways: BTreeMap::new(),
            chosen_anew: false,
            timing: Vec::new(),
        })
    }

    /// The library's version as a number.
    pub fn version(&self) -> i32 {
        // SAFETY: the function takes nothing; its size_t result is a small number.
        unsafe { (self.library.api.cublasLtGetVersion)() }
    }

    /// Looks for algorithms; nothing where the library has none for such a product.
    pub fn prepare(&self, product: Product) -> Result<Option<Prepared>> {
        let description = self.describe_product(&product)?;
        let candidates = self.candidates(&product, &description)?;
        Ok((!candidates.is_empty()).then_some(Prepared { product, description, candidates }))
    }

    /// Puts addresses into a product and chooses its algorithm.
    pub fn plan(
        &mut self,
        prepared: Prepared,
        place: &dyn Fn(Arg) -> u64,
        stream: usize,
    ) -> Result<ProductPlan> {
        let Prepared { product, description, candidates } = prepared;
        let algorithm = self.choose(&product, &description, &candidates, stream)?;
        let [a, b, c] = [product.right.at, product.left.at, product.out].map(place);
        self.set_epilogue(&description, &product, place)?;
        Ok(ProductPlan { description, algorithm, a, b, c, beta: f32::from(u8::from(product.add)) })
    }

    /// Puts a product on a stream.
    pub fn run(&self, plan: &ProductPlan, stream: usize) -> Result<()> {
        let ProductPlan { description, algorithm, a, b, c, beta } = plan;
        self.multiply(description, algorithm, [*a, *b, *c], *beta, stream)
    }

    fn multiply(
        &self,
        description: &Description,
        algorithm: &Algorithm,
        [a, b, c]: [u64; 3],
        beta: f32,
        stream: usize,
    ) -> Result<()> {
        let [a_layout, b_layout, c_layout] = description.layouts;
        // SAFETY: descriptions match the operands' types and sizes; the scalars are read before the call returns.
        let status = unsafe {
            (self.library.api.cublasLtMatmul)(
                self.library.handle,
                description.desc,
                &1.0,
                a,
                a_layout,
                b,
                b_layout,
                &beta,
                c,
                c_layout,
                c,
                c_layout,
                algorithm,
                self.workspace,
                WORKSPACE_BYTES,
                stream,
            )
        };
        check("cublasLtMatmul", status)
    }

    fn describe_product(&self, product: &Product) -> Result<Description> {
        const COMPUTE_F32: c_int = 68;
        let api = &self.library.api;
        let Product { rows, columns, inner, left, right, out_type, out_leading, .. } = *product;
        let layout = |of: DType, rows: usize, columns: usize, leading: usize| -> Result<usize> {
            let mut layout = 0;
            // SAFETY: the library writes one handle.
            let status = unsafe {
                (api.cublasLtMatrixLayoutCreate)(
                    &mut layout,
                    code(of),
                    rows as u64,
                    columns as u64,
                    leading as i64,
                )
            };
            check("cublasLtMatrixLayoutCreate", status)?;
            Ok(layout)
        };
        let mut desc = 0;
        // SAFETY: the library writes one handle.
        let status = unsafe { (api.cublasLtMatmulDescCreate)(&mut desc, COMPUTE_F32, code(DType::F32)) };
        check("cublasLtMatmulDescCreate", status)?;
        let description = Description {
            api: Arc::clone(&self.library),
            desc,
            layouts: [
                if right.transposed {
                    layout(right.of, inner, columns, right.leading)?
                } else {
                    layout(right.of, columns, inner, right.leading)?
                },
                if left.transposed {
                    layout(left.of, rows, inner, left.leading)?
                } else {
                    layout(left.of, inner, rows, left.leading)?
                },
                layout(out_type, columns, rows, out_leading)?,
            ],
        };
        // Our right factor is stored [inner, columns], which to the library is columns × inner: no transposition.
        set(&description, attribute::TRANSPOSE_A, &u32::from(right.transposed))?;
        set(&description, attribute::TRANSPOSE_B, &u32::from(left.transposed))?;
        set(&description, attribute::EPILOGUE, &product.epilogue.code())?;
        set(&description, attribute::FAST_SUMS, &i8::from(product.sums_are_fast()))?;
        // Only the alignment of these addresses counts until the true ones are known.
        self.set_epilogue(&description, product, &|arg| match arg {
            Arg::Pointer(address) => address,
            _ => 256,
        })?;
        Ok(description)
    }

    fn set_epilogue(
        &self,
        description: &Description,
        product: &Product,
        place: &dyn Fn(Arg) -> u64,
    ) -> Result<()> {
        for (attribute, factor) in [(attribute::UNIT_A, product.right), (attribute::UNIT_B, product.left)] {
            if let Some(unit) = factor.unit {
                set(description, attribute, &place(unit))?;
            }
        }
        if let Some(bias) = product.epilogue.bias() {
            set(description, attribute::BIAS, &place(bias))?;
        }
        if let Some(before) = product.epilogue.before() {
            set(description, attribute::AUXILIARY, &place(before))?;
            set(description, attribute::AUXILIARY_LEADING, &(product.out_leading as i64))?;
        }
        Ok(())
    }

    fn candidates(&self, product: &Product, description: &Description) -> Result<Vec<Algorithm>> {
        let api = &self.library.api;
        let mut preference = 0;
        let mut results = [Heuristic::default(); CANDIDATES];
        let mut found = 0;
        let [a, b, c] = description.layouts;
        // SAFETY: values and their sizes are as the header says; the library writes at most as many results as it is told.
        let status = unsafe {
            check("cublasLtMatmulPreferenceCreate", (api.cublasLtMatmulPreferenceCreate)(&mut preference))?;
            (api.cublasLtMatmulPreferenceSetAttribute)(
                preference,
                attribute::MAX_WORKSPACE,
                ptr::from_ref(&WORKSPACE_BYTES).cast(),
                size_of::<usize>(),
            );
            let ends = [product.right.at, product.left.at, product.out, product.out];
            for (attribute, at) in attribute::ALIGNMENTS.into_iter().zip(ends) {
                let alignment = alignment(at);
                (api.cublasLtMatmulPreferenceSetAttribute)(
                    preference,
                    attribute,
                    ptr::from_ref(&alignment).cast(),
                    size_of::<u32>(),
                );
            }
            let status = (api.cublasLtMatmulAlgoGetHeuristic)(
                self.library.handle,
                description.desc,
                a,
                b,
                c,
                c,
                preference,
                CANDIDATES as c_int,
                results.as_mut_ptr(),
                &mut found,
            );
            (api.cublasLtMatmulPreferenceDestroy)(preference);
            status
        };
        if status == NOT_SUPPORTED || status == INVALID_VALUE {
            return Ok(Vec::new());
        }
        check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let usable = results[..found as usize].iter().filter(|result| result.status == 0);
        let mut algorithms: Vec<Algorithm> = usable.map(|result| result.algorithm).collect();
        if product.is_long_sum() {
            let shared: Vec<Algorithm> =
                algorithms.iter().flat_map(|algorithm| self.shared_out(description, *algorithm)).collect();
            algorithms.extend(shared);
        }
        Ok(algorithms)
    }

    /// An algorithm with its sum shared out into parts that are kept apart and added up in order: few tiles keep all of the card busy.
    fn shared_out(&self, description: &Description, algorithm: Algorithm) -> Vec<Algorithm> {
        const IN_WORKSPACE: u32 = 2;
        let (api, [a, b, c]) = (&self.library.api, description.layouts);
        let with_parts = |parts: &u32| {
            let (mut algorithm, mut result) = (algorithm, Heuristic::default());
            // SAFETY: attributes are 32 bits wide, as the header says; the library reads the algorithm and writes one result.
            let status = unsafe {
                for (attribute, value) in [(attribute::PARTS, parts), (attribute::ADDITION, &IN_WORKSPACE)] {
                    let value = ptr::from_ref(value).cast();
                    (api.cublasLtMatmulAlgoConfigSetAttribute)(
                        &mut algorithm,
                        attribute,
                        value,
                        size_of::<u32>(),
                    );
                }
                let handle = self.library.handle;
                (api.cublasLtMatmulAlgoCheck)(handle, description.desc, a, b, c, c, &algorithm, &mut result)
            };
            let fits = status == 0 && result.status == 0 && result.workspace_bytes <= WORKSPACE_BYTES;
            fits.then_some(algorithm)
        };
        PARTS.iter().filter_map(with_parts).collect()
    }

    fn choose(
        &mut self,
        product: &Product,
        description: &Description,
        candidates: &[Algorithm],
        stream: usize,
    ) -> Result<Algorithm> {
        let key = product.key();
        if let Some(algorithm) = self.choices.get(&key).copied()
            && self.is_ready(&key, product, description, &algorithm, stream)
        {
            return Ok(algorithm);
        }
        let is_worth_timing = product.multiplications() >= WORTH_TIMING;
        let mut best: Option<(f64, Algorithm)> = None;
        let mut refusal = None;
        for algorithm in candidates {
            // A proposal may turn out not to run: it is passed over. Running also loads the kernel, which a capture could not.
            let limit = best.map_or(f64::INFINITY, |(seconds, _)| seconds);
            match self.time(product, description, algorithm, limit, stream) {
                Ok(seconds) if seconds < limit => best = Some((seconds, *algorithm)),
                Ok(_) => (),
                Err(error) => refusal = Some(error),
            }
            if best.is_some() && !is_worth_timing {
                break;
            }
        }
        let Some((_, algorithm)) = best else {
            let detail = refusal.map_or("no algorithm was proposed".into(), |error| error.to_string());
            return Err(Error::Cuda {
                call: "cublasLtMatmul",
                detail: format!("no proposal for {key} runs: {detail}"),
                advice: "report this with the output of `ironmill doctor`",
            });
        };
        self.ready.insert(key.clone());
        self.choices.insert(key, algorithm);
        self.chosen_anew = true;
        Ok(algorithm)
    }

    /// Whether a product runs as an earlier run chose. The first time it is run, which loads its kernel: a capture that has to load
    /// it fails now and then where other threads use the card.
    fn is_ready(
        &mut self,
        key: &str,
        product: &Product,
        description: &Description,
        algorithm: &Algorithm,
        stream: usize,
    ) -> bool {
        if !self.ready.contains(key) {
            if self.time(product, description, algorithm, 0.0, stream).is_err() {
                return false;
            }
            self.ready.insert(key.into());
        }
        true
    }

    /// The least time of a run on random numbers, of several in a row: a card that is at work is slower than one that begins, and
    /// not by the same for all. One run where it is far from the best.
    fn time(
        &mut self,
        product: &Product,
        description: &Description,
        algorithm: &Algorithm,
        best: f64,
        stream: usize,
    ) -> Result<f64> {
        let [a_bytes, b_bytes, c_bytes] = product.bytes().map(|bytes| bytes.next_multiple_of(256));
        let extra = (product.columns * 4).next_multiple_of(256);
        let base = self.random_memory(a_bytes + b_bytes + 2 * c_bytes + extra, stream)?;
        let [a, b, c] = [base, base + a_bytes as u64, base + (a_bytes + b_bytes) as u64];
        let before = c + c_bytes as u64;
        let bias = before + c_bytes as u64;
        let is_bias = |arg: Arg| matches!((arg, product.epilogue.bias()), (a, Some(b)) if same(a, b));
        self.set_epilogue(description, product, &|arg| if is_bias(arg) { bias } else { before })?;
        let beta = f32::from(u8::from(product.add));
        let [start, end] = [self.driver.create_event(true)?, self.driver.create_event(true)?];
        let timed = |runs: usize| -> Result<f64> {
            self.driver.record(start, stream)?;
            for _ in 0..runs {
                self.multiply(description, algorithm, [a, b, c], beta, stream)?;
            }
            self.driver.record(end, stream)?;
            self.driver.synchronize_event(end)?;
            Ok(self.driver.seconds_between(start, end)? / runs as f64)
        };
        // The first run loads the kernel, the second tells whether there is any hope.
        let outcome = timed(1).and_then(|_| timed(1)).and_then(|once| match once {
            once if once > 1.15 * best => Ok(once),
            _ => Ok(timed(IN_A_ROW)?.min(timed(IN_A_ROW)?)),
        });
        self.driver.destroy_event(start);
        self.driver.destroy_event(end);
        outcome
    }

    /// Memory with random numbers, until `end_timing`.
    pub fn random_memory(&mut self, bytes: usize, stream: usize) -> Result<u64> {
        if let Some((address, _)) = self.timing.iter().find(|(_, have)| *have >= bytes) {
            return Ok(*address);
        }
        // Smaller pieces stay: what is being timed may hold a product that is timed on its own first.
        let address = self.driver.allocate(bytes)?;
        self.timing.push((address, bytes));
        // Numbers of both signs around one, whether they are read as f32, bf16 or f16: never zeros, which run faster.
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let pattern: Vec<u16> = (0..1 << 16)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let bits = (state >> 40) as u16;
                bits & 0x80FF | 0x3E00
            })
            .collect();
        let piece = bytes.min(size_of_val(&pattern[..]));
        // SAFETY: the pattern lives until the stream has passed the copy.
        unsafe { self.driver.copy_in(address, pattern.as_ptr().cast(), piece, stream)? };
        self.driver.synchronize(stream)?;
        let mut filled = piece;
        while filled < bytes {
            let step = filled.min(bytes - filled);
            self.driver.copy(address + filled as u64, address, step, stream)?;
            filled += step;
        }
        Ok(address)
    }

    /// Gives back the memory that candidates were timed on.
    pub fn end_timing(&mut self) {
        for (address, _) in self.timing.drain(..) {
            self.driver.free(address);
        }
    }

    /// The choices as lines of text, if there are new ones since the last call.
    pub fn new_choices(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.chosen_anew) {
            return None;
        }
        let mut text = format!("cublaslt {}\n", self.version());
        for (key, Algorithm(words)) in &self.choices {
            let words: Vec<String> = words.iter().map(|word| format!("{word:016x}")).collect();
            let _ = writeln!(text, "{key}\t{}", words.join(" "));
        }
        for (key, way) in &self.ways {
            let _ = writeln!(text, "{key}\t{WAY}{way}");
        }
        Some(text)
    }

    /// The way to run a launch that was found fastest.
    pub fn way(&self, key: &str) -> Option<usize> {
        self.ways.get(key).copied()
    }

    /// Keeps a way to run a launch with the choices.
    pub fn keep_way(&mut self, key: String, way: usize) {
        self.ways.insert(key, way);
        self.chosen_anew = true;
    }

    /// Takes choices that an earlier run made with this version of the library; others mean nothing to it.
    pub fn take_choices(&mut self, text: &str) {
        let mut lines = text.lines();
        if lines.next() != Some(&format!("cublaslt {}", self.version())) {
            return;
        }
        for line in lines {
            let Some((key, words)) = line.split_once('\t') else { continue };
            if let Some(way) = words.strip_prefix(WAY).and_then(|way| way.parse().ok()) {
                self.ways.insert(key.into(), way);
                continue;
            }
            let words: Option<Vec<u64>> =
                words.split(' ').map(|word| u64::from_str_radix(word, 16).ok()).collect();
            if let Some(words) = words.and_then(|words| <[u64; 8]>::try_from(words).ok()) {
                self.choices.insert(key.into(), Algorithm(words));
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.end_timing();
        self.driver.free(self.workspace);
    }
}

const INVALID_VALUE: c_int = 7;
const NOT_SUPPORTED: c_int = 15;

fn check(call: &'static str, status: c_int) -> Result<()> {
    let detail = match status {
        0 => return Ok(()),
        1 => "the library is not initialised",
        3 => "the library could not allocate",
        7 => "an argument is invalid",
        8 => "the card is too old for it",
        13 => "the product did not run",
        14 => "an internal error of the library",
        15 => "such a product is not supported",
        _ => "an unknown status",
    };
    Err(Error::Cuda {
        call,
        detail: format!("{detail} (status {status})"),
        advice: "check nvidia-smi, then report this",
    })
}

fn set<T>(description: &Description, attribute: c_int, value: &T) -> Result<()> {
    // SAFETY: the library copies as many bytes as the value has, which is what the header asks of this attribute.
    let status = unsafe {
        (description.api.api.cublasLtMatmulDescSetAttribute)(
            description.desc,
            attribute,
            ptr::from_ref(value).cast(),
            size_of::<T>(),
        )
    };
    check("cublasLtMatmulDescSetAttribute", status)
}

/// The library's number for an element type.
fn code(of: DType) -> c_int {
    match of {
        DType::F32 | DType::U32 => 0,
        DType::F16 => 2,
        DType::BF16 => 14,
        DType::E4M3 => 28,
        DType::E5M2 => 29,
    }
}

fn alignment(at: Arg) -> u32 {
    match at {
        Arg::Pointer(address) => 1 << address.trailing_zeros().min(8),
        _ => 256,
    }
}

fn same(a: Arg, b: Arg) -> bool {
    match (a, b) {
        (Arg::Pointer(a), Arg::Pointer(b)) => a == b,
        (Arg::Scratch(a), Arg::Scratch(b)) | (Arg::Constant(a), Arg::Constant(b)) => a == b,
        _ => false,
    }
}
