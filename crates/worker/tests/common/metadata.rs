//! The stand-in for EC2's metadata service (`tests/doubles/imds_double.py`), as a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) struct Metadata {
    child: Child,
    pub(crate) url: String,
    address: String,
}

impl Metadata {
    pub(crate) fn start() -> Self {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/doubles/imds_double.py");
        let mut child = Command::new("python3")
            .arg(script)
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is there");
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        let address = format!("127.0.0.1:{}", port.trim());
        Self {
            child,
            url: format!("http://{address}"),
            address,
        }
    }

    /// Puts a document there.
    pub(crate) fn set(&self, path: &str, value: &serde_json::Value) {
        self.tell(&serde_json::json!({"path": path, "value": value.to_string()}));
    }

    /// Takes it away.
    pub(crate) fn unset(&self, path: &str) {
        self.tell(&serde_json::json!({"path": path, "value": null}));
    }

    pub(crate) fn tell(&self, wish: &serde_json::Value) {
        let body = wish.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "PUT /_set HTTP/1.1\r\nHost: double\r\nConnection: close";
        write!(
            stream,
            "{head}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
