//! A step of decoding as one kernel: the launches of a program that reads a token a row become the table of phases that
//! `decode_step.cu` goes through, or `decode_few.cu` for very few rows.
//!
//! Only norms, products with their activations and gates, rotary positions and attention over caches are known here, on Hopper, for
//! as many rows as [`most_rows`] says. Any other program runs as its launches. Values that phases hand to each other lie in working memory, each in
//! a place of its own, so no block overwrites what another still reads.

use std::collections::BTreeMap;

use bytemuck::{Pod, Zeroable};

use super::{
    attention::NO_WINDOW,
    call::{Arg, Builder, Grid},
    int8,
    modules::Source,
    sequence::fill_one,
};
use crate::{
    device::{BufferId, Launch, View},
    error::Result,
    kernel::Kernel,
    op::{Attention, Mask, Op},
    tensor::DType,
};

/// The numbers of `decode.cuh`.
const WARPS: usize = 8;
/// With the warpgroup of the one that fetches weights.
const THREADS: u32 = 32 * WARPS as u32 + 128;
const PART_STEPS: usize = 24;
const STAGE_ROW_BYTES: usize = 64 * PART_STEPS + 64;
const TILE_BYTES: usize = 8 * STAGE_ROW_BYTES;
const INT8_TILE_BYTES: usize = PART_STEPS / int8::CHUNK * int8::CHUNK_BYTES;
const CHAINS: usize = 8;
/// Those of `decode_step.cu`.
const COLUMNS: usize = 24;
const GROUP: usize = COLUMNS / 8;
/// Those of `decode_few.cu`: an element's share of packets.
const PACKET_BYTES: usize = 4;
/// Fewer slots do not hold what is multiplied at a time, or what chains gather.
const LEAST_SLOTS: usize = 4;
const LEAST_INT8_SLOTS: usize = 6;
/// One of so many blocks may attend, the others multiply.
const ATTENDING_SHARE: usize = 4;
const WAITS: u32 = 1;
const OWN_NORM: u32 = 2;
const GATED: u32 = 4;
const APART: u32 = 8;
const ACTIVATED: u32 = 16;
const CENTRED: u32 = 32;
const PLAIN: u32 = 64;
const KEPT: u32 = 128;
const SENT: u32 = 256;
const PRODUCT: u32 = 0;
const NORM: u32 = 1;
const ATTENTION: u32 = 2;
/// Addresses with this bit are offsets in working memory.
const IN_SCRATCH: u64 = 1 << 63;

/// Shared memory of a block on Hopper, less what the kernels declare themselves.
const SHARED_BYTES: usize = (227 << 10) - 512;
const FEW_SHARED_BYTES: usize = (227 << 10) - 5 * 1024;
/// More stages than a layer has products fetch nothing earlier that would be late otherwise.
const MOST_STAGES: usize = 5;
const MOST_INT8_STAGES: usize = 9;
/// The same of slots, of which a layer of GPT-2 takes eleven. In eight bits they are half as large.
const MOST_SLOTS: usize = 16;
const MOST_INT8_SLOTS: usize = 28;
/// Rows for which every block makes norms itself: that takes less time than waiting for a block that makes them for all.
const MOST_OWN_ROWS: usize = 2;
/// The widest norm, and the largest and smallest head.
const MOST_COLUMNS: usize = 8192;
const MOST_HEAD: usize = 128;
const SMALLEST_HEAD: usize = 8;

/// The most rows of a step. In f32 there are no matrix units; with more than two tiles of rows registers do not suffice. Launches are
/// faster from nine rows on, but round otherwise: up to here a text in 16 bits is the same beside any others.
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
    /// What the latest norm added up, where every block keeps that itself.
    Kept {
        phase: usize,
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
        flags: u32,
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
    for is_few in [true, false] {
        let Some(plan) = Walk::new(builder, &inputs[0], is_few).all(before, &inputs[0]) else { continue };
        for &index in &plan.apart {
            fill_one(builder, &before[index])?;
        }
        if if is_few { add_few(builder, plan)? } else { add_step(builder, plan)? } {
            return Ok(Some(before.len()));
        }
        builder.take_back();
    }
    Ok(None)
}

/// What a kernel that stands for a step needs to know.
struct Plan {
    rows: usize,
    real: DType,
    phases: Vec<Phase>,
    scratch: usize,
    head: usize,
    turns: bool,
    gates: bool,
    columns: usize,
    depth: usize,
    attending: usize,
    is_int8: bool,
    /// Launches that run before the kernel, which does not look up rows of eight bits.
    apart: Vec<usize>,
}

