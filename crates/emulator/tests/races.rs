//! What warps do in an order that nothing makes is told, whatever order they happened to run in.

use ironmill_emulator::{Error, History, Launch, Program, Region, Table, Timing, Told, parse, run};

/// What stands before a kernel's name.
const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry ";

/// Threads write a word of shared memory each, and read their neighbour's behind `between`.
fn neighbours(between: &str) -> String {
    format!(
        "{HEAD}neighbours(.param .u64 to)
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

/// A block reads a word of the other one's memory and ends when that one has arrived, too.
fn pair(arrival: &str) -> Result<Program, Error> {
    let text = format!(
        "{HEAD}pair(.param .u64 to)
{{
.reg .b32 %r<8>;
.reg .pred %p<3>;
.shared .align 16 .b8 words[256];
mov.u32 %r1, words;
mapa.shared::cluster.u32 %r2, %r1, 1;
ld.shared::cluster.v2.u32 {{%r3, %r4}}, [%r2];
ld.shared::cluster.u32 %r5, [%r2+8];
add.u32 %r6, %r4, %r5;
{arrival}
barrier.cluster.wait.acquire.aligned;
ret;
}}
"
    );
    let source = parse(&text).expect("assembly");
    Program::new(&source, &source.functions["pair"])
}

#[test]
fn blocks_that_tell_others_to_go_have_what_they_read_of_them() {
    let late = |arrival: &str| match pair(arrival) {
        Ok(_) => false,
        Err(error) => {
            assert!(error.to_string().contains("may not be there yet"), "{error}");
            true
        }
    };
    let relaxed = "barrier.cluster.arrive.relaxed.aligned;";
    assert!(late(relaxed));
    assert!(!late("barrier.cluster.arrive.release.aligned;"));
    let behind = |of: &str, how: &str| format!("setp.eq.u32 %p1, {of}, 7;\n{how}");
    let branch = format!("@%p1 bra END;\nnanosleep.u32 0;\nEND:\n{relaxed}");
    assert!(!late(&behind("%r6", &branch)), "a branch on both loads");
    assert!(late(&behind("%r3", &branch)), "a branch on one load alone");
    assert!(!late(&behind("%r6", &format!("@%p1 {relaxed}"))), "an arrival that hangs on both");
}
