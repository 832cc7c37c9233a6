//! Every environment variable that the binary reads. Flags go before them, files after.

/// The Manager's addresses, separated by commas.
pub(crate) const MANAGER: &str = "GREENROOM_MANAGER";
/// The control plane's address.
pub(crate) const CONTROL: &str = "GREENROOM_CONTROL";
/// A context file: where the Manager is, how it is recognised, who calls.
pub(crate) const CONTEXT: &str = "GREENROOM_CONTEXT";
/// File of the authorities that sign the Manager's certificates.
pub(crate) const CA: &str = "GREENROOM_CA";
/// Pins of the Manager's keys, separated by commas.
pub(crate) const PIN: &str = "GREENROOM_PIN";
/// File of the caller's token. There is none for the token itself: the environment of a process is
/// read by more than it.
pub(crate) const TOKEN_FILE: &str = "GREENROOM_TOKEN_FILE";
/// The Manager's overrides file. The first one that is set counts.
pub(crate) const OVERRIDES: [&str; 2] = [
    "GREENROOM_MANAGER_OVERRIDES_FILE",
    "NORSK_MANAGER_OVERRIDES_FILE",
];
/// Log filter.
pub(crate) const LOG: &str = "GREENROOM_LOG";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_names_every_variable() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../docs/operate/reference.md"
        );
        let manual = std::fs::read_to_string(path).unwrap();
        let all = [MANAGER, CONTROL, CONTEXT, CA, PIN, TOKEN_FILE, LOG];
        for name in all.into_iter().chain(OVERRIDES) {
            assert!(manual.contains(&format!("`{name}`")), "{name}");
        }
    }
}
