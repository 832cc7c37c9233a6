//! The GPUs of this machine, as NVIDIA's management library tells them (WORK-40, WORK-44).
//!
//! The library comes with the driver and is loaded at run time; a machine without it has no GPUs. It
//! is looked for again now and then, since a driver may be installed or loaded anew under a worker
//! that runs. A device that does not answer for itself is not there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::inventory::Gpu;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

/// As drivers install it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Time between two looks for a library that was not there, or not in order.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// What vendors put before the name of a model.
const MAKERS: [&str; 2] = ["NVIDIA ", "Tesla "];

/// Looks at the devices; clones share one library.
#[derive(Clone)]
pub(crate) struct Gpus {
    library: PathBuf,
    state: Arc<Mutex<State>>,
}

enum State {
    Open { nvml: Box<Nvml>, driver: String },
    Absent { look_at: Instant },
}

// === impl Gpus ===

impl Gpus {
    pub(crate) fn new() -> Self {
        Self::of(LIBRARY.into())
    }

    fn of(library: PathBuf) -> Self {
        let look_at = Instant::now();
        Self {
            library,
            state: Arc::new(Mutex::new(State::Absent { look_at })),
        }
    }

    /// The devices that answer, in the order of their numbers.
    pub(crate) fn look(&self) -> Vec<Gpu> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Absent { look_at } = &*state {
            if Instant::now() < *look_at {
                return Vec::new();
            }
            *state = open(self.library.as_os_str());
        }
        let State::Open { nvml, driver } = &*state else {
            return Vec::new();
        };
        match nvml.device_count() {
            Ok(count) => (0..count)
                .filter_map(|index| describe(nvml, index, driver).ok())
                .collect(),
            Err(error) => {
                tracing::warn!(%error, "the GPUs cannot be asked for");
                *state = absent();
                Vec::new()
            }
        }
    }
}

impl std::fmt::Debug for Gpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpus")
            .field("library", &self.library)
            .finish_non_exhaustive()
    }
}

fn absent() -> State {
    State::Absent {
        look_at: Instant::now() + LOOK_AGAIN,
    }
}

fn open(library: &OsStr) -> State {
    let opened = Nvml::builder().lib_path(library).init();
    match opened.and_then(|nvml| Ok((nvml.sys_driver_version()?, nvml))) {
        Ok((driver, nvml)) => {
            tracing::info!(driver, "GPUs are looked for");
            let nvml = Box::new(nvml);
            State::Open { nvml, driver }
        }
        // No driver, no library: a machine without GPUs, of which nothing need be said.
        Err(NvmlError::LibloadingError(_)) => absent(),
        Err(error) => {
            tracing::warn!(%error, "the library of the NVIDIA driver cannot be used");
            absent()
        }
    }
}

fn describe(nvml: &Nvml, index: u32, driver: &str) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let place = device.pci_info().ok();
    let numa = place.and_then(|it| {
        let name = format!("{:04x}:{:02x}:{:02x}.0", it.domain, it.bus, it.device);
        numa(&Path::new("/sys/bus/pci/devices").join(name))
    });
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        model: model(&device.name()?),
        memory_bytes: device.memory_info().map_or(0, |memory| memory.total),
        capacity: 1.0,
        driver: driver.to_owned(),
        numa: numa.unwrap_or(-1),
        ..Gpu::default()
    })
}

/// The name of a model as clouds and settings give it: without its maker's.
fn model(name: &str) -> String {
    let mut rest = name.trim();
    for maker in MAKERS {
        rest = rest.strip_prefix(maker).unwrap_or(rest);
    }
    rest.to_owned()
}

fn numa(device: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(device.join("numa_node")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A library of the driver's shape that tells what a file says: for each device its name, uuid
    /// and bytes of memory, or that it is lost.
    struct Driver {
        dir: tempfile::TempDir,
    }

    impl Driver {
        fn install() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/fake_nvml.c");
            let devices = dir.path().join("devices");
            let made = Command::new("cc")
                .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
                .arg(dir.path().join(LIBRARY))
                .arg(format!("-DDEVICES=\"{}\"", devices.display()))
                .arg(source)
                .status()
                .expect("a C compiler is there");
            assert!(made.success());
            Self { dir }
        }
        fn says(&self, lines: &[&str]) {
            let file = self.dir.path().join("devices");
            std::fs::write(file, lines.join("\n") + "\n").unwrap();
        }
        fn gpus(&self) -> Gpus {
            Gpus::of(self.dir.path().join(LIBRARY))
        }
    }

    const A10: &str = "NVIDIA A10G|GPU-1|24146608128";
    const T4: &str = "Tesla T4|GPU-2|16106127360";

    // spec: WORK-40
    #[test]
    fn devices_are_told_with_model_memory_and_driver() {
        let driver = Driver::install();
        driver.says(&[A10, T4]);
        let found = driver.gpus().look();
        let gpu = |index: u32, uuid: &str, model: &str, memory_bytes| Gpu {
            index,
            uuid: uuid.to_owned(),
            model: model.to_owned(),
            memory_bytes,
            capacity: 1.0,
            driver: "550.54.15".to_owned(),
            numa: -1,
            ..Gpu::default()
        };
        let expected = [
            gpu(0, "GPU-1", "A10G", 24_146_608_128),
            gpu(1, "GPU-2", "T4", 16_106_127_360),
        ];
        assert_eq!(found, expected);
    }

    // spec: WORK-44
    #[test]
    fn a_device_that_falls_off_the_bus_is_gone_and_the_others_keep_their_numbers() {
        let driver = Driver::install();
        driver.says(&[A10, T4]);
        let gpus = driver.gpus();
        assert_eq!(gpus.look().len(), 2);
        driver.says(&["lost", T4]);
        let left: Vec<u32> = gpus.look().iter().map(|gpu| gpu.index).collect();
        assert_eq!(left, [1]);
        driver.says(&[A10, T4]);
        assert_eq!(gpus.look().len(), 2);
    }

    // spec: WORK-44
    #[test]
    fn a_driver_that_goes_takes_all_devices_with_it() {
        let driver = Driver::install();
        driver.says(&[A10]);
        let gpus = driver.gpus();
        assert_eq!(gpus.look().len(), 1);
        std::fs::remove_file(driver.dir.path().join("devices")).unwrap();
        assert_eq!(gpus.look(), []);
        // Back at once, it is looked for again when its time has come.
        driver.says(&[A10]);
        assert_eq!(gpus.look(), []);
        *gpus.state.lock().unwrap() = State::Absent {
            look_at: Instant::now(),
        };
        assert_eq!(gpus.look().len(), 1);
    }

    // spec: WORK-40
    #[test]
    fn a_machine_without_the_library_has_no_devices() {
        let dir = tempfile::tempdir().unwrap();
        let gpus = Gpus::of(dir.path().join(LIBRARY));
        assert_eq!(gpus.look(), []);
        // And neither has one whose library is none, or whose driver is not loaded.
        std::fs::write(dir.path().join(LIBRARY), "no library").unwrap();
        assert_eq!(Gpus::of(dir.path().join(LIBRARY)).look(), []);
        assert_eq!(Driver::install().gpus().look(), []);
    }

    #[test]
    fn numa_nodes_are_read_from_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(numa(dir.path()), None);
        std::fs::write(dir.path().join("numa_node"), "1\n").unwrap();
        assert_eq!(numa(dir.path()), Some(1));
    }
}
