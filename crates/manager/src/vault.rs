//! Seals what is secret before it reaches the ledger, and opens it where it is needed (SEC-11,
//! SEC-16): slot tokens and node keys, and the environment variables that a job calls secret. Log,
//! state, snapshots and backups hold sealed texts only.
//!
//! Next to the store lies a mark of the key, so that a wrong key is noticed before anything is
//! written.

use std::path::{Path, PathBuf};

use greenroom_auth::{NodeKey, SEALED, Secret, SecretsKey};
use greenroom_ledger::{Ledger, Slot, WorkerJob, WorkerOrder};
use greenroom_tls::Pin;
use greenroom_types::JobId;
use greenroom_types::bundle::Bundle;
use greenroom_types::call::{Call, Refusal, Status};
use greenroom_types::discovery::{DiscoveryFleet, Hidden, RotationPhase};
use greenroom_types::job::{HIDDEN, Job, Service, ServiceParameters};

use crate::files;
use crate::settings::Settings;

const KEY_FILE: &str = "secrets.key";
const MARK_FILE: &str = "secrets.mark";

const TOKEN: &str = "slot token";
const NODE_KEY: &str = "node key";
const ENV: &str = "environment";
/// Leaf token and tier secrets alike, so that it is seen when two of them are equal.
const DISCOVERY: &str = "discovery";

/// Longest secret of the discovery fleet, in bytes.
const DISCOVERY_MAX: usize = 512;

/// Holds the key.
#[derive(Debug)]
pub(crate) struct Vault(SecretsKey);

/// The key and where it goes, before the store is open.
#[derive(Debug)]
pub(crate) struct Prepared {
    key: SecretsKey,
    /// The key is new, and is written here.
    new_key: Option<PathBuf>,
    mark: PathBuf,
    is_marked: bool,
}

// === impl Prepared ===

impl Prepared {
    /// Reads the key and compares it with the store's mark. Writes nothing.
    ///
    /// # Errors
    /// A text that says why the key cannot be used.
    pub(crate) fn read(settings: &Settings) -> Result<Self, String> {
        let inside = settings.data_dir.join(KEY_FILE);
        let path = settings.secrets_key_file.as_ref().unwrap_or(&inside);
        let mark = settings.data_dir.join(MARK_FILE);
        let marked = read(&mark)?;
        let (key, new_key) = match read(path)? {
            Some(text) => {
                let key = SecretsKey::from_text(&text);
                let problem = || format!("{} must hold 64 hexadecimal digits", path.display());
                (key.ok_or_else(problem)?, None)
            }
            None if marked.is_some() => {
                return Err(format!(
                    "{} is gone, and the store has secrets that it sealed: put it back",
                    path.display()
                ));
            }
            None if settings.secrets_key_file.is_some() => {
                return Err(format!("{} is not there", path.display()));
            }
            None => (SecretsKey::generate(), Some(path.clone())),
        };
        if marked
            .as_ref()
            .is_some_and(|text| text.trim() != key.mark())
        {
            return Err(format!(
                "{} is another key than the one that sealed the secrets of this store",
                path.display()
            ));
        }
        Ok(Self {
            key,
            new_key,
            mark,
            is_marked: marked.is_some(),
        })
    }

    /// Puts the key in force, once the store is there.
    ///
    /// # Errors
    /// The store was sealed by another key, or key or mark cannot be written.
    pub(crate) fn begin(self, ledger: &Ledger) -> Result<Vault, String> {
        let vault = Vault(self.key);
        if self.is_marked {
            return Ok(vault);
        }
        // A copy of a store may have come without its mark.
        let token = ledger.slots().next().map(|slot| slot.token);
        let fleet = ledger.discovery_fleet();
        if token.is_some_and(|token| vault.0.open(TOKEN, &token).is_none())
            || fleet.is_some_and(|fleet| vault.open_fleet(fleet).is_none())
        {
            return Err("it does not open the secrets of this store".to_owned());
        }
        if let Some(path) = self.new_key {
            write(&path, vault.0.to_text().expose())?;
        }
        write(&self.mark, &vault.0.mark())?;
        Ok(vault)
    }
}

