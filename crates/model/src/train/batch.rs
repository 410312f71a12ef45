//! The samples of a step, as the trainer is given them.

use ironmill_compute::IGNORED;

/// The samples of one step.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Token ids, `rows × length`.
    pub ids: Vec<u32>,
    /// What follows each token; [`IGNORED`] is not counted.
    pub targets: Vec<u32>,
    /// The weight of each target's loss.
    pub weights: Vec<f32>,
    /// The position of each token in its document.
    pub positions: Vec<u32>,
    /// Where in its row each token's document begins.
    pub borders: Vec<u32>,
    /// The global index of each sample.
    pub samples: Vec<u32>,
}

impl Batch {
    /// Room for a step's samples of one document each.
    pub fn new(rows: usize, length: usize) -> Self {
        let tokens = rows * length;
        Batch {
            ids: vec![0; tokens],
            targets: vec![0; tokens],
            weights: vec![1.0; tokens],
            positions: (0..rows).flat_map(|_| 0..length as u32).collect(),
            borders: vec![0; tokens],
            samples: vec![0; rows],
        }
    }

    /// How many targets count in the mean: those that are not ignored and weigh something.
    pub fn counted(&self) -> usize {
        self.view().counted()
    }

    pub(super) fn view(&self) -> BatchView<'_> {
        let Batch { ids, targets, weights, positions, borders, samples } = self;
        BatchView { ids, targets, weights, positions, borders, samples }
    }
}

/// The same, whoever holds it: a [`Batch`], or the buffers that a loader fills.
#[derive(Clone, Copy)]
pub(super) struct BatchView<'a> {
    pub ids: &'a [u32],
    pub targets: &'a [u32],
    pub weights: &'a [f32],
    pub positions: &'a [u32],
    pub borders: &'a [u32],
    pub samples: &'a [u32],
}

impl<'a> BatchView<'a> {
    /// What a loader filled, with the weights of its targets.
    pub fn of_loader(filled: &'a ironmill_data::Batch, weights: &'a [f32]) -> Self {
        BatchView {
            ids: &filled.ids,
            targets: &filled.targets,
            weights,
            positions: filled.positions(),
            borders: filled.borders(),
            samples: &filled.samples,
        }
    }

    /// How many targets count in the mean.
    pub fn counted(&self) -> usize {
        // A sum of 32 bits over the whole step, which the compiler can do in vectors.
        let counts = |(&target, &weight): (&u32, &f32)| u32::from(target != IGNORED && weight > 0.0);
        self.targets.iter().zip(self.weights).map(counts).sum::<u32>() as usize
    }
}
