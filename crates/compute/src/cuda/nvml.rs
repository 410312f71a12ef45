//! NVML: how busy a card is, as the driver's own tools tell it. Not needed for anything, used where it is there.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::ffi::{CString, c_char, c_uint};

use super::{
    driver::Driver,
    library::{self, Needed, Places},
    symbols::symbols,
};

symbols! {
    /// The functions of NVML that are used.
    Api {
        nvmlInit_v2();
        nvmlShutdown();
        nvmlDeviceGetHandleByPciBusId_v2(bus: *const c_char, device: *mut usize);
        nvmlDeviceGetUtilizationRates(device: usize, rates: *mut Rates);
        nvmlDeviceGetMemoryInfo(device: usize, memory: *mut MemoryInfo);
        nvmlDeviceGetPowerUsage(device: usize, milliwatts: *mut c_uint);
    }
}

/// `nvmlUtilization_t`: percent of the time of the last sample in which a kernel ran, or memory was used.
#[repr(C)]
#[derive(Default)]
struct Rates {
    kernels: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
#[derive(Default)]
struct MemoryInfo {
    total: u64,
    free: u64,
    used: u64,
}

/// A look at a card. What the driver does not say is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The share of the last moments in which a kernel was running.
    pub utilization: Option<f64>,
    /// Bytes of the card's memory in use by anybody.
    pub used_bytes: Option<u64>,
    /// The power that the card draws.
    pub watts: Option<f64>,
}

/// A card that can be looked at while others use it.
pub struct Gauge {
    api: Api,
    device: usize,
}

impl Gauge {
    /// Opens NVML for a card, counted from 0 as the driver does; nothing where either is not there.
    pub fn open(ordinal: usize, places: &Places) -> Option<Gauge> {
        let driver = Driver::open(places).ok()?;
        // The two count cards differently; both know them by their place on the bus.
        let bus = CString::new(driver.bus_id(driver.device(ordinal).ok()?).ok()?).ok()?;
        let api = Api::load(library::open(Needed::Nvml, places)?.library).ok()?;
        // SAFETY: no arguments to get wrong.
        if unsafe { (api.nvmlInit_v2)() } != 0 {
            return None;
        }
        let mut gauge = Gauge { api, device: 0 };
        // SAFETY: the name ends with a zero, and NVML writes one handle.
        let status = unsafe { (gauge.api.nvmlDeviceGetHandleByPciBusId_v2)(bus.as_ptr(), &mut gauge.device) };
        (status == 0).then_some(gauge)
    }

    /// Looks at the card. It takes from microseconds to milliseconds.
    pub fn read(&self) -> Reading {
        let (mut rates, mut memory, mut milliwatts) = (Rates::default(), MemoryInfo::default(), 0);
        // SAFETY: the handle is one that NVML gave; it writes one structure, declared as in its header, or one number.
        let [rated, counted, weighed] = unsafe {
            [
                (self.api.nvmlDeviceGetUtilizationRates)(self.device, &mut rates),
                (self.api.nvmlDeviceGetMemoryInfo)(self.device, &mut memory),
                (self.api.nvmlDeviceGetPowerUsage)(self.device, &mut milliwatts),
            ]
        };
        Reading {
            utilization: (rated == 0).then(|| f64::from(rates.kernels) / 100.0),
            used_bytes: (counted == 0).then_some(memory.used),
            watts: (weighed == 0).then(|| f64::from(milliwatts) / 1000.0),
        }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        // SAFETY: it was initialised, once for this gauge. What a failed shutdown would mean is nothing at this point.
        unsafe { (self.api.nvmlShutdown)() };
    }
}
