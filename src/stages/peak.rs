//! The most that a device computes a second: what MFU is a share of.

use super::cuda;
use crate::show::numbers::flops;
use ironmill_compute::cpu::InstructionSet;
use ironmill_compute::cpu::peak::{Effort, Peak as Measured};

/// A device's peak.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    /// Floating-point operations a second.
    pub flops_per_s: f64,
    /// What is multiplied, and how the figure is known.
    pub source: String,
}

/// Cards by a part of their name, with what their data sheets say of dense products with f32 sums: of 16-bit numbers and of f32,
/// in TFLOP/s. The first name that fits counts.
const CARDS: [(&str, f64, f64); 22] = [
    ("B200", 2250.0, 75.0),
    ("B100", 1750.0, 60.0),
    ("GH200", 989.4, 66.9),
    ("H200 NVL", 835.5, 60.0),
    ("H200", 989.4, 66.9),
    ("H100 NVL", 835.5, 60.0),
    ("H100 PCIe", 756.5, 51.2),
    ("H100", 989.4, 66.9),
    ("H800", 989.4, 66.9),
    ("A100", 311.9, 19.5),
    ("A800", 311.9, 19.5),
    ("L40S", 362.1, 91.6),
    ("L40", 181.1, 90.5),
    ("L4", 121.0, 30.3),
    ("A40", 149.7, 37.4),
    ("RTX A6000", 154.8, 38.7),
    ("A10", 125.0, 31.2),
    ("RTX 6000 Ada", 364.2, 91.1),
    ("RTX 5090", 209.5, 104.8),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 4080", 97.5, 48.7),
    ("RTX 3090", 71.0, 35.6),
];

impl Peak {
    /// The peak of a device under a precision, where it is known; `description` is the device's own.
    pub fn of(device: &str, description: &str, precision: &str, threads: usize) -> Option<Peak> {
        match device {
            "reference" => None,
            _ if cuda::ordinal(device).is_some() => of_card(description, precision),
            _ => of_processor(precision, threads),
        }
    }

    /// The peak for people.
    pub fn line(&self) -> String {
        format!("peak: {} {}; MFU is the share of it", flops(self.flops_per_s), self.source)
    }
}

fn of_card(description: &str, precision: &str) -> Option<Peak> {
    let (_, half, single) = CARDS.into_iter().find(|(name, _, _)| has_words(description, name))?;
    let tera = match precision {
        "fp32" => single,
        // Cards multiply numbers of 8 bits at twice the rate of 16.
        "fp8" => 2.0 * half,
        _ => half,
    };
    Some(Peak { flops_per_s: tera * 1e12, source: format!("{precision} by the card's data sheet") })
}

/// Whether a text has these words, and not only the beginning of a longer one: an A4000 is no A40.
fn has_words(text: &str, words: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_alphanumeric());
    text.match_indices(words).any(|(start, _)| ends(&text[start + words.len()..]))
}

/// No data sheet tells what a share of a virtual machine's processor does, so that is measured, for a few milliseconds.
fn of_processor(precision: &str, threads: usize) -> Option<Peak> {
    let set = InstructionSet::ALL.into_iter().rev().find(|set| set.is_available())?;
    let measured = Measured::measure(set, threads, Effort { rounds: 40, ..Effort::glance() })?;
    let bf16 = measured.bf16_flops_per_s.filter(|_| precision == "bf16");
    let name = if bf16.is_some() { "bf16" } else { "fp32" };
    let flops_per_s = bf16.unwrap_or(measured.f32_flops_per_s);
    Some(Peak { flops_per_s, source: format!("{name} as measured now") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_known_by_its_name() {
        let peak = |name: &str, precision| {
            of_card(&format!("cuda: NVIDIA {name}, compute"), precision)
                .map(|peak| (peak.flops_per_s / 1e11).round() / 10.0)
        };
        assert_eq!(peak("H200", "bf16"), Some(989.4));
        assert_eq!((peak("H200", "fp32"), peak("H200", "fp8")), (Some(66.9), Some(1978.8)));
        assert_eq!(peak("H100 PCIe", "fp16"), Some(756.5));
        assert_eq!(peak("A100-SXM4-80GB", "bf16"), Some(311.9));
        assert_eq!((peak("RTX A4000", "bf16"), peak("Voodoo 2", "bf16")), (None, None));
    }

    #[test]
    fn a_processor_is_measured_and_the_reference_has_no_peak() {
        let peak = Peak::of("cpu", "", "fp32", 1).unwrap();
        assert!(peak.flops_per_s > 1e8 && peak.line().contains("fp32 as measured now"), "{}", peak.line());
        assert_eq!(Peak::of("reference", "", "fp32", 1), None);
    }
}
