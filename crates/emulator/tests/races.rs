//! What warps do in an order that nothing makes is told, whatever order they happened to run in.

use ironmill_emulator::{Error, History, Launch, Program, Region, Table, Timing, Told, parse, run};

/// Threads write a word of shared memory each, and read their neighbour's behind `between`.
fn neighbours(between: &str) -> String {
    format!(
        ".version 9.0
.target sm_90a
.address_size 64
.visible .entry neighbours(.param .u64 to)
{{
.reg .b32 %r<8>;
.reg .b64 %rd<4>;
.reg .pred %p<2>;
.shared .align 16 .b8 words[256];
mov.u32 %r1, %tid.x;
shl.b32 %r2, %r1, 2;
mov.u32 %r3, words;
add.u32 %r4, %r3, %r2;
st.shared.u32 [%r4], %r1;
{between}
xor.b32 %r5, %r2, 128;
add.u32 %r6, %r3, %r5;
ld.shared.u32 %r7, [%r6];
ld.param.u64 %rd1, [to];
cvt.u64.u32 %rd2, %r2;
add.s64 %rd3, %rd1, %rd2;
griddepcontrol.wait;
st.global.u32 [%rd3], %r7;
griddepcontrol.launch_dependents;
ret;
}}
"
    )
}

const THREADS: usize = 64;

fn launch(text: &str, memory: &Region, history: Option<&mut History>) -> Result<Told, Error> {
    let source = parse(text).expect("assembly");
    let program = Program::new(&source, &source.functions["neighbours"]).expect("a program");
    let mut table = Table::default();
    table.add(memory.address(), memory.bytes());
    let launch = Launch {
        program: &program,
        grid: [1, 1, 1],
        threads: THREADS,
        cluster: 1,
        shared_bytes: 0,
        together: false,
        parameters: &memory.address().to_le_bytes(),
        memory: &table,
        timing: Timing::Early,
    };
    run(&launch, history)
}

#[test]
fn warps_that_do_not_meet_must_not_read_what_the_others_write() {
    let memory = Region::new(4 * THREADS);
    launch(&neighbours("bar.sync 0;"), &memory, None).expect("they meet");
    let error = launch(&neighbours(""), &memory, None).unwrap_err().to_string();
    assert!(error.contains("nothing orders that") && error.contains("`st.shared.u32`"), "{error}");
    let error = launch(&neighbours("bar.arrive 1, 64;"), &memory, None).unwrap_err().to_string();
    assert!(error.contains("nothing orders that"), "who only arrives learns nothing: {error}");
}

#[test]
fn a_kernel_that_begins_early_waits_before_it_writes_where_the_one_before_does() {
    let memory = Region::new(4 * THREADS);
    let waits = neighbours("bar.sync 0;");
    let does_not = waits.replace("griddepcontrol.wait;\n", "");
    let after = |text: &str| {
        let mut history = History::default();
        history.begin("before".into(), &[], None);
        let told = launch(&waits, &memory, Some(&mut history)).unwrap();
        history.end(told);
        history.begin("early".into(), &[], Some(0));
        launch(text, &memory, Some(&mut history))
    };
    assert_eq!(after(&waits), Ok(Told { at_end: true, to_next: true }));
    let error = after(&does_not).unwrap_err().to_string();
    assert!(error.contains("`before`") && error.contains("nothing waited for its end"), "{error}");
}