fn read(path: &Path) -> Result<Option<String>, String> {
    match greenroom_tls::read_text_file(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("cannot read {}: {error}", path.display())),
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    files::replace(path, text.as_bytes())
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

// === impl Vault ===

impl Vault {
    pub(crate) fn seal_token(&self, token: &str) -> String {
        self.0.seal(TOKEN, token)
    }

    /// The token of a slot's record.
    pub(crate) fn open_token(&self, sealed: &str) -> Option<Secret> {
        self.0.open(TOKEN, sealed)
    }

    pub(crate) fn seal_key(&self, key: &NodeKey) -> String {
        self.0.seal(NODE_KEY, &key.to_hex())
    }

    /// The key of a slot's record.
    pub(crate) fn open_key(&self, sealed: &str) -> Option<NodeKey> {
        NodeKey::from_hex(self.0.open(NODE_KEY, sealed)?.expose())
    }

    /// What is needed to speak with a slot's worker: the key of the proofs, and the pin of its
    /// certificate (SEC-05).
    pub(crate) fn worker_keys(&self, slot: &Slot) -> Option<(NodeKey, Option<Pin>)> {
        let key = self.open_key(&slot.key)?;
        if slot.public_key.is_empty() {
            return Some((key, None));
        }
        let public_key = greenroom_auth::unhex(&slot.public_key)?;
        Some((key, Some(Pin::of(&public_key))))
    }

    /// A call with the secret variables of its jobs sealed. A value that stands as `***` keeps what
    /// the ledger has.
    pub(crate) fn seal_call(&self, call: Call, ledger: &Ledger) -> Result<Call, Refusal> {
        Ok(match call {
            // What is there already is for the ledger to refuse, whatever the secrets are.
            Call::CreateJob(mut job) => {
                let old = job_of(ledger, &job.job_id);
                self.seal_job(&mut job, old)?;
                Call::CreateJob(job)
            }
            Call::UpdateJob(mut job, hash) => {
                let old = job_of(ledger, &job.job_id);
                self.seal_job(&mut job, old)?;
                Call::UpdateJob(job, hash)
            }
            Call::CreateBundle(mut bundle) => {
                let old = ledger.bundle(&bundle.bundle_id).map(|status| status.bundle);
                self.seal_bundle(&mut bundle, old.as_ref())?;
                Call::CreateBundle(bundle)
            }
            Call::UpdateBundle {
                mut bundle,
                dry_run,
                clear_stop_time,
            } => {
                let old = ledger.bundle(&bundle.bundle_id).map(|status| status.bundle);
                self.seal_bundle(&mut bundle, old.as_ref())?;
                Call::UpdateBundle {
                    bundle,
                    dry_run,
                    clear_stop_time,
                }
            }
            Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet,
                by,
            } => Call::PublishDiscoveryFleet {
                replace_leaf_token,
                fleet: DiscoveryFleet {
                    leaf_token: self.seal_discovery("fleet.leaf_token", &fleet.leaf_token)?,
                    tier_secret: self.seal_discovery("fleet.tier_secret", &fleet.tier_secret)?,
                    // How a rotation stands is not the publisher's to say (DISC-09).
                    tier_secret_alt: String::new(),
                    rotation_phase: RotationPhase::None,
                    ..fleet
                },
                by,
            },
            Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret: Hidden(secret),
                by,
            } => Call::RotateDiscoveryTierSecret {
                step,
                new_tier_secret: Hidden(self.seal_discovery("new_tier_secret", &secret)?),
                by,
            },
            other => other,
        })
    }

    /// A secret of the discovery fleet; an empty one, which is none, stays empty.
    fn seal_discovery(&self, path: &str, secret: &str) -> Result<String, Refusal> {
        match secret.len() {
            0 => Ok(String::new()),
            1..=DISCOVERY_MAX => Ok(self.0.seal(DISCOVERY, secret)),
            _ => Err(bad_value(
                path,
                &format!("has at most {DISCOVERY_MAX} bytes"),
            )),
        }
    }

    /// A new tier secret of 256 random bits, sealed.
    pub(crate) fn new_tier_secret(&self) -> String {
        let secret = greenroom_auth::hex(&greenroom_auth::random::<32>());
        self.0.seal(DISCOVERY, &secret)
    }

    /// A secret of the discovery fleet.
    pub(crate) fn open_discovery(&self, sealed: &str) -> Option<Secret> {
        match sealed {
            "" => Some(Secret::new("")),
            _ => self.0.open(DISCOVERY, sealed),
        }
    }

    /// The fleet with its secrets in the clear, for those who may have them (DISC-04).
    pub(crate) fn open_fleet(&self, fleet: DiscoveryFleet) -> Option<DiscoveryFleet> {
        let open = |sealed: &str| Some(self.open_discovery(sealed)?.expose().to_owned());
        Some(DiscoveryFleet {
            leaf_token: open(&fleet.leaf_token)?,
            tier_secret: open(&fleet.tier_secret)?,
            tier_secret_alt: open(&fleet.tier_secret_alt)?,
            ..fleet
        })
    }

    fn seal_job(&self, job: &mut Job, old: Option<&Job>) -> Result<(), Refusal> {
        let Job {
            services,
            media_parameters,
            secret_env,
            ..
        } = job;
        let old = old.map(|old| environment(&old.services, old.media_parameters.as_ref()));
        self.seal_all(services, media_parameters.as_mut(), secret_env, old, "")
    }

    fn seal_bundle(&self, bundle: &mut Bundle, old: Option<&Bundle>) -> Result<(), Refusal> {
        for (number, job) in bundle.jobs.iter_mut().enumerate() {
            let before = old.and_then(|old| {
                let mut jobs = old.jobs.iter();
                jobs.find(|before| before.job_name == job.job_name)
            });
            let before = before.map(|before| {
                let launch = &before.launch;
                environment(&launch.services, launch.media_parameters.as_ref())
            });
            let launch = &mut job.launch;
            self.seal_all(
                &mut launch.services,
                launch.media_parameters.as_mut(),
                &job.secret_env,
                before,
                &format!("jobs[{number}]."),
            )?;
        }
        Ok(())
    }

    fn seal_all(
        &self,
        services: &mut [Service],
        media: Option<&mut ServiceParameters>,
        secret: &[String],
        old: Option<Environment<'_>>,
        path: &str,
    ) -> Result<(), Refusal> {
        let named = services
            .iter_mut()
            .map(|service| (service.name.as_str(), &mut service.parameters))
            .chain(media.map(|parameters| (MEDIA, parameters)));
        for (service, parameters) in named {
            for (name, value) in &mut parameters.environment {
                let at = || format!("{path}{service}.environment.{name}");
                if !secret.contains(name) {
                    if value.starts_with(SEALED) {
                        let why = format!("a value may not begin with {SEALED}");
                        return Err(bad_value(&at(), &why));
                    }
                    continue;
                }
                if *value == HIDDEN {
                    let known = old.as_ref().and_then(|old| {
                        let mut all = old.iter();
                        all.find(|(of, known, _)| (*of, *known) == (service, name.as_str()))
                    });
                    let Some((.., kept)) = known.filter(|(.., kept)| kept.starts_with(SEALED))
                    else {
                        let why = "*** stands for the secret that is kept, and none is";
                        return Err(bad_value(&at(), why));
                    };
                    *value = (*kept).to_owned();
                    continue;
                }
                if value.contains("{{") {
                    let why = "a secret is taken as it is and has no {{parameters}}";
                    return Err(bad_value(&at(), why));
                }
                *value = self.0.seal(ENV, value);
            }
        }
        Ok(())
    }

    /// An order as its worker needs it: with the secrets of its job.
    pub(crate) fn open_order(&self, order: WorkerOrder) -> WorkerOrder {
        match order {
            WorkerOrder::Provision(job) => WorkerOrder::Provision(self.open_job(job)),
            WorkerOrder::UpdateJob(job) => WorkerOrder::UpdateJob(self.open_job(job)),
            other => other,
        }
    }

    fn open_job(&self, mut order: Box<WorkerJob>) -> Box<WorkerJob> {
        if order.job.secret_env.is_empty() {
            return order;
        }
        let job = std::sync::Arc::make_mut(&mut order.job);
        let services = job
            .services
            .iter_mut()
            .map(|service| &mut service.parameters);
        for parameters in services.chain(job.media_parameters.as_mut()) {
            for (name, value) in &mut parameters.environment {
                if !value.starts_with(SEALED) {
                    continue;
                }
                match self.0.open(ENV, value) {
                    Some(secret) => secret.expose().clone_into(value),
                    None => tracing::error!(
                        job_id = %job.job_id, name,
                        "a secret variable cannot be opened; the job gets it empty"
                    ),
                }
            }
        }
        order
    }
}

