//! `ironmill bench`: figures against the machine's own limits.

use super::Context;
use crate::bench::step::{Plan, Sizes};
use crate::bench::{Precision, Settings, generate, loader, ops, step, tokenizer};
use crate::failure::{Code, Failure, Result};
use crate::stages::cuda;
use crate::stages::model::Weights;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// The things that can be measured.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Every kernel that training is made of: time, rate, share of the machine's peak
    #[command(after_help = "\
Each kernel is checked against the textbook loops before it is timed. One thread is measured by processor time, several
by the wall clock. The machine's peak (arithmetic, reading, copying) is measured in the same run, first and last. On a card
the kernels are those of whole training steps, in the time that they take there.

Examples:
  ironmill bench ops
  ironmill bench ops --threads 1 --json
  ironmill bench ops --only attention
  ironmill bench ops --device cuda --precision bf16
  ironmill bench ops --quick")]
    Ops(OpsArgs),
    /// A training step: tokens a second, share of peak, and where the time goes
    #[command(after_help = "\
Models: cpu (4 layers, 128 wide, 12 × 64 tokens), baby (6 layers, 384 wide, 16 × 256), gpt2 (124M, 4 × 256), or layers,
heads and width as in 4x4x128, in Llama's style behind `llama:`. The stages add up to the step. tools/peers_cpu.py and tools/peers_gpu.py run
PyTorch beside it.

Examples:
  ironmill bench step
  ironmill bench step --model baby --threads 2 --kernels
  ironmill bench step --model cpu --batching
  ironmill bench step --device cuda --precision bf16 --model gpt2 --batch 64 --context 1024 --kernels
  ironmill bench step --device cuda --precision bf16 --model llama:12x12x768 --vocab 50304 --batch 64 --context 1024
  ironmill bench step --model 2x2x64 --batch 8 --context 32 --steps 20 --json")]
    Step(StepArgs),
    /// Generation: prompts read and tokens written a second, and their share of what arithmetic and memory allow
    #[command(after_help = "\
A model of random weights continues random prompts. A step writes one token of every text: it reads all weights of products
and all that the caches hold, and its share is of the rate at which the machine reads memory at best (on a card: copies); on a
processor also of what it usually read between the rounds, because neighbours take some. Reading prompts is measured by requests of
one token and is a share of the peak of arithmetic. In all is from the requests to the last token. tools/peers_generate.py runs
llama2.c and PyTorch beside it.

Examples:
  ironmill bench generate --threads 2
  ironmill bench generate --model llama:12x12x768 --vocab 32000 --precision bf16 --batch 1,4,16
  ironmill bench generate --model llama:12x12x768 --vocab 32000 --weights int8 --batch 1,4,16
  ironmill bench generate --device cuda --precision bf16 --model gpt2 --prompt 32 --tokens 256 --batch 1,64
  ironmill bench generate --device cuda --precision bf16 --weights int8 --model 48x25x1600 --vocab 50257 --batch 1,4")]
    Generate(GenerateArgs),
    /// Training a tokenizer and encoding with it: reading, scanning, counting, learning, encoding, decoding
    #[command(after_help = "\
Rates are of text. Counting, and encoding where it says so, take --threads and are measured by the wall clock; everything else
is one thread's processor time. The share is of the rate at which the machine reads memory. Encoding the first time is by an encoder that knows the vocabulary, and with --tokenizer the
pieces beside it. tools/peers_tokenizer.py runs other trainers and encoders beside these.

Examples:
  ironmill bench tokenizer
  ironmill bench tokenizer book.txt --vocab-size 32000 --threads 1
  ironmill bench tokenizer texts/ --pattern o200k --json
  ironmill bench tokenizer book.txt --tokenizer tokenizer.json")]
    Tokenizer(TokenizerArgs),
    /// Filling batches: stored tokens a second by every sampler, and what a step waits for a batch
    #[command(after_help = "\
All blocks are read and checked once before anything is measured. The rate is of tokens as they are stored, two or four bytes
each, while who asks for batches does nothing but read their ids and targets. What memory allows is that every stored token is
read and every number of a batch written once, at the rate at which it is copied. The wait is that of a step which sleeps for
--step-ms. crates/data/tests/allocations.rs counts what a batch allocates: nothing. Without a folder the built-in stories are
prepared, byte by byte.

Examples:
  ironmill bench loader
  ironmill bench loader data --context 1024 --batch 12 --workers 2
  ironmill bench loader runs/quickstart/data --sampler packed --json")]
    Loader(LoaderArgs),
}

