//! Compiles `proto/` at the root of the workspace: Rust code for each package, and the descriptor set.
//!
//! protox is a compiler of its own, so building needs no `protoc`. Maps become `BTreeMap`: equal messages
//! encode to equal bytes, which hashes and recorded answers rely on.

use std::{env, fs, path::PathBuf};

const ROOT: &str = "../../proto";
const FILES: [&str; 5] = [
    "health.proto",
    "logs.proto",
    "manager.proto",
    "shared/error.proto",
    "worker.proto",
];

#[allow(
    clippy::print_stdout,
    reason = "this is how a build script speaks to cargo"
)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={ROOT}");

    let mut compiler = protox::Compiler::new([ROOT])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();

    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(
        out_dir.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;

    tonic_prost_build::configure()
        .build_client(env::var_os("CARGO_FEATURE_CLIENT").is_some())
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        // A call that a server does not serve answers UNIMPLEMENTED (HELLO-04).
        .generate_default_stubs(true)
        .emit_rerun_if_changed(false)
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
