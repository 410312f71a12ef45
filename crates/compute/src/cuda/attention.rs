//! Attention and its gradient: which kernels run, on which grid, with which operands.
//!
//! bf16 and f16 run on the matrix units (`attention.cu`), f32 and wide heads without them (`attention_f32.cu`), a single query over a cache in
//! a kernel of its own (`attention_decode.cu`), and plain attention over whole heads on Hopper's own units
//! (`attention_hopper.cu`, and gradients of enough heads by `attention_whole_heads.cu`). All of them take a pointer to the first
//! element and the length of a row, or a map that says the same, so that heads inside one tensor and heads apart are the same to
//! them.

mod whole_heads;

use super::{
    call::{Arg, Builder, CachesAhead, Grid},
    driver::HeadRows,
    modules::Source,
    rows,
};
use crate::{
    device::{Launch, View},
    error::{Error, Result},
    kernel::Kernel,
    op::{Attention, Mask, Op},
    tensor::DType,
};

/// The largest head that the matrix units' kernels have room for.
const MOST_UNIT_HEAD: usize = 128;
/// The largest head of all.
const MOST_HEAD: usize = 256;
/// Queries whose ranges are summed up together: `RANGE_BLOCK` in `attention.cuh`.
const RANGE_BLOCK: usize = 64;
/// The window of an attention that has none: more than any position, and small enough to be added to one.
pub(super) const NO_WINDOW: usize = 0x1fff_ffff;
/// Query heads that one block of `attention_decode` reads keys for at most, and how many elements they may have.
const MOST_DECODE_GROUP: usize = 8;
const MOST_DECODE_ELEMENTS: usize = 1024;
/// Keys of a cache that four warps of `attention_decode` share; of more, eight.
const FEW_KEYS: usize = 512;

/// Keys of each sample that another launch may ask the second cache for: as many as come from memory in the time that it has.
const AHEAD: usize = 32;

/// What a product may ask for that comes before a norm, queries, keys and values, and this attention over caches. Nothing where the launches
/// behind it are others, or where the one before it writes what must be known for that.
pub(super) fn ahead(builder: &Builder<'_>, behind: &[Launch]) -> Option<CachesAhead> {
    let [_, product, Launch { kernel, inputs, outputs }, ..] = behind else { return None };
    let (Kernel::Op(Op::Linear { .. }), Kernel::CachedAttention(attention)) = (&product.kernel, kernel)
    else {
        return None;
    };
    let [qkv, places, caches] = [&inputs[0], &inputs[1], &outputs[2]];
    let heads = Heads::beside_cache(attention, qkv, caches, kernel.name()).ok()?;
    let is_aligned = (heads.kv_stride * heads.real.bytes()).is_multiple_of(16)
        && outputs[2..4].iter().all(|view| view.offset_bytes.is_multiple_of(16));
    if heads.queries != 1 || attention.window > 0 || !is_aligned || !builder.is_settled(places) {
        return None;
    }
    Some(CachesAhead {
        caches: [&outputs[2], &outputs[3]].map(|view| builder.pointer(view)),
        places: builder.pointer(places),
        rows: heads.key_rows,
        keys: heads.keys,
        columns: heads.kv_stride,
        first: heads.keys_of_a_turn(),
        count: AHEAD,
    })
}

