//! What a model does besides its products: attention, head, norms, activations, tables and the update, at the sizes of
//! the models that `bench step` trains.

use std::sync::Arc;

use super::case::{Case, Check, Cut, Fill, Group, Operand, Work, few};
use crate::bench::Precision;
use crate::bench::step::Sizes;
use ironmill_compute::{
    Adam, DType, Kernel, Op, TensorType, UpdateRange,
    kernel::{PROCESSOR_LOGITS, head_chunk_rows},
};

const EPS: f32 = 1e-5;

/// The cases of one model.
pub fn all(precision: Precision, of: &Sizes) -> Vec<Case> {
    let mut cases = attention(precision, of);
    cases.push(head(precision, of));
    cases.extend(norms(of));
    cases.extend(pointwise(of));
    cases.extend(tables(of));
    cases.extend(updates(of));
    cases
}

/// A case of `Group::Rows` whose check is the same kernel on a part.
fn rows(
    name: String,
    kernel: Kernel,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    parts: [Vec<Cut>; 2],
) -> Case {
    let [from, to] = parts;
    let check = Check { kernel: kernel.clone(), inputs: from, outputs: to, workspace: None, silenced: None };
    let work = Work::of_operands(&inputs, &outputs);
    Case { group: Group::Rows, name, kernel, inputs, outputs, work, terms: 1, check }
}

fn attention(precision: Precision, of: &Sizes) -> Vec<Case> {
    let (b, t, h, c) = (of.batch, of.context, of.heads, of.width);
    let d = c / h;
    // The last head of the last sample; its part is an attention of one sample and one head.
    let (sample, head) = (b - 1, h - 1);
    let rows: Vec<usize> = (sample * t..(sample + 1) * t).collect();
    let columns: Vec<usize> = (head * d..(head + 1) * d).collect();
    let wide = Operand::reals(&[b, t, c]);
    let part = Cut::matrix(&wide, Some(&rows), Some(&columns)).shaped(&[1, t, d]);
    // Log-sum-exps as they usually are, so that probabilities are too.
    let statistics = Operand::around(&[b, h, t], (t as f32).ln(), 0.1);
    let statistics_part = Cut::matrix(&statistics, Some(&[sample * h + head]), None).shaped(&[1, 1, t]);
    // Query t sees t + 1 keys; a product of a query and a key is D multiplications and additions, twice forward (scores,
    // output) and five times backward (scores again, dP, dV, dQ, dK).
    let pairs = (b * h) as f64 * (t * (t + 1) / 2) as f64 * d as f64;
    let poison = Operand::poison(&[b, t, c]);
    let name = |way: &str| format!("attention {way}  B {b} T {t} H {h} D {d}");
    let forward = Case {
        group: Group::Attention,
        name: name("forward "),
        kernel: Kernel::Op(Op::Attention(precision.attention(h))),
        inputs: vec![wide; 3],
        outputs: vec![poison, Operand::poison(&[b, h, t])],
        work: Work::Flops(4.0 * pairs),
        terms: t,
        check: Check {
            kernel: Kernel::Op(Op::Attention(precision.attention(1))),
            inputs: vec![part.clone(); 3],
            outputs: vec![part.clone(), statistics_part.clone()],
            workspace: None,
            silenced: None,
        },
    };
    let backward = Case {
        name: name("backward"),
        kernel: Kernel::Op(Op::AttentionGrad(precision.attention(h))),
        inputs: vec![wide, wide, wide, wide, wide, statistics],
        outputs: vec![poison; 3],
        work: Work::Flops(10.0 * pairs),
        terms: t + d,
        check: Check {
            kernel: Kernel::Op(Op::AttentionGrad(precision.attention(1))),
            inputs: [vec![part.clone(); 5], vec![statistics_part]].concat(),
            outputs: vec![part; 3],
            workspace: None,
            silenced: None,
        },
        ..forward.clone()
    };
    vec![forward, backward]
}

fn head(precision: Precision, of: &Sizes) -> Case {
    let (n, c, v) = (of.batch * of.context, of.width, of.vocab);
    let x = Operand::reals(&[n, c]);
    let chunk_rows = head_chunk_rows(x.of.shape, v, PROCESSOR_LOGITS);
    let w = Operand::around(&[v, c], 0.0, 0.05);
    let list = Operand::around(&[n], 1.0, 0.5);
    let inputs = vec![x, w, Operand::below(&[n], v), list, list];
    let outputs = vec![
        Operand::poison(&[n]),
        Operand::poison(&[chunk_rows, v]),
        Operand::poison(&[n, c]),
        Operand::poison(&[v, c]),
    ];
    // The gradient of the table sums over all rows, so all but a few get no weight while it is checked.
    let picked = few(n);
    let (rows, count) = (Some(&picked[..]), picked.len());
    let some = Cut::elements(&picked);
    let check = Check {
        kernel: precision.head(count),
        inputs: vec![Cut::matrix(&x, rows, None), Cut::whole(&w), some.clone(), some.clone(), some.clone()],
        outputs: vec![
            some,
            Cut::whole(&Operand::poison(&[count, v])),
            Cut::matrix(&x, rows, None),
            Cut::whole(&w),
        ],
        workspace: Some(1),
        silenced: Some((3, picked.clone())),
    };
    Case {
        group: Group::Head,
        name: format!("head and loss  N {n} C {c} V {v}"),
        kernel: precision.head(chunk_rows),
        inputs,
        outputs,
        work: Work::Flops(6.0 * n as f64 * c as f64 * v as f64),
        terms: c + n,
        check,
    }
}

