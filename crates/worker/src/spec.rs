//! Whether an order can be run at all, before any question of room (WORK-33).
//!
//! Two kinds of refusal: INVALID_SPEC for what no node could run, and RUNTIME (or LEASE) for what
//! this worker, its runtime or its settings do not do. Widening is never the Manager's choice: host
//! paths must lie below what the worker's own settings allow (SEC-14).

use std::collections::BTreeSet;
use std::path::Path;

use greenroom_types::job::{Container, Service};
use greenroom_types::node::RejectionCode;

use crate::agent::Settings;
use crate::order::{Refusal, StartSpec};

/// Which engine runs the services of this worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuntimeKind {
    Docker,
    Process,
}

/// Judges an order on its own.
pub(crate) fn check_spec(spec: &StartSpec, settings: &Settings) -> Result<(), Refusal> {
    let services = spec.all_services();
    check_form(&services)?;
    if spec.migration_state_lost {
        let detail = "the state of the handover's source was lost on its way";
        return refuse(RejectionCode::Migration, detail);
    }
    for service in &services {
        match settings.runtime {
            RuntimeKind::Docker => check_container(service, settings)?,
            RuntimeKind::Process => check_process(service)?,
        }
    }
    Ok(())
}

/// True for a named volume, false for a path of the host.
pub(crate) fn is_volume_name(name: &str) -> bool {
    !name.starts_with('/')
}

/// The form that every node demands.
fn check_form(services: &[Service]) -> Result<(), Refusal> {
    if services.is_empty() {
        return invalid("the job has no service and no media runtime image");
    }
    let mut names = BTreeSet::new();
    for service in services {
        let name = service.name.as_str();
        let form = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if name.is_empty() || name.len() > 63 || !name.bytes().all(form) {
            return invalid(format!("service name {name:?} is not 1 to 63 of a-z 0-9 -"));
        }
        if !names.insert(name) {
            return invalid(format!("service {name} is there twice"));
        }
        check_words(service)?;
        for (variable, value) in &service.parameters.environment {
            if variable.is_empty() || variable.contains(['=', '\0']) || value.contains('\0') {
                return invalid(format!(
                    "service {name}: {variable:?} is no name of a variable"
                ));
            }
        }
        for mount in &service.parameters.volume_mounts {
            let path = &mount.container_path;
            if !path.starts_with('/') || path == "/" || mount.volume_name.is_empty() {
                let detail = format!(
                    "service {name}: {:?} cannot be mounted at {path:?}",
                    mount.volume_name
                );
                return invalid(detail);
            }
        }
    }
    for service in services {
        if let Some(on) = service
            .depends_on
            .iter()
            .find(|on| !names.contains(on.as_str()))
        {
            return invalid(format!(
                "service {} depends on {on}, which is not there",
                service.name
            ));
        }
    }
    check_cycle(services)
}

fn check_words(service: &Service) -> Result<(), Refusal> {
    let name = &service.name;
    match &service.container {
        Container::Docker(image) if !is_reference(image) => {
            return invalid(format!(
                "service {name}: {image:?} is not an image reference"
            ));
        }
        Container::Process { command, .. } if command.first().is_none_or(String::is_empty) => {
            return invalid(format!("service {name} has an empty command"));
        }
        Container::None if service.command.trim().is_empty() => {
            return invalid(format!(
                "service {name} has neither a container nor a command"
            ));
        }
        _ => {}
    }
    if shlex::split(&service.command).is_none() {
        return invalid(format!(
            "service {name}: a quote in its command is not closed"
        ));
    }
    Ok(())
}

fn check_cycle(services: &[Service]) -> Result<(), Refusal> {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    loop {
        let before = done.len();
        for service in services {
            if service
                .depends_on
                .iter()
                .all(|on| done.contains(on.as_str()))
            {
                done.insert(&service.name);
            }
        }
        if done.len() == services.len() {
            return Ok(());
        }
        if done.len() == before {
            let stuck = services
                .iter()
                .find(|service| !done.contains(service.name.as_str()));
            let name = stuck.map_or("", |service| service.name.as_str());
            return invalid(format!("service {name} depends on itself through others"));
        }
    }
}

