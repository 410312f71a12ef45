//! A step of decoding as one kernel: the launches of a program that reads a token a row become the table of phases that
//! `decode_step.cu` goes through.
//!
//! Only norms, products with their activations and gates, rotary positions and attention over caches are known here, on Hopper, for
//! as many rows as [`most_rows`] says. Any other program runs as its launches. Values that phases hand to each other lie in working memory, each in
//! a place of its own, so no block overwrites what another still reads.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

use super::{
    attention::NO_WINDOW,
    call::{Arg, Builder, Grid},
    modules::Source,
};
use crate::{
    device::{BufferId, Launch, View},
    error::Result,
    kernel::Kernel,
    op::{Attention, Mask, Op},
    tensor::DType,
};

/// The numbers of `decode_step.cu`.
const WARPS: usize = 8;
/// With the warpgroup of the one that fetches weights.
const THREADS: u32 = 32 * WARPS as u32 + 128;
const COLUMNS: usize = 24;
const PART_STEPS: usize = 24;
const STAGE_BYTES: usize = COLUMNS * (64 * PART_STEPS + 64);
const CHAINS: usize = 8;
const WAITS: u32 = 1;
const OWN_NORM: u32 = 2;
const GATED: u32 = 4;
const APART: u32 = 8;
const ACTIVATED: u32 = 16;
const CENTRED: u32 = 32;
const PRODUCT: u32 = 0;
const NORM: u32 = 1;
const ATTENTION: u32 = 2;
/// Addresses with this bit are offsets in working memory.
const IN_SCRATCH: u64 = 1 << 63;

/// Shared memory of a block on Hopper, less what the kernel declares itself.
const SHARED_BYTES: usize = (227 << 10) - 512;
/// More stages than a layer has products fetch nothing earlier that would be late otherwise.
const MOST_STAGES: usize = 5;
/// Rows for which every block makes norms itself: that takes less time than waiting for a block that makes them for all.
const MOST_OWN_ROWS: usize = 2;
/// The widest norm, and the largest head.
const MOST_COLUMNS: usize = 8192;
const MOST_HEAD: usize = 128;

