//! Runs a case: first a part of its result against the reference, then its time.

use super::case::{Case, Cut, Data, Operand, Work};
use crate::bench::{Clock, Spread, Time};
use crate::failure::{Code, Failure, Result};
use ironmill_compute::cpu::peak::Bursts;
use ironmill_compute::{
    BufferId, Cpu, DType, Device, HostData, Kernel, Launch, Reference, SequenceId, TensorType, View,
};
use std::time::Duration;

/// How long to measure a case.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Seconds of runs, unless the least or the most runs say otherwise.
    pub seconds: f64,
    /// The fewest runs.
    pub least: usize,
    /// The most runs.
    pub most: usize,
    /// The cache that inputs of what memory limits must not be found in.
    pub cache_bytes: usize,
}

/// What a case took, and what the machine did in the same seconds.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Seconds of a run.
    pub time: Spread,
    /// The operations a second that bursts of nothing but arithmetic did between the runs, for what arithmetic limits.
    pub pace: Option<Spread>,
}

/// The shortest and the longest burst: as long as a run, so that interruptions count for both alike.
const BURST: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];
/// How many times as long as bursts all runs together are.
const RUNS_TO_BURSTS: f64 = 4.0;

/// The most memory that copies of operands may take together.
const COPIES_BYTES: usize = 1 << 30;

/// Roundings of the largest number that may add up in an element, times the root of its longest sum.
const ROUNDINGS: f64 = 4.0;

impl Case {
    /// Whether an input is a table that a run reads only some rows of.
    fn is_table(&self, input: &Operand) -> bool {
        matches!(self.work, Work::Bytes { moved, .. } if input.bytes() as f64 > moved)
    }

    /// Bytes of the operands that every copy has to itself.
    fn own_bytes(&self) -> usize {
        let inputs = self.inputs.iter().filter(|input| !self.is_table(input));
        inputs.chain(&self.outputs).map(Operand::bytes).sum()
    }

    /// Checks a part of the result, then measures runs.
    pub fn measure(&self, cpu: &mut Cpu, bursts: Bursts, budget: &Budget) -> Result<Measured> {
        let copies = match self.work {
            Work::Flops(_) => 1,
            // What they move is twice the cache, so that what the first copy left there is gone when its turn comes again.
            Work::Bytes { moved, .. } => (2 * budget.cache_bytes / (moved as usize).max(1) + 1)
                .min(COPIES_BYTES / self.own_bytes().max(1))
                .max(1),
        };
        let mut inputs = numbers(&self.inputs, 1);
        let outputs = numbers(&self.outputs, 100);
        let mut bound: Vec<Bound> = Vec::with_capacity(copies);
        for copy in 0..copies {
            // A table is shared, and every copy reads other rows of it.
            let others = numbers(&self.inputs, 1 + 1000 * copy as u64);
            let indices = inputs.iter_mut().zip(others).filter(|(data, _)| matches!(data, Data::Index(_)));
            indices.for_each(|(data, other)| *data = other);
            bound.push(Bound::new(cpu, self, &inputs, &outputs, bound.first())?);
        }
        let inputs = numbers(&self.inputs, 1);
        self.check(cpu, &bound[0], &inputs, &outputs)?;
        let bursts = matches!(self.work, Work::Flops(_)).then_some(bursts);
        let measured = measure_runs(cpu, &bound, bursts, budget);
        for bound in bound {
            bound.free(cpu);
        }
        measured
    }