fn norms(of: &Sizes) -> Vec<Case> {
    let (n, c) = (of.batch * of.context, of.width);
    let (picked, columns) = (few(n), few(c));
    let (picked, columns) = (&picked[..], &columns[..]);
    let (x, gain, rstd) = (Operand::reals(&[n, c]), Operand::reals(&[c]), Operand::around(&[n], 1.0, 0.5));
    let (y, list) = (Operand::poison(&[n, c]), Operand::poison(&[n]));
    let (some, whole) = (Cut::matrix(&x, Some(picked), None), Cut::whole(&gain));
    let (listed, across) = (Cut::elements(picked), Cut::matrix(&x, None, Some(columns)));
    let name = |what: &str| format!("{what}  N {n} C {c}");
    let norm = Kernel::Op(Op::LayerNorm { eps: EPS, bias: true });
    let rms = Kernel::Op(Op::RmsNorm { eps: EPS });
    let mut cases = vec![
        rows(
            name("layer norm"),
            norm,
            vec![x, gain, gain],
            vec![y, list, list],
            [
                vec![some.clone(), whole.clone(), whole.clone()],
                vec![some.clone(), listed.clone(), listed.clone()],
            ],
        ),
        rows(
            name("add and layer norm"),
            Kernel::AddLayerNorm { eps: EPS, bias: true },
            vec![x, x, gain, gain],
            vec![y, y, list, list],
            [
                vec![some.clone(), some.clone(), whole.clone(), whole.clone()],
                vec![some.clone(), some.clone(), listed.clone(), listed.clone()],
            ],
        ),
        rows(
            name("layer norm, gradient of x"),
            Kernel::Op(Op::LayerNormGradInput),
            vec![x, x, gain, rstd, rstd],
            vec![y],
            [
                vec![some.clone(), some.clone(), whole.clone(), listed.clone(), listed.clone()],
                vec![some.clone()],
            ],
        ),
        rows(
            name("layer norm, gradient of gain and shift"),
            Kernel::OpInto { op: Op::LayerNormGradParams { bias: true }, add: false },
            vec![x, x, rstd, rstd],
            vec![Operand::poison(&[c]); 2],
            [
                vec![across.clone(), across.clone(), Cut::whole(&rstd), Cut::whole(&rstd)],
                vec![Cut::elements(columns); 2],
            ],
        ),
        rows(
            name("rms norm"),
            rms,
            vec![x, gain],
            vec![y, list],
            [vec![some.clone(), whole.clone()], vec![some.clone(), listed.clone()]],
        ),
        rows(
            name("rms norm, gradient of x"),
            Kernel::Op(Op::RmsNormGradInput),
            vec![x, x, gain, rstd],
            vec![y],
            [vec![some.clone(), some.clone(), whole, listed], vec![some]],
        ),
        rows(
            name("bias gradient"),
            Kernel::OpInto { op: Op::LinearGradBias, add: false },
            vec![x],
            vec![Operand::poison(&[c])],
            [vec![across], vec![Cut::elements(columns)]],
        ),
    ];
    for case in &mut cases {
        case.terms = c.max(n);
    }
    cases
}

