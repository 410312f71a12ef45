//! What is checked before a launch is accepted: types, shapes and what a backend has kernels for.

use crate::{
    device::{Launch, overlap},
    error::{Error, Result},
    kernel::{
        GUARD_REPORT, GUARD_STATISTICS, HeadLoss, Kernel, NormGrads, UpdateRange, eight_bit_workspace_rows,
        joint_parts,
    },
    op::{Attention, Op},
    quantise::{
        self, GeluProduct, Quantise, QuantisedAttentionGrad, QuantisedNorm, QuantisedNormGrads, Source,
    },
    tensor::{DType, TensorType},
};

/// The types in which a backend stores things.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    /// Numbers of all kinds.
    pub numbers: &'a [DType],
    /// Copies of the weights of products, in even rows, that nothing else reads.
    pub weights: Option<DType>,
}

/// Whether the operands' types fit the kernel, and whether a backend that stores numbers in these types has a kernel for them.
pub(crate) fn check(launch: &Launch, device: &'static str, stored: Stored<'_>) -> Result<()> {
    with_rule(launch, |rule| {
        rule.shapes()?;
        rule.element_types(device, stored)
    })
}

/// Whether the operands' shapes fit the kernel, for a backend that stores any type.
pub(crate) fn shapes(launch: &Launch) -> Result<()> {
    with_rule(launch, |rule| rule.shapes())
}

fn with_rule(launch: &Launch, check: impl Fn(Rule<'_>) -> Result<()>) -> Result<()> {
    let inputs: Vec<TensorType> = launch.inputs.iter().map(|view| view.of).collect();
    let outputs: Vec<TensorType> = launch.outputs.iter().map(|view| view.of).collect();
    check(Rule { kernel: &launch.kernel, inputs: &inputs, outputs: &outputs })
}

/// Whether no output shares memory with another operand, on a device that stores elements as they are.
pub(crate) fn disjoint(launch: &Launch) -> Result<()> {
    for (index, output) in launch.outputs.iter().enumerate() {
        for other in launch.inputs.iter().chain(&launch.outputs[..index]) {
            if overlap(output, output.of.dtype.bytes(), other, other.of.dtype.bytes()) {
                let detail = format!("output {index} {} overlaps another operand {}", output.of, other.of);
                return Err(Error::Binding { kernel: launch.kernel.name(), detail });
            }
        }
    }
    Ok(())
}

struct Rule<'a> {
    kernel: &'a Kernel,
    inputs: &'a [TensorType],
    outputs: &'a [TensorType],
}

