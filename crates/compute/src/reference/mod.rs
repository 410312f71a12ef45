//! The reference backend: every kernel as textbook loops in double precision.
//!
//! It is the documentation of what each kernel computes and the oracle that the fast backends are tested against. All
//! elements, ids too, are stored as `f64`. In `exact` mode nothing is ever rounded, so derivatives can be checked against
//! central differences; in `rounded` mode every result is rounded to its declared element type, and operands of products to
//! what the op says, which is what a backend that stores or multiplies bf16 should come close to.

mod attention;
mod forward;
mod gradient;
mod quantise;
mod update;

use std::time::{Duration, Instant};

use crate::{
    check,
    device::{
        BufferId, Device, Frozen, HostData, Launch, ReadId, Reads, SequenceId, View, check_times, overlap,
    },
    error::{Error, Result},
    int8,
    kernel::{Kernel, Operand},
    op::Op,
    tensor::{DType, Shape, TensorType},
};

/// Bytes of an element, whatever its declared type.
const ELEMENT_BYTES: usize = size_of::<f64>();

/// The slow twin of all backends.
pub struct Reference {
    rounds: bool,
    keeps_slopes: bool,
    buffers: Vec<Vec<f64>>,
    sequences: Vec<Vec<Launch>>,
    reads: Reads,
}

impl Reference {
    /// Computes and keeps everything in double precision.
    pub fn exact() -> Self {
        Reference {
            rounds: false,
            keeps_slopes: false,
            buffers: Vec::new(),
            sequences: Vec::new(),
            reads: Reads::default(),
        }
    }

    /// Keeps slopes of activations, as some cards do.
    pub fn with_slopes(self) -> Self {
        Reference { keeps_slopes: true, ..self }
    }

    /// Rounds every result to the element type that its tensor declares.
    pub fn rounded() -> Self {
        Reference { rounds: true, ..Self::exact() }
    }

    fn slice(&self, view: &View) -> &[f64] {
        let start = view.offset_bytes / ELEMENT_BYTES;
        &self.buffers[view.buffer.0][start..start + view.of.shape.elements()]
    }

    fn load(&self, view: &View) -> Tensor {
        Tensor { shape: view.of.shape, data: self.slice(view).to_vec() }
    }