/// Adds the calls of an attention or of its gradient; false for any other kernel.
pub(super) fn add(
    builder: &mut Builder<'_>,
    kernel: &Kernel,
    inputs: &[View],
    outputs: &[View],
) -> Result<bool> {
    match kernel {
        Kernel::Op(Op::Attention(attention)) => {
            let heads = Heads::apart(attention, &inputs[0], &inputs[1], kernel.name())?;
            let parts = [&inputs[0], &inputs[1], &inputs[2]].map(|view| builder.pointer(view));
            forward(builder, &heads, parts, [inputs, outputs], &inputs[3..])?;
        }
        Kernel::JointAttention(attention) => {
            let heads = Heads::joint(attention, &inputs[0], kernel.name())?;
            let parts = heads.parts(builder.pointer(&inputs[0]));
            forward(builder, &heads, parts, [inputs, outputs], &inputs[1..])?;
        }
        Kernel::CachedAttention(attention) => {
            let [qkv, caches] = [&inputs[0], &outputs[2]];
            let heads = Heads::beside_cache(attention, qkv, caches, kernel.name())?;
            let [q, new_k, new_v] = heads.parts(builder.pointer(qkv));
            let [k, v] = [&outputs[2], &outputs[3]].map(|view| builder.pointer(view));
            let operands = [inputs, outputs];
            if heads.queries == 1 && !heads.is_empty() {
                let defines = heads.defines(inputs.iter().chain(outputs));
                let [out, log_sum_exp] = [&outputs[0], &outputs[1]].map(|view| builder.pointer(view));
                let places = builder.pointer(&inputs[1]);
                let arguments = [q, k, v, new_k, new_v, out, log_sum_exp, places];
                decode(builder, &heads, &defines, arguments, [&inputs[1], &outputs[2], &outputs[3]])?;
            } else {
                for (from, to) in [(new_k, &outputs[2]), (new_v, &outputs[3])] {
                    rows::copy::append_columns(builder, (qkv, from), &inputs[1], to)?;
                }
                forward(builder, &heads, [q, k, v], operands, &inputs[1..])?;
            }
        }
        Kernel::Op(Op::AttentionGrad(attention)) => {
            let heads = Heads::apart(attention, &inputs[1], &inputs[2], kernel.name())?;
            let parts = [&inputs[1], &inputs[2], &inputs[3]].map(|view| builder.pointer(view));
            let gradients = [&outputs[0], &outputs[1], &outputs[2]].map(|view| builder.pointer(view));
            backward(builder, &heads, [parts, gradients], [inputs, outputs], &inputs[4..], None)?;
        }
        Kernel::JointAttentionGrad(attention) | Kernel::JointAttentionGrads { of: attention, .. } => {
            let heads = Heads::joint(attention, &inputs[1], kernel.name())?;
            let parts = heads.parts(builder.pointer(&inputs[1]));
            let gradients = heads.parts(builder.pointer(&outputs[0]));
            let adds = match kernel {
                Kernel::JointAttentionGrads { add, .. } => Some(*add),
                _ => None,
            };
            backward(builder, &heads, [parts, gradients], [inputs, outputs], &inputs[2..], adds)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The sizes of one attention, and where its heads lie.
pub(super) struct Heads {
    attention: Attention,
    real: DType,
    batch: usize,
    queries: usize,
    keys: usize,
    /// Rows of keys and values: one a sample, or those of a cache.
    key_rows: usize,
    size: usize,
    /// Elements from one position's queries to the next.
    q_stride: usize,
    /// The same for keys and for values.
    kv_stride: usize,
}

impl Heads {
    /// Of queries [B,T,H·D] and keys [B,S,Hkv·D].
    fn apart(attention: &Attention, q: &View, k: &View, name: &'static str) -> Result<Self> {
        let (&[batch, queries, q_stride], &[key_rows, keys, kv_stride]) =
            (q.of.shape.dims(), k.of.shape.dims())
        else {
            unreachable!("checked at bind")
        };
        let size = q_stride / attention.heads;
        let real = q.of.dtype;
        Heads { attention: *attention, real, batch, queries, keys, key_rows, size, q_stride, kv_stride }
            .checked(name)
    }

    /// Of queries, keys and values side by side: [B,T,(H + 2·Hkv)·D].
    pub(super) fn joint(attention: &Attention, qkv: &View, name: &'static str) -> Result<Self> {
        let &[batch, queries, columns] = qkv.of.shape.dims() else { unreachable!("checked at bind") };
        let heads = Heads {
            attention: *attention,
            real: qkv.of.dtype,
            batch,
            queries,
            keys: queries,
            key_rows: batch,
            size: columns / (attention.heads + 2 * attention.kv_heads),
            q_stride: columns,
            kv_stride: columns,
        };
        heads.checked(name)
    }

    /// Of queries in front of new keys and values, [B,T,(H + 2·Hkv)·D], and a cache [R,S,Hkv·D].
    fn beside_cache(attention: &Attention, qkv: &View, cache: &View, name: &'static str) -> Result<Self> {
        let &[key_rows, keys, kv_stride] = cache.of.shape.dims() else { unreachable!("checked at bind") };
        Ok(Heads { keys, key_rows, kv_stride, ..Heads::joint(attention, qkv, name)? })
    }

    fn checked(self, name: &'static str) -> Result<Self> {
        if self.size <= MOST_HEAD {
            return Ok(self);
        }
        let detail =
            format!("heads of {} elements; the cuda backend has heads of up to {MOST_HEAD}", self.size);
        Err(Error::Shape { op: name, detail })
    }

    /// Where queries, keys and values begin that lie side by side.
    fn parts(&self, qkv: Arg) -> [Arg; 3] {
        self.parts_before().map(|before| qkv.plus(before * self.real.bytes()))
    }

    /// Elements of a row before its queries, keys and values, where they lie side by side.
    fn parts_before(&self) -> [usize; 3] {
        let Attention { heads, kv_heads, .. } = self.attention;
        [0, heads, heads + kv_heads].map(|before| before * self.size)
    }

    /// Where queries, keys and values begin that lie side by side in bytes, as they stand and transposed.
    fn parts_of_bytes(&self, rows: Arg, transposed: Arg) -> [[Arg; 2]; 3] {
        let positions = self.batch * self.queries;
        self.parts_before().map(|before| [rows.plus(before), transposed.plus(before * positions)])
    }

    /// Positions of queries.
    pub(super) fn positions(&self) -> usize {
        self.queries
    }

    fn group(&self) -> usize {
        self.attention.heads / self.attention.kv_heads
    }

    /// The head size that the kernel is compiled for: what is missing is zeroes.
    fn padded(&self) -> usize {
        [64, MOST_UNIT_HEAD].into_iter().find(|&padded| self.size <= padded).unwrap_or(MOST_HEAD)
    }

    /// Bytes of a row of a padded head.
    fn row_bytes(&self) -> usize {
        self.padded() * self.real.bytes()
    }

    /// Query heads and warps of a block of `attention_decode`.
    fn decode_block(&self) -> [usize; 2] {
        // By the caches' length alone, since it decides the order of sums.
        let warps = if self.keys <= FEW_KEYS { 4 } else { 8 };
        let most = MOST_DECODE_GROUP.min(MOST_DECODE_ELEMENTS / self.padded());
        [self.group().next_power_of_two().min(most), warps]
    }

    /// Keys that such a block has on their way at a time: `TEAMS * FLIGHT` there.
    fn keys_of_a_turn(&self) -> usize {
        let ([group, warps], padded) = (self.decode_block(), self.padded());
        let (teams, flight) = (32 * warps / (padded / 8), if group * padded <= 256 { 4 } else { 2 });
        teams * flight
    }

    fn is_empty(&self) -> bool {
        self.batch * self.queries * self.size == 0
    }

    /// Whether the matrix units have kernels for it.
    fn suits_units(&self) -> bool {
        self.real != DType::F32 && self.size <= MOST_UNIT_HEAD
    }

    fn source(&self) -> Source {
        if self.suits_units() { Source::Attention } else { Source::AttentionF32 }
    }

    /// What operands of products in f32 storage are rounded to. Other storage rounds to itself.
    fn products(&self) -> usize {
        match (self.real, self.attention.products) {
            (DType::F32, DType::BF16) => 1,
            (DType::F32, DType::F16) => 2,
            _ => 0,
        }
    }

    /// Whether `attention_hopper.cu` has kernels for it. `views` are all operands.
    pub(super) fn suits_warpgroups<'a>(
        &self,
        builder: &Builder<'_>,
        views: impl IntoIterator<Item = &'a View>,
    ) -> bool {
        let Attention { cached, borders, window, .. } = self.attention;
        builder.has_warpgroup_products()
            && self.real != DType::F32
            && [64, 128].contains(&self.size)
            && !(cached || borders || window > 0 || self.keys == 0)
            && views.into_iter().all(|view| view.offset_bytes.is_multiple_of(16))
    }

    /// Heads that begin at `at`: with as many positions as there are queries, or keys.
    fn rows(&self, at: Arg, of_queries: bool, stride: usize) -> HeadRows {
        let Arg::Pointer(at) = at else { unreachable!("operands have addresses") };
        let Attention { heads, kv_heads, .. } = self.attention;
        let (heads, positions) = if of_queries { (heads, self.queries) } else { (kv_heads, self.keys) };
        HeadRows { at, real: self.real, size: self.size, heads, positions, samples: self.batch, stride }
    }

    /// Queries, keys and values.
    fn all_rows(&self, [q, k, v]: [Arg; 3]) -> [HeadRows; 3] {
        let of_keys = |at| self.rows(at, false, self.kv_stride);
        [self.rows(q, true, self.q_stride), of_keys(k), of_keys(v)]
    }

    /// The settings that the files are compiled with. `views` are all operands.
    fn defines<'a>(&self, views: impl IntoIterator<Item = &'a View>) -> [(&'static str, usize); 3] {
        let is_wide = (self.size * self.real.bytes()).is_multiple_of(16)
            && views.into_iter().all(|view| view.offset_bytes.is_multiple_of(16));
        [("HEAD", self.padded()), ("WIDE", usize::from(is_wide)), ("PRODUCTS", self.products())]
    }

    /// A block per piece of the queries or keys, head and sample.
    fn grid(&self, pieces: usize, heads: usize, threads: u32, shared_bytes: usize) -> Grid {
        let count = |blocks: usize| u32::try_from(blocks).expect("a grid's blocks");
        Grid {
            blocks: [count(pieces), count(heads), count(self.batch)],
            threads,
            shared_bytes: u32::try_from(shared_bytes).expect("a block's shared memory"),
        }
    }

    fn causal(&self) -> Arg {
        Arg::U32(u32::from(self.attention.mask == Mask::Causal))
    }

    fn window(&self) -> Arg {
        let window = self.attention.window;
        Arg::from(if window == 0 { NO_WINDOW } else { window.min(NO_WINDOW) })
    }

    fn scale(&self) -> Arg {
        Arg::F32((1.0 / (self.size as f64).sqrt()) as f32)
    }

    /// What every kernel over whole sequences takes last.
    fn constants(&self) -> [Arg; 10] {
        let [queries, keys, heads, group] =
            [self.queries, self.keys, self.attention.heads, self.group()].map(Arg::from);
        let [size, q_stride, kv_stride] = [self.size, self.q_stride, self.kv_stride].map(Arg::from);
        [queries, keys, heads, group, size, q_stride, kv_stride, self.causal(), self.window(), self.scale()]
    }
}

/// The tiles of a kernel: what `attention.cu` and `attention_f32.cu` say at the kernel.
struct Tiles {
    /// Rows that a block owns.
    own: usize,
    shared_bytes: usize,
}

/// Threads of a block of the kernels over whole sequences.
const THREADS: u32 = 128;

impl Tiles {
    fn forward(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 1);
        }
        let others = if heads.padded() == 64 { 64 } else { 32 };
        Tiles { own: 128, shared_bytes: (128 + 4 * others) * heads.row_bytes() }
    }

    fn by_query(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 2);
        }
        let own = if heads.padded() == 64 { 128 } else { 64 };
        Tiles { own, shared_bytes: (2 * own + 4 * 64) * heads.row_bytes() }
    }

    fn by_key(heads: &Heads) -> Self {
        if !heads.suits_units() {
            return Tiles::single(heads, 2);
        }
        let (own, others) = (64, if heads.padded() == 64 { 64 } else { 32 });
        let statistics = 4 * others * size_of::<f32>();
        Tiles { own, shared_bytes: (2 * own + 4 * others) * heads.row_bytes() + statistics }
    }

    /// Without matrix units, all in f32: some tensors' own rows, two of others in longer rows, and a factor for every pair of rows.
    fn single(heads: &Heads, own_tensors: usize) -> Self {
        let (own, others, padded) = (32, 32, heads.padded());
        let floats = own_tensors * own * padded + 2 * others * (padded + 4) + own * others;
        Tiles { own, shared_bytes: floats * size_of::<f32>() }
    }
}

