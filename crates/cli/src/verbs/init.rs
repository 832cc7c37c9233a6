//! `greenroom init`: everything that a small installation needs to be safe, in one folder.
//!
//! ```text
//! ca.pem, ca-key.pem              the authority; its key is needed to renew certificates only
//! manager.yaml                    settings of the Manager, ready to run
//! manager.pem, manager-key.pem    its certificate
//! tokens                          what the Manager knows of tokens: hashes
//! secrets.key                     the key that seals secrets in the Manager's store
//! control.yaml, control-context.yaml, control.pem, control-key.pem
//! admin.yaml, admin.token         a context for --context, and the token it names; likewise
//!                                 operator, viewer, control-plane
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use greenroom_auth::{AccessToken, SecretsKey};
use greenroom_manifest::manager::{
    Asks, Auth, CertificateRole, Context, Listen, ManagerFile, RoleName, Tls,
};
use greenroom_tls::mint::{self, Minted, Purpose};
use serde::Serialize;

use super::manager::role;
use super::token::write_new;
use crate::failure::{Failure, Outcome};
use crate::output::{Output, say};

/// Certificates last two years; `--renew` makes new ones.
const LASTS: Duration = Duration::from_secs(2 * 365 * 86_400);
/// Secret files are for their owner alone, the others for everybody.
const SECRET: u32 = 0o600;
const PUBLIC: u32 = 0o644;
/// Roles that get a token, with its name.
const ROLES: [RoleName; 4] = [
    RoleName::Admin,
    RoleName::Operator,
    RoleName::Viewer,
    RoleName::ControlPlane,
];
/// Subject of the control plane's certificate.
const CONTROL: &str = "control";

/// Make certificates, tokens and settings of a small installation in one new folder.
#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The folder. It must not exist, or be empty.
    folder: PathBuf,
    /// A name or IP address under which others reach the Manager; may be repeated, the first is the
    /// one that contexts use. Without, this machine's name.
    #[arg(long = "name", value_name = "HOST")]
    names: Vec<String>,
    /// Where the Manager serves its API.
    #[arg(long, default_value = "0.0.0.0:6789")]
    listen: SocketAddr,
    /// Pool that the control plane's first settings name.
    #[arg(long, default_value = "studio")]
    pool: String,
    /// Make new certificates of Manager and control plane in a folder that `init` made. A running
    /// Manager takes its own at once; nothing else changes.
    #[arg(long, conflicts_with_all = ["listen", "pool"])]
    renew: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The folder while it is being filled.
struct Folder(PathBuf);

// === impl Init ===

impl Init {
    pub(crate) fn run(self) -> Outcome {
        let names = self.all_names();
        if self.renew {
            return self.renew(&names);
        }
        if self.listen.port() == 0 {
            return Err(Failure::bad_input(
                "--listen: name a port, which contexts then name",
            ));
        }
        ensure_empty(&self.folder)?;
        let folder = Folder(self.folder.clone());
        folder.make()?;
        let ca = mint::authority("Greenroom CA", SystemTime::now()).map_err(failed)?;
        folder.write("ca.pem", ca.certificate.as_bytes(), PUBLIC)?;
        folder.write("ca-key.pem", ca.key.as_bytes(), SECRET)?;
        for (file, minted) in certificates(&ca, &names)? {
            folder.write(
                &format!("{file}.pem"),
                minted.certificate.as_bytes(),
                PUBLIC,
            )?;
            folder.write(&format!("{file}-key.pem"), minted.key.as_bytes(), SECRET)?;
        }
        let key = SecretsKey::generate().to_text();
        folder.write("secrets.key", key.expose().as_bytes(), SECRET)?;

        let url = self.url(&names[0]);
        let mut lines = String::from("# ID ROLE ENDS HASH NAME; `greenroom token` adds a line\n");
        for name in ROLES {
            let role = role(name);
            let token = AccessToken::generate();
            lines.push_str(&token.line(role, None, role.as_str()));
            let text = format!("{}\n", token.expose());
            folder.write(&format!("{role}.token"), text.as_bytes(), SECRET)?;
            let context = Context {
                manager: vec![url.clone()],
                ca: Some("ca.pem".into()),
                token_file: Some(format!("{role}.token").into()),
                ..Context::default()
            };
            folder.write_yaml(&format!("{role}.yaml"), &context)?;
        }
        folder.write("tokens", lines.as_bytes(), SECRET)?;
        folder.write_yaml("manager.yaml", &self.manager(&url))?;
        let context = Context {
            manager: vec![url.clone()],
            ca: Some("ca.pem".into()),
            certificate: Some(format!("{CONTROL}.pem").into()),
            key: Some(format!("{CONTROL}-key.pem").into()),
            ..Context::default()
        };
        folder.write_yaml("control-context.yaml", &context)?;
        folder.write_yaml("control.yaml", &control(&self.pool))?;
        self.tell(&url, &names)
    }