    fn check(&self, cpu: &mut Cpu, bound: &Bound, inputs: &[Data], outputs: &[Data]) -> Result<()> {
        let mut inputs = inputs.to_vec();
        let silenced = self.check.silenced.as_ref();
        if let Some((index, kept)) = silenced
            && let Data::Real(numbers) = &mut inputs[*index]
        {
            let heard: Vec<f32> = kept.iter().map(|&place| numbers[place]).collect();
            numbers.fill(0.0);
            kept.iter().zip(heard).for_each(|(&place, number)| numbers[place] = number);
            upload(cpu, &bound.inputs[*index], &inputs[*index])?;
        }
        cpu.run(bound.sequence)?;
        let expected = self.expected(&inputs, outputs)?;
        for (index, (cut, expected)) in self.check.outputs.iter().zip(expected).enumerate() {
            if self.check.workspace == Some(index) {
                continue;
            }
            let view = &bound.outputs[index];
            let mut whole = vec![0.0; view.of.shape.elements()];
            cpu.download(view, &mut whole)?;
            // Only a part is compared, but an element that was never written is wrong anywhere.
            if let Some(place) = whole.iter().position(|x| x.is_nan()) {
                return Err(self.wrong(format!("element {place} of output {index} was not written")));
            }
            let actual = cut.take(view.of, &whole);
            let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            // A factor that is computed on the way may be rounded to either neighbour.
            let products = products(&self.kernel);
            let factors = if products == DType::F32 { 0.0 } else { products.epsilon() };
            let bound = (ROUNDINGS * DType::F32.epsilon() * (self.terms as f64).sqrt() + factors) * largest;
            for (place, (&actual, &expected)) in actual.iter().zip(&expected).enumerate() {
                let actual = f64::from(actual);
                if (actual - expected).abs() > bound {
                    let detail = format!(
                        "output {index}, checked element {place}: {actual} instead of {expected} ± {bound:.1e}"
                    );
                    return Err(self.wrong(detail));
                }
            }
        }
        if let Some((index, _)) = silenced {
            upload(cpu, &bound.inputs[*index], &self.inputs[*index].data(1 + *index as u64))?;
        }
        Ok(())
    }

    fn wrong(&self, detail: String) -> Failure {
        let message = format!(
            "{} computes something else than the reference ({detail}): please report this with the \
             output of ironmill doctor",
            self.name
        );
        Failure::new(Code::OurBug, message)
    }

    /// What the reference makes of the part.
    fn expected(&self, inputs: &[Data], outputs: &[Data]) -> Result<Vec<Vec<f64>>> {
        // Rounds the factors of products as the kernel is asked to.
        let mut reference = Reference::rounded();
        let mut place = |cut: &Cut, operand: &Operand, data: &Data| -> Result<View> {
            let part = match data {
                Data::Real(numbers) => Data::Real(cut.take(operand.of, numbers)),
                Data::Index(indices) => Data::Index(cut.take(operand.of, indices)),
            };
            let of = TensorType::new(&cut.dims, operand.of.dtype);
            let buffer = reference.allocate(of.shape.elements() * reference.element_bytes(of.dtype))?;
            let view = View { buffer, offset_bytes: 0, of };
            upload(&mut reference, &view, &part)?;
            Ok(view)
        };
        let mut from = Vec::new();
        for ((cut, operand), data) in self.check.inputs.iter().zip(&self.inputs).zip(inputs) {
            from.push(place(cut, operand, data)?);
        }
        let mut to = Vec::new();
        for (index, ((cut, operand), data)) in
            self.check.outputs.iter().zip(&self.outputs).zip(outputs).enumerate()
        {
            // A workspace is smaller than the part that takes its place may be, and holds nothing.
            if self.check.workspace == Some(index) {
                let own = Operand::poison(&cut.dims);
                to.push(place(&Cut::whole(&own), &own, &own.data(0))?);
            } else {
                to.push(place(cut, operand, data)?);
            }
        }
        let launch = Launch { kernel: self.check.kernel.clone(), inputs: from, outputs: to.clone() };
        let sequence = reference.bind(&[launch])?;
        reference.run(sequence)?;
        let mut results = Vec::with_capacity(to.len());
        for view in &to {
            let mut result = vec![0.0; view.of.shape.elements()];
            reference.download_f64(view, &mut result)?;
            results.push(result);
        }
        Ok(results)
    }
}

