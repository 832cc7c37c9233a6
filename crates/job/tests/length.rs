//! Both clients can be read in one go.

use std::path::{Path, PathBuf};

/// Lines of a file that are neither blank nor comments.
fn lines(file: PathBuf, comment: &str) -> usize {
    let text = std::fs::read_to_string(file).expect("it can be read");
    let lines = text.lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with(comment))
        .count()
}

// spec: SOCK-20
#[test]
fn each_client_has_under_three_hundred_lines() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rust = ["lib.rs", "message.rs"].map(|name| lines(here.join("src").join(name), "//"));
    assert!(rust.iter().sum::<usize>() < 300, "{rust:?}");
    let python = lines(here.join("python/greenroom_job.py"), "#");
    assert!(python < 300, "{python}");
}