/// What both take.
#[derive(clap::Args)]
pub struct Common {
    /// The device to measure: cpu, cuda, cuda:1 …
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: String,
    /// What products are computed in
    #[arg(long, value_enum, default_value_t = Precision::Fp32)]
    precision: Precision,
}

/// The flags of `bench ops`.
#[derive(clap::Args)]
pub struct OpsArgs {
    #[command(flatten)]
    common: Common,
    /// Only cases or groups whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Tiny cases and few runs: shows that everything works, measures nothing
    #[arg(long)]
    quick: bool,
}

/// The flags of `bench step`.
#[derive(clap::Args)]
pub struct StepArgs {
    #[command(flatten)]
    common: Common,
    /// cpu, baby, gpt2, or layers, heads and width as in 4x4x128; llama:… for Llama's style
    #[arg(long, default_value = "cpu", value_parser = Sizes::parse, value_name = "MODEL")]
    model: Sizes,
    /// Samples of a step [default: the model's]
    #[arg(long, value_name = "N")]
    batch: Option<NonZeroUsize>,
    /// Samples of a micro-batch; must divide the batch [default: the batch]
    #[arg(long, value_name = "N")]
    micro_batch: Option<NonZeroUsize>,
    /// Tokens of a sample [default: the model's]
    #[arg(long, value_name = "N")]
    context: Option<NonZeroUsize>,
    /// The size of the vocabulary [default: the model's]
    #[arg(long, value_name = "N")]
    vocab: Option<NonZeroUsize>,
    /// Steps to measure [default: as many as fit into four seconds]
    #[arg(long, value_name = "N")]
    steps: Option<NonZeroUsize>,
    /// Compare a batch of 32 with 32 batches of one
    #[arg(long)]
    batching: bool,
    /// Show every kernel below its stage
    #[arg(long)]
    kernels: bool,
    /// A glance at the machine's peak and one step taken apart; three steps unless --steps says otherwise
    #[arg(long)]
    quick: bool,
}

/// The flags of `bench generate`.
#[derive(clap::Args)]
pub struct GenerateArgs {
    #[command(flatten)]
    common: Common,
    /// cpu, baby, gpt2, or layers, heads and width as in 4x4x128; llama:… for Llama's style
    #[arg(long, default_value = "llama:12x12x768", value_parser = Sizes::parse, value_name = "MODEL")]
    model: Sizes,
    /// The size of the vocabulary [default: the model's, 32,000 for layers, heads and width]
    #[arg(long, value_name = "N")]
    vocab: Option<NonZeroUsize>,
    /// Texts that are written at a time; several numbers are measured one after another
    #[arg(long, default_value = "1,4,16", value_delimiter = ',', value_name = "N")]
    batch: Vec<NonZeroUsize>,
    /// Tokens of a prompt
    #[arg(long, default_value = "32", value_name = "N")]
    prompt: NonZeroUsize,
    /// Tokens to write behind it
    #[arg(long, default_value = "64", value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    tokens: u32,
    /// Draw from so many of the likeliest tokens; 0 takes the likeliest
    #[arg(long, default_value_t = 50, value_name = "K")]
    top_k: usize,
    /// Ask for the probability of every token, and the N likeliest
    #[arg(long, value_name = "N")]
    log_probabilities: Option<u16>,
    /// Keep weights in eight bits; on a card, --precision says what all else is kept in
    #[arg(long, value_enum, value_name = "TYPE")]
    weights: Option<Weights>,
    /// Times that each measurement is taken
    #[arg(long, default_value = "3", value_name = "N")]
    rounds: NonZeroUsize,
    /// A glance at the machine's peak
    #[arg(long)]
    quick: bool,
}

/// The flags of `bench tokenizer`.
#[derive(clap::Args)]
pub struct TokenizerArgs {
    /// Files, folders, patterns such as 'texts/*.txt', or builtin:stories:20MB
    #[arg(default_value = "builtin:stories:20MB", value_name = "INPUT")]
    inputs: Vec<String>,
    /// Encode with this tokenizer, and train none
    #[arg(long, value_name = "FILE", conflicts_with_all = ["vocab_size", "pattern"])]
    tokenizer: Option<PathBuf>,
    /// The number of tokens to learn, special ones included
    #[arg(long, default_value_t = 4096, value_name = "N")]
    vocab_size: usize,
    /// How text is cut into pieces: gpt2, cl100k, o200k, llama3, qwen2 or a regular expression
    #[arg(long, default_value = "gpt2", value_name = "NAME|REGEX")]
    pattern: String,
    /// A glance at the machine's peak and one run of every phase
    #[arg(long)]
    quick: bool,
}