    fn store(&mut self, view: &View, tensor: &Tensor) {
        let start = view.offset_bytes / ELEMENT_BYTES;
        let rounds = self.rounds;
        let out = &mut self.buffers[view.buffer.0][start..start + view.of.shape.elements()];
        for (to, &from) in out.iter_mut().zip(&tensor.data) {
            *to = if rounds { view.of.dtype.round(from) } else { from };
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let inputs: Vec<Tensor> = launch.inputs.iter().map(|view| self.load(view)).collect();
        let mut outputs: Vec<Tensor> = launch.outputs.iter().map(|view| self.load(view)).collect();
        let input_types: Vec<TensorType> = launch.inputs.iter().map(|view| view.of).collect();
        let output_types: Vec<TensorType> = launch.outputs.iter().map(|view| view.of).collect();
        match launch.kernel.expansion(&input_types, &output_types) {
            None => run_plain(&launch.kernel, self.rounds, &inputs.iter().collect::<Vec<_>>(), &mut outputs)?,
            Some(expansion) => {
                let mut temporaries: Vec<Tensor> =
                    expansion.temporaries.iter().map(|of| Tensor::zeros(of.shape)).collect();
                for (kernel, from, to) in &expansion.steps {
                    let pick = |operand: &Operand| match *operand {
                        Operand::Input(i) => (inputs[i].clone(), input_types[i].dtype),
                        Operand::Output(i) => (outputs[i].clone(), output_types[i].dtype),
                        Operand::Temporary(i) => (temporaries[i].clone(), expansion.temporaries[i].dtype),
                    };
                    let operands: Vec<Tensor> = from.iter().map(|o| pick(o).0).collect();
                    let mut results: Vec<(Tensor, DType)> = to.iter().map(pick).collect();
                    let mut values: Vec<Tensor> = results.iter().map(|(tensor, _)| tensor.clone()).collect();
                    run_plain(kernel, self.rounds, &operands.iter().collect::<Vec<_>>(), &mut values)?;
                    for (result, value) in results.iter_mut().zip(values) {
                        result.0 = value;
                        if self.rounds {
                            result.0.data.iter_mut().for_each(|x| *x = result.1.round(*x));
                        }
                    }
                    for (operand, (value, _)) in to.iter().zip(results) {
                        match *operand {
                            Operand::Output(i) => outputs[i] = value,
                            Operand::Temporary(i) => temporaries[i] = value,
                            Operand::Input(_) => {}
                        }
                    }
                }
            }
        }
        for (view, tensor) in launch.outputs.iter().zip(&outputs) {
            self.store(view, tensor);
        }
        Ok(())
    }

    fn check(&self, launch: &Launch) -> Result<()> {
        let fail = |detail: String| Err(Error::Binding { kernel: launch.kernel.name(), detail });
        // Ops check their operands when they run.
        if matches!(
            launch.kernel,
            Kernel::Adam(_)
                | Kernel::Sgd(_)
                | Kernel::Guard(_)
                | Kernel::CacheAppend
                | Kernel::CacheCopy
                | Kernel::Adjust
                | Kernel::Draw(_)
                | Kernel::LogProbabilities(_)
        ) {
            check::shapes(launch)?;
        }
        for view in launch.inputs.iter().chain(&launch.outputs) {
            let end = view.offset_bytes / ELEMENT_BYTES + view.of.shape.elements();
            if view.buffer.0 >= self.buffers.len() || end > self.buffers[view.buffer.0].len() {
                return fail(format!("an operand {} lies outside its buffer", view.of));
            }
        }
        for (index, output) in launch.outputs.iter().enumerate() {
            let others = launch.inputs.iter().chain(&launch.outputs[..index]);
            if others.into_iter().any(|other| overlap(output, ELEMENT_BYTES, other, ELEMENT_BYTES)) {
                return fail(format!("output {index} overlaps another operand"));
            }
        }
        Ok(())
    }
}

fn run_plain(kernel: &Kernel, rounds: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    match kernel {
        Kernel::Op(op) => run_op(op, rounds, inputs, outputs)?,
        Kernel::Cast => outputs[0].data.copy_from_slice(&inputs[0].data),
        Kernel::StateWrite { add } => {
            for (state, x) in outputs[0].data.iter_mut().zip(&inputs[0].data) {
                *state = if *add { *state + x } else { *x };
            }
        }
        Kernel::CacheAppend => update::cache_append(inputs, outputs),
        Kernel::CacheCopy => update::cache_copy(inputs, outputs),
        Kernel::Adjust => update::adjust(inputs, outputs),
        Kernel::Draw(draw) => update::draw(*draw, inputs, outputs),
        Kernel::LogProbabilities(of) => update::log_probabilities(*of, inputs, outputs),
        Kernel::Quantise(of) if of.source.op().is_none() && of.sums.is_none() => {
            quantise::quantise(of, inputs, outputs);
        }
        Kernel::RoundTargets => quantise::round_targets(rounds, inputs, outputs),
        Kernel::QuantisedNorm(of) if !of.adds => quantise::norm(of, inputs, outputs),
        Kernel::ScaledProduct { bias, add } => quantise::scaled_product(*bias, *add, inputs, outputs),
        Kernel::GlobalNorm => update::global_norm(inputs, outputs),
        Kernel::Guard(guard) => update::guard(guard, inputs, outputs),
        Kernel::Adam(adam) => update::adam(adam, inputs, outputs),
        Kernel::Sgd(sgd) => update::sgd(sgd, inputs, outputs),
        Kernel::Momentum { decay } => update::momentum(*decay, inputs, outputs),
        Kernel::Normalise => update::normalise(inputs, outputs),
        Kernel::Combine(factors) => update::combine(*factors, inputs, outputs),
        Kernel::Descend(descend) => update::descend(descend, inputs, outputs),
        Kernel::Average { decay } => update::average(*decay, inputs, outputs),
        Kernel::OpInto { .. }
        | Kernel::AddLayerNorm { .. }
        | Kernel::AddRmsNorm { .. }
        | Kernel::AddBiasedLayerNorm { .. }
        | Kernel::LayerNormGradAdd
        | Kernel::RmsNormGradAdd
        | Kernel::NormGrads(_)
        | Kernel::JointSiluGate
        | Kernel::JointSiluGateGrad
        | Kernel::LinearGelu { .. }
        | Kernel::LinearGradGelu { .. }
        | Kernel::LinearGradGelus { .. }
        | Kernel::LinearGate { .. }
        | Kernel::LinearGradGate { .. }
        | Kernel::JointAttention(_)
        | Kernel::JointAttentionGrad(_)
        | Kernel::JointAttentionGrads { .. }
        | Kernel::CachedAttention(_)
        | Kernel::Quantise(_)
        | Kernel::QuantiseWeights(_)
        | Kernel::QuantisedNorm(_)
        | Kernel::QuantisedNormGrads(_)
        | Kernel::QuantisedAttentionGrad(_)
        | Kernel::GeluProduct(_)
        | Kernel::HeadLoss(_) => {
            return Err(Error::Binding {
                kernel: kernel.name(),
                detail: "a fused kernel inside an expansion".into(),
            });
        }
    }
    Ok(())
}

fn run_op(op: &Op, rounds: bool, inputs: &[&Tensor], outputs: &mut [Tensor]) -> Result<()> {
    // What the operands of products are rounded with: nothing in exact mode.
    let factor = |products: DType| {
        move |x: f64| {
            if rounds { products.round(x) } else { x }
        }
    };
    match op {
        Op::Embed => forward::embed(inputs, outputs)?,
        Op::Linear { bias, products } => forward::linear(*bias, &factor(*products), inputs, outputs),
        Op::LayerNorm { eps, bias } => forward::layer_norm(f64::from(*eps), *bias, inputs, outputs),
        Op::RmsNorm { eps } => forward::rms_norm(f64::from(*eps), inputs, outputs),
        Op::Rope { inverse, still } => forward::rope(*inverse, *still, inputs, outputs)?,
        Op::Split { sizes } => forward::split(sizes, inputs, outputs),
        Op::Concat => forward::concat(inputs, outputs),
        Op::Attention(attention) => {
            attention::attention(attention, &factor(attention.products), inputs, outputs)
        }
        Op::Gelu => forward::gelu(inputs, outputs),
        Op::GeluErf => forward::gelu_erf(inputs, outputs),
        Op::ReluSquared => forward::relu_squared(inputs, outputs),
        Op::SiluGate => forward::silu_gate(inputs, outputs),
        Op::Add => forward::add(inputs, outputs),
        Op::Mul => forward::mul(inputs, outputs),
        Op::Affine { factor, offset } => forward::affine(*factor, *offset, inputs, outputs),
        Op::Dropout { probability, number } => forward::dropout(*probability, *number, inputs, outputs),
        Op::CrossEntropy(shape) => forward::cross_entropy(shape, inputs, outputs)?,
        Op::Sum => outputs[0].data[0] = inputs[0].data.iter().sum(),
        Op::Broadcast { .. } => outputs[0].data.fill(inputs[0].data[0]),
        Op::EmbedGrad { .. } => gradient::embed(inputs, outputs)?,
        Op::LinearGradInput { products } => gradient::linear_input(&factor(*products), inputs, outputs),
        Op::LinearGradWeight { products } => gradient::linear_weight(&factor(*products), inputs, outputs),
        Op::LinearGradBias => gradient::linear_bias(inputs, outputs),
        Op::LayerNormGradInput => gradient::layer_norm_input(inputs, outputs),
        Op::LayerNormGradParams { bias } => gradient::layer_norm_params(*bias, inputs, outputs),
        Op::AttentionGrad(attention) => {
            attention::attention_grad(attention, &factor(attention.products), inputs, outputs);
        }
        Op::RmsNormGradInput => gradient::rms_norm_input(inputs, outputs),
        Op::RmsNormGradGain { columns } => gradient::rms_norm_gain(*columns, inputs, outputs),
        Op::GeluGrad => gradient::gelu(inputs, outputs),
        Op::GeluErfGrad => gradient::gelu_erf(inputs, outputs),
        Op::ReluSquaredGrad => gradient::relu_squared(inputs, outputs),
        Op::SiluGateGrad => gradient::silu_gate(inputs, outputs),
        Op::CrossEntropyGrad(shape) => gradient::cross_entropy(shape, inputs, outputs)?,
    }
    Ok(())
}

/// A tensor by value: what the loops work on.
#[derive(Clone)]
struct Tensor {
    shape: Shape,
    data: Vec<f64>,
}

impl Tensor {
    fn zeros(shape: Shape) -> Self {
        Tensor { shape, data: vec![0.0; shape.elements()] }
    }

