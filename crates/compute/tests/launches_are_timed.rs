//! A timed run is the run, with a time for each launch.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where by panicking")]

use std::time::{Duration, Instant};

use ironmill_compute::{
    Cpu, DType, Device, Error, HostData, Kernel, Launch, Op, Reference, TensorType, View,
};

/// Two launches of different lengths: 2 + 2, and the root of a sum.
fn sequence(device: &mut dyn Device) -> ([View; 2], ironmill_compute::SequenceId) {
    let mut place = |len: usize| {
        let of = TensorType::new(&[len], DType::F32);
        let buffer = device.allocate(len * device.element_bytes(DType::F32)).unwrap();
        let view = View { buffer, offset_bytes: 0, of };
        device.upload(&view, HostData::F32(&vec![2.0; len])).unwrap();
        view
    };
    let (x, sum, norm) = (place(100_000), place(100_000), place(1));
    let launches = [
        Launch { kernel: Kernel::Op(Op::Add), inputs: vec![x, x], outputs: vec![sum] },
        Launch { kernel: Kernel::GlobalNorm, inputs: vec![sum], outputs: vec![norm] },
    ];
    ([sum, norm], device.bind(&launches).unwrap())
}

#[test]
fn a_timed_run_does_the_work_and_its_times_fit_into_it() {
    let devices: [Box<dyn Device>; 2] = [Box::new(Reference::exact()), Box::new(Cpu::new(2).unwrap())];
    for mut device in devices {
        let ([_, norm], sequence) = sequence(&mut *device);
        let mut times = [Duration::ZERO; 2];
        let started = Instant::now();
        device.run_timed(sequence, &mut times).unwrap();
        let elapsed = started.elapsed();
        assert!(times.iter().all(|time| *time > Duration::ZERO), "{times:?}");
        assert!(times.iter().sum::<Duration>() <= elapsed, "{times:?} of {elapsed:?}");
        let mut out = [0.0];
        device.download(&norm, &mut out).unwrap();
        assert!((out[0] - 4.0 * 100_000f32.sqrt()).abs() < 0.01, "{out:?}");
    }
}

#[test]
fn there_must_be_a_time_for_every_launch() {
    let devices: [Box<dyn Device>; 2] = [Box::new(Reference::exact()), Box::new(Cpu::new(1).unwrap())];
    for mut device in devices {
        let (_, sequence) = sequence(&mut *device);
        for count in [0, 1, 3] {
            let outcome = device.run_timed(sequence, &mut vec![Duration::ZERO; count]);
            assert!(matches!(outcome, Err(Error::Binding { kernel: "run_timed", .. })), "{outcome:?}");
        }
        device.run(sequence).unwrap();
    }
}