/// The flags of `bench loader`.
#[derive(clap::Args)]
pub struct LoaderArgs {
    /// A prepared folder [default: the built-in stories]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only this sampler: random, shuffled, sequential, packed or bucketed
    #[arg(long, value_name = "NAME")]
    sampler: Option<String>,
    /// Tokens of a sample
    #[arg(long, default_value = "1024", value_name = "N")]
    context: NonZeroUsize,
    /// Samples of a step
    #[arg(long, default_value = "12", value_name = "N")]
    batch: NonZeroUsize,
    /// Threads that fill batches ahead; 0 fills them when they are asked for
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=64))]
    workers: u16,
    /// How long a step takes that waits for batches, in milliseconds
    #[arg(long, default_value_t = 10, value_name = "MS")]
    step_ms: u64,
    /// A glance at the machine's peak and a few batches
    #[arg(long)]
    quick: bool,
}

/// Runs one of the commands.
pub fn run(context: &Context, command: Command) -> Result<()> {
    context.refuse_overrides("bench")?;
    let settings = |common: &Common, quick: bool| {
        let Common { precision, ref device } = *common;
        let is_for_cards = matches!(precision, Precision::Fp8 | Precision::Fp8Head);
        if is_for_cards && cuda::ordinal(device).is_none() {
            let name = precision.name();
            let message =
                format!("--precision {name} is for --device cuda, not {device}: use bf16 or fp32 here");
            return Err(Failure::new(Code::Usage, message));
        }
        Ok(Settings { threads: context.threads, precision, quick })
    };
    match command {
        Command::Tokenizer(args) => {
            let TokenizerArgs { inputs, tokenizer, vocab_size, pattern, quick } = args;
            let pattern = pattern.parse()?;
            let threads = context.threads;
            let plan = tokenizer::Plan { inputs, tokenizer, vocab_size, pattern, threads, quick };
            tokenizer::run(&context.show, &plan)
        }
        Command::Generate(args) => {
            let settings = settings(&args.common, args.quick)?;
            if matches!(settings.precision, Precision::Fp8 | Precision::Fp8Head) {
                let message = "generation is in fp32 or bf16 in this version: use --precision bf16";
                return Err(Failure::new(Code::Usage, message));
            }
            // Sizes written out have the vocabulary of Llama's models, not that of characters.
            let of_model = if args.model.vocab == Sizes::CPU.vocab { 32_000 } else { args.model.vocab };
            let vocab = args.vocab.map_or(of_model, NonZeroUsize::get);
            let plan = generate::Plan {
                sizes: Sizes { vocab, ..args.model },
                batches: args.batch.iter().map(|batch| batch.get()).collect(),
                prompt: args.prompt.get(),
                tokens: args.tokens as usize,
                top_k: args.top_k,
                weights: args.weights,
                log_probabilities: args.log_probabilities.map(usize::from),
                rounds: args.rounds.get(),
            };
            generate::run(&context.show, &args.common.device, &plan, settings)
        }
        Command::Loader(args) => {
            if let Some(name) = &args.sampler {
                loader::check_sampler(name)?;
            }
            let plan = loader::Plan {
                dir: args.dir,
                sampler: args.sampler,
                context: args.context.get(),
                batch: args.batch.get(),
                workers: usize::from(args.workers),
                step: std::time::Duration::from_millis(args.step_ms),
                threads: context.threads,
                quick: args.quick,
            };
            loader::run(&context.show, &plan)
        }
        Command::Ops(args) => {
            let settings = settings(&args.common, args.quick)?;
            ops::run(&context.show, &args.common.device, args.only.as_deref(), settings)
        }
        Command::Step(args) => {
            let or = |flag: Option<NonZeroUsize>, size: usize| flag.map_or(size, NonZeroUsize::get);
            let sizes = Sizes {
                batch: or(args.batch, args.model.batch),
                context: or(args.context, args.model.context),
                vocab: or(args.vocab, args.model.vocab),
                ..args.model
            };
            let steps = args.steps.map(NonZeroUsize::get);
            let micro_rows = or(args.micro_batch, sizes.batch);
            let plan = Plan { sizes, steps, micro_rows, batching: args.batching, kernels: args.kernels };
            step::run(&context.show, &args.common.device, plan, settings(&args.common, args.quick)?)
        }
    }
}