fn job_of<'a>(ledger: &'a Ledger, job_id: &JobId) -> Option<&'a Job> {
    ledger.job(job_id).map(|record| &record.view.job)
}

/// The media runtime, where services are named.
const MEDIA: &str = "";

/// Service, variable and value.
type Environment<'a> = Vec<(&'a str, &'a str, &'a str)>;

fn environment<'a>(
    services: &'a [Service],
    media: Option<&'a ServiceParameters>,
) -> Environment<'a> {
    let named = services
        .iter()
        .map(|service| (service.name.as_str(), &service.parameters))
        .chain(media.map(|parameters| (MEDIA, parameters)));
    named
        .flat_map(|(service, parameters)| {
            let variables = parameters.environment.iter();
            variables.map(move |(name, value)| (service, name.as_str(), value.as_str()))
        })
        .collect()
}

fn bad_value(path: &str, why: &str) -> Refusal {
    Refusal::new(
        Status::InvalidArgument,
        "bad_value",
        format!("{path}: {why}"),
    )
    .with("path", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(secret: &[&str], variables: &[(&str, &str)]) -> Job {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut service = Service {
            name: "main".to_owned(),
            ..Service::default()
        };
        service.parameters.environment = variables.iter().map(owned).collect();
        Job {
            services: vec![service],
            secret_env: secret.iter().map(|name| (*name).to_owned()).collect(),
            ..Job::default()
        }
    }

    fn value(job: &Job, at: usize) -> &str {
        &job.services[0].parameters.environment[at].1
    }

    // spec: SEC-16
    #[test]
    fn secret_variables_are_sealed_are_kept_by_stars_and_open_for_their_worker() {
        let vault = Vault(SecretsKey::generate());
        let mut first = job(&["PASSWORD"], &[("PASSWORD", "hunter2"), ("PORT", "1")]);
        vault.seal_job(&mut first, None).unwrap();
        assert!(value(&first, 0).starts_with(SEALED));
        assert_eq!(value(&first, 1), "1");

        let mut kept = job(&["PASSWORD"], &[("PORT", "2"), ("PASSWORD", "***")]);
        vault.seal_job(&mut kept, Some(&first)).unwrap();
        assert_eq!(value(&kept, 1), value(&first, 0));
        let mut same = job(&["PASSWORD"], &[("PASSWORD", "hunter2"), ("PORT", "1")]);
        vault.seal_job(&mut same, None).unwrap();
        assert_eq!(same, first, "what did not change has the same hash");

        for (secret, text) in [
            ("PASSWORD", "***"),
            ("PASSWORD", "{{X}}"),
            ("", "sealed:v1:AA"),
        ] {
            let mut bad = job(&[secret], &[("PASSWORD", text)]);
            let refusal = vault.seal_job(&mut bad, None).unwrap_err();
            assert_eq!(refusal.reason, "bad_value");
            assert!(refusal.message.contains("main.environment.PASSWORD"));
        }
    }
}
