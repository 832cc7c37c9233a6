//! A registry of images made for one test: it tells what is asked of it and can hold layers back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

pub(crate) struct Registry {
    port: u16,
    shared: Arc<Shared>,
    asked: mpsc::UnboundedReceiver<String>,
}

struct Shared {
    /// Content and its type, by path.
    content: Mutex<BTreeMap<String, (Vec<u8>, &'static str)>>,
    /// Layers are not given out while this is true.
    held_back: watch::Sender<bool>,
    asked: mpsc::UnboundedSender<String>,
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, asked) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            content: Mutex::default(),
            held_back: watch::Sender::new(false),
            asked: sender,
        });
        let own = shared.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(answer(socket, own.clone()));
            }
        });
        Self {
            port,
            shared,
            asked,
        }
    }

    /// Makes an image that nobody has: busybox and a file of its own. Gives its reference.
    pub(crate) fn image(&self, name: &str) -> String {
        self.image_of(name, 0)
    }

    /// One with so many bytes more in its layer.
    pub(crate) fn image_of(&self, name: &str, bytes: u64) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("bin")).unwrap();
        std::fs::copy("/bin/busybox", path("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", path("bin/sh")).unwrap();
        std::os::unix::fs::symlink("busybox", path("bin/sleep")).unwrap();
        std::fs::write(path("own"), greenroom_auth::random::<32>()).unwrap();
        let more = std::fs::File::create(path("more")).unwrap();
        more.set_len(bytes).unwrap();
        let layer = tar(dir.path());
        // A big one takes its time.
        let own = digest(&layer);
        let config = format!(
            r#"{{"architecture":"amd64","os":"linux","config":{{}},"rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
            own
        )
        .into_bytes();
        let of_config = digest(&config);
        let part = |kind: &str, bytes: &[u8], digest: &str| {
            format!(
                r#"{{"mediaType":"application/vnd.docker.{kind}","size":{},"digest":"{digest}"}}"#,
                bytes.len(),
            )
        };
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{},"layers":[{}]}}"#,
            part("container.image.v1+json", &config, &of_config),
            part("image.rootfs.diff.tar.gzip", &layer, &own)
        )
        .into_bytes();
        let mut content = self.shared.content.lock().unwrap();
        for (bytes, digest) in [(layer, own), (config, of_config)] {
            let path = format!("/v2/{name}/blobs/{digest}");
            content.insert(path, (bytes, "application/octet-stream"));
        }
        for tag in ["1".to_owned(), digest(&manifest)] {
            let path = format!("/v2/{name}/manifests/{tag}");
            content.insert(path, (manifest.clone(), MANIFEST));
        }
        self.reference(name)
    }

    /// The reference that an image of this name has.
    pub(crate) fn reference(&self, name: &str) -> String {
        format!("127.0.0.1:{}/{name}:1", self.port)
    }

    pub(crate) fn hold_back(&self, held_back: bool) {
        self.shared.held_back.send_replace(held_back);
    }

    /// Waits until the layer of an image is asked for.
    pub(crate) async fn layer_asked(&mut self) -> String {
        loop {
            let asked = super::within(self.asked.recv()).await.unwrap();
            if let Some(name) = asked.strip_prefix("layer ") {
                return name.to_owned();
            }
        }
    }

    /// What was asked for and not looked at yet.
    pub(crate) fn asked(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }
}

fn tar(dir: &Path) -> Vec<u8> {
    let made = Command::new("tar")
        .arg("--create")
        .arg("--directory")
        .arg(dir)
        .arg(".")
        .output()
        .unwrap();
    assert!(made.status.success());
    made.stdout
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", greenroom_auth::hex(&Sha256::digest(bytes)))
}

async fn answer(mut socket: TcpStream, shared: Arc<Shared>) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4_096]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match socket.read(&mut buffer).await {
            Ok(n @ 1..) => request.extend_from_slice(&buffer[..n]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let mut words = request.split_ascii_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let found = shared.content.lock().unwrap().get(path).cloned();
    let name = path.split('/').nth(2).unwrap_or("");
    let big = found
        .as_ref()
        .is_some_and(|(bytes, _)| bytes.len() > 100_000);
    let kind = if big { "layer" } else { "other" };
    let kind = if path.contains("/manifests/") {
        "manifest"
    } else {
        kind
    };
    let _ = shared.asked.send(format!("{kind} {name}"));
    if big {
        let mut held_back = shared.held_back.subscribe();
        let _ = held_back.wait_for(|held_back| !held_back).await;
    }
    let missing = br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}"#;
    let (status, bytes, kind) = match found {
        Some((bytes, kind)) => ("200 OK", bytes, kind),
        None if path == "/v2/" => ("200 OK", b"{}".to_vec(), "application/json"),
        None => ("404 Not Found", missing.to_vec(), "application/json"),
    };
    let digest = match path.contains("/manifests/") {
        true => format!("Docker-Content-Digest: {}\r\n", digest(&bytes)),
        false => String::new(),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{digest}Connection: close\r\n\r\n",
        bytes.len(),
    );
    let _ = socket.write_all(head.as_bytes()).await;
    if method != "HEAD" {
        let _ = socket.write_all(&bytes).await;
    }
    let _ = socket.shutdown().await;
}
