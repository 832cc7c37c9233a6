//! The places where the Manager listens: what each of them must ask for (SEC-01), its TLS, and the
//! files behind it, which are looked at again and again (SEC-04).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use greenroom_tls::{Door, Identity, ServerTls, authorities, fingerprint};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::guard::Keyring;
use crate::server::StartError;
use crate::settings::{ListenSettings, Settings, TlsFiles};

/// Time between two looks at files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An installation that is open on purpose says so this often (SEC-01).
const WARN_EVERY: Duration = Duration::from_secs(3_600);

/// Doors that are open.
pub(crate) struct Doors {
    pub(crate) doors: Vec<Door>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// For each of them whether it asks for credentials.
    pub(crate) asks: Vec<bool>,
    /// Where members and workers reach the first of them.
    pub(crate) urls: Vec<String>,
    pub(crate) watched: Watched,
}

/// What is looked at while the Manager serves.
pub(crate) struct Watched {
    certificates: Vec<Certificate>,
    /// Doors that are open to others without TLS or credentials.
    insecure: Vec<SocketAddr>,
}

struct Certificate {
    files: TlsFiles,
    print: Vec<u8>,
    tls: watch::Sender<ServerTls>,
    /// The last failure that was told.
    told: String,
}

// === impl Doors ===

impl Doors {
    /// Whether every place may be listened at, as far as settings tell.
    pub(crate) fn permit(settings: &Settings) -> Result<(), StartError> {
        settings.listen.iter().try_for_each(check)
    }

    /// Whether every certificate can be used.
    pub(crate) fn check(settings: &Settings) -> Result<(), StartError> {
        for listen in &settings.listen {
            listen.tls.as_ref().map(load).transpose()?;
        }
        Ok(())
    }

    /// Takes every address. Nothing else is touched, so that a second Manager on one of them touches
    /// no store (API-01).
    pub(crate) async fn open(settings: &Settings) -> Result<Self, StartError> {
        Self::permit(settings)?;
        let mut doors = Self {
            doors: Vec::new(),
            addresses: Vec::new(),
            asks: Vec::new(),
            urls: settings.advertise.clone(),
            watched: Watched {
                certificates: Vec::new(),
                insecure: Vec::new(),
            },
        };
        for listen in &settings.listen {
            doors.add(listen, settings.connections_max).await?;
        }
        if doors.urls.is_empty() {
            doors.urls = settings
                .listen
                .iter()
                .zip(&doors.addresses)
                .filter(|(_, address)| !address.ip().is_unspecified())
                .map(|(listen, address)| match listen.tls {
                    Some(_) => format!("https://{address}"),
                    None => format!("http://{address}"),
                })
                .collect();
        }
        Ok(doors)
    }

    async fn add(
        &mut self,
        listen: &ListenSettings,
        connections_max: usize,
    ) -> Result<(), StartError> {
        let fault = |source| StartError::Listen {
            address: listen.address,
            source,
        };
        let tls = match &listen.tls {
            Some(files) => {
                let (tls, print) = load(files)?;
                let (sender, receiver) = watch::channel(tls);
                self.watched.certificates.push(Certificate {
                    files: files.clone(),
                    print,
                    tls: sender,
                    told: String::new(),
                });
                Some(receiver)
            }
            None => None,
        };
        let listener = TcpListener::bind(listen.address).await.map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        if !address.ip().is_loopback() && (tls.is_none() || !listen.asks) {
            self.watched.insecure.push(address);
        }
        self.addresses.push(address);
        self.asks.push(listen.asks);
        self.doors.push(Door {
            listener,
            tls,
            connections_max,
        });
        Ok(())
    }
}

/// Beyond this machine nothing is served in the clear or to just anybody, unless it is wanted
/// expressly (SEC-01).
fn check(listen: &ListenSettings) -> Result<(), StartError> {
    if listen.address.ip().is_loopback() || listen.allow_insecure {
        return Ok(());
    }
    let lacks = match (&listen.tls, listen.asks) {
        (None, _) => "TLS",
        (Some(_), false) => "credentials",
        (Some(_), true) => return Ok(()),
    };
    Err(StartError::Insecure {
        address: listen.address,
        lacks,
    })
}

