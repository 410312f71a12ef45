//! `bench ops`: every kernel that training is made of, against what the machine can do.

mod case;
mod measure;
mod models;
mod products;

use super::clock::counted_name;
use super::limits::Limits;
use super::step::{self, Sizes};
use super::{Settings, Spread, cpu, geometric_mean};
use crate::failure::{Code, Failure, Result};
use crate::show::Show;
use crate::show::numbers::counted;
use crate::stages::cuda;
use case::{Case, Group, Work};
use measure::{Budget, Measured};
use serde_json::json;

/// A case and how it did.
struct Outcome {
    group: Group,
    name: String,
    time: Spread,
    /// The share of the limit, by the median and by the best time.
    share: Spread,
}

/// Measures the machine, then the kernels whose names contain `only`, and shows each as it is done.
pub fn run(show: &Show, device: &str, only: Option<&str>, settings: Settings) -> Result<()> {
    if let Some(ordinal) = cuda::ordinal(device) {
        return step::card_kernels(show, ordinal, only, settings);
    }
    let mut device = cpu(device, settings.threads)?;
    let cases: Vec<Case> = all(settings)
        .into_iter()
        .filter(|case| only.is_none_or(|only| case.name.contains(only) || case.group.name().contains(only)))
        .collect();
    if cases.is_empty() {
        let message =
            format!("no case is called \"{}\": leave --only out to see them all", only.unwrap_or_default());
        return Err(Failure::new(Code::Usage, message));
    }
    let limits = Limits::measure(&device, settings.quick)?;
    let clock = counted_name(settings.threads);
    header(show, &limits, clock, settings)?;
    let budget = match settings.quick {
        true => Budget { seconds: 0.0, least: 3, most: 3, cache_bytes: 1 << 16 },
        false => Budget { seconds: 0.4, least: 5, most: 400, cache_bytes: limits.cache_bytes },
    };
    let bursts = limits.bursts(settings.precision.products())?;
    let mut outcomes = Vec::with_capacity(cases.len());
    for case in cases {
        let measured = case.measure(&mut device, bursts, &budget)?;
        outcomes.push(tell(show, &case, measured, &limits)?);
    }
    for group in Group::ALL {
        summary(show, group, &outcomes)?;
    }
    // The limits once more: shares mean little if the machine changed on the way.
    let after = Limits::measure(&device, settings.quick)?;
    let mut object = after.to_json();
    object["kind"] = "peak at the end".into();
    show.result(&format!("\nat the end      {}", after.line()), &object)
}

fn all(settings: Settings) -> Vec<Case> {
    let mut cases = products::all(settings.precision, settings.quick);
    let models = if settings.quick { vec![Sizes::TINY] } else { vec![Sizes::CPU, Sizes::BABY, Sizes::GPT2] };
    cases.extend(models.iter().flat_map(|sizes| models::all(settings.precision, sizes)));
    // By group, so that the table reads as its summary does.
    Group::ALL.iter().flat_map(|group| cases.iter().filter(|case| case.group == *group)).cloned().collect()
}

fn header(show: &Show, limits: &Limits, clock: &str, settings: Settings) -> Result<()> {
    let mut object = limits.to_json();
    object["kind"] = "peak".into();
    object["precision"] = settings.precision.name().into();
    object["clock"] = clock.into();
    let text = format!(
        "machine         {}\ntimes           {clock}; medians, best behind; shares are of the median of {} arithmetic in bursts \
         between the runs,\n                of its best behind, or of memory as above\n\n\
         {:<52} {:>10} {:>10} {:>15} {:>8} {:>8}",
        limits.line(),
        settings.precision.name(),
        "case",
        "ms",
        "best",
        "a second",
        "share",
        "best",
    );
    show.result(&text, &object)
}

fn tell(show: &Show, case: &Case, measured: Measured, limits: &Limits) -> Result<Outcome> {
    let Measured { time, pace } = measured;
    let memory = |limit: f64| Spread { median: limit, best: limit };
    let (work, limit, unit) = match case.work {
        Work::Flops(flops) => (flops, pace.unwrap_or(memory(f64::NAN)), "GFLOP"),
        Work::Bytes { moved, in_place: true } => (moved, memory(limits.peak.update_bytes_per_s), "GB"),
        Work::Bytes { moved, in_place: false } => {
            (moved, memory(limits.peak.read_bytes_per_s.max(limits.peak.copy_bytes_per_s)), "GB")
        }
    };
    let share = Spread { median: work / time.median / limit.median, best: work / time.best / limit.best };
    let text = format!(
        "{:<52} {:>10.3} {:>10.3} {:>9.1} {unit:<5} {:>6.1} % {:>6.1} %",
        case.name,
        1e3 * time.median,
        1e3 * time.best,
        work / time.median / 1e9,
        100.0 * share.median,
        100.0 * share.best,
    );
    let object = json!({
        "kind": "case",
        "group": case.group.name(),
        "case": case.name,
        "kernel": case.kernel.name(),
        "median_s": time.median,
        "best_s": time.best,
        "work": work,
        "limit": limit.median,
        "best_limit": limit.best,
        "unit": if unit == "GB" { "bytes" } else { "flops" },
        "share": share.median,
        "best_share": share.best,
    });
    show.result(&text, &object)?;
    Ok(Outcome { group: case.group, name: case.name.clone(), time, share })
}

fn summary(show: &Show, group: Group, outcomes: &[Outcome]) -> Result<()> {
    let of_group: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.group == group).collect();
    let worst = of_group.iter().min_by(|a, b| a.share.median.total_cmp(&b.share.median));
    let Some(worst) = worst else { return Ok(()) };
    let mean = geometric_mean(of_group.iter().map(|outcome| outcome.share.median));
    let best_mean = geometric_mean(of_group.iter().map(|outcome| outcome.share.best));
    let text = format!(
        "{}{:<26} {:>9}: {:.1} % in the geometric mean ({:.1} % best), worst {:.1} % ({})",
        if std::ptr::eq(of_group[0], &outcomes[0]) { "\n" } else { "" },
        group.name(),
        counted(of_group.len() as u64, "case"),
        100.0 * mean,
        100.0 * best_mean,
        100.0 * worst.share.median,
        worst.name.split_whitespace().collect::<Vec<_>>().join(" "),
    );
    let object = json!({
        "kind": "summary",
        "group": group.name(),
        "cases": of_group.len(),
        "geometric_mean_share": mean,
        "geometric_mean_best_share": best_mean,
        "worst_share": worst.share.median,
        "worst_case": worst.name,
        "seconds": of_group.iter().map(|outcome| outcome.time.median).sum::<f64>(),
    });
    show.result(&text, &object)
}