    /// The names under which the Manager is reached; those of this machine itself come last.
    fn all_names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        let uname = rustix::system::uname();
        let here = uname.nodename().to_string_lossy().into_owned();
        for name in [&here, "localhost", "127.0.0.1", "::1"] {
            if !name.is_empty() && !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    fn url(&self, host: &str) -> String {
        let port = self.listen.port();
        match host.parse() {
            Ok(address) => format!("https://{}", SocketAddr::new(address, port)),
            Err(_) => format!("https://{host}:{port}"),
        }
    }

    fn manager(&self, url: &str) -> ManagerFile {
        ManagerFile {
            data_dir: Some("data".into()),
            listen: vec![Listen {
                address: self.listen,
                tls: Some(Tls {
                    cert: "manager.pem".into(),
                    key: "manager-key.pem".into(),
                    client_ca: Some("ca.pem".into()),
                }),
                auth: Some(Asks::Required),
                allow_insecure: false,
            }],
            advertise: vec![url.to_owned()],
            auth: Auth {
                tokens_file: Some("tokens".into()),
                signed: None,
                certificates: vec![CertificateRole {
                    subject: format!("CN={CONTROL}"),
                    role: RoleName::ControlPlane,
                }],
            },
            secrets_key_file: Some("secrets.key".into()),
            ..ManagerFile::default()
        }
    }

    fn tell(&self, url: &str, names: &[String]) -> Outcome {
        let folder = self.folder.display();
        let told = serde_json::json!({"folder": self.folder, "manager": url, "names": names});
        if !self.json {
            say(&format!(
                "The Manager's certificate is for {}.",
                names.join(", ")
            ));
            say("Next:");
        }
        Output { json: self.json }.either(&told, || {
            format!(
                "greenroom manager -c {folder}/manager.yaml\n\
                 greenroom control -c {folder}/control.yaml --context {folder}/control-context.yaml\n\
                 export GREENROOM_CONTEXT={folder}/admin.yaml\n\
                 greenroom node register {pool}-1 --pool {pool} --out {pool}-1.token\n\
                 # on the other machine, with ca.pem and {pool}-1.token from here:\n\
                 greenroom worker --manager-url {url} --ca ca.pem --token-file {pool}-1.token --listen 0.0.0.0:6791",
                pool = self.pool,
            )
        })
    }

    fn renew(&self, names: &[String]) -> Outcome {
        let read = |name: &str| {
            let path = self.folder.join(name);
            std::fs::read_to_string(&path).map_err(|error| {
                Failure::bad_input(format!("cannot read {}: {error}", path.display())).hint(
                    "--renew needs a folder that `greenroom init` made, with ca-key.pem in it",
                )
            })
        };
        let ca = Minted {
            certificate: read("ca.pem")?,
            key: read("ca-key.pem")?,
        };
        for (file, minted) in certificates(&ca, names)? {
            // The key first: a Manager that looks in between sees a pair that does not fit, and waits.
            let folder = Folder(self.folder.clone());
            folder.replace(&format!("{file}-key.pem"), minted.key.as_bytes(), SECRET)?;
            folder.replace(
                &format!("{file}.pem"),
                minted.certificate.as_bytes(),
                PUBLIC,
            )?;
        }
        let told = serde_json::json!({"folder": self.folder, "names": names});
        Output { json: self.json }.either(&told, || {
            format!("new certificates are in {}", self.folder.display())
        })
    }
}

/// Certificates of Manager and control plane, with the names of their files.
fn certificates(ca: &Minted, names: &[String]) -> Result<[(&'static str, Minted); 2], Failure> {
    let sign = |subject: &str, names: &[String], purpose| {
        mint::signed(ca, subject, names, purpose, SystemTime::now(), LASTS).map_err(failed)
    };
    Ok([
        ("manager", sign("manager", names, Purpose::Server)?),
        (CONTROL, sign(CONTROL, &[], Purpose::Client)?),
    ])
}

/// One pool of owned servers, emptiest node first.
fn control(pool: &str) -> serde_json::Value {
    serde_json::json!({
        "placementPools": [{
            "name": pool,
            "tiers": [{
                "name": "servers",
                "kind": "local-servers",
                "scaleOut": "fixed",
                "packingStrategy": "spread",
            }],
        }],
    })
}

fn failed(error: greenroom_tls::Error) -> Failure {
    Failure::bad_input(error.to_string())
}

/// Nothing that is there is written over.
fn ensure_empty(folder: &Path) -> Outcome {
    match std::fs::read_dir(folder).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::bad_input(format!(
            "{} holds files already, and nothing is written over",
            folder.display()
        ))
        .hint("name another folder; `--renew` makes new certificates in one that `init` made")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::bad_input(format!(
            "cannot look into {}: {error}",
            folder.display()
        ))),
    }
}

// === impl Folder ===

impl Folder {
    /// For its owner alone: it holds keys.
    fn make(&self) -> Outcome {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)
            .map_err(|error| {
                Failure::bad_input(format!("cannot make {}: {error}", self.0.display()))
            })
    }

    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Outcome {
        write_new(&self.0.join(name), bytes, mode)
    }

    fn write_yaml(&self, name: &str, value: &impl Serialize) -> Outcome {
        let text = serde_saphyr::to_string(value)
            .map_err(|error| Failure::failed(format!("cannot write {name}: {error}")))?;
        self.write(name, text.as_bytes(), PUBLIC)
    }

    /// Puts a file in the place of another, whole at any moment.
    fn replace(&self, name: &str, bytes: &[u8], mode: u32) -> Outcome {
        let (new, old) = (self.0.join(format!("{name}.new")), self.0.join(name));
        write_new(&new, bytes, mode)?;
        std::fs::rename(&new, &old)
            .map_err(|error| Failure::failed(format!("cannot replace {}: {error}", old.display())))
    }
}