fn check_process(service: &Service) -> Result<(), Refusal> {
    let name = &service.name;
    // Also one with a command: it is a program of the image, of which this machine has none or
    // another.
    if let Container::Docker(image) = &service.container {
        let detail = format!(
            "service {name} is a container of {image}; this node runs processes, without an engine"
        );
        return refuse(RejectionCode::Runtime, detail);
    }
    if !service.parameters.volume_mounts.is_empty() {
        let detail = format!("service {name} mounts volumes; the process runtime maps none");
        return refuse(RejectionCode::Runtime, detail);
    }
    Ok(())
}

fn check_container(service: &Service, settings: &Settings) -> Result<(), Refusal> {
    let name = &service.name;
    if !matches!(service.container, Container::Docker(_)) {
        let detail = format!("service {name} names no container; this node runs containers");
        return refuse(RejectionCode::Runtime, detail);
    }
    // The host's own network cannot be kept from the address (WORK-51).
    if service.parameters.host_network && settings.guards_metadata {
        let detail = format!(
            "service {name} asks for host networking, which reaches this cloud's metadata service; \
             the worker's --allow-metadata lets it"
        );
        return refuse(RejectionCode::Runtime, detail);
    }
    for mount in &service.parameters.volume_mounts {
        if is_volume_name(&mount.volume_name) {
            continue;
        }
        let asked = Path::new(&mount.volume_name);
        // Symlinks are resolved first, so that none leads out of what is allowed (WORK-17).
        let real = asked.canonicalize().map_err(|error| {
            let detail = format!("service {name}: host path {}: {error}", asked.display());
            Refusal::new(RejectionCode::Runtime, detail)
        })?;
        let allowed = settings
            .host_paths
            .iter()
            .filter_map(|path| path.canonicalize().ok())
            .any(|path| real.starts_with(path));
        if !allowed {
            let detail = format!("host path {} is not allowed on this node", asked.display());
            return refuse(RejectionCode::Runtime, format!("service {name}: {detail}"));
        }
    }
    Ok(())
}

/// The form of an image reference: `[host[:port]/]path[:tag][@digest]`.
fn is_reference(text: &str) -> bool {
    let (rest, digest) = text
        .split_once('@')
        .map_or((text, None), |(r, d)| (r, Some(d)));
    let hex = |d: &str| {
        d.bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    if digest.is_some_and(|d| {
        !d.strip_prefix("sha256:")
            .is_some_and(|d| d.len() == 64 && hex(d))
    }) {
        return false;
    }
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    let tag_form = |t: &str| {
        !t.is_empty()
            && t.len() <= 128
            && !t.starts_with(['.', '-'])
            && t.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    if tag.is_some_and(|tag| !tag_form(tag)) || path.len() > 255 {
        return false;
    }
    let (host, names) = match path.split_once('/') {
        Some((host, names)) if host.contains(['.', ':']) || host == "localhost" => {
            (Some(host), names)
        }
        _ => (None, path),
    };
    let host_form = |h: &str| {
        h.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b))
    };
    let part_form = |part: &str| {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        !part.is_empty()
            && part.bytes().all(|b| lower(b) || b"._-".contains(&b))
            && part.bytes().next().is_some_and(lower)
            && part.bytes().last().is_some_and(lower)
    };
    host.is_none_or(host_form) && names.split('/').all(part_form)
}

fn refuse<T>(code: RejectionCode, detail: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(code, detail))
}

