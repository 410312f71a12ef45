//! Operands that do not fit an op are refused, with the op's name and what it wants.

use ironmill_compute::{
    Adam, Attention, Cpu, DType, Device, Kernel, Launch, LossShape, Mask, Op, Reference, TensorType,
    UpdateRange, View,
};

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(dims, DType::F32)
}

fn u32s(dims: &[usize]) -> TensorType {
    TensorType::new(dims, DType::U32)
}

fn check(op: Op, inputs: &[TensorType], expected: &str) {
    let message = op.outputs(inputs).expect_err(expected).to_string();
    assert!(message.contains(op.name()) && message.contains(expected), "{message}");
}

#[test]
fn a_gain_must_divide_the_columns() {
    let norm = || Op::RmsNorm { eps: 1e-5 };
    assert_eq!(norm().outputs(&[f32s(&[2, 3, 8]), f32s(&[4])]).unwrap()[1], f32s(&[12]));
    check(norm(), &[f32s(&[2, 8]), f32s(&[3])], "divide the columns");
    check(norm(), &[f32s(&[2, 8]), f32s(&[2, 4])], "one dimension");
    check(norm(), &[f32s(&[2, 8])], "2 operands");
    let gradient = Op::RmsNormGradGain { columns: 4 };
    check(gradient, &[f32s(&[2, 8]), f32s(&[2, 8]), f32s(&[2])], "a statistic per row");
}

#[test]
fn a_rotation_needs_a_position_per_row_and_heads_of_even_size() {
    let rope = || Op::Rope { inverse: false, still: 0 };
    let (x, positions) = (f32s(&[2, 3, 12]), u32s(&[2, 3]));
    assert_eq!(rope().outputs(&[x, positions, f32s(&[9, 6])]).unwrap(), [x]);
    check(rope(), &[x, positions, f32s(&[9, 3])], "D even");
    check(rope(), &[x, positions, f32s(&[9, 8])], "dividing the columns");
    check(rope(), &[x, u32s(&[2]), f32s(&[9, 6])], "a position per row");
    check(rope(), &[x, f32s(&[2, 3]), f32s(&[9, 6])], "must be u32");
    check(rope(), &[f32s(&[6, 12]), u32s(&[6]), f32s(&[9, 6])], "[B,T,H·D]");
}

#[test]
fn a_gate_must_have_the_shape_of_what_it_gates() {
    check(Op::SiluGate, &[f32s(&[2, 3]), f32s(&[3, 2])], "one shape");
    check(Op::SiluGateGrad, &[f32s(&[2, 3]), f32s(&[2, 3]), f32s(&[6])], "one shape");
}

#[test]
fn borders_are_an_index_per_query_and_not_for_caches() {
    let attention = Attention {
        heads: 2,
        kv_heads: 1,
        mask: Mask::Causal,
        cached: false,
        borders: true,
        window: 0,
        products: DType::F32,
    };
    let (q, k) = (f32s(&[2, 3, 8]), f32s(&[2, 3, 4]));
    assert!(Op::Attention(attention).outputs(&[q, k, k, u32s(&[2, 3])]).is_ok());
    check(Op::Attention(attention), &[q, k, k], "4 operands");
    check(Op::Attention(attention), &[q, k, k, u32s(&[2])], "a border per query");
    check(Op::Attention(attention), &[q, k, k, f32s(&[2, 3])], "must be u32");
    let cached = Attention { cached: true, ..attention };
    check(Op::Attention(cached), &[q, k, k, u32s(&[2]), u32s(&[2, 3])], "a cache holds one document");
}

#[test]
fn label_smoothing_is_a_share_and_the_z_loss_is_not_negative() {
    let inputs = [f32s(&[2, 5]), u32s(&[2]), f32s(&[2])];
    for (label_smoothing, z_loss) in [(1.0, 0.0), (-0.1, 0.0), (f32::NAN, 0.0), (0.0, -1.0), (0.0, f32::NAN)]
    {
        check(Op::CrossEntropy(LossShape { label_smoothing, z_loss }), &inputs, "label smoothing must be");
    }
}

#[test]
fn an_adam_needs_both_moments() {
    let ranges = [UpdateRange { start: 0, len: 4, weight_decay: 0.0, rate: 1.0 }];
    let adam = Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true, ranges: ranges.into() };
    let devices: [Box<dyn Device>; 2] = [Box::new(Reference::exact()), Box::new(Cpu::new(1).unwrap())];
    for mut device in devices {
        let mut place = |of: TensorType| {
            let buffer = device.allocate(of.shape.elements() * device.element_bytes(of.dtype)).unwrap();
            View { buffer, offset_bytes: 0, of }
        };
        let inputs = [4, 1, 1].map(|length| place(f32s(&[length]))).to_vec();
        let [parameters, first, second] = [4; 3].map(|length| place(f32s(&[length])));
        let counter = place(u32s(&[1]));
        let launch = |outputs| Launch { kernel: Kernel::Adam(adam.clone()), inputs: inputs.clone(), outputs };
        assert!(device.bind(&[launch(vec![parameters, first, second, counter])]).is_ok());
        let message = device.bind(&[launch(vec![parameters, first, counter])]).unwrap_err().to_string();
        assert!(message.contains("adam"), "{message}");
    }
}
