//! A kernel to measure: its operands, its work, and how a part of its result is checked.

use crate::bench::random::Random;
use ironmill_compute::{DType, Kernel, TensorType};

/// One kernel on operands of one shape.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is summed up with.
    pub group: Group,
    /// What it is called in the table.
    pub name: String,
    /// What runs.
    pub kernel: Kernel,
    /// What it reads.
    pub inputs: Vec<Operand>,
    /// What it writes, with what is there before.
    pub outputs: Vec<Operand>,
    /// What it cannot do without.
    pub work: Work,
    /// The length of the longest sum behind an element.
    pub terms: usize,
    /// The part that the reference computes too.
    pub check: Check,
}

/// Cases that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Products as training has them.
    Products,
    /// Products of narrow models and odd lengths.
    SmallAndOdd,
    /// Attention.
    Attention,
    /// Head and loss.
    Head,
    /// What memory limits: norms, activations, tables, updates.
    Rows,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 5] =
        [Group::Products, Group::SmallAndOdd, Group::Attention, Group::Head, Group::Rows];

    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Group::Products => "products",
            Group::SmallAndOdd => "products, narrow and odd",
            Group::Attention => "attention",
            Group::Head => "head and loss",
            Group::Rows => "rows",
        }
    }
}

/// The least that a kernel has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Multiplications and additions.
    Flops(f64),
    /// Bytes read and written, each once, and whether what is written is there to be read first.
    Bytes { moved: f64, in_place: bool },
}

impl Work {
    /// Every input is read and every output written; state is read, too.
    pub fn of_operands(inputs: &[Operand], outputs: &[Operand]) -> Work {
        let state = outputs.iter().filter(|output| output.is_state());
        let all = inputs.iter().chain(outputs).chain(state.clone());
        let in_place = state.clone().count() > 0;
        Work::Bytes { moved: all.map(Operand::bytes).sum::<usize>() as f64, in_place }
    }
}

/// A tensor and its numbers.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Shape and element type.
    pub of: TensorType,
    /// Where its numbers come from.
    pub fill: Fill,
}

/// Where numbers come from.
#[derive(Clone, Copy, Debug)]
pub enum Fill {
    /// Drawn evenly from around a middle.
    Around { middle: f32, spread: f32 },
    /// Indices below a limit.
    Below(usize),
    /// One number.
    Number(f32),
    /// What is not a number, so that an element which is never written shows.
    Poison,
}

/// Elements on the host.
#[derive(Clone, Debug)]
pub enum Data {
    /// Numbers.
    Real(Vec<f32>),
    /// Indices.
    Index(Vec<u32>),
}

impl Operand {
    /// Numbers around zero.
    pub fn reals(dims: &[usize]) -> Self {
        Self::around(dims, 0.0, 1.0)
    }

    /// Numbers around another middle.
    pub fn around(dims: &[usize], middle: f32, spread: f32) -> Self {
        Operand { of: TensorType::new(dims, DType::F32), fill: Fill::Around { middle, spread } }
    }

    /// Indices.
    pub fn below(dims: &[usize], limit: usize) -> Self {
        Operand { of: TensorType::new(dims, DType::U32), fill: Fill::Below(limit) }
    }

    /// What a kernel writes without reading it.
    pub fn poison(dims: &[usize]) -> Self {
        Operand { of: TensorType::new(dims, DType::F32), fill: Fill::Poison }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        self.elements() * self.of.dtype.bytes()
    }

    /// Whether a kernel reads it before it writes it.
    fn is_state(&self) -> bool {
        !matches!(self.fill, Fill::Poison)
    }

    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.of.shape.elements()
    }

    /// Its numbers, others for every salt.
    pub fn data(&self, salt: u64) -> Data {
        let mut random = Random::new(salt);
        let count = self.elements();
        match self.fill {
            Fill::Around { middle, spread } => {
                Data::Real((0..count).map(|_| middle + spread * random.real()).collect())
            }
            Fill::Below(limit) => Data::Index((0..count).map(|_| random.below(limit)).collect()),
            Fill::Number(number) if self.of.dtype == DType::U32 => Data::Index(vec![number as u32; count]),
            Fill::Number(number) => Data::Real(vec![number; count]),
            Fill::Poison => Data::Real(vec![f32::NAN; count]),
        }
    }
}

