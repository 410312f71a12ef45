//! `[train]`: how long, how fast, by which optimiser.

use super::*;
use crate::stages::cuda;
use crate::stages::model::settle_device;
use ironmill_compute::cpu::InstructionSet;
use ironmill_model::ParameterGroup;

/// Fills in the defaults of `[train]`.
pub(super) fn resolve(mut section: Section<'_>, model: &ModelConfig) -> Result<TrainConfig> {
    let length = match (section.given_count("steps"), section.given_number("epochs")) {
        (Some(_), Some(_)) => {
            return Err(bad("train.steps and train.epochs both say how long to train: remove one"));
        }
        (None, Some(epochs)) => Length::Epochs(epochs),
        (steps, None) => Length::Steps(steps.unwrap_or(1000)),
    };
    let context = model.context;
    let batch_tokens = section.count("batch_tokens", 16 * context);
    if batch_tokens == 0 || !batch_tokens.is_multiple_of(context) {
        let near = (batch_tokens / context).max(1) * context;
        return Err(bad(format!(
            "train.batch_tokens = {batch_tokens} is not a multiple of model.context = {context}: use {near}, for example"
        )));
    }
    let rows = batch_tokens / context;
    let micro_batch =
        section.given_count_or_auto("micro_batch").unwrap_or_else(|| Some(largest_divisor(rows, 16)));
    if let Some(micro_batch) = micro_batch
        && (micro_batch == 0 || !rows.is_multiple_of(micro_batch))
    {
        let near = largest_divisor(rows, micro_batch.max(1));
        return Err(bad(format!(
            "train.micro_batch = {micro_batch} does not divide a step of {rows} sequences \
             (train.batch_tokens / model.context): use {near}, for example"
        )));
    }
    let optimizer = section.text("optimizer", "adamw");
    let is_sgd = optimizer == "sgd";
    let is_muon = optimizer == "muon";
    let without: &[&str] = match optimizer.as_str() {
        "sgd" => &["beta1", "beta2", "eps"],
        "muon" => &[],
        _ => &["momentum"],
    };
    section.refuse(without, &format!("to train.optimizer = \"{optimizer}\": remove it"))?;
    // SGD's steps are as small as its gradients are, so it needs far higher rates than Adam.
    let learning_rate = section.number("learning_rate", if is_sgd { 0.1 } else { 1e-3 });
    let schedule = section.text("schedule", "cosine");
    for (owner, names) in SCHEDULE_KEYS {
        if schedule != owner {
            section.refuse(names, &format!("to train.schedule = \"{schedule}\": remove it"))?;
        }
    }
    let has = |owner: &str| schedule == owner;
    let is_encoder = model.architecture == "encoder";
    let lowest = match schedule.as_str() {
        "constant" => learning_rate,
        // As its authors have it: a 25th of the peak at first, and a ten thousandth of that at the end.
        "one_cycle" => learning_rate / 25e4,
        _ => learning_rate / 10.0,
    };
    let device = settle_device(&section.text("device", "auto"));
    let eval_set = section.text("eval_set", "fixed");
    let is_complete = eval_set == "complete";
    if is_complete {
        section.refuse(&["eval_tokens"], "to train.eval_set = \"complete\", which takes all: remove it")?;
    }
    let early_stop_patience = section.count("early_stop_patience", 0u64);
    let stops_early = early_stop_patience > 0;
    if !stops_early {
        let why = "without train.early_stop_patience: give how many evaluations to wait, or remove it";
        section.refuse(&["early_stop_smoothing", "early_stop_delta"], why)?;
    }
    let train = TrainConfig {
        length,
        batch_tokens,
        micro_batch,
        learning_rate,
        min_learning_rate: section.number("min_learning_rate", lowest),
        warmup: section.count("warmup", 50u64),
        decay_share: has("stable_decay").then(|| section.number("decay_share", 0.2)),
        restart_every: has("restarts").then(|| section.count("restart_every", 100u64)),
        restart_factor: has("restarts").then(|| section.count("restart_factor", 2u64)),
        plateau_factor: has("plateau").then(|| section.number("plateau_factor", 0.5)),
        plateau_patience: has("plateau").then(|| section.count("plateau_patience", 3u64)),
        schedule: schedule.clone(),
        // AdamW and Muon keep decay apart from gradients; in the others it acts on the loss and is not taken for granted.
        weight_decay: section.number("weight_decay", if is_muon || optimizer == "adamw" { 0.1 } else { 0.0 }),
        groups: section.texts("groups", Vec::<String>::new()),
        ema: section.number("ema", 0.0),
        beta1: (!is_sgd).then(|| section.number("beta1", 0.9)),
        beta2: (!is_sgd).then(|| section.number("beta2", 0.95)),
        eps: (!is_sgd).then(|| section.number("eps", 1e-8)),
        momentum: (is_sgd || is_muon).then(|| section.number("momentum", if is_muon { 0.95 } else { 0.9 })),
        optimizer,
        grad_clip: section.number("grad_clip", 1.0),
        on_nonfinite: section.text("on_nonfinite", "stop"),
        max_skips: section.count("max_skips", 5u64),
        loss_outlier: section.number("loss_outlier", 0.0),
        norm_outlier: section.number("norm_outlier", 0.0),
        outlier_warmup: section.count("outlier_warmup", 100u64),
        label_smoothing: section.number("label_smoothing", 0.0),
        z_loss: section.number("z_loss", 0.0),
        recompute: section.text("recompute", "auto"),
        precision: settle(section.text("precision", "auto"), auto_precision(&device)),
        eval_every: section.cadence("eval_every", Cadence::Steps(100)),
        eval_tokens: (!is_complete).then(|| section.count("eval_tokens", 65_536u64)),
        eval_set,
        early_stop_patience,
        early_stop_smoothing: stops_early.then(|| section.number("early_stop_smoothing", 0.0)),
        early_stop_delta: stops_early.then(|| section.number("early_stop_delta", 0.0)),
        sample_every: section.cadence("sample_every", Cadence::Steps(if is_encoder { 0 } else { 250 })),
        checkpoint_every: section.cadence("checkpoint_every", Cadence::Steps(250)),
        keep_last: section.count("keep_last", 2u64),
        keep_best: section.count("keep_best", 0u64),
        keep_every: section.count("keep_every", 0u64),
        device,
    };
    if is_encoder && train.sample_every != Cadence::Steps(0) {
        return Err(bad("train.sample_every cannot apply to model.architecture = \"encoder\", \
             which fills in masked tokens and writes no text: remove it"));
    }
    check(&train)?;
    Ok(train)
}