fn load(files: &TlsFiles) -> Result<(ServerTls, Vec<u8>), greenroom_tls::Error> {
    let identity = Identity::load(&files.certificate, &files.key)?;
    let clients = match &files.client_ca {
        Some(path) => authorities(path)?,
        None => Vec::new(),
    };
    Ok((ServerTls::new(&identity, &clients)?, print(files)))
}

/// Of the files; one that cannot be read counts as empty.
fn print(files: &TlsFiles) -> Vec<u8> {
    let paths = [
        Some(&files.certificate),
        Some(&files.key),
        files.client_ca.as_ref(),
    ];
    let texts = paths.into_iter().flatten();
    texts
        .flat_map(|path| fingerprint(&greenroom_tls::read_file(path).unwrap_or_default()))
        .collect()
}

// === impl Watched ===

impl Watched {
    /// Looks at the files until it is dropped.
    pub(crate) async fn watch(mut self, keyring: Arc<Keyring>) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut warn = tokio::time::interval(WARN_EVERY);
        let mut told = String::new();
        loop {
            tokio::select! {
                _ = warn.tick() => {
                    for address in &self.insecure {
                        tracing::warn!(%address, "the API is open to others without TLS or without credentials, as allowInsecure says");
                    }
                }
                _ = look.tick() => {
                    let keyring = Arc::clone(&keyring);
                    let looked = tokio::task::spawn_blocking(move || {
                        for certificate in &mut self.certificates {
                            certificate.look();
                        }
                        (self, keyring.reload())
                    });
                    // A look that failed was a bug; what is in force stays.
                    let Ok((back, reloaded)) = looked.await else { return };
                    self = back;
                    match reloaded {
                        Ok(Some(tokens)) => tracing::info!(tokens, "credentials were read again"),
                        Ok(None) => told.clear(),
                        Err(problem) if problem != told => {
                            tracing::error!(problem, "credentials cannot be read again; those before stay in force");
                            told = problem;
                        }
                        Err(_) => {}
                    }
                }
            }
        }
    }
}

impl Certificate {
    fn look(&mut self) {
        if print(&self.files) == self.print {
            return;
        }
        match load(&self.files) {
            Ok((tls, print)) => {
                self.tls.send_replace(tls);
                self.print = print;
                self.told.clear();
                tracing::info!(file = %self.files.certificate.display(), "a certificate was read again");
            }
            Err(error) => {
                // Certificate and key are two files: between their changes they do not fit.
                let problem = error.to_string();
                if problem != self.told {
                    tracing::error!(
                        problem,
                        "a certificate cannot be read again; the one before stays in force"
                    );
                    self.told = problem;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(listen: &ListenSettings) -> Option<&'static str> {
        match check(listen) {
            Ok(()) => None,
            Err(StartError::Insecure { lacks, .. }) => Some(lacks),
            Err(other) => panic!("{other}"),
        }
    }

    // spec: SEC-01
    #[test]
    fn beyond_loopback_tls_and_credentials_are_needed_unless_it_is_allowed_expressly() {
        let tls = TlsFiles {
            certificate: "c".into(),
            key: "k".into(),
            client_ca: None,
        };
        for address in ["127.0.0.1:1", "[::1]:1"] {
            let listen = ListenSettings::at(address.parse().unwrap());
            assert!(!listen.asks, "{address}");
            assert_eq!(lacks(&listen), None, "{address}");
        }
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
            let mut listen = ListenSettings::at(address.parse().unwrap());
            assert!(listen.asks, "{address}");
            assert_eq!(lacks(&listen), Some("TLS"), "{address}");
            listen.tls = Some(tls.clone());
            assert_eq!(lacks(&listen), None, "{address}");
            listen.asks = false;
            assert_eq!(lacks(&listen), Some("credentials"), "{address}");
            listen.allow_insecure = true;
            assert_eq!(lacks(&listen), None, "{address}");
        }
    }
}