/// `[inputs, outputs]` are all operands; `extras` those behind queries, keys and values: places, then borders.
fn forward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    [q, k, v]: [Arg; 3],
    [inputs, outputs]: [&[View]; 2],
    extras: &[View],
) -> Result<()> {
    if heads.is_empty() {
        return Ok(());
    }
    let attention = &heads.attention;
    let defines = heads.defines(inputs.iter().chain(outputs));
    let [out, log_sum_exp] = [&outputs[0], &outputs[1]].map(|view| builder.pointer(view));
    let places = if attention.cached { builder.pointer(&extras[0]) } else { Arg::Pointer(0) };
    if heads.suits_warpgroups(builder, inputs.iter().chain(outputs)) {
        return warpgroups_forward(builder, heads, [q, k, v], [out, log_sum_exp]);
    }
    if attention.cached && heads.queries == 1 {
        let nothing = Arg::Pointer(0);
        let arguments = [q, k, v, nothing, nothing, out, log_sum_exp, places];
        return decode(builder, heads, &defines, arguments, [&extras[0], &inputs[1], &inputs[2]]);
    }
    let [ranges, spreads] = ranges(builder, heads, &defines, extras.last())?;
    let tiles = Tiles::forward(heads);
    let grid = heads.grid(heads.queries.div_ceil(tiles.own), attention.heads, THREADS, tiles.shared_bytes);
    let rows = Arg::from(heads.key_rows);
    let mut arguments = vec![q, k, v, out, log_sum_exp, places, rows, ranges, spreads];
    arguments.extend(heads.constants());
    builder.kernel(heads.source(), "attention_forward", heads.real, &defines, grid, &arguments)
}