fn pointwise(of: &Sizes) -> Vec<Case> {
    let (b, t, n, c, m) = (of.batch, of.context, of.batch * of.context, of.width, 4 * of.width);
    let picked = few(n);
    let picked = Some(&picked[..]);
    let (wide, poison) = (Operand::around(&[n, m], 0.0, 3.0), Operand::poison(&[n, m]));
    let cut = Cut::matrix(&wide, picked, None);
    let name = |what: &str, columns: usize| format!("{what}  N {n} C {columns}");
    let alone = |what: &str, op: Op, inputs: usize, outputs: usize| {
        rows(
            name(what, m),
            Kernel::Op(op),
            vec![wide; inputs],
            vec![poison; outputs],
            [vec![cut.clone(); inputs], vec![cut.clone(); outputs]],
        )
    };
    let mut cases = vec![
        alone("gelu", Op::Gelu, 1, 1),
        alone("gelu gradient", Op::GeluGrad, 2, 1),
        alone("silu gate", Op::SiluGate, 2, 1),
        alone("silu gate gradient", Op::SiluGateGrad, 3, 2),
        alone("add", Op::Add, 2, 1),
    ];
    let (joint, joint_poison) = (Operand::around(&[n, 2 * m], 0.0, 3.0), Operand::poison(&[n, 2 * m]));
    let joint_cut = Cut::matrix(&joint, picked, None);
    cases.push(rows(
        name("silu gate, side by side", m),
        Kernel::JointSiluGate,
        vec![joint],
        vec![poison],
        [vec![joint_cut.clone()], vec![cut.clone()]],
    ));
    cases.push(rows(
        name("silu gate gradient, side by side", m),
        Kernel::JointSiluGateGrad,
        vec![joint, wide],
        vec![joint_poison],
        [vec![joint_cut.clone(), cut.clone()], vec![joint_cut]],
    ));
    let (qkv, part) = (Operand::reals(&[n, 3 * c]), Operand::poison(&[n, c]));
    let (qkv_cut, part_cut) = (Cut::matrix(&qkv, picked, None), Cut::matrix(&part, picked, None));
    cases.push(rows(
        name("split in three", 3 * c),
        Kernel::Op(Op::Split { sizes: vec![c; 3] }),
        vec![qkv],
        vec![part; 3],
        [vec![qkv_cut], vec![part_cut; 3]],
    ));
    // The first sample is a part of its own.
    let sample: Vec<usize> = (0..t).collect();
    let (x, positions) = (Operand::reals(&[b, t, c]), Operand::below(&[b, t], t));
    let table = Operand::reals(&[t, c / of.heads]);
    let turned = Cut::matrix(&x, Some(&sample), None).shaped(&[1, t, c]);
    cases.push(rows(
        name("rope", c),
        Kernel::Op(Op::Rope { inverse: false, still: 0 }),
        vec![x, positions, table],
        vec![Operand::poison(&[b, t, c])],
        [vec![turned.clone(), Cut::matrix(&positions, Some(&[0]), None), Cut::whole(&table)], vec![turned]],
    ));
    cases
}

fn tables(of: &Sizes) -> Vec<Case> {
    let (n, c, v) = (of.batch * of.context, of.width, of.vocab);
    let (picked, columns) = (few(n), few(c));
    let (table, ids, y) = (Operand::reals(&[v, c]), Operand::below(&[n], v), Operand::poison(&[n, c]));
    let d_y = Operand::reals(&[n, c]);
    let name = |what: &str| format!("{what}  N {n} C {c} V {v}");
    let mut gradient = rows(
        name("embedding gradient"),
        Kernel::OpInto { op: Op::EmbedGrad { rows: v }, add: false },
        vec![ids, d_y],
        vec![Operand::poison(&[v, c])],
        [
            vec![Cut::whole(&ids), Cut::matrix(&d_y, None, Some(&columns))],
            vec![Cut::matrix(&table, None, Some(&columns))],
        ],
    );
    gradient.terms = n;
    let mut embedding = rows(
        name("embedding"),
        Kernel::Op(Op::Embed),
        vec![table, ids],
        vec![y],
        [vec![Cut::whole(&table), Cut::elements(&picked)], vec![Cut::matrix(&y, Some(&picked), None)]],
    );
    // Only the rows that are asked for are read, and each of a small table once.
    embedding.work = Work::Bytes {
        moved: (y.bytes() + y.bytes().min(table.bytes()) + ids.bytes()) as f64,
        in_place: false,
    };
    vec![embedding, gradient]
}

fn updates(of: &Sizes) -> Vec<Case> {
    let len = of.update_elements();
    let whole = Operand::reals(&[len]);
    let number =
        |number: f32, dtype| Operand { of: TensorType::new(&[1], dtype), fill: Fill::Number(number) };
    let (scale, rate) = (number(0.5, DType::F32), number(1e-4, DType::F32));
    let counter = number(4.0, DType::U32);
    let adam = |len: usize| {
        let ranges: Arc<[UpdateRange]> =
            Arc::from(vec![UpdateRange { start: 0, len, weight_decay: 0.1, rate: 1.0 }]);
        Kernel::Adam(Adam { beta1: 0.9, beta2: 0.95, eps: 1e-8, decoupled: true, ranges })
    };
    let picked = few(len);
    let (some, one) = (Cut::elements(&picked), Cut::whole(&scale));
    let mut update = rows(
        format!("AdamW  {len} parameters"),
        adam(len),
        vec![whole, scale, rate],
        vec![whole, whole, Operand::around(&[len], 0.5, 0.5), counter],
        [vec![some.clone(), one.clone(), one.clone()], vec![some.clone(), some.clone(), some, one.clone()]],
    );
    update.check.kernel = adam(picked.len());
    let mut square = rows(
        format!("global norm  {len} parameters"),
        Kernel::GlobalNorm,
        vec![whole],
        vec![Operand::poison(&[1])],
        [vec![Cut::whole(&whole)], vec![one]],
    );
    square.terms = 16;
    vec![update, square]
}
