//! What there is of libraries and cards, without needing any of it.

use std::path::Path;

use super::{
    EIGHT_BIT_CAPABILITY, cudnn,
    driver::{self, Attribute, Driver},
    library::{self, Needed, Places},
    modules,
    nvrtc::Nvrtc,
};
use crate::error::{Error, Result};

/// A library of the vendor's, as `doctor` shows it.
#[derive(Clone, Debug)]
pub struct LibraryReport {
    /// Which.
    pub needed: Needed,
    /// Its version and where it was found, or what is wrong.
    pub found: std::result::Result<String, String>,
}

/// A card, as `doctor` shows it.
#[derive(Clone, Debug)]
pub struct CardReport {
    /// The card's name.
    pub name: String,
    /// Its compute capability, such as 90.
    pub capability: usize,
    /// Bytes of its memory.
    pub memory_bytes: usize,
    /// Bytes that nobody uses now.
    pub free_bytes: usize,
    /// Its multiprocessors.
    pub multiprocessors: usize,
}

impl CardReport {
    /// Whether the card multiplies numbers of eight bits.
    pub fn has_eight_bit_products(&self) -> bool {
        self.capability >= EIGHT_BIT_CAPABILITY
    }
}

/// What is there, without needing any of it.
pub fn probe(places: &Places) -> (Vec<LibraryReport>, Vec<CardReport>) {
    let driver = Driver::open(places);
    let described = |result: Result<String>| result.map_err(|error| error.to_string());
    let libraries = Needed::ALL
        .into_iter()
        .map(|needed| {
            let found = match needed {
                Needed::Driver => described(match &driver {
                    Ok(driver) => driver.version().map(|v| format!("CUDA {}.{}", v / 1000, v % 1000 / 10)),
                    Err(error) => Err(Error::LibraryMissing {
                        library: needed.name(),
                        detail: error.to_string(),
                        advice: needed.advice(),
                    }),
                }),
                Needed::Nvrtc => described(Nvrtc::open(places).map(|nvrtc| nvrtc.describe())),
                Needed::Cudnn => described(cudnn::describe(places)),
                Needed::BlasLt | Needed::Nvml => match library::open(needed, places) {
                    Some(found) => Ok(found.path.display().to_string()),
                    None => Err(driver::missing(needed, "it was not found").to_string()),
                },
            };
            LibraryReport { needed, found }
        })
        .collect();
    let cards = driver.map(|driver| cards(&driver)).unwrap_or_default();
    (libraries, cards)
}

fn cards(driver: &Driver) -> Vec<CardReport> {
    let card = |ordinal: usize| -> Result<CardReport> {
        let device = driver.device(ordinal)?;
        let context = driver.retain_context(device)?;
        driver.make_current(context)?;
        let free_bytes = driver.free_memory();
        driver.release_context(device);
        Ok(CardReport {
            name: driver.device_name(device)?,
            capability: capability(driver, device)?,
            memory_bytes: driver.total_memory(device)?,
            free_bytes: free_bytes?,
            multiprocessors: driver.attribute(device, Attribute::Multiprocessors)?,
        })
    };
    (0..driver.device_count().unwrap_or(0)).filter_map(|ordinal| card(ordinal).ok()).collect()
}

pub(super) fn capability(driver: &Driver, device: i32) -> Result<usize> {
    let major = driver.attribute(device, Attribute::CapabilityMajor)?;
    Ok(10 * major + driver.attribute(device, Attribute::CapabilityMinor)?)
}

/// Compiles every kernel in every element type for an architecture such as `sm_90a`, with no card: what `.ci/run` checks.
/// Returns how many files were compiled.
pub fn compile_all(places: &Places, architecture: &str, cache: Option<&Path>) -> Result<usize> {
    modules::compile_all(&Nvrtc::open(places)?, architecture, cache)
}

/// What the compiler calls a capability. Hopper's own instructions need the letter.
pub(super) fn architecture(capability: usize) -> String {
    match capability {
        90 => "sm_90a".into(),
        other => format!("sm_{other}"),
    }
}