/// A smaller launch whose results are some of those of the whole one.
#[derive(Clone, Debug)]
pub struct Check {
    /// What the reference runs.
    pub kernel: Kernel,
    /// The parts of the inputs that it reads.
    pub inputs: Vec<Cut>,
    /// The parts of the outputs that it writes.
    pub outputs: Vec<Cut>,
    /// An output that holds nothing of meaning.
    pub workspace: Option<usize>,
    /// An input that is zero but for these columns while the check runs, because all of it takes part in every result.
    pub silenced: Option<(usize, Vec<usize>)>,
}

/// Rows and columns of a tensor, and the shape that they form.
#[derive(Clone, Debug)]
pub struct Cut {
    /// The dimensions of the part.
    pub dims: Vec<usize>,
    /// Its rows; none means all.
    pub rows: Option<Vec<usize>>,
    /// Its columns; none means all.
    pub columns: Option<Vec<usize>>,
}

impl Cut {
    /// All of an operand.
    pub fn whole(operand: &Operand) -> Self {
        Cut { dims: operand.of.shape.dims().to_vec(), rows: None, columns: None }
    }

    /// Some rows and some columns, as a matrix.
    pub fn matrix(operand: &Operand, rows: Option<&[usize]>, columns: Option<&[usize]>) -> Self {
        let shape = operand.of.shape;
        let height = rows.map_or(shape.rows(), <[usize]>::len);
        let width = columns.map_or(shape.columns(), <[usize]>::len);
        Cut {
            dims: vec![height, width],
            rows: rows.map(<[usize]>::to_vec),
            columns: columns.map(<[usize]>::to_vec),
        }
    }

    /// Some elements of a list.
    pub fn elements(columns: &[usize]) -> Self {
        Cut { dims: vec![columns.len()], rows: None, columns: Some(columns.to_vec()) }
    }

    /// The same part with other dimensions.
    pub fn shaped(self, dims: &[usize]) -> Self {
        Cut { dims: dims.to_vec(), ..self }
    }

    /// Takes the part out of a tensor's elements.
    pub fn take<T: Copy>(&self, of: TensorType, elements: &[T]) -> Vec<T> {
        let width = of.shape.columns();
        let all_rows: Vec<usize>;
        let rows = match &self.rows {
            Some(rows) => rows,
            None => {
                all_rows = (0..of.shape.rows()).collect();
                &all_rows
            }
        };
        let mut part = Vec::with_capacity(self.dims.iter().product());
        for &row in rows {
            let row = &elements[row * width..(row + 1) * width];
            match &self.columns {
                None => part.extend_from_slice(row),
                Some(columns) => part.extend(columns.iter().map(|&column| row[column])),
            }
        }
        part
    }
}

/// A few places of a list: its ends and some between, ascending.
pub fn few(count: usize) -> Vec<usize> {
    let mut places = vec![0, count / 3, count / 2 + 1, count.saturating_sub(2), count.saturating_sub(1)];
    places.retain(|&place| place < count);
    places.dedup();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_takes_its_rows_and_columns() {
        let operand = Operand::reals(&[2, 3, 4]);
        let elements: Vec<usize> = (0..24).collect();
        assert_eq!(
            Cut::matrix(&operand, Some(&[1, 5]), Some(&[0, 3])).take(operand.of, &elements),
            [4, 7, 20, 23]
        );
        assert_eq!(Cut::whole(&operand).take(operand.of, &elements), elements);
        assert_eq!(Cut::elements(&[2, 4]).take(TensorType::new(&[5], DType::F32), &elements[..5]), [2, 4]);
    }

    #[test]
    fn a_few_places_are_distinct_and_inside() {
        for count in 1..40 {
            let places = few(count);
            assert!(places.is_sorted_by(|a, b| a < b) && places.iter().all(|&place| place < count));
            assert!(places.contains(&0) && places.contains(&(count - 1)));
        }
    }
}