/// One query per sample: queries, caches, the new rows that go into them first (or 0), results, places. `read_first` are places and caches.
fn decode(
    builder: &mut Builder<'_>,
    heads: &Heads,
    defines: &[(&'static str, usize)],
    operands: [Arg; 8],
    read_first: [&View; 3],
) -> Result<()> {
    let [group, warps] = heads.decode_block();
    let mut settings = defines.to_vec();
    settings.extend([("GROUP", group), ("WARPS", warps)]);
    let kv_heads = heads.attention.kv_heads;
    let grid = heads.grid(heads.group().div_ceil(group), kv_heads, 32 * warps as u32, 0);
    let is_settled = read_first.into_iter().all(|view| builder.is_settled(view));
    let mut arguments = operands.to_vec();
    arguments.extend([heads.key_rows, heads.keys, heads.attention.heads].map(Arg::from));
    arguments.extend([heads.group(), heads.size].map(Arg::from));
    arguments.extend([heads.q_stride, heads.kv_stride].map(Arg::from));
    arguments.extend([heads.window(), heads.scale(), Arg::U32(u32::from(is_settled))]);
    builder.kernel(Source::AttentionDecode, "attention_decode", heads.real, &settings, grid, &arguments)?;
    builder.start_early(1);
    Ok(())
}

/// Where samples have borders, what every query sees is worked out once: `[ranges, spreads]` of `attention.cuh`.
fn ranges(
    builder: &mut Builder<'_>,
    heads: &Heads,
    defines: &[(&'static str, usize)],
    borders: Option<&View>,
) -> Result<[Arg; 2]> {
    if !heads.attention.borders {
        return Ok([Arg::Pointer(0); 2]);
    }
    let borders = builder.pointer(borders.expect("checked at bind"));
    let blocks = heads.queries.div_ceil(RANGE_BLOCK);
    let ranges = builder.scratch(heads.batch * heads.queries * size_of::<[i32; 2]>());
    let spreads = builder.scratch(heads.batch * blocks * size_of::<[i32; 4]>());
    let count = |blocks: usize| u32::try_from(blocks).expect("a grid's blocks");
    let grid =
        Grid { blocks: [count(blocks), count(heads.batch), 1], threads: RANGE_BLOCK as u32, shared_bytes: 0 };
    let arguments = [borders, ranges, spreads, Arg::from(heads.queries), heads.causal(), heads.window()];
    builder.kernel(heads.source(), "attention_ranges", heads.real, defines, grid, &arguments)?;
    Ok([ranges, spreads])
}

/// `[inputs, outputs]` are all operands, the first of them the gradient of the output; `extras` those behind queries, keys and
/// values: the output, its log-sum-exp, then borders. With `adds` the second output takes the sums of the rows of the first, or they
/// are added to it.
fn backward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [[Arg; 3]; 2],
    operands: [&[View]; 2],
    extras: &[View],
    adds: Option<bool>,
) -> Result<()> {
    let [inputs, outputs] = operands;
    if heads.suits_warpgroups(builder, inputs.iter().chain(outputs)) && !heads.is_empty() {
        let [d_out, out, log_sum_exp] =
            [&inputs[0], &extras[0], &extras[1]].map(|view| builder.pointer(view));
        let sums = adds.map(|adds| (&outputs[1..], adds));
        let [parts, gradients] = parts;
        return warpgroups_backward(
            builder,
            heads,
            parts,
            [d_out, out, log_sum_exp],
            Gradients::Halves(gradients),
            sums,
        );
    }
    backward_by_tiles(builder, heads, parts, operands, extras)?;
    if let Some(add) = adds {
        let sum = Kernel::OpInto { op: Op::LinearGradBias, add };
        rows::add(builder, &sum, &outputs[..1], &outputs[1..])?;
    }
    Ok(())
}

/// The gradient of heads side by side, `(d_out, qkv, out, log-sum-exp)`, into working memory.
pub(super) fn backward_joint(
    builder: &mut Builder<'_>,
    heads: &Heads,
    inputs: &[View],
    gradient: Arg,
) -> Result<()> {
    let parts = [builder.pointer(&inputs[1]), gradient].map(|qkv| heads.parts(qkv));
    backward(builder, heads, parts, [inputs, &[]], &inputs[2..], None)
}

/// Where a gradient goes in eight bits: as it stands and transposed, in a unit that follows from what was found of the largest number of
/// the output's gradient, and from what that comes below.
pub(super) struct InBytes {
    pub rows: Arg,
    pub transposed: Arg,
    pub partials: Arg,
    pub unit: Arg,
    pub top: u32,
}

/// The same in eight bits, by warpgroups.
pub(super) fn backward_in_bytes(
    builder: &mut Builder<'_>,
    heads: &Heads,
    inputs: &[View],
    to: InBytes,
    sums: Option<(&[View], bool)>,
) -> Result<()> {
    let parts = heads.parts(builder.pointer(&inputs[1]));
    let known = [0, 2, 3].map(|index| builder.pointer(&inputs[index]));
    warpgroups_backward(builder, heads, parts, known, Gradients::Bytes(to), sums)
}

/// Where the gradients of queries, keys and values go.
enum Gradients {
    /// As numbers of 16 bits.
    Halves([Arg; 3]),
    /// Side by side in eight bits.
    Bytes(InBytes),
}

/// The gradients on matrix units that every card has, or on none.
fn backward_by_tiles(
    builder: &mut Builder<'_>,
    heads: &Heads,
    [[q, k, v], [d_q, d_k, d_v]]: [[Arg; 3]; 2],
    [inputs, outputs]: [&[View]; 2],
    extras: &[View],
) -> Result<()> {
    if heads.is_empty() {
        return Ok(());
    }
    let Attention { heads: query_heads, kv_heads, .. } = heads.attention;
    let defines = heads.defines(inputs.iter().chain(outputs));
    let [d_out, out, log_sum_exp] = [&inputs[0], &extras[0], &extras[1]].map(|view| builder.pointer(view));
    let [ranges, spreads] = ranges(builder, heads, &defines, extras.get(2))?;

    let delta = builder.scratch(heads.batch * query_heads * heads.queries * size_of::<f32>());
    let grid = heads.grid(heads.queries.div_ceil(32), query_heads, 256, 0);
    let sizes = [heads.queries, query_heads, heads.size].map(Arg::from);
    let arguments = [d_out, out, delta, sizes[0], sizes[1], sizes[2]];
    builder.kernel(heads.source(), "attention_delta", heads.real, &defines, grid, &arguments)?;

    let given = [d_out, q, k, v, log_sum_exp, delta];
    let mut add = |name, gradients: &[Arg], tiles: &Tiles, rows: usize, count: usize| {
        let mut arguments = given.to_vec();
        arguments.extend_from_slice(gradients);
        arguments.extend([ranges, spreads]);
        arguments.extend(heads.constants());
        let grid = heads.grid(rows.div_ceil(tiles.own), count, THREADS, tiles.shared_bytes);
        builder.kernel(heads.source(), name, heads.real, &defines, grid, &arguments)
    };
    add("attention_d_q", &[d_q], &Tiles::by_query(heads), heads.queries, query_heads)?;
    add("attention_d_kv", &[d_k, d_v], &Tiles::by_key(heads), heads.keys, kv_heads)
}

/// The warpgroups of a kernel of `attention_hopper.cu`, which says why there are so many: each owns 64 rows, and all of them walk
/// over what is in the stages.
struct Warpgroups {
    count: usize,
    stages: usize,
    /// Tensors of which a warpgroup keeps its own rows.
    own_tensors: usize,
    /// Rows of each of the two tensors in a stage.
    others: usize,
    /// Bytes of a stage besides.
    known_bytes: usize,
}

impl Warpgroups {
    const ROWS: usize = 64;

    fn forward(heads: &Heads) -> Self {
        let others = if heads.size == 64 { 128 } else { 64 };
        Warpgroups { count: 2, stages: 2, own_tensors: 1, others, known_bytes: 0 }
    }

    fn by_query(heads: &Heads) -> Self {
        let (count, stages) = if heads.size == 64 { (2, 4) } else { (3, 3) };
        Warpgroups { count, stages, own_tensors: 2, others: 64, known_bytes: 0 }
    }

    fn by_key(heads: &Heads) -> Self {
        let stages = if heads.size == 64 { 3 } else { 2 };
        let known_bytes = 2 * Self::ROWS * size_of::<f32>();
        Warpgroups { count: 1, stages, own_tensors: 2, others: 64, known_bytes }
    }

    /// A block for so many rows of each of so many heads.
    fn grid(&self, heads: &Heads, rows: usize, all_heads: usize) -> Grid {
        const GROUP_THREADS: usize = 128;
        let ring_bytes = 8 + 24 * self.stages;
        let stage_bytes = 2 * self.others * heads.row_bytes() + self.known_bytes;
        let own_bytes = self.count * self.own_tensors * Self::ROWS * heads.row_bytes();
        let shared_bytes = own_bytes + self.stages * stage_bytes + ring_bytes;
        let mut grid = Grid::new(
            rows.div_ceil(self.count * Self::ROWS) * all_heads,
            u32::try_from(self.count * GROUP_THREADS).expect("a block's threads"),
        );
        grid.shared_bytes = u32::try_from(shared_bytes).expect("a block's shared memory");
        grid
    }
}

fn warpgroups_forward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [Arg; 3],
    [out, log_sum_exp]: [Arg; 2],
) -> Result<()> {
    let all_heads = heads.batch * heads.attention.heads;
    let grid = Warpgroups::forward(heads).grid(heads, heads.queries, all_heads);
    builder.give_maps(&heads.all_rows(parts))?;
    let mut arguments = vec![out, log_sum_exp];
    let counts = [heads.queries, heads.keys, heads.attention.heads, heads.group(), all_heads];
    arguments.extend(counts.map(Arg::from));
    arguments.extend([heads.causal(), heads.scale()]);
    let defines = [("HEAD", heads.size)];
    builder.kernel(
        Source::AttentionHopper,
        "attention_hopper_forward",
        heads.real,
        &defines,
        grid,
        &arguments,
    )
}

/// With `sums`, the sums of the rows of all three gradients go where its view is, or are added to that.
fn warpgroups_backward(
    builder: &mut Builder<'_>,
    heads: &Heads,
    parts: [Arg; 3],
    [d_out, out, log_sum_exp]: [Arg; 3],
    gradients: Gradients,
    sums: Option<(&[View], bool)>,
) -> Result<()> {
    let [q, k, v] = heads.all_rows(parts);
    let tensors = [heads.rows(d_out, true, heads.attention.heads * heads.size), q, k, v];
    // Every warpgroup leaves the sums of its rows: a row of them for each 64 positions, in the order of the columns.
    let (chunks, columns) = (heads.batch * heads.queries.div_ceil(Warpgroups::ROWS), heads.q_stride);
    let partials = match sums {
        Some(_) => builder.scratch(chunks * columns * size_of::<f32>()),
        None => Arg::Pointer(0),
    };
    let [q_sums, k_sums, v_sums] = heads.parts_before().map(|before| match sums {
        Some(_) => partials.plus(before * size_of::<f32>()),
        None => partials,
    });
    let all_heads = heads.batch * heads.attention.heads;
    let whole = whole_heads::count(builder, heads);
    let of = Backward {
        heads,
        tensors,
        known: [d_out, out, log_sum_exp],
        gradients,
        column_sums: [q_sums, k_sums, v_sums],
        columns,
    };
    if whole == all_heads {
        whole_heads::add(builder, &of, whole)?;
    } else {
        let statistics = of.by_queries(builder, whole)?;
        if whole > 0 {
            // It fills the multiprocessors as they come free, and the last kernel those where it ends.
            whole_heads::add(builder, &of, whole)?;
            builder.start_early(1);
        }
        of.by_keys(builder, whole, statistics)?;
        if whole > 0 {
            builder.start_early(1);
        }
    }
    match sums {
        Some((to, adds)) => rows::finish_columns(builder, heads.real, partials, to, [chunks, columns], adds),
        None => Ok(()),
    }
}

/// A gradient by warpgroups.
struct Backward<'a> {
    heads: &'a Heads,
    /// The output's gradient, queries, keys and values.
    tensors: [HeadRows; 4],
    /// The output's gradient, the output and its log-sum-exp.
    known: [Arg; 3],
    gradients: Gradients,
    /// Where the sums of each gradient's columns go, in rows of so many.
    column_sums: [Arg; 3],
    columns: usize,
}

impl Backward<'_> {
    /// Adds the gradient by tiles of queries, of all heads but the first so many. Returns what is then known of the queries.
    fn by_queries(&self, builder: &mut Builder<'_>, first_head: usize) -> Result<Arg> {
        let Heads { queries, q_stride, .. } = *self.heads;
        let all_heads = self.heads.batch * self.heads.attention.heads;
        let blocks = all_heads * queries.div_ceil(Warpgroups::ROWS);
        let statistics = builder.scratch(blocks * 2 * Warpgroups::ROWS * size_of::<f32>());
        let (name, d_q, last) = match &self.gradients {
            Gradients::Halves([d_q, ..]) => ("attention_hopper_d_q", vec![*d_q], vec![]),
            Gradients::Bytes(InBytes { rows, transposed, partials, unit, top }) => {
                let [d_q, ..] = self.heads.parts_of_bytes(*rows, *transposed);
                ("attention_hopper_d_q_eight", d_q.to_vec(), vec![*partials, *unit, Arg::U32(*top)])
            }
        };
        let [q_sums, ..] = self.column_sums;
        let operands = [&self.known[..], &[statistics], &d_q, &[q_sums]].concat();
        let grid = Warpgroups::by_query(self.heads).grid(self.heads, queries, all_heads - first_head);
        self.add_tiles(builder, name, grid, &operands, [first_head, all_heads, q_stride], &last)?;
        Ok(statistics)
    }

    /// The same by tiles of keys.
    fn by_keys(&self, builder: &mut Builder<'_>, first_kv_head: usize, statistics: Arg) -> Result<()> {
        let Heads { keys, kv_stride, .. } = *self.heads;
        let all_heads = self.heads.batch * self.heads.attention.kv_heads;
        let (name, d_kv, last) = match &self.gradients {
            Gradients::Halves([_, d_k, d_v]) => ("attention_hopper_d_kv", vec![*d_k, *d_v], vec![]),
            Gradients::Bytes(InBytes { rows, transposed, partials, top, .. }) => {
                let [_, d_k, d_v] = self.heads.parts_of_bytes(*rows, *transposed);
                ("attention_hopper_d_kv_eight", [d_k, d_v].concat(), vec![*partials, Arg::U32(*top)])
            }
        };
        let [_, k_sums, v_sums] = self.column_sums;
        let operands = [&[statistics], &d_kv[..], &[k_sums, v_sums]].concat();
        let grid = Warpgroups::by_key(self.heads).grid(self.heads, keys, all_heads - first_kv_head);
        self.add_tiles(builder, name, grid, &operands, [first_kv_head, all_heads, kv_stride], &last)
    }

    fn add_tiles(
        &self,
        builder: &mut Builder<'_>,
        name: &'static str,
        grid: Grid,
        operands: &[Arg],
        [first_head, all_heads, stride]: [usize; 3],
        last: &[Arg],
    ) -> Result<()> {
        let Heads { queries, keys, size, real, .. } = *self.heads;
        let mut arguments = operands.to_vec();
        let counts = [queries, keys, self.heads.attention.heads, self.heads.group(), first_head, all_heads];
        arguments.extend(counts.map(Arg::from));
        arguments.extend([stride, self.columns].map(Arg::from));
        arguments.extend([self.heads.causal(), self.heads.scale()]);
        arguments.extend_from_slice(last);
        builder.give_maps(&self.tensors)?;
        builder.kernel(Source::AttentionHopper, name, real, &[("HEAD", size)], grid, &arguments)
    }
}
