use super::*;

fn resolve(text: &str) -> Result<Config> {
    Config::resolve(Typed::parse(text, "c.toml", Path::new("/place"))?)
}

fn fails(text: &str) -> String {
    let failure = resolve(text).unwrap_err();
    assert_eq!(failure.code(), Code::BadConfig);
    failure.to_string()
}

#[test]
fn an_empty_file_is_a_whole_configuration() {
    let config = resolve("").unwrap();
    assert_eq!(config.model.width % config.model.heads, 0);
    assert_eq!(config.train.length, Length::Steps(1000));
    assert_eq!(config.sample.seed, config.seed);
}

#[test]
fn a_resolved_configuration_reads_back_to_itself() {
    for text in [
        "",
        "seed = 7\n[tokenizer]\nfile = \"t.json\"\n[data]\ninput = \"a.txt\"\ndocument_separator = \"\\n\\n\"",
        "[tokenizer]\nkind = \"char\"\n[train]\nepochs = 2.5\ncheckpoint_every = \"90s\"\nschedule = \"constant\"",
        "[model]\ntied = false\n[train]\nlearning_rate = 3e-4\nmicro_batch = \"auto\"\n[sample]\nprompts = [\"a\", \"\\\"b\\\"\"]",
    ] {
        let config = resolve(text).unwrap();
        let written = config.to_toml().unwrap();
        assert_eq!(resolve(&written).unwrap(), config, "{written}");
    }
}

#[test]
fn relative_paths_start_at_the_file() {
    let config =
        resolve("[data]\ninput = [\"texts/*.txt\", \"/abs/b.txt\", \"builtin:stories:1MB\"]").unwrap();
    assert_eq!(config.data.input, ["/place/texts/*.txt", "/abs/b.txt", "builtin:stories:1MB"]);
}

#[test]
fn keys_that_do_not_fit_together_are_refused_with_advice() {
    for (text, advice) in [
        ("[model]\nwidth = 100\nheads = 3", "use a width such as 99"),
        ("[train]\nsteps = 5\nepochs = 1", "remove one"),
        ("[train]\nbatch_tokens = 1000\n[model]\ncontext = 256", "use 768"),
        ("[train]\nmicro_batch = 5", "use 4, for example"),
        ("[tokenizer]\nfile = \"x\"\nvocab_size = 300", "tokenizer.vocab_size cannot apply"),
        ("[tokenizer]\nkind = \"char\"\npattern = \"gpt2\"", "tokenizer.pattern cannot apply"),
        ("[model]\nlayers = 0", "at least 1"),
        ("[data]\nvalidation = 1.5", "from 0 to 0.999"),
        ("[sample]\ntop_p = 1.5", "from 0 to 1"),
        ("[train]\nlearning_rate = 1e-4\nmin_learning_rate = 1e-3", "from 0 to 0.0001"),
        ("[tokenizer]\nkind = \"byte\"\nvocab_size = 300", "tokenizer.vocab_size cannot apply"),
        ("[tokenizer]\nkind = \"word\"\nties = \"hf\"", "tokenizer.ties cannot apply"),
        ("[tokenizer]\npattern = \"gpt3\"", "gpt3"),
        ("[model]\npreset = \"gpt2\"\ndepth = 3", "remove one"),
        ("[model]\npreset = \"gpt2\"\narchitecture = \"llama\"", "remove one"),
        ("[model]\nkv_heads = 2", "model.kv_heads cannot apply to model.architecture = \"gpt2\""),
        ("[model]\narchitecture = \"encoder\"\nqk_norm = true", "model.qk_norm cannot apply"),
        ("[model]\narchitecture = \"encoder\"\ntied = false", "tied = false"),
        ("[model]\nmlp = \"swiglu\"", "only the llama architecture has a gated MLP"),
        ("[model]\narchitecture = \"llama\"\nkv_heads = 4", "must divide the 6 heads"),
        ("[model]\narchitecture = \"llama\"\nrope_scaling = \"yarn:4\"", "use \"none\", \"linear:2\""),
        ("[model]\narchitecture = \"llama\"\nrope_scaling = \"linear\"", "use \"none\", \"linear:2\""),
        ("[model]\narchitecture = \"llama\"\ngemma = \"yes\"", "256:6:10000"),
        ("[model]\nwidth = 10000000000000000000", "too large"),
        ("[model]\ndepth = 0", "at least 1"),
        ("[model]\ndepth = 10000000000", "too large"),
        ("[train]\noptimizer = \"sgd\"\nbeta1 = 0.5", "train.beta1 cannot apply"),
        ("[train]\nmomentum = 0.5", "train.momentum cannot apply to train.optimizer = \"adamw\""),
        ("[train]\nlabel_smoothing = 1.5", "from 0 to 0.99"),
        ("[model]\narchitecture = \"encoder\"\n[train]\nsample_every = 5", "train.sample_every cannot apply"),
        ("[model]\narchitecture = \"encoder\"\n[sample]\nprompts = \"x\"", "sample.prompts cannot apply"),
    ] {
        let said = fails(text);
        assert!(said.contains(advice), "{said}");
    }
}

