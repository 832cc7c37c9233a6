//! Small files of this member's own, for its owner alone.

use std::io;
use std::path::Path;

/// Writes a file for its owner alone; what was there before stays whole until it is replaced.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    greenroom_tls::replace_file(path, bytes, 0o600)?;
    // The new name must outlive a loss of power as well.
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