/// The most rows of a step. In f32 there are no matrix units; with more than two tiles of rows registers do not suffice, and the launches
/// are faster.
fn most_rows(real: DType) -> usize {
    if real == DType::F32 { 4 } else { 32 }
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Norm {
    a: u64,
    a_ids: u64,
    b: u64,
    b_ids: u64,
    b_bias: u64,
    gain: u64,
    shift: u64,
    sum: u64,
    y: u64,
    a_rows: u32,
    b_rows: u32,
    b_parts: u32,
    columns: u32,
    eps: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Product {
    x: u64,
    w: u64,
    bias: u64,
    out: u64,
    outputs: u32,
    depth: u32,
    parts: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Attend {
    qkv: u64,
    places: u64,
    k: u64,
    v: u64,
    out: u64,
    positions: u64,
    angles: u64,
    keys: u32,
    rows: u32,
    heads: u32,
    kv_heads: u32,
    size: u32,
    window: u32,
    angle_rows: u32,
    warps: u32,
    scale: f32,
    unused: u32,
}

#[derive(Clone, Copy)]
enum Work {
    Product(Product, Norm),
    Norm(Norm),
    Attention(Attend),
}

#[derive(Clone, Copy)]
struct Phase {
    flags: u32,
    work: Work,
}

impl Phase {
    /// As the kernel reads it.
    fn bytes(&self) -> Vec<u8> {
        let (kind, product, norm) = match self.work {
            Work::Product(product, norm) => (PRODUCT, product, norm),
            Work::Norm(norm) => (NORM, Product::default(), norm),
            Work::Attention(attend) => {
                let mut bytes = bytemuck::bytes_of(&[ATTENTION, self.flags, 0, 0]).to_vec();
                bytes.extend_from_slice(bytemuck::bytes_of(&attend));
                bytes.resize(size_of::<[u32; 4]>() + size_of::<Product>() + size_of::<Norm>(), 0);
                return bytes;
            }
        };
        let head = [kind, self.flags, 0, 0];
        [bytemuck::bytes_of(&head), bytemuck::bytes_of(&product), bytemuck::bytes_of(&norm)].concat()
    }
}

/// Where a value is, and the phase that writes it; none for what is there before.
#[derive(Clone, Copy)]
struct Stored {
    at: u64,
    writer: Option<usize>,
}

/// What a launch gave, as whoever reads it takes it.
#[derive(Clone, Copy)]
enum Value {
    Stored(Stored),
    /// Rows of a table by ids.
    Rows {
        table: u64,
        ids: u64,
        rows: u32,
    },
    /// Sums of parts of a product, without its bias.
    Parts {
        sums: Stored,
        parts: u32,
        bias: u64,
    },
    /// A norm that whoever reads it makes itself, in the phase of this number at the latest.
    Normed {
        norm: Norm,
        is_centred: bool,
        writer: Option<usize>,
        phase: usize,
    },
    /// A gate and what it gates.
    Gated(Stored),
    /// Queries, keys and values, of which all but the values are to be turned.
    Turned {
        of: Stored,
        positions: u64,
        angles: u64,
        angle_rows: u32,
        size: usize,
        still: usize,
    },
}

/// Adds the one call of all launches before the draw that ends a step, and says how many those are; nothing where they are not
/// all known, or where the card does not run all blocks at once.
pub(super) fn add(builder: &mut Builder<'_>, launches: &[Launch]) -> Result<Option<usize>> {
    let draws = |launch: &Launch| matches!(launch.kernel, Kernel::Adjust | Kernel::Draw(_));
    let Some(end) = launches.iter().position(draws) else {
        return Ok(None);
    };
    // Both begin with the logits.
    let (before, inputs) = (&launches[..end], &launches[end].inputs);
    if !builder.has_warpgroup_products() {
        return Ok(None);
    }
    let mut walk = Walk::new(builder, inputs[0]);
    if walk.all(before, &inputs[0]).is_none() {
        return Ok(None);
    }
    let Walk { rows, real, phases, scratch, head, columns, .. } = walk;
    let table: Vec<u8> = phases.iter().flat_map(Phase::bytes).collect();
    let tiles = rows.div_ceil(16).next_power_of_two();
    let padded = if head <= 64 { 64 } else { MOST_HEAD };
    let sum_bytes = (WARPS * COLUMNS * (16 * tiles + 4) * 4).max(WARPS * CHAINS * (padded + 2) * 4);
    let own_bytes = if rows <= MOST_OWN_ROWS { rows * columns * real.bytes() } else { 0 };
    let own_bytes = own_bytes.next_multiple_of(16);
    let fixed = sum_bytes + own_bytes + table.len();
    let stages = (SHARED_BYTES.saturating_sub(fixed) / STAGE_BYTES).min(MOST_STAGES);
    if stages < 2 {
        return Ok(None);
    }
    let shared_bytes = fixed + if real == DType::F32 { 0 } else { stages * STAGE_BYTES };
    let grid = Grid {
        shared_bytes: u32::try_from(shared_bytes).expect("a block's shared memory"),
        ..Grid::new(builder.multiprocessors(), THREADS)
    };
    let defines =
        [("TILES", tiles), ("STAGES", stages), ("FOURS", columns.div_ceil(4 * 32 * WARPS)), ("HEAD", padded)];
    let arguments = [
        builder.constant(&table),
        builder.scratch(scratch),
        builder.constant(&[0; 8]),
        Arg::Fault,
        phases.len().into(),
        rows.into(),
        own_bytes.into(),
        sum_bytes.into(),
    ];
    let is_added =
        builder.kernel_together(Source::DecodeStep, "decode_step", real, &defines, grid, &arguments)?;
    Ok(is_added.then_some(before.len()))
}

/// The launches so far as phases.
struct Walk<'a, 'b> {
    builder: &'a Builder<'b>,
    rows: usize,
    real: DType,
    phases: Vec<Phase>,
    values: BTreeMap<(BufferId, usize), Value>,
    /// Bytes of working memory.
    scratch: usize,
    /// The first phase since all blocks waited for each other.
    since: usize,
    /// The phase that must keep the sum of a norm.
    owed: Option<usize>,
    /// The largest head and the widest norm.
    head: usize,
    columns: usize,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(builder: &'a Builder<'b>, logits: View) -> Self {
        Walk {
            builder,
            rows: logits.of.shape.rows(),
            real: logits.of.dtype,
            phases: Vec::new(),
            values: BTreeMap::new(),
            scratch: 0,
            since: 0,
            owed: None,
            head: 8,
            columns: 4,
        }
    }

    /// Goes through launches, of which the last gives the logits.
    fn all(&mut self, launches: &[Launch], logits: &View) -> Option<()> {
        if self.rows == 0 || self.rows > most_rows(self.real) {
            return None;
        }
        for (index, launch) in launches.iter().enumerate() {
            self.one(launch, launches.get(index + 1))?;
        }
        // Whoever draws finds the logits in their own place.
        let Some(Value::Stored(Stored { writer: Some(writer), .. })) = self.values.get(&key(logits)) else {
            return None;
        };
        let out = self.address(logits)?;
        match &mut self.phases[*writer].work {
            Work::Product(product, _) => product.out = out,
            Work::Norm(_) | Work::Attention(_) => return None,
        }
        self.owed.is_none().then_some(())
    }

    fn one(&mut self, Launch { kernel, inputs, outputs }: &Launch, next: Option<&Launch>) -> Option<()> {
        match *kernel {
            Kernel::Op(Op::Embed) => {
                let [table, ids] = [&inputs[0], &inputs[1]];
                let rows = table.of.shape.rows() as u32;
                let value = Value::Rows { table: self.weight(table)?, ids: self.outside(ids)?, rows };
                self.give(&outputs[0], value);
            }
            Kernel::Op(Op::LayerNorm { eps, .. }) => {
                self.norm(&inputs[..1], &inputs[1..], None, &outputs[0], (eps, true))?;
            }
            Kernel::Op(Op::RmsNorm { eps }) => {
                self.norm(&inputs[..1], &inputs[1..], None, &outputs[0], (eps, false))?;
            }
            Kernel::AddLayerNorm { eps, .. } => {
                self.norm(&inputs[..2], &inputs[2..], Some(&outputs[0]), &outputs[1], (eps, true))?;
            }
            Kernel::AddRmsNorm { eps } => {
                self.norm(&inputs[..2], &inputs[2..], Some(&outputs[0]), &outputs[1], (eps, false))?;
            }
            Kernel::Op(Op::Linear { products, .. }) => {
                self.product(inputs, &outputs[0], products, 0, next)?;
            }
            // What goes into the activation is of use to gradients alone.
            Kernel::LinearGelu { products, .. } => {
                self.product(inputs, &outputs[1], products, ACTIVATED, None)?;
            }
            Kernel::JointSiluGate => {
                let value = Value::Gated(self.stored(&inputs[0])?);
                self.give(&outputs[0], value);
            }
            Kernel::Op(Op::Rope { inverse: false, still }) => {
                let (x, angles) = (&inputs[0], &inputs[2]);
                let value = Value::Turned {
                    of: self.stored(x)?,
                    positions: self.outside(&inputs[1])?,
                    angles: self.outside(angles).filter(|_| angles.of.dtype == DType::F32)?,
                    angle_rows: angles.of.shape.rows() as u32,
                    size: angles.of.shape.columns(),
                    still,
                };
                self.give(&outputs[0], value);
            }
            Kernel::CachedAttention(of) => self.attention(of, inputs, outputs)?,
            _ => return None,
        }
        Some(())
    }

    /// A norm of one operand, or of the sum of two, which is kept.
    fn norm(
        &mut self,
        summands: &[View],
        parameters: &[View],
        sum: Option<&View>,
        out: &View,
        (eps, is_centred): (f32, bool),
    ) -> Option<()> {
        let columns = out.of.shape.columns();
        let is_whole = parameters.iter().all(|view| view.of.shape.elements() == columns);
        let fits = columns <= MOST_COLUMNS && columns.is_multiple_of(8) && out.of.shape.rows() == self.rows;
        if !is_whole || !fits || self.owed.is_some() {
            return None;
        }
        self.columns = self.columns.max(columns);
        let mut norm = Norm { columns: columns as u32, eps, ..Norm::default() };
        let mut writer = match self.value(&summands[0])? {
            Value::Rows { table, ids, rows } => {
                (norm.a, norm.a_ids, norm.a_rows) = (table, ids, rows);
                None
            }
            Value::Stored(stored) => {
                norm.a = stored.at;
                stored.writer
            }
            _ => return None,
        };
        if let Some(b) = summands.get(1) {
            let b_writer = match self.value(b)? {
                Value::Rows { table, ids, rows } => {
                    (norm.b, norm.b_ids, norm.b_rows) = (table, ids, rows);
                    None
                }
                Value::Stored(stored) => {
                    norm.b = stored.at;
                    stored.writer
                }
                Value::Parts { sums, parts, bias } => {
                    (norm.b, norm.b_parts, norm.b_bias) = (sums.at, parts, bias);
                    sums.writer
                }
                _ => return None,
            };
            writer = writer.max(b_writer);
        }
        norm.gain = self.weight(&parameters[0])?;
        norm.shift = match parameters.get(1) {
            Some(shift) => self.weight(shift)?,
            None => 0,
        };
        // The phase that makes the norm is the next one, be it this or that of whoever reads it.
        let phase = self.phases.len();
        if let Some(sum) = sum {
            norm.sum = self.place(sum.of.shape.elements() * self.real.bytes());
            self.give(sum, Value::Stored(Stored { at: norm.sum, writer: Some(phase) }));
        }
        if self.rows <= MOST_OWN_ROWS {
            self.owed = Some(phase).filter(|_| sum.is_some());
            self.give(out, Value::Normed { norm, is_centred, writer, phase });
            return Some(());
        }
        norm.y = self.place(out.of.shape.elements() * self.real.bytes());
        self.give(out, Value::Stored(Stored { at: norm.y, writer: Some(phase) }));
        self.push(Work::Norm(norm), if is_centred { CENTRED } else { 0 }, writer)
    }

    fn product(
        &mut self,
        inputs: &[View],
        out: &View,
        products: DType,
        mut flags: u32,
        next: Option<&Launch>,
    ) -> Option<()> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let (outputs, depth) = (w.of.shape.rows(), w.of.shape.columns());
        let is_single = self.real == DType::F32;
        let fits = depth > 0 && outputs > 0 && depth.is_multiple_of(if is_single { 4 } else { 32 });
        if !fits || x.of.shape.rows() != self.rows || is_single && products != DType::F32 {
            return None;
        }
        let mut product = Product {
            w: self.weight(w)?,
            bias: inputs.get(2).map_or(Some(0), |bias| self.weight(bias))?,
            outputs: outputs as u32,
            depth: depth as u32,
            parts: if is_single { 1 } else { (depth / 32).div_ceil(PART_STEPS) as u32 },
            ..Product::default()
        };
        let mut norm = Norm::default();
        let writer = match self.value(x)? {
            Value::Stored(stored) => {
                product.x = stored.at;
                stored.writer
            }
            Value::Gated(stored) => {
                product.x = stored.at;
                flags |= GATED;
                stored.writer
            }
            Value::Normed { norm: of, is_centred, writer, phase } => {
                norm = of;
                flags |= OWN_NORM | if is_centred { CENTRED } else { 0 };
                if phase == self.phases.len() {
                    self.owed = None;
                } else {
                    norm.sum = 0;
                }
                writer
            }
            Value::Rows { .. } | Value::Parts { .. } | Value::Turned { .. } => return None,
        };
        let is_apart = product.parts > 1 && next.is_some_and(|next| adds_and_norms(next, out));
        let each = if is_apart { product.parts as usize * size_of::<f32>() } else { self.real.bytes() };
        product.out = self.place(self.rows * outputs * each);
        let stored = Stored { at: product.out, writer: Some(self.phases.len()) };
        if is_apart {
            flags |= APART;
            self.give(out, Value::Parts { sums: stored, parts: product.parts, bias: product.bias });
            product.bias = 0;
        } else {
            self.give(out, Value::Stored(stored));
        }
        self.push(Work::Product(product, norm), flags, writer)
    }

    fn attention(&mut self, of: Attention, inputs: &[View], outputs: &[View]) -> Option<()> {
        let [qkv, places, keys, values] = [&inputs[0], &inputs[1], &outputs[2], &outputs[3]];
        let (&[batch, queries, columns], &[rows, length, _]) = (qkv.of.shape.dims(), keys.of.shape.dims())
        else {
            return None;
        };
        let size = columns / (of.heads + 2 * of.kv_heads);
        let is_plain = of.mask == Mask::Causal && of.cached && !of.borders;
        let is_rounded = self.real != DType::F32 || of.products == DType::F32;
        let fits = size > 0 && size <= MOST_HEAD && size.is_multiple_of(8) && length > 0;
        if !is_plain || !is_rounded || !fits || queries != 1 || batch != self.rows {
            return None;
        }
        self.head = self.head.max(size);
        let (source, positions, angles, angle_rows) = match self.value(qkv)? {
            Value::Stored(stored) => (stored, 0, 0, 0),
            Value::Turned { of: stored, positions, angles, angle_rows, size: turned, still } => {
                // A lane turns eight elements with eight of the other half.
                if turned != size || !size.is_multiple_of(16) || still != of.kv_heads {
                    return None;
                }
                (stored, positions, angles, angle_rows)
            }
            _ => return None,
        };
        let items = self.rows * of.heads;
        let slots = |warps: usize| self.builder.multiprocessors() * (WARPS / warps);
        let warps = [8, 4, 2].into_iter().find(|&warps| slots(warps) >= items).unwrap_or(1);
        let out =
            Stored { at: self.place(items * size * self.real.bytes()), writer: Some(self.phases.len()) };
        let attend = Attend {
            qkv: source.at,
            places: self.outside(places)?,
            k: self.weight(keys)?,
            v: self.weight(values)?,
            out: out.at,
            positions,
            angles,
            keys: length as u32,
            rows: rows as u32,
            heads: of.heads as u32,
            kv_heads: of.kv_heads as u32,
            size: size as u32,
            window: if of.window == 0 { NO_WINDOW } else { of.window.min(NO_WINDOW) } as u32,
            angle_rows,
            warps: warps as u32,
            scale: (1.0 / (size as f64).sqrt()) as f32,
            unused: 0,
        };
        self.give(&outputs[0], Value::Stored(out));
        self.push(Work::Attention(attend), 0, source.writer)
    }

    /// Adds a phase that reads what the phase `writer` writes last.
    fn push(&mut self, work: Work, mut flags: u32, writer: Option<usize>) -> Option<()> {
        let index = self.phases.len();
        if self.owed.is_some_and(|owed| owed <= index) {
            return None;
        }
        if writer.is_some_and(|writer| writer >= self.since) {
            flags |= WAITS;
            self.since = index;
        }
        self.phases.push(Phase { flags, work });
        Some(())
    }

    /// A place in working memory.
    fn place(&mut self, bytes: usize) -> u64 {
        let at = self.scratch;
        self.scratch += bytes.next_multiple_of(256);
        IN_SCRATCH | at as u64
    }

    fn give(&mut self, view: &View, value: Value) {
        self.values.insert(key(view), value);
    }

    /// What a view holds: a value of the step, or something that was there before.
    fn value(&self, view: &View) -> Option<Value> {
        let known = self.values.get(&key(view)).copied();
        known.or_else(|| Some(Value::Stored(Stored { at: self.weight(view)?, writer: None })))
    }

    fn stored(&self, view: &View) -> Option<Stored> {
        match self.value(view)? {
            Value::Stored(stored) => Some(stored),
            _ => None,
        }
    }

    /// Numbers that no launch of the step writes, in its element type and where sixteen bytes may be read at a time.
    fn weight(&self, view: &View) -> Option<u64> {
        self.outside(view).filter(|at| view.of.dtype == self.real && at.is_multiple_of(16))
    }

    /// What no launch of the step writes.
    fn outside(&self, view: &View) -> Option<u64> {
        if self.values.contains_key(&key(view)) { None } else { self.address(view) }
    }

    fn address(&self, view: &View) -> Option<u64> {
        match self.builder.pointer(view) {
            Arg::Pointer(at) => Some(at),
            _ => None,
        }
    }
}

fn key(view: &View) -> (BufferId, usize) {
    (view.buffer, view.offset_bytes)
}

/// Whether a launch adds a product to something and takes the norm of that: then it adds up parts of the product as well.
fn adds_and_norms(launch: &Launch, product: &View) -> bool {
    matches!(launch.kernel, Kernel::AddLayerNorm { .. } | Kernel::AddRmsNorm { .. })
        && launch.inputs[1] == *product
}