fn invalid<T>(detail: impl Into<String>) -> Result<T, Refusal> {
    refuse(RejectionCode::InvalidSpec, detail)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use greenroom_types::Millis;
    use greenroom_types::job::{ServiceParameters, VolumeMount};

    use super::*;

    fn settings(runtime: RuntimeKind, host_paths: &[PathBuf]) -> Settings {
        Settings {
            runtime,
            host_paths: host_paths.to_vec(),
            migration_step: Millis(30_000),
            guards_metadata: false,
        }
    }

    fn image(name: &str, reference: &str) -> Service {
        let container = Container::Docker(reference.to_owned());
        Service {
            name: name.to_owned(),
            container,
            ..Service::default()
        }
    }

    fn command(name: &str, line: &str) -> Service {
        Service {
            name: name.to_owned(),
            command: line.to_owned(),
            ..Service::default()
        }
    }

    fn check(services: Vec<Service>, runtime: RuntimeKind) -> Result<(), RejectionCode> {
        let spec = StartSpec {
            services,
            ..StartSpec::default()
        };
        check_spec(&spec, &settings(runtime, &[])).map_err(|refusal| refusal.code)
    }

    // spec: WORK-33
    #[test]
    fn only_what_no_node_could_run_is_an_invalid_spec() {
        let mut cyclic = [command("a", "x"), command("b", "x")];
        cyclic[0].depends_on = vec!["b".to_owned()];
        cyclic[1].depends_on = vec!["a".to_owned()];
        let mut dangling = command("a", "x");
        dangling.depends_on = vec!["b".to_owned()];
        let mut mounted = image("a", "img");
        mounted.parameters.volume_mounts = vec![VolumeMount {
            volume_name: "v".to_owned(),
            container_path: "x".to_owned(),
            read_only: false,
        }];
        for services in [
            vec![],
            vec![command("A", "x")],
            vec![command("a", "x"), command("a", "x")],
            vec![command("a", "")],
            vec![command("a", "echo 'x")],
            vec![image("a", "UPPER/case")],
            vec![dangling],
            vec![mounted],
            cyclic.to_vec(),
        ] {
            let shown = format!("{services:?}");
            for runtime in [RuntimeKind::Docker, RuntimeKind::Process] {
                let result = check(services.clone(), runtime);
                assert_eq!(result, Err(RejectionCode::InvalidSpec), "{shown}");
            }
        }
    }

    // spec: WORK-51
    #[test]
    fn host_networking_is_no_way_around_the_guard_of_the_metadata_service() {
        let mut service = image("a", "img");
        service.parameters.host_network = true;
        let spec = StartSpec {
            services: vec![service],
            ..StartSpec::default()
        };
        let mut settings = settings(RuntimeKind::Docker, &[]);
        assert_eq!(check_spec(&spec, &settings), Ok(()));
        settings.guards_metadata = true;
        let refusal = check_spec(&spec, &settings).unwrap_err();
        assert_eq!(refusal.code, RejectionCode::Runtime);
        assert!(
            refusal.detail.contains("--allow-metadata"),
            "{}",
            refusal.detail
        );
    }

    // spec: JOB-05, WORK-30
    #[test]
    fn a_service_that_the_runtime_cannot_run_is_rejected_for_the_runtime() {
        assert_eq!(
            check(vec![command("a", "x 'y z'")], RuntimeKind::Process),
            Ok(())
        );
        assert_eq!(
            check(vec![image("a", "img")], RuntimeKind::Process),
            Err(RejectionCode::Runtime)
        );
        let mut with_command = image("a", "img");
        with_command.command = "sh -c true".to_owned();
        assert_eq!(
            check(vec![with_command.clone()], RuntimeKind::Process),
            Err(RejectionCode::Runtime)
        );
        assert_eq!(check(vec![with_command], RuntimeKind::Docker), Ok(()));
        assert_eq!(check(vec![image("a", "img")], RuntimeKind::Docker), Ok(()));
        assert_eq!(
            check(vec![command("a", "x")], RuntimeKind::Docker),
            Err(RejectionCode::Runtime)
        );
    }

    // spec: WORK-17, SEC-14
    #[test]
    fn host_paths_must_lie_below_what_the_worker_allows_symlinks_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let (allowed, other) = (dir.path().join("ok"), dir.path().join("other"));
        std::fs::create_dir_all(allowed.join("in")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&other, allowed.join("out")).unwrap();
        let mounts = |path: &Path| {
            let mut service = image("a", "img");
            service.parameters = ServiceParameters {
                volume_mounts: vec![VolumeMount {
                    volume_name: path.display().to_string(),
                    container_path: "/data".to_owned(),
                    read_only: true,
                }],
                ..ServiceParameters::default()
            };
            let spec = StartSpec {
                services: vec![service],
                ..StartSpec::default()
            };
            check_spec(
                &spec,
                &settings(RuntimeKind::Docker, std::slice::from_ref(&allowed)),
            )
            .is_ok()
        };
        assert!(mounts(&allowed.join("in")));
        assert!(!mounts(&other));
        assert!(!mounts(&allowed.join("out")));
        assert!(!mounts(&allowed.join("../other")));
    }

    #[test]
    fn image_references_have_their_form() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        for good in [
            "a",
            "a/b:1.0",
            "localhost:5001/x",
            "reg.example.com/x/y:t",
            &digest,
        ] {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["", "A", "a:", "a b", "a//b", "a@sha256:12", "-a", "a:b c"] {
            assert!(!is_reference(bad), "{bad}");
        }
    }
}