/// For every key, what else has to be said for it to matter, and a value that is not its default.
const EFFECTS: &[(&str, &str, &str)] = &[
    ("seed", "", "2"),
    ("tokenizer.kind", "", "\"char\""),
    ("tokenizer.vocab_size", "", "300"),
    ("tokenizer.pattern", "", "\"qwen2\""),
    ("tokenizer.special", "", "[\"<|a|>\"]"),
    ("tokenizer.ties", "", "\"raw\""),
    ("tokenizer.min_count", "", "3"),
    ("tokenizer.memory", "", "\"1GiB\""),
    ("tokenizer.file", "", "\"t.json\""),
    ("data.input", "", "\"a.txt\""),
    ("data.document_separator", "", "\"--\""),
    ("data.validation", "", "0.5"),
    ("data.text_key", "", "\"body\""),
    ("data.shard_tokens", "", "\"1M\""),
    ("data.sampler", "", "\"packed\""),
    ("data.on_bad_utf8", "", "\"skip\""),
    ("data.drop_duplicates", "", "true"),
    ("data.workers", "", "2"),
    ("model.preset", "", "\"gpt2\""),
    ("model.depth", "", "5"),
    ("model.architecture", "", "\"llama\""),
    ("model.layers", "", "3"),
    ("model.heads", "", "3"),
    ("model.kv_heads", "model.architecture = \"llama\"", "2"),
    ("model.width", "", "96"),
    ("model.head_dim", "model.architecture = \"llama\"", "16"),
    ("model.mlp", "", "\"relu2\""),
    ("model.mlp_width", "", "100"),
    ("model.context", "", "64"),
    ("model.dropout", "", "0.1"),
    ("model.bias", "", "false"),
    ("model.tied", "", "false"),
    ("model.qk_norm", "model.architecture = \"llama\"", "true"),
    ("model.window", "", "16"),
    ("model.norm_eps", "", "1e-6"),
    ("model.rope_theta", "model.architecture = \"llama\"", "5e5"),
    ("model.rope_scaling", "model.architecture = \"llama\"", "\"linear:2\""),
    ("model.gemma", "model.architecture = \"llama\"\nmodel.window = 8", "\"64:6:10000\""),
    ("train.steps", "", "5"),
    ("train.epochs", "", "5"),
    ("train.batch_tokens", "", "512"),
    ("train.micro_batch", "", "\"auto\""),
    ("train.keep_best", "", "1"),
    ("train.keep_every", "", "7"),
    ("train.learning_rate", "", "1e-4"),
    ("train.min_learning_rate", "", "1e-5"),
    ("train.schedule", "", "\"constant\""),
    ("train.warmup", "", "7"),
    ("train.decay_share", "train.schedule = \"stable_decay\"", "0.5"),
    ("train.restart_every", "train.schedule = \"restarts\"", "50"),
    ("train.restart_factor", "train.schedule = \"restarts\"", "1"),
    ("train.plateau_factor", "train.schedule = \"plateau\"", "0.2"),
    ("train.plateau_patience", "train.schedule = \"plateau\"", "1"),
    ("train.optimizer", "", "\"adam\""),
    ("train.weight_decay", "", "0.2"),
    ("train.groups", "", "[\"*.bias: rate 0.5, decay 0\"]"),
    ("train.ema", "", "0.99"),
    ("train.beta1", "", "0.8"),
    ("train.beta2", "", "0.8"),
    ("train.eps", "", "1e-6"),
    ("train.momentum", "train.optimizer = \"sgd\"", "0.5"),
    ("train.grad_clip", "", "2"),
    ("train.on_nonfinite", "", "\"skip\""),
    ("train.max_skips", "", "3"),
    ("train.loss_outlier", "", "6"),
    ("train.norm_outlier", "", "6"),
    ("train.outlier_warmup", "", "50"),
    ("train.label_smoothing", "", "0.1"),
    ("train.z_loss", "", "1e-4"),
    ("train.recompute", "", "\"blocks\""),
    // The reference computes in fp32 unless it is told otherwise, on any processor.
    ("train.precision", "train.device = \"reference\"", "\"bf16\""),
    ("train.eval_every", "", "7"),
    ("train.eval_tokens", "", "7"),
    ("train.eval_set", "", "\"complete\""),
    ("train.early_stop_patience", "", "3"),
    ("train.early_stop_smoothing", "train.early_stop_patience = 3", "0.5"),
    ("train.early_stop_delta", "train.early_stop_patience = 3", "0.01"),
    ("train.sample_every", "", "7"),
    ("train.checkpoint_every", "", "7"),
    ("train.keep_last", "", "7"),
    ("train.device", "", "\"reference\""),
    ("sample.prompts", "", "\"A\""),
    ("sample.max_tokens", "", "7"),
    ("sample.temperature", "", "0.1"),
    ("sample.top_k", "", "7"),
    ("sample.top_p", "", "0.5"),
    ("sample.seed", "", "7"),
];