impl Plan {
    fn table(&self) -> Vec<u8> {
        self.phases.iter().flat_map(Phase::bytes).collect()
    }

    /// The head size that the kernel works with.
    fn padded_head(&self) -> usize {
        if self.head <= 64 { 64 } else { MOST_HEAD }
    }

    /// Whether all parts of K are of the same length in all products.
    fn has_whole_parts(&self) -> bool {
        self.phases.iter().all(|phase| match phase.work {
            Work::Product(product, _) => (product.depth as usize).is_multiple_of(32 * PART_STEPS),
            Work::Norm(_) | Work::Attention(_) => true,
        })
    }

    /// What both kernels are compiled for.
    fn defines(&self) -> Vec<(&'static str, usize)> {
        let fours = self.columns.div_ceil(4 * 32 * WARPS);
        vec![
            ("FOURS", fours),
            ("HEAD", self.padded_head()),
            ("SIZE", self.head),
            ("TURNS", self.turns.into()),
            ("INT8", self.is_int8.into()),
        ]
    }

    /// Bytes of a part of the weights of a tile of outputs.
    fn tile_bytes(&self) -> usize {
        if self.is_int8 { INT8_TILE_BYTES } else { TILE_BYTES }
    }

    /// Bytes of what the chains of all items gather that a block has at a time.
    fn chain_bytes(&self) -> usize {
        WARPS * CHAINS * (self.padded_head() + 4) * size_of::<f32>()
    }
}

/// Adds `decode_step`, where its blocks all fit the card at once.
fn add_step(builder: &mut Builder<'_>, plan: Plan) -> Result<bool> {
    let (rows, table) = (plan.rows, plan.table());
    let tiles = rows.div_ceil(16).next_power_of_two();
    let sum_bytes = (WARPS * COLUMNS * (16 * tiles + 4) * 4).max(plan.chain_bytes());
    let own_bytes = if rows <= MOST_OWN_ROWS { rows * plan.columns * plan.real.bytes() } else { 0 };
    let own_bytes = own_bytes.next_multiple_of(16);
    let fixed = sum_bytes + own_bytes + table.len();
    let stage_bytes = GROUP * plan.tile_bytes();
    let most_stages = if plan.is_int8 { MOST_INT8_STAGES } else { MOST_STAGES };
    let stages = (SHARED_BYTES.saturating_sub(fixed) / stage_bytes).min(most_stages);
    if stages < 2 {
        return Ok(false);
    }
    let shared_bytes = fixed + if plan.real == DType::F32 { 0 } else { stages * stage_bytes };
    let defines = [vec![("TILES", tiles), ("STAGES", stages)], plan.defines()].concat();
    let arguments = [
        builder.constant(&table),
        builder.scratch(plan.scratch),
        builder.constant(&[0; 8]),
        Arg::Fault,
        plan.phases.len().into(),
        rows.into(),
        own_bytes.into(),
        sum_bytes.into(),
    ];
    let grid = grid(builder, shared_bytes);
    builder.kernel_together(Source::DecodeStep, "decode_step", plan.real, &defines, grid, &arguments)
}

/// Adds `decode_few`, where its blocks all fit the card at once.
fn add_few(builder: &mut Builder<'_>, plan: Plan) -> Result<bool> {
    let (table, each) = (plan.table(), plan.real.bytes());
    let row_bytes = (plan.rows * plan.depth.max(plan.columns) * each).next_multiple_of(16);
    // What is kept of rows, and gains and shifts of two norms.
    let norm_bytes = (plan.rows + 4) * plan.columns * each;
    let fixed = row_bytes + norm_bytes + table.len();
    let slot_bytes = plan.tile_bytes();
    let (least_slots, most_slots) =
        if plan.is_int8 { (LEAST_INT8_SLOTS, MOST_INT8_SLOTS) } else { (LEAST_SLOTS, MOST_SLOTS) };
    let slots = (FEW_SHARED_BYTES.saturating_sub(fixed) / slot_bytes).min(most_slots);
    if slots < least_slots {
        return Ok(false);
    }
    let defines = [
        vec![
            ("ROWS", plan.rows),
            ("SLOTS", slots),
            ("WHOLE", plan.has_whole_parts().into()),
            ("GATES", plan.gates.into()),
        ],
        plan.defines(),
    ]
    .concat();
    // Packets begin as zeroes, which no run's are.
    let packets = vec![0; plan.scratch];
    let arguments = [
        builder.constant(&table),
        builder.constant(&packets),
        builder.constant(&[0; 8]),
        Arg::Fault,
        plan.phases.len().into(),
        (builder.multiprocessors() - plan.attending).into(),
        plan.columns.into(),
        row_bytes.into(),
    ];
    let grid = grid(builder, fixed + slots * slot_bytes);
    builder.kernel_together(Source::DecodeFew, "decode_few", plan.real, &defines, grid, &arguments)
}