/// Keys that only one schedule has.
const SCHEDULE_KEYS: [(&str, &[&str]); 3] = [
    ("stable_decay", &["decay_share"]),
    ("restarts", &["restart_every", "restart_factor"]),
    ("plateau", &["plateau_factor", "plateau_patience"]),
];

fn check(train: &TrainConfig) -> Result<()> {
    let (precision, card) = (train.precision.as_str(), cuda::ordinal(&train.device));
    if ["fp8", "fp8-head"].contains(&precision) && card.is_none() {
        let message = format!(
            "train.precision = \"{precision}\" is for train.device = \"cuda\": use bf16 or fp32 here"
        );
        return Err(bad(message));
    }
    if let ("fp8" | "fp8-head", Some(card)) = (precision, card) {
        check_eight_bits(card, precision)?;
    }
    if let Length::Epochs(epochs) = train.length
        && epochs <= 0.0
    {
        return Err(bad(format!("train.epochs = {epochs} trains nothing: use a number above 0")));
    }
    within("train.learning_rate", train.learning_rate, 0.0, 100.0)?;
    within("train.min_learning_rate", train.min_learning_rate, 0.0, train.learning_rate)?;
    within("train.weight_decay", train.weight_decay, 0.0, 100.0)?;
    for (name, decay) in
        [("train.beta1", train.beta1), ("train.beta2", train.beta2), ("train.momentum", train.momentum)]
    {
        within(name, decay.unwrap_or_default(), 0.0, 0.999_999_9)?;
    }
    within("train.eps", train.eps.unwrap_or(1e-8), f64::MIN_POSITIVE, 1.0)?;
    within("train.label_smoothing", train.label_smoothing, 0.0, 0.99)?;
    within("train.z_loss", train.z_loss, 0.0, 100.0)?;
    within("train.grad_clip", train.grad_clip, 0.0, f64::MAX)?;
    within("train.loss_outlier", train.loss_outlier, 0.0, 1e6)?;
    within("train.norm_outlier", train.norm_outlier, 0.0, 1e6)?;
    at_least("train.eval_tokens", train.eval_tokens.unwrap_or(1), 1)?;
    within("train.early_stop_smoothing", train.early_stop_smoothing.unwrap_or_default(), 0.0, 0.999)?;
    within("train.early_stop_delta", train.early_stop_delta.unwrap_or_default(), 0.0, f64::MAX)?;
    if train.early_stop_patience > 0 && train.eval_every == Cadence::Steps(0) {
        return Err(bad("train.early_stop_patience needs evaluations: give train.eval_every"));
    }
    at_least("train.keep_last", train.keep_last, 1)?;
    within("train.ema", train.ema, 0.0, 0.999_999_9)?;
    for group in &train.groups {
        parse_group(group)?;
    }
    within("train.decay_share", train.decay_share.unwrap_or_default(), 0.0, 1.0)?;
    at_least("train.restart_every", train.restart_every.unwrap_or(1), 1)?;
    at_least("train.restart_factor", train.restart_factor.unwrap_or(1), 1)?;
    within("train.plateau_factor", train.plateau_factor.unwrap_or(0.5), 0.0, 1.0)?;
    if train.schedule == "exponential" && train.min_learning_rate == 0.0 {
        return Err(bad(
            "train.min_learning_rate = 0 is never reached by schedule = \"exponential\": use a number above 0",
        ));
    }
    if train.schedule == "plateau" && train.eval_every == Cadence::Steps(0) {
        return Err(bad(
            "train.schedule = \"plateau\" follows the validation loss: set train.eval_every above 0",
        ));
    }
    if train.schedule == "constant" && train.min_learning_rate != train.learning_rate {
        return Err(bad(
            "train.min_learning_rate has no effect with schedule = \"constant\": remove one of them",
        ));
    }
    Ok(())
}