/// The times of runs, each copy in turn, with bursts between them.
fn measure_runs(cpu: &mut Cpu, bound: &[Bound], bursts: Option<Bursts>, budget: &Budget) -> Result<Measured> {
    for bound in bound {
        cpu.run(bound.sequence)?;
    }
    let threads = cpu.threads();
    let (mut seconds, mut paces) = (Vec::new(), Vec::new());
    // There is one burst at least.
    let mut since_burst = RUNS_TO_BURSTS * BURST[1].as_secs_f64();
    let began = Clock::now();
    while seconds.len() < budget.least
        || (seconds.len() < budget.most && began.elapsed().wall < budget.seconds)
    {
        let started = Clock::now();
        cpu.run(bound[seconds.len() % bound.len()].sequence)?;
        let time: Time = started.elapsed();
        seconds.push(time.counted(threads));
        since_burst += time.wall;
        let Some(bursts) = bursts else { continue };
        let length = Duration::from_secs_f64(time.wall).clamp(BURST[0], BURST[1]);
        while since_burst >= RUNS_TO_BURSTS * length.as_secs_f64() {
            paces.push(pace(bursts, threads, length));
            since_burst -= RUNS_TO_BURSTS * length.as_secs_f64();
        }
    }
    Ok(Measured { time: Spread::of(seconds), pace: (!paces.is_empty()).then(|| Spread::of_rates(paces)) })
}

/// The operations a second of one burst, by the clock that runs are measured with.
fn pace(bursts: Bursts, threads: usize, length: Duration) -> f64 {
    if threads > 1 {
        return bursts.together(threads, length);
    }
    let started = Clock::now();
    let operations = bursts.alone(length);
    operations / started.elapsed().counted(threads)
}

/// What the factors of a kernel's products are rounded to.
fn products(kernel: &Kernel) -> DType {
    match kernel.clone() {
        Kernel::Op(mut op) | Kernel::OpInto { mut op, .. } => op.products_mut().map_or(DType::F32, |to| *to),
        Kernel::HeadLoss(head) => head.products,
        _ => DType::F32,
    }
}

fn numbers(operands: &[Operand], salt: u64) -> Vec<Data> {
    operands.iter().zip(salt..).map(|(operand, salt)| operand.data(salt)).collect()
}

fn upload(device: &mut dyn Device, view: &View, data: &Data) -> Result<()> {
    match data {
        Data::Real(numbers) => device.upload(view, HostData::F32(numbers))?,
        Data::Index(indices) => device.upload(view, HostData::U32(indices))?,
    }
    Ok(())
}

/// A case at its place in memory.
struct Bound {
    sequence: SequenceId,
    inputs: Vec<View>,
    outputs: Vec<View>,
    /// The buffers that end with it.
    own: Vec<BufferId>,
}

impl Bound {
    /// At a place of its own, but for tables, which lie where those of the first copy do.
    fn new(
        cpu: &mut Cpu,
        case: &Case,
        inputs: &[Data],
        outputs: &[Data],
        first: Option<&Bound>,
    ) -> Result<Self> {
        let mut own = Vec::new();
        let mut place = |operand: &Operand, data: &Data| -> Result<View> {
            let buffer = cpu.allocate(operand.bytes())?;
            own.push(buffer);
            let view = View { buffer, offset_bytes: 0, of: operand.of };
            upload(cpu, &view, data)?;
            Ok(view)
        };
        let mut from = Vec::with_capacity(inputs.len());
        for (index, (operand, data)) in case.inputs.iter().zip(inputs).enumerate() {
            from.push(match first {
                Some(first) if case.is_table(operand) => first.inputs[index],
                _ => place(operand, data)?,
            });
        }
        let mut to = Vec::with_capacity(outputs.len());
        for (operand, data) in case.outputs.iter().zip(outputs) {
            to.push(place(operand, data)?);
        }
        let launch = Launch { kernel: case.kernel.clone(), inputs: from.clone(), outputs: to.clone() };
        Ok(Bound { sequence: cpu.bind(&[launch])?, inputs: from, outputs: to, own })
    }

    fn free(self, cpu: &mut Cpu) {
        cpu.unbind(self.sequence);
        self.own.into_iter().for_each(|buffer| cpu.free(buffer));
    }
}