impl Rule<'_> {
    fn shapes(&self) -> Result<()> {
        let (inputs, outputs) = (self.inputs, self.outputs);
        match self.kernel {
            Kernel::Op(op) => self.op(op),
            Kernel::OpInto { op, .. } => {
                let has_kernel = matches!(
                    op,
                    Op::LinearGradWeight { .. }
                        | Op::LinearGradBias
                        | Op::LayerNormGradParams { .. }
                        | Op::RmsNormGradGain { .. }
                        | Op::EmbedGrad { .. }
                );
                self.ensure(has_kernel, "there is no kernel that writes this op into state")?;
                self.op(op)
            }
            Kernel::Cast | Kernel::StateWrite { .. } => {
                self.count(1, 1)?;
                self.ensure(inputs[0].shape == outputs[0].shape, "input and output must have one shape")
            }
            Kernel::CacheAppend => {
                self.count(2, 1)?;
                let (&[b, _, c], &[_, _, cache_c]) = (inputs[0].shape.dims(), outputs[0].shape.dims()) else {
                    return self.ensure(false, "rows and cache must have three dimensions");
                };
                self.ensure(c == cache_c, "rows and cache must have the same columns")?;
                self.ensure(inputs[1].shape.dims() == [b, 2], "there must be a place per sample")
            }
            Kernel::CacheCopy => {
                self.count(1, 1)?;
                let is_list = matches!(inputs[0].shape.dims(), [_, 3]);
                self.ensure(is_list, "a move is a row, another row and a length")?;
                self.ensure(outputs[0].shape.dims().len() == 3, "the cache must have three dimensions")
            }
            Kernel::Adjust => {
                self.count(6, 2)?;
                let [rows, vocabulary] = [inputs[0].shape.rows(), inputs[0].shape.columns()];
                let fits = |of: &TensorType, columns: usize| of.shape.elements() == rows * columns;
                let alike =
                    inputs[1..].iter().zip([3, 1, 1, 2, vocabulary]).all(|(of, columns)| fits(of, columns));
                self.ensure(alike, "penalties are three numbers a row, prompts and ids one, lengths two, biases as many as logits")?;
                let alike = outputs.iter().all(|of| fits(of, vocabulary));
                self.ensure(alike, "what was seen and what is adjusted are as many as logits")
            }
            Kernel::Draw(_) => {
                self.count(3, 5)?;
                let [rows, vocabulary] = [inputs[0].shape.rows(), inputs[0].shape.columns()];
                self.ensure(vocabulary > 0, "there must be a token to draw")?;
                let fits = |of: &TensorType, columns: usize| of.shape.elements() == rows * columns;
                let alike = fits(&inputs[1], 3)
                    && fits(&inputs[2], 4)
                    && outputs.iter().zip([1, 1, 2, 2]).all(|(of, columns)| fits(of, columns));
                self.ensure(alike, "limits are three numbers a row, keys four; ids and positions one, places and lengths two")?;
                let drawn = outputs[4].shape;
                self.ensure(
                    drawn.rows() == rows && drawn.columns() > 0,
                    "there must be room for a token a row",
                )
            }
            Kernel::LogProbabilities(of) => {
                self.count(3, 2)?;
                let [rows, vocabulary] = [inputs[0].shape.rows(), inputs[0].shape.columns()];
                self.ensure(
                    vocabulary > 0 && of.count > 0,
                    "there must be a token and room for the likeliest",
                )?;
                let alike = inputs[1].shape.elements() == rows && inputs[2].shape.elements() == 2 * rows;
                self.ensure(alike, "ids are one number a row, lengths two")?;
                let [likeliest, values] = [outputs[0].shape, outputs[1].shape];
                let places = likeliest.columns() / of.count;
                let fits = places > 0
                    && (likeliest.rows(), likeliest.columns()) == (rows, places * of.count)
                    && (values.rows(), values.columns()) == (rows, places * (of.count + 1));
                self.ensure(
                    fits,
                    "there must be room for the likeliest tokens of every place, and one value more",
                )
            }
            Kernel::AddLayerNorm { eps, bias } => {
                self.count(3 + usize::from(*bias), 4)?;
                self.ensure(inputs[0].shape == inputs[1].shape, "both summands must have one shape")?;
                let mut expected = Op::LayerNorm { eps: *eps, bias: *bias }.outputs(&inputs[1..])?;
                expected.insert(0, inputs[0]);
                self.outputs(&expected)
            }
            Kernel::AddRmsNorm { eps } => {
                self.count(3, 3)?;
                self.ensure(inputs[0].shape == inputs[1].shape, "both summands must have one shape")?;
                let mut expected = Op::RmsNorm { eps: *eps }.outputs(&inputs[1..])?;
                expected.insert(0, inputs[0]);
                self.outputs(&expected)
            }
            &Kernel::AddBiasedLayerNorm { eps, shift } => {
                self.count(4 + usize::from(shift), 4)?;
                self.ensure(inputs[0].shape == inputs[1].shape, "both summands must have one shape")?;
                self.bias(inputs[0])?;
                let operands = [&inputs[..1], &inputs[3..]].concat();
                let results = Op::LayerNorm { eps, bias: shift }.outputs(&operands)?;
                self.outputs(&[&inputs[..1], &results].concat())
            }
            Kernel::LayerNormGradAdd | Kernel::RmsNormGradAdd => {
                let is_layer_norm = *self.kernel == Kernel::LayerNormGradAdd;
                let op = if is_layer_norm { Op::LayerNormGradInput } else { Op::RmsNormGradInput };
                self.count(if is_layer_norm { 6 } else { 5 }, 1)?;
                let (other, own) = (inputs[inputs.len() - 1], &inputs[..inputs.len() - 1]);
                self.ensure(other.shape == inputs[0].shape, "both summands must have one shape")?;
                self.outputs(&op.outputs(own)?)
            }
            Kernel::NormGrads(of) => self.outputs(&self.norm_grads(of, 0)?),
            Kernel::JointSiluGate => {
                self.count(1, 1)?;
                let half = self.half_of(inputs[0])?;
                self.outputs(&Op::SiluGate.outputs(&[half, half])?)
            }
            Kernel::JointSiluGateGrad => {
                self.count(2, 1)?;
                let half = self.half_of(inputs[0])?;
                Op::SiluGateGrad.outputs(&[half, half, inputs[1]])?;
                self.outputs(&inputs[..1])
            }
            &Kernel::LinearGelu { bias, products, .. } => {
                let h = Op::Linear { bias, products }.outputs(inputs)?[0];
                self.outputs(&[h, h])
            }
            &Kernel::LinearGradGelu { products, .. } | &Kernel::LinearGradGelus { products, .. } => {
                let has_sums = matches!(self.kernel, Kernel::LinearGradGelus { .. });
                self.count(3, 1 + usize::from(has_sums))?;
                let d_h = Op::LinearGradInput { products }.outputs(&inputs[..2])?;
                self.ensure(inputs[2].shape == d_h[0].shape, "gradient and input must have one shape")?;
                let sums = if has_sums { Op::LinearGradBias.outputs(&d_h)? } else { Vec::new() };
                self.outputs(&[d_h, sums].concat())
            }
            &Kernel::LinearGate { products } => {
                let slopes = Op::Linear { bias: false, products }.outputs(inputs)?[0];
                self.outputs(&[slopes, self.half_of(slopes)?])
            }
            &Kernel::LinearGradGate { products } => {
                self.count(3, 1)?;
                let d_y = Op::LinearGradInput { products }.outputs(&inputs[..2])?[0];
                let is_alike = self.half_of(inputs[2])?.shape == d_y.shape;
                self.ensure(is_alike, "slopes must be twice as wide as the product")?;
                self.outputs(&inputs[2..])
            }
            Kernel::JointAttention(attention) => {
                let extra = attention.extra_operands();
                self.count(1 + extra, 2)?;
                let parts = self.joint(attention, inputs[0])?;
                self.outputs(&Op::Attention(*attention).outputs(&[&parts, &inputs[1..]].concat())?)
            }
            Kernel::CachedAttention(attention) => {
                self.count(2, 4)?;
                self.ensure(attention.cached, "keys and values go into a cache")?;
                let parts = self.columns(attention, inputs[0])?;
                let operands = [parts[0], outputs[2], outputs[3], inputs[1]];
                let expected = Op::Attention(*attention).outputs(&operands)?;
                self.ensure(
                    outputs[..2] == expected[..],
                    &format!("the outputs must be {}", list(&expected)),
                )?;
                let samples = inputs[0].shape.dims()[0];
                self.ensure(inputs[1].shape.dims() == [samples, 2], "there must be a place per sample")?;
                self.ensure(outputs[2].shape.dims()[0] > 0, "the cache must have a row")
            }
            Kernel::JointAttentionGrad(attention) | Kernel::JointAttentionGrads { of: attention, .. } => {
                let sums = match self.kernel {
                    Kernel::JointAttentionGrads { .. } => Op::LinearGradBias.outputs(&inputs[1..2])?,
                    _ => Vec::new(),
                };
                self.count(4 + attention.extra_operands(), 1 + sums.len())?;
                self.joint_grad(attention)?;
                self.outputs(&[&inputs[1..2], &sums].concat())
            }
            Kernel::HeadLoss(head) => self.head(head),
            Kernel::Quantise(of) => self.quantise(of),
            Kernel::QuantiseWeights(all) => self.quantise_weights(all),
            Kernel::RoundTargets => {
                self.count(2, 1)?;
                let is_index = inputs[1].dtype == DType::U32;
                self.ensure(
                    is_index && inputs[1].shape.elements() == inputs[0].shape.rows(),
                    "there must be a target for every row",
                )?;
                self.outputs(&inputs[..1])
            }
            Kernel::QuantisedNorm(of) => self.quantised_norm(of),
            Kernel::QuantisedNormGrads(of) => self.quantised_norm_grads(of),
            Kernel::QuantisedAttentionGrad(of) => self.quantised_attention_grad(of),
            Kernel::ScaledProduct { bias, .. } => self.scaled_product(*bias),
            Kernel::GeluProduct(of) => self.gelu_product(of),
            Kernel::GlobalNorm => {
                self.count(1, 1)?;
                self.ensure(outputs[0].shape.elements() == 1, "the norm is one number")
            }
            Kernel::Guard(_) => {
                self.count(4, 3)?;
                let fits = inputs.iter().all(|of| of.shape.elements() == 1)
                    && outputs.iter().map(|of| of.shape.elements()).eq([1, GUARD_REPORT, GUARD_STATISTICS]);
                self.ensure(fits, "norm, loss, targets, exponent and scale are one number each, a report four, statistics six")
            }
            Kernel::Adam(adam) => {
                let copies = outputs.get(4..).unwrap_or_default();
                let fits = |copy: &TensorType| copy.dtype.bytes() == 2 && copy.shape == inputs[0].shape;
                self.ensure(
                    copies.len() <= 1 && copies.iter().all(fits),
                    "a working copy is one of 16 bits, as long as the parameters",
                )?;
                self.optimiser(&adam.ranges, 3, copies.len())
            }
            Kernel::Sgd(sgd) => self.optimiser(&sgd.ranges, 2, 0),
            Kernel::Momentum { .. } => self.elementwise(1, 1, 2),
            Kernel::Normalise => self.elementwise(1, 1, 1),
            Kernel::Combine(_) => self.elementwise(2, 0, 1),
            Kernel::Descend(_) | Kernel::Average { .. } => self.elementwise(1, 2, 1),
        }
    }

    fn op(&self, op: &Op) -> Result<()> {
        self.outputs(&op.outputs(self.inputs)?)?;
        // What shape rules leave open, because it does not decide the outputs.
        match op {
            Op::Attention(Attention { cached: true, .. }) => {
                let samples = self.inputs[0].shape.dims()[0];
                self.ensure(self.inputs[3].shape.dims() == [samples, 2], "there must be a place per sample")?;
                self.ensure(self.inputs[1].shape.dims()[0] > 0, "the cache must have a row")
            }
            Op::AttentionGrad(attention) => {
                let &[b, t, _] = self.inputs[1].shape.dims() else {
                    return self.ensure(false, "queries must have three dimensions");
                };
                let statistics = self.inputs[5].shape.elements();
                self.ensure(
                    statistics == b * attention.heads * t,
                    "there must be a statistic per query and head",
                )
            }
            _ => Ok(()),
        }
    }

    /// The type of either half of a tensor's columns.
    fn half_of(&self, joint: TensorType) -> Result<TensorType> {
        let columns = joint.shape.columns();
        self.ensure(columns.is_multiple_of(2), "gate and up must have as many columns")?;
        Ok(TensorType { shape: joint.shape.with_columns(columns / 2), dtype: joint.dtype })
    }

    /// The types of queries, keys and values that lie side by side.
    fn joint(&self, attention: &Attention, qkv: TensorType) -> Result<[TensorType; 3]> {
        self.ensure(!attention.cached, "a cache holds no queries")?;
        self.columns(attention, qkv)
    }

    /// The same, whatever becomes of them.
    fn columns(&self, attention: &Attention, qkv: TensorType) -> Result<[TensorType; 3]> {
        let parts = joint_parts(attention, qkv.shape);
        let columns = qkv.shape.columns();
        let fits = qkv.shape.dims().len() == 3 && parts.iter().sum::<usize>() == columns && columns > 0;
        self.ensure(fits, "queries, keys and values must be columns of [B,T,(H + 2·Hkv)·D]")?;
        Ok(parts.map(|columns| TensorType { shape: qkv.shape.with_columns(columns), dtype: qkv.dtype }))
    }

    fn head(&self, head: &HeadLoss) -> Result<()> {
        let gradients = usize::from(head.d_input) + usize::from(head.d_weight.is_some());
        self.count(4 + usize::from(head.has_gradient()), 2 + gradients)?;
        let (inputs, outputs) = (self.inputs, self.outputs);
        let logits = Op::Linear { bias: false, products: head.products }.outputs(&inputs[..2])?[0];
        let losses = Op::CrossEntropy(head.loss).outputs(&[logits, inputs[2], inputs[3]])?[0];
        self.ensure(outputs[0] == losses, "there must be a loss per row")?;
        if head.has_gradient() {
            self.ensure(inputs[4].shape == losses.shape, "there must be a gradient per loss")?;
        }
        let (rows, vocabulary) = (logits.shape.rows(), logits.shape.columns());
        let workspace = outputs[1].shape;
        self.ensure(
            head.chunk_rows > 0
                && workspace.columns() == vocabulary
                && workspace.rows() >= head.chunk_rows.min(rows),
            "the workspace must hold a chunk of logits",
        )?;
        if head.products.is_eight_bits() {
            let [x, w] = [inputs[0], inputs[1]];
            let suits =
                quantise::suits(x.shape) && quantise::suits(w.shape) && head.chunk_rows.is_multiple_of(16);
            self.ensure(suits, "rows, columns, vocabulary and chunk must be multiples of 16")?;
            let least = eight_bit_workspace_rows(x.shape, vocabulary, head.chunk_rows);
            self.ensure(workspace.rows() >= least, "the workspace must hold the copies of eight bits")?;
            let is_narrow = [x, w, outputs[1]].iter().all(|of| of.dtype.bytes() == 2);
            self.ensure(is_narrow, "x, weight and workspace must be of 16 bits")?;
        }
        let wanted = [(head.d_input, inputs[0]), (head.d_weight.is_some(), inputs[1])];
        let wanted = wanted.into_iter().filter(|(is_wanted, _)| *is_wanted);
        let mut pairs = wanted.zip(&outputs[2..]);
        self.ensure(
            pairs.all(|((_, of), to)| of.shape == to.shape),
            "gradients must have the shapes of x and w",
        )
    }

    /// The operands of the gradient of an attention whose queries, keys and values lie side by side.
    fn joint_grad(&self, attention: &Attention) -> Result<()> {
        let inputs = self.inputs;
        let parts = self.joint(attention, inputs[1])?;
        let operands = [&inputs[..1], &parts, &inputs[2..]].concat();
        Op::AttentionGrad(*attention).outputs(&operands)?;
        self.ensure(
            inputs[3].shape.elements() == inputs[1].shape.rows() * attention.heads,
            "there must be a statistic per query and head",
        )
    }

    fn quantise(&self, of: &Quantise) -> Result<()> {
        self.count(of.source.operands(), of.output_count())?;
        let x = self.inputs[0];
        let is_alike = |other: &TensorType| match of.source {
            Source::Bounded { .. } => other.dtype == x.dtype && other.shape.rows() == x.shape.rows(),
            _ => *other == x,
        };
        self.ensure(self.inputs.iter().all(is_alike), "all operands must be alike")?;
        let is_bounded = matches!(of.source, Source::Bounded { .. });
        self.ensure(
            !is_bounded || of.of == DType::E5M2,
            "only e5m2 has room for numbers that are not looked at",
        )?;
        self.ensure(quantise::suits(x.shape), "rows and columns must be multiples of 16")?;
        self.outputs(&of.outputs(x))
    }

    fn quantise_weights(&self, all: &[Quantise]) -> Result<()> {
        self.count(all.len(), all.iter().map(Quantise::output_count).sum())?;
        let is_such = |of: &Quantise| of.is_plain() && of.of == DType::E4M3;
        self.ensure(!all.is_empty() && all.iter().all(is_such), "weights become e4m3 as they are")?;
        let fits = |w: &TensorType| w.dtype == self.inputs[0].dtype && quantise::suits(w.shape);
        self.ensure(
            self.inputs.iter().all(fits),
            "weights must be of one type, their rows and columns multiples of 16",
        )?;
        let expected = all.iter().zip(self.inputs).flat_map(|(of, &w)| of.outputs(w));
        self.outputs(&expected.collect::<Vec<_>>())
    }

    fn quantised_norm(&self, of: &QuantisedNorm) -> Result<()> {
        let parameters = 1 + usize::from(of.shift);
        let outputs = usize::from(of.adds) + of.statistics() + of.copies().output_count();
        self.count(of.before_gain() + parameters, outputs)?;
        let (x, gain) = (self.inputs[0], self.inputs[of.before_gain()]);
        self.ensure(of.centred || !of.shift, "RMS norm has no shift")?;
        self.ensure(of.adds && of.centred || !of.bias, "only layer norm of a sum adds a bias")?;
        if of.bias {
            self.bias(x)?;
        }
        self.ensure(self.inputs[..of.summands()].iter().all(|a| *a == x), "both summands must be alike")?;
        let columns = x.shape.columns();
        let is_whole = gain.shape.elements() == columns && columns <= quantise::MOST_NORM_COLUMNS;
        self.ensure(is_whole, "a gain must be as long as a row, and that no longer than a warp can keep")?;
        self.ensure(quantise::suits(x.shape), "rows and columns must be multiples of 16")?;
        self.outputs(&of.outputs(self.inputs)?)
    }

    /// The outputs of a norm's gradients, behind which there are others.
    fn norm_grads(&self, of: &NormGrads, others: usize) -> Result<Vec<TensorType>> {
        let inputs = self.inputs;
        self.ensure(of.centred || !of.shift, "RMS norm has no shift")?;
        self.count(if of.centred { 6 } else { 5 }, 1 + of.sums() + others)?;
        let (other, own) = (inputs[inputs.len() - 1], &inputs[..inputs.len() - 1]);
        self.ensure(other.shape == inputs[0].shape, "both summands must have one shape")?;
        let mut expected = of.input_op().outputs(own)?;
        let params = of.params_op(inputs[2].shape.elements());
        expected.extend(params.outputs(&[&inputs[..2], &own[3..]].concat())?);
        if of.bias {
            let is_whole = inputs[2].shape.elements() == inputs[0].shape.columns();
            self.ensure(is_whole, "only a gain as long as a row goes with a bias")?;
            expected.extend(Op::LinearGradBias.outputs(&expected[..1])?);
        }
        Ok(expected)
    }

    fn quantised_norm_grads(&self, of: &QuantisedNormGrads) -> Result<()> {
        let copies = of.copies();
        let expected = self.norm_grads(&of.0, copies.output_count())?;
        let d_x = expected[0];
        self.ensure(
            QuantisedNormGrads::suits(d_x, self.inputs[2]),
            "a gain must be as long as a row, that no longer than a warp can sum, and rows and columns multiples of 16",
        )?;
        self.outputs(&[expected, copies.outputs(d_x)].concat())
    }

    fn quantised_attention_grad(&self, of: &QuantisedAttentionGrad) -> Result<()> {
        self.count(4, of.copies(1).output_count())?;
        let qkv = self.inputs[1];
        self.ensure(
            QuantisedAttentionGrad::suits(&of.of, qkv.shape),
            "heads must have 64 or 128 elements, positions be multiples of 64, and the attention plain",
        )?;
        self.joint_grad(&of.of)?;
        self.outputs(&of.copies(qkv.shape.dims()[1]).outputs(qkv))
    }

    /// The third operand is a bias of x.
    fn bias(&self, x: TensorType) -> Result<()> {
        let bias = TensorType::new(&[x.shape.columns()], x.dtype);
        self.ensure(self.inputs[2] == bias, "a bias must be as long as a row")
    }

    fn scaled_product(&self, bias: bool) -> Result<()> {
        self.count(4 + usize::from(bias), 1)?;
        self.scaled_factors(self.outputs[0], bias)
    }

    fn gelu_product(&self, of: &GeluProduct) -> Result<()> {
        let (others, h) = match of {
            GeluProduct::Forward { bias, .. } => (usize::from(*bias), self.outputs.first()),
            GeluProduct::Backward { .. } => (1, self.inputs.get(4)),
        };
        let outputs = h.map_or(vec![], |h| of.outputs(*h));
        self.count(4 + others, outputs.len())?;
        let quantise = of.quantise();
        self.ensure(self.inputs[0].dtype == quantise.of, "the left factor must have the type of the copies")?;
        self.scaled_factors(h.copied().unwrap_or(self.inputs[0]), of.bias())?;
        self.outputs(&outputs)
    }

    /// The factors of a product of eight bits with this result.
    fn scaled_factors(&self, out: TensorType, bias: bool) -> Result<()> {
        let [a, a_unit, b, b_unit] = [0, 1, 2, 3].map(|index| self.inputs[index]);
        let of_eight = a.dtype.is_eight_bits() && b.dtype.is_eight_bits();
        let is_possible = [a.dtype, b.dtype] != [DType::E5M2; 2];
        self.ensure(of_eight && is_possible, "the factors must have eight bits, one of them at least e4m3")?;
        let units = [a_unit, b_unit].iter().all(|unit| *unit == TensorType::new(&[1], DType::F32));
        self.ensure(units, "a unit is one number of f32")?;
        let fits = a.shape.columns() == b.shape.columns() && b.shape.dims().len() == 2;
        self.ensure(fits, "rows of both factors must have one length")?;
        let suits = quantise::suits(a.shape) && quantise::suits(b.shape);
        self.ensure(suits, "rows and columns must be multiples of 16")?;
        self.ensure(!out.dtype.is_eight_bits(), "the result must have more than eight bits")?;
        let [rows, columns] = [a.shape.rows(), b.shape.rows()];
        self.ensure(
            (out.shape.rows(), out.shape.columns()) == (rows, columns),
            "the result must have a row per row of a and a column per row of b",
        )?;
        if bias {
            let of = self.inputs[4];
            let fits = of.shape.dims() == [columns] && of.dtype == out.dtype;
            self.ensure(fits, "the bias must have a value per column, of the result's type")?;
        }
        Ok(())
    }

    /// So many inputs of one shape, then so many single numbers, and outputs of that shape.
    fn elementwise(&self, alike: usize, numbers: usize, outputs: usize) -> Result<()> {
        self.count(alike + numbers, outputs)?;
        let shape = self.inputs[0].shape;
        let (wide, single) = self.inputs.split_at(alike);
        self.ensure(
            wide.iter().chain(self.outputs).all(|of| of.shape == shape),
            "inputs and outputs must have one shape",
        )?;
        self.ensure(single.iter().all(|of| of.shape.elements() == 1), "the other inputs are one number each")
    }

    /// An optimiser changes `flat` buffers of one length and its counter, and may have further outputs.
    fn optimiser(&self, ranges: &[UpdateRange], flat: usize, further: usize) -> Result<()> {
        self.count(3, flat + 1 + further)?;
        let elements = self.inputs[0].shape.elements();
        let same = self.outputs[..flat].iter().all(|state| state.shape.elements() == elements);
        self.ensure(same, "parameters, gradients and moments must have one length")?;
        let scalars = [self.inputs[1], self.inputs[2], self.outputs[flat]];
        self.ensure(
            scalars.iter().all(|of| of.shape.elements() == 1),
            "scale, rate and counter are one number each",
        )?;
        let mut ranges: Vec<(usize, usize)> = ranges.iter().map(|range| (range.start, range.len)).collect();
        ranges.sort_unstable();
        let mut end = 0;
        for (start, len) in ranges {
            let is_free = start >= end || len == 0;
            end = start.saturating_add(len);
            self.ensure(is_free && end <= elements, "ranges must be disjoint and inside the parameters")?;
        }
        Ok(())
    }

    /// Every operand is of a type that is stored, except indices, which are u32; only few kernels know types of eight bits.
    fn element_types(&self, device: &'static str, all: Stored<'_>) -> Result<()> {
        let stored = all.numbers;
        let is_index_output = |index| match self.kernel {
            Kernel::Adam(_) => index == 3,
            Kernel::Sgd(_) => index == 2,
            Kernel::Adjust => index == 0,
            Kernel::Draw(_) => true,
            Kernel::LogProbabilities(_) => index == 0,
            _ => false,
        };
        if let Kernel::HeadLoss(HeadLoss { products, .. }) = *self.kernel
            && products.is_eight_bits()
            && !stored.contains(&products)
        {
            return Err(Error::Unsupported { device, kernel: self.kernel.name(), dtype: products });
        }
        // A step of such heads that the reference alone takes by itself.
        if *self.kernel == Kernel::RoundTargets {
            return Err(Error::Unsupported {
                device,
                kernel: self.kernel.name(),
                dtype: self.inputs[0].dtype,
            });
        }
        let operands = self.inputs.iter().enumerate();
        let operands = operands.filter(|&(i, of)| !self.is_copied_weight(all.weights, Some(i), of));
        let operands = operands.map(|(i, of)| (of, self.is_index_input(i)));
        let results = self.outputs.iter().enumerate();
        let results = results.filter(|(_, of)| !self.is_copied_weight(all.weights, None, of));
        let results = results.map(|(i, of)| (of, is_index_output(i)));
        for (of, is_index) in operands.chain(results) {
            let knows_eight = matches!(
                self.kernel,
                Kernel::Quantise(_)
                    | Kernel::QuantiseWeights(_)
                    | Kernel::QuantisedNorm(_)
                    | Kernel::QuantisedNormGrads(_)
                    | Kernel::QuantisedAttentionGrad(_)
                    | Kernel::ScaledProduct { .. }
                    | Kernel::GeluProduct(_)
            );
            let is_known = stored.contains(&of.dtype) && (knows_eight || !of.dtype.is_eight_bits());
            let fits = if is_index { of.dtype == DType::U32 } else { is_known };
            if !fits {
                return Err(Error::Unsupported { device, kernel: self.kernel.name(), dtype: of.dtype });
            }
        }
        Ok(())
    }

    /// Whether an input (or an output) is a copy of weights in the type for them: what casts write and products read.
    fn is_copied_weight(&self, weights: Option<DType>, input: Option<usize>, of: &TensorType) -> bool {
        let is_place = match (self.kernel, input) {
            (Kernel::Op(Op::Linear { .. }) | Kernel::LinearGelu { .. }, Some(1)) => true,
            // Gradients have masters to go to, and their programs read those.
            (Kernel::HeadLoss(head), Some(1)) => !head.has_gradient(),
            (Kernel::Cast, None) => self.inputs[0].dtype == DType::F32,
            _ => false,
        };
        is_place && weights == Some(of.dtype) && of.shape.columns().is_multiple_of(2)
    }

    fn is_index_input(&self, index: usize) -> bool {
        match self.kernel {
            Kernel::Op(op) | Kernel::OpInto { op, .. } => match op {
                Op::Embed | Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) | Op::Rope { .. } => index == 1,
                Op::EmbedGrad { .. } => index == 0,
                Op::Dropout { .. } => index == 1 || index == 2,
                Op::Attention(_) => index >= 3,
                Op::AttentionGrad(_) => index == 6,
                _ => false,
            },
            Kernel::CacheAppend => index == 1,
            Kernel::CacheCopy => index == 0,
            Kernel::Adjust => (2..5).contains(&index),
            Kernel::Draw(_) => index == 2,
            Kernel::LogProbabilities(_) => index > 0,
            Kernel::Average { .. } => index == 2,
            Kernel::HeadLoss(_) => index == 2,
            Kernel::JointAttention(_) => index >= 1,
            Kernel::CachedAttention(_) => index == 1,
            Kernel::JointAttentionGrad(_) | Kernel::JointAttentionGrads { .. } => index == 4,
            _ => false,
        }
    }

    fn count(&self, inputs: usize, outputs: usize) -> Result<()> {
        let fits = self.inputs.len() == inputs && self.outputs.len() == outputs;
        self.ensure(fits, &format!("takes {inputs} inputs and {outputs} outputs"))
    }

    fn outputs(&self, expected: &[TensorType]) -> Result<()> {
        self.ensure(self.outputs == expected, &format!("the outputs must be {}", list(expected)))
    }

    fn ensure(&self, holds: bool, requirement: &str) -> Result<()> {
        if holds {
            return Ok(());
        }
        let detail = format!("{requirement}, got {} → {}", list(self.inputs), list(self.outputs));
        Err(Error::Binding { kernel: self.kernel.name(), detail })
    }
}

fn list(types: &[TensorType]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