/// Refuses fp8 on a card that is there and does not multiply it; one that is not there is refused when it is opened.
fn check_eight_bits(ordinal: usize, precision: &str) -> Result<()> {
    match cuda::find().cards.get(ordinal) {
        Some(card) if !card.has_eight_bit_products() => Err(bad(format!(
            "train.precision = \"{precision}\" needs a card of compute capability 8.9 or later, and {} has {}.{}: use bf16",
            card.name,
            card.capability / 10,
            card.capability % 10
        ))),
        _ => Ok(()),
    }
}

/// Reads a group of parameters such as `*.bias: rate 0.5, decay 0`.
pub fn parse_group(text: &str) -> Result<ParameterGroup> {
    let wrong = || {
        let example = "write a pattern and what is different, such as \"*.bias: rate 0.5, decay 0\"";
        bad(format!("train.groups has {text:?}: {example}"))
    };
    let (pattern, settings) = text.rsplit_once(':').ok_or_else(wrong)?;
    let mut group = ParameterGroup { pattern: pattern.trim().into(), rate: 1.0, weight_decay: None };
    for setting in settings.split(',') {
        let (name, value) = setting.trim().split_once(' ').ok_or_else(wrong)?;
        let value: f32 = value.trim().parse().map_err(|_| wrong())?;
        if !(0.0..=1e6).contains(&value) {
            return Err(wrong());
        }
        match name {
            "rate" => group.rate = value,
            "decay" => group.weight_decay = Some(value),
            _ => return Err(wrong()),
        }
    }
    Ok(group)
}

/// What `precision = "auto"` means: bf16 on processors that multiply it, where training ends at the same loss in about half
/// the time (docs/log.md), and fp32 elsewhere, where bf16 only costs accuracy.
pub fn auto_precision(device: &str) -> &'static str {
    let is_fast = match device {
        "cpu" => InstructionSet::Avx512Bf16.is_available(),
        device => cuda::ordinal(device).is_some(),
    };
    if is_fast { "bf16" } else { "fp32" }
}

/// What "auto" comes to in this version.
fn settle(value: String, auto: &str) -> String {
    if value == "auto" { auto.into() } else { value }
}

fn largest_divisor(of: u64, at_most: u64) -> u64 {
    (1..=at_most.min(of)).rev().find(|divisor| of.is_multiple_of(*divisor)).unwrap_or(1)
}
