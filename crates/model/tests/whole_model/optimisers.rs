//! Twenty steps of every optimiser on given gradients, against PyTorch and a Muon written out in double precision
//! (`tools/make_golden_optimisers.py`).

use std::path::PathBuf;

use ironmill_compute::{Adam, DType, Device, GUARD_STATISTICS, Guard, HostData, Sgd};
use ironmill_data::safetensors::SafeTensors;
use ironmill_graph::{
    Layout, Muon, MuonMatrix, Optimiser, OptimiserState, Passes, Runtime, States, update_program,
};

use crate::{backends, distance};

const STEPS: usize = 20;
const WEIGHT_DECAY: f32 = 0.1;
const SHAPES: [(&str, &[usize]); 4] =
    [("wide", &[6, 10]), ("tall", &[12, 5]), ("square", &[7, 7]), ("vector", &[9])];

struct Golden(SafeTensors);

impl Golden {
    fn open() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/optimisers");
        Golden(SafeTensors::open(&root.join("steps.safetensors")).unwrap())
    }

    fn read(&self, name: &str) -> Vec<f64> {
        let elements: u64 = self.0.info(name).unwrap().shape.iter().product();
        let mut bytes = vec![0; elements as usize * 8];
        self.0.read_bytes(name, &mut bytes).unwrap();
        bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// One of several tensors that lie behind each other under one name.
    fn part(&self, name: &str, part: usize, elements: usize) -> Vec<f64> {
        self.read(name)[part * elements..][..elements].to_vec()
    }
}

fn layout() -> Layout {
    let mut layout = Layout::default();
    for (name, dims) in SHAPES {
        layout.add(name, dims, true);
    }
    layout
}

/// The optimisers with their learning rates, and whether only matrices are compared.
fn optimisers() -> [(&'static str, f64, Optimiser); 4] {
    let layout = layout();
    let all = layout.update_ranges(WEIGHT_DECAY);
    let adam = |decoupled, ranges| Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled, ranges };
    let matrices = layout.parameters().iter().filter(|p| p.shape.dims().len() == 2);
    let matrices = matrices.map(|p| MuonMatrix {
        start: p.offset,
        rows: p.shape.rows(),
        columns: p.shape.columns(),
        weight_decay: WEIGHT_DECAY,
        rate: 1.0,
    });
    let vectors = layout.update_ranges_by(|p| (p.shape.dims().len() == 1).then_some((WEIGHT_DECAY, 1.0)));
    let muon = Muon { momentum: 0.95, matrices: matrices.collect(), rest: adam(true, vectors) };
    [
        ("adamw", 1e-2, Optimiser::Adam(adam(true, all.clone()))),
        ("adam", 1e-2, Optimiser::Adam(adam(false, all.clone()))),
        ("sgd", 1e-1, Optimiser::Sgd(Sgd { momentum: 0.9, ranges: all })),
        ("muon", 2e-2, Optimiser::Muon(muon)),
    ]
}

/// The parameters after ten and after twenty steps.
fn run(device: Box<dyn Device>, golden: &Golden, rate: f64, optimiser: Optimiser) -> [Vec<f64>; 2] {
    let layout = layout();
    let len = layout.len();
    let mut states = States::default();
    let mut flat = |name| states.declare(name, DType::F32, len);
    let state = OptimiserState {
        parameters: flat("parameters"),
        gradients: flat("gradients"),
        first_moment: flat("first moment"),
        second_moment: (!matches!(optimiser, Optimiser::Sgd(_))).then(|| flat("second moment")),
        counter: states.declare("counter", DType::U32, 1),
        loss: states.declare("loss", DType::F32, 1),
        guard: states.declare("guard", DType::F32, GUARD_STATISTICS),
        average: None,
        working: None,
        len,
    };
    let guard = Guard { clip: 0.0, loss_outlier: 0.0, norm_outlier: 0.0, warmup: 0, holds: true };
    let update = update_program(state, guard, optimiser);
    let mut runtime = Runtime::new(device, &states).unwrap();
    let program = runtime.compile(update.graph, &Passes::ALL).unwrap();
    for parameter in layout.parameters() {
        let start = golden.read(&format!("start.{}", parameter.name));
        runtime.write_state(state.parameters, parameter.range(), HostData::F64(&start)).unwrap();
    }
    let mut seen = Vec::new();
    for step in 0..STEPS {
        for parameter in layout.parameters() {
            let name = format!("grad.{}", parameter.name);
            let gradient = golden.part(&name, step, parameter.shape.elements());
            runtime.write_state(state.gradients, parameter.range(), HostData::F64(&gradient)).unwrap();
        }
        let rate = rate * (1.0 - step as f64 / 40.0);
        runtime.write(program, update.learning_rate, HostData::F64(&[rate])).unwrap();
        runtime.run(program).unwrap();
        if step + 1 == STEPS / 2 || step + 1 == STEPS {
            seen.push(runtime.read_state_f64(state.parameters, 0..len).unwrap());
        }
    }
    seen.try_into().unwrap()
}

#[test]
fn twenty_steps_of_every_optimiser_match_pytorch_and_a_reference_muon() {
    let golden = Golden::open();
    let layout = layout();
    for (name, rate, optimiser) in optimisers() {
        for (device, eps) in backends() {
            let states = run(device, &golden, rate, optimiser.clone());
            // Constants such as betas and coefficients are numbers of f32 on every backend. The orthogonal matrix next to a
            // momentum turns with it the faster the smaller its singular values are.
            let bound = f64::max(if name == "muon" { 2e-6 } else { 1e-6 }, 16.0 * eps);
            for parameter in layout.parameters() {
                let tensor = format!("{name}.{}", parameter.name);
                if name == "muon" && parameter.name == "vector" {
                    continue;
                }
                for (part, state) in states.iter().enumerate() {
                    let expected = golden.part(&tensor, part, parameter.shape.elements());
                    let far = distance(&state[parameter.range()], &expected);
                    assert!(far < bound, "{tensor}, part {part}: {far}");
                }
            }
        }
    }
}