/// A block for every multiprocessor.
fn grid(builder: &Builder<'_>, shared_bytes: usize) -> Grid {
    Grid {
        shared_bytes: u32::try_from(shared_bytes).expect("a block's shared memory"),
        ..Grid::new(builder.multiprocessors(), THREADS)
    }
}

/// The launches so far as phases.
struct Walk<'a, 'b> {
    builder: &'a Builder<'b>,
    /// Whether values come in packets and every block makes and keeps all norms.
    is_few: bool,
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
    /// The phase whose norm added up what blocks keep.
    kept: Option<usize>,
    /// The size of all heads, whether any are turned, and whether products take gates.
    head: Option<usize>,
    turns: bool,
    gates: bool,
    /// The widest norm, the deepest product, and how many blocks attend where others do not.
    columns: usize,
    depth: usize,
    attending: usize,
    /// Whether weights of products are of eight bits, which all are or none, and the launches that run before the kernel.
    is_int8: Option<bool>,
    apart: Vec<usize>,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(builder: &'a Builder<'b>, logits: &View, is_few: bool) -> Self {
        Walk {
            builder,
            is_few,
            rows: logits.of.shape.rows(),
            real: logits.of.dtype,
            phases: Vec::new(),
            values: BTreeMap::new(),
            scratch: 0,
            since: 0,
            owed: None,
            kept: None,
            head: None,
            turns: false,
            gates: false,
            columns: 8,
            depth: 32,
            attending: 0,
            is_int8: None,
            apart: Vec::new(),
        }
    }

