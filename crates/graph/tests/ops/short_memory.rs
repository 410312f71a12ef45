//! A device that runs out of memory: what was compiled before can still be run.

use std::time::Duration;

use ironmill_compute::{
    BufferId, DType, Device, Error, HostData, Launch, ReadId, Reference, Result, SequenceId, View,
};
use ironmill_graph::{Graph, Passes, ProgramId, Runtime, States, Tensor};

/// A reference that refuses one allocation.
struct Short {
    reference: Reference,
    allocations: usize,
    refused: usize,
}

impl Device for Short {
    fn name(&self) -> &'static str {
        self.reference.name()
    }
    fn describe(&self) -> String {
        self.reference.describe()
    }
    fn element_bytes(&self, dtype: DType) -> usize {
        self.reference.element_bytes(dtype)
    }
    fn allocate(&mut self, bytes: usize) -> Result<BufferId> {
        self.allocations += 1;
        if self.allocations == self.refused {
            return Err(Error::OutOfMemory { device: "short", bytes });
        }
        self.reference.allocate(bytes)
    }
    fn free(&mut self, buffer: BufferId) {
        self.reference.free(buffer);
    }
    fn upload(&mut self, to: &View, data: HostData<'_>) -> Result<()> {
        self.reference.upload(to, data)
    }
    fn download(&self, from: &View, out: &mut [f32]) -> Result<()> {
        self.reference.download(from, out)
    }
    fn download_f64(&self, from: &View, out: &mut [f64]) -> Result<()> {
        self.reference.download_f64(from, out)
    }
    fn used_bytes(&self) -> Option<usize> {
        None
    }
    fn runs_ahead(&self) -> bool {
        false
    }
    fn begin_read(&mut self, views: &[View]) -> Result<ReadId> {
        self.reference.begin_read(views)
    }
    fn end_read(&mut self, read: ReadId, out: &mut [f32]) -> Result<()> {
        self.reference.end_read(read, out)
    }
    fn bind(&mut self, launches: &[Launch]) -> Result<SequenceId> {
        self.reference.bind(launches)
    }
    fn unbind(&mut self, sequence: SequenceId) {
        self.reference.unbind(sequence);
    }
    fn run(&mut self, sequence: SequenceId) -> Result<()> {
        self.reference.run(sequence)
    }
    fn run_timed(&mut self, sequence: SequenceId, times: &mut [Duration]) -> Result<()> {
        self.reference.run_timed(sequence, times)
    }
}

/// The sum of some numbers and itself.
fn doubling(runtime: &mut Runtime, numbers: usize) -> ironmill_graph::Result<(ProgramId, Tensor, Tensor)> {
    let mut g = Graph::new();
    let input = g.input("numbers", &[numbers], DType::F32);
    let output = g.add(input, input)?;
    g.keep(output);
    Ok((runtime.compile(g, &Passes::NONE)?, input, output))
}

fn double(runtime: &mut Runtime, (program, input, output): (ProgramId, Tensor, Tensor), numbers: usize) {
    runtime.write(program, input, HostData::F32(&vec![1.5; numbers])).unwrap();
    runtime.run(program).unwrap();
    let mut out = vec![0.0; numbers];
    runtime.read(program, output, &mut out).unwrap();
    assert_eq!(out, vec![3.0; numbers]);
}

#[test]
fn a_program_that_does_not_fit_leaves_the_others_as_they_were() {
    // A program takes memory for its inputs and then, where it needs more than others, for its values.
    let device = Short { reference: Reference::exact(), allocations: 0, refused: 4 };
    let mut runtime = Runtime::new(Box::new(device), &States::default()).unwrap();
    let small = doubling(&mut runtime, 100).unwrap();
    double(&mut runtime, small, 100);
    assert!(doubling(&mut runtime, 1000).is_err());
    double(&mut runtime, small, 100);
    let larger = doubling(&mut runtime, 200).unwrap();
    double(&mut runtime, larger, 200);
    double(&mut runtime, small, 100);
}