    /// As an operand of products.
    fn rounded(&self, factor: forward::Factor<'_>) -> Self {
        Tensor { shape: self.shape, data: self.data.iter().map(|&x| factor(x)).collect() }
    }

    /// A matrix with rows and columns changed over.
    fn turned(&self) -> Self {
        let mut turned = Tensor::zeros(Shape::new(&[self.columns(), self.rows()]));
        for row in 0..self.rows() {
            for column in 0..self.columns() {
                turned.row_mut(column)[row] = self.row(row)[column];
            }
        }
        turned
    }

    fn rows(&self) -> usize {
        self.shape.rows()
    }

    fn columns(&self) -> usize {
        self.shape.columns()
    }

    fn row(&self, row: usize) -> &[f64] {
        &self.data[row * self.columns()..][..self.columns()]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        let columns = self.columns();
        &mut self.data[row * columns..][..columns]
    }

    /// An element as the index that it stands for.
    fn index(&self, element: usize) -> usize {
        self.data[element] as usize
    }

    /// An element as an index below `rows`, or the error that names it.
    fn index_below(&self, element: usize, rows: usize, op: &'static str) -> Result<usize> {
        let index = self.index(element);
        if index < rows { Ok(index) } else { Err(Error::IndexOutOfRange { op, index, rows }) }
    }
}

impl Device for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        let mode = if self.rounds { "rounded to declared types" } else { "exact" };
        format!("reference: textbook loops in f64, {mode}, one thread")
    }

    fn element_bytes(&self, _: DType) -> usize {
        ELEMENT_BYTES
    }

    fn allocate(&mut self, bytes: usize) -> Result<BufferId> {
        let mut buffer = Vec::new();
        let elements = bytes.div_ceil(ELEMENT_BYTES);
        buffer.try_reserve_exact(elements).map_err(|_| Error::OutOfMemory { device: "reference", bytes })?;
        buffer.resize(elements, 0.0);
        self.buffers.push(buffer);
        Ok(BufferId(self.buffers.len() - 1))
    }

    fn free(&mut self, buffer: BufferId) {
        self.buffers[buffer.0] = Vec::new();
    }

    fn upload(&mut self, to: &View, data: HostData<'_>) -> Result<()> {
        if data.len() != to.of.shape.elements() {
            let detail = format!("{} elements for {}", data.len(), to.of);
            return Err(Error::Binding { kernel: "upload", detail });
        }
        let data = match data {
            HostData::F32(data) => data.iter().map(|&x| f64::from(x)).collect(),
            HostData::F64(data) => data.to_vec(),
            HostData::U32(data) => data.iter().map(|&x| f64::from(x)).collect(),
        };
        self.store(to, &Tensor { shape: to.of.shape, data });
        Ok(())
    }

    fn freeze(&mut self, matrix: &View, numbers: &View, how: Frozen) -> Result<()> {
        if how == Frozen::Int8 {
            let mut numbers = self.load(numbers);
            for row in numbers.data.chunks_mut(matrix.of.shape.columns().max(1)) {
                let mut rounded: Vec<f32> = row.iter().map(|&x| x as f32).collect();
                int8::round_row(&mut rounded);
                row.iter_mut().zip(rounded).for_each(|(to, from)| *to = f64::from(from));
            }
            self.store(matrix, &numbers);
        }
        Ok(())
    }

    fn download(&self, from: &View, out: &mut [f32]) -> Result<()> {
        for (to, &x) in out.iter_mut().zip(self.slice(from)) {
            *to = x as f32;
        }
        Ok(())
    }

    fn download_f64(&self, from: &View, out: &mut [f64]) -> Result<()> {
        out.copy_from_slice(self.slice(from));
        Ok(())
    }

    fn used_bytes(&self) -> Option<usize> {
        None
    }

    fn keeps_slopes(&self, _: DType) -> bool {
        self.keeps_slopes
    }

    fn runs_ahead(&self) -> bool {
        false
    }

    fn begin_read(&mut self, views: &[View]) -> Result<ReadId> {
        let mut reads = std::mem::take(&mut self.reads);
        let read = reads.begin(views, |view, out| self.download(view, out));
        self.reads = reads;
        read
    }

    fn end_read(&mut self, read: ReadId, out: &mut [f32]) -> Result<()> {
        self.reads.end(read, out)
    }

    fn bind(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        launches.iter().try_for_each(|launch| self.check(launch))?;
        self.sequences.push(launches.to_vec());
        Ok(SequenceId(self.sequences.len() - 1))
    }

    fn unbind(&mut self, sequence: SequenceId) {
        self.sequences[sequence.0] = Vec::new();
    }

    fn run(&mut self, sequence: SequenceId) -> Result<()> {
        let launches = std::mem::take(&mut self.sequences[sequence.0]);
        let outcome = launches.iter().try_for_each(|launch| self.launch(launch));
        self.sequences[sequence.0] = launches;
        outcome
    }

    fn run_timed(&mut self, sequence: SequenceId, times: &mut [Duration]) -> Result<()> {
        let launches = std::mem::take(&mut self.sequences[sequence.0]);
        let outcome = check_times(launches.len(), times.len()).and_then(|()| {
            launches.iter().zip(times).try_for_each(|(launch, time)| {
                let started = Instant::now();
                self.launch(launch)?;
                *time = started.elapsed();
                Ok(())
            })
        });
        self.sequences[sequence.0] = launches;
        outcome
    }
}