    /// Goes through launches, of which the last gives the logits.
    fn all(mut self, launches: &[Launch], logits: &View) -> Option<Plan> {
        let suits = !self.is_few || self.real != DType::F32 && self.rows <= MOST_OWN_ROWS;
        if self.rows == 0 || self.rows > most_rows(self.real) || !suits {
            return None;
        }
        for (index, launch) in launches.iter().enumerate() {
            if matches!(launch.kernel, Kernel::Op(Op::Embed))
                && self.builder.int8(&launch.inputs[0]).is_some()
            {
                let at = self.address(&launch.outputs[0]).filter(|at| at.is_multiple_of(16))?;
                self.give(&launch.outputs[0], Value::Stored(Stored { at, writer: None }));
                self.apart.push(index);
                continue;
            }
            self.one(launch, launches.get(index + 1))?;
        }
        // Whoever draws finds the logits in their own place.
        let Some(Value::Stored(Stored { writer: Some(writer), .. })) = self.values.get(&key(logits)) else {
            return None;
        };
        let out = self.address(logits)?;
        let phase = &mut self.phases[*writer];
        match &mut phase.work {
            Work::Product(product, _) => product.out = out,
            Work::Norm(_) | Work::Attention(_) => return None,
        }
        phase.flags |= PLAIN;
        if self.owed.is_some() || self.is_few && !self.phases.iter().all(suits_packets) {
            return None;
        }
        let Walk { rows, real, phases, scratch, head, turns, gates, columns, depth, attending, .. } = self;
        let (head, is_int8) = (head.unwrap_or(SMALLEST_HEAD), self.is_int8 == Some(true));
        let apart = self.apart;
        Some(Plan {
            rows,
            real,
            phases,
            scratch,
            head,
            turns,
            gates,
            columns,
            depth,
            attending,
            is_int8,
            apart,
        })
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
        let mut flags = if is_centred { CENTRED } else { 0 };
        let mut writer = match self.value(&summands[0])? {
            Value::Rows { table, ids, rows } => {
                (norm.a, norm.a_ids, norm.a_rows) = (table, ids, rows);
                None
            }
            Value::Kept { phase } if self.kept == Some(phase) => {
                flags |= KEPT;
                None
            }
            Value::Stored(stored) if !self.is_few || stored.writer.is_none() => {
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
                    flags |= if self.is_few && stored.writer.is_some() { SENT } else { 0 };
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
            norm.sum = self.place(sum.of.shape.elements());
            let stored = Value::Stored(Stored { at: norm.sum, writer: Some(phase) });
            self.give(sum, if self.is_few { Value::Kept { phase } } else { stored });
            self.kept = Some(phase);
        }
        if self.rows <= MOST_OWN_ROWS {
            self.owed = Some(phase).filter(|_| sum.is_some());
            self.give(out, Value::Normed { norm, flags, writer, phase });
            return Some(());
        }
        norm.y = self.place(out.of.shape.elements());
        self.give(out, Value::Stored(Stored { at: norm.y, writer: Some(phase) }));
        self.push(Work::Norm(norm), flags, writer)
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
        let is_int8 = w.of.dtype == self.real && self.builder.int8(w).is_some();
        if *self.is_int8.get_or_insert(is_int8) != is_int8 {
            return None;
        }
        let mut product = Product {
            w: if is_int8 { self.outside(w)? } else { self.weight(w)? },
            bias: inputs.get(2).map_or(Some(0), |bias| self.weight(bias))?,
            outputs: outputs as u32,
            depth: depth as u32,
            parts: if is_single { 1 } else { (depth / 32).div_ceil(PART_STEPS) as u32 },
            ..Product::default()
        };
        self.depth = self.depth.max(depth);
        let mut norm = Norm::default();
        let writer = match self.value(x)? {
            Value::Stored(stored) => {
                product.x = stored.at;
                stored.writer
            }
            Value::Gated(stored) => {
                product.x = stored.at;
                flags |= GATED;
                self.gates = true;
                stored.writer
            }
            Value::Normed { norm: of, flags: how, writer, phase } => {
                norm = of;
                flags |= OWN_NORM | how;
                if phase == self.phases.len() {
                    self.owed = None;
                } else if self.is_few {
                    // What it would add to has been added to.
                    return None;
                } else {
                    norm.sum = 0;
                }
                writer
            }
            Value::Rows { .. } | Value::Kept { .. } | Value::Parts { .. } | Value::Turned { .. } => {
                return None;
            }
        };
        if self.is_few && writer.is_none() && flags & OWN_NORM == 0 {
            return None;
        }
        let writer_of_out = Some(self.phases.len());
        let is_apart = product.parts > 1 && next.is_some_and(|next| adds_and_norms(next, out));
        flags |= if is_apart { APART } else { 0 };
        if is_apart && !self.is_few {
            product.out = self.bytes(self.rows * outputs * product.parts as usize * size_of::<f32>());
            let sums = Stored { at: product.out, writer: writer_of_out };
            self.give(out, Value::Parts { sums, parts: product.parts, bias: product.bias });
            product.bias = 0;
        } else {
            product.out = self.place(self.rows * outputs);
            self.give(out, Value::Stored(Stored { at: product.out, writer: writer_of_out }));
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
        // The kernel is compiled for one size of heads.
        if *self.head.get_or_insert(size) != size {
            return None;
        }
        self.turns |= matches!(self.value(qkv)?, Value::Turned { .. });
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
        if self.is_few && source.writer.is_none() {
            return None;
        }
        let items = self.rows * of.heads;
        let multiprocessors = self.builder.multiprocessors();
        let blocks = if self.is_few { (multiprocessors / ATTENDING_SHARE).max(1) } else { multiprocessors };
        let slots = |warps: usize| blocks * (WARPS / warps);
        let warps = [8, 4, 2].into_iter().find(|&warps| slots(warps) >= items).unwrap_or(1);
        self.attending = self.attending.max(items.div_ceil(WARPS / warps).min(blocks));
        let out = Stored { at: self.place(items * size), writer: Some(self.phases.len()) };
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

    /// A place in working memory for so many elements, or for their packets.
    fn place(&mut self, elements: usize) -> u64 {
        let each = if self.is_few { PACKET_BYTES } else { self.real.bytes() };
        self.bytes(elements * each)
    }

    /// A place in working memory.
    fn bytes(&mut self, bytes: usize) -> u64 {
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
        let is_plain = view.of.dtype == self.real && self.builder.int8(view).is_none();
        self.outside(view).filter(|at| is_plain && at.is_multiple_of(16))
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

/// Whether rows that a phase gives away in packets end with whole sixteen bytes of them, four elements, and its biases with whole tiles.
fn suits_packets(phase: &Phase) -> bool {
    match phase.work {
        Work::Product(product, _) => {
            let has_whole_tiles = product.bias == 0 || product.outputs.is_multiple_of(8);
            has_whole_tiles && (phase.flags & PLAIN != 0 || product.outputs.is_multiple_of(4))
        }
        Work::Norm(_) => false,
        Work::Attention(_) => true,
    }
}