#[test]
fn every_key_is_read() {
    for key in keys::KEYS {
        let path = key.path();
        let Some((_, base, value)) = EFFECTS.iter().find(|effect| effect.0 == path) else {
            panic!("{path} is missing in the table above");
        };
        // What nobody reads is left over and fails an assertion of `resolve`; what is read and thrown away changes nothing.
        let without = resolve(base).unwrap();
        let with = resolve(&format!("{base}\n{path} = {value}")).unwrap();
        assert!(with != without, "{path} = {value} changes nothing");
        assert_eq!(resolve(&with.to_toml().unwrap()).unwrap(), with, "{path} does not read back");
    }
    assert_eq!(EFFECTS.len(), keys::KEYS.len());
}

#[test]
fn automatic_precision_is_bf16_where_the_processor_multiplies_it() {
    let precision = |text: &str| resolve(text).unwrap().train.precision;
    let has_bf16 = ironmill_compute::cpu::InstructionSet::Avx512Bf16.is_available();
    let automatic = if has_bf16 { "bf16" } else { "fp32" };
    assert_eq!(precision(""), automatic);
    assert_eq!(precision("train.precision = \"auto\"\ntrain.device = \"cpu\""), automatic);
    assert_eq!(precision("train.device = \"reference\""), "fp32");
    assert_eq!(precision("train.precision = \"fp32\""), "fp32");
    assert_eq!(precision("train.precision = \"bf16\"\ntrain.device = \"reference\""), "bf16");
}

#[test]
fn a_preset_or_a_depth_gives_sizes_and_typed_keys_win() {
    let sizes = |text: &str| {
        let model = resolve(text).unwrap().model;
        (model.layers, model.heads, model.width, model.mlp_width, model.context)
    };
    assert_eq!(sizes("model.preset = \"gpt2\""), (12, 12, 768, 3072, 1024));
    assert_eq!(sizes("model.preset = \"gpt2-xl\"\nmodel.context = 64"), (48, 25, 1600, 6400, 64));
    assert_eq!(sizes("model.preset = \"gpt2\"\nmodel.width = 384"), (12, 12, 384, 1536, 1024));
    assert_eq!(sizes("model.depth = 12"), (12, 12, 768, 3072, 256));
    assert_eq!(sizes("model.depth = 4\nmodel.architecture = \"llama\""), (4, 4, 256, 704, 256));
    assert_eq!(sizes("model.depth = 4\nmodel.heads = 2\nmodel.layers = 9"), (9, 2, 256, 1024, 256));
    let small = resolve("model.preset = \"smollm2-135m\"").unwrap().model;
    assert_eq!((small.kv_heads, small.head_dim, small.rope_theta), (Some(3), Some(64), Some(1e5)));
    let fewer = resolve("model.preset = \"smollm2-135m\"\nmodel.heads = 6").unwrap().model;
    assert_eq!((fewer.kv_heads, fewer.head_dim), (Some(6), Some(96)));
}

#[test]
fn every_preset_and_style_reads_back_to_itself() {
    let styles = ["gpt2", "llama", "encoder"].map(|name| format!("model.architecture = \"{name}\""));
    let presets = presets::NAMES.map(|name| format!("model.preset = \"{name}\""));
    let scaled = "model.preset = \"llama-15m\"\nmodel.rope_scaling = \"llama3:8:1:4:8192\"".to_string();
    for text in styles.into_iter().chain(presets).chain([scaled]) {
        let config = resolve(&text).unwrap();
        let written = config.to_toml().unwrap();
        assert_eq!(resolve(&written).unwrap(), config, "{text}");
    }
}

#[test]
fn an_encoder_gets_its_mask_token_once() {
    let special = |text: &str| match resolve(text).unwrap().tokenizer {
        TokenizerConfig::Train(training) => training.special,
        TokenizerConfig::File { .. } => Vec::new(),
    };
    assert_eq!(special("model.architecture = \"encoder\""), ["<|endoftext|>", MASK]);
    let own = "model.architecture = \"encoder\"\ntokenizer.special = [\"<|mask|>\", \"<|a|>\"]";
    assert_eq!(special(own), [MASK, "<|a|>"]);
    assert_eq!(special(""), ["<|endoftext|>"]);
}
