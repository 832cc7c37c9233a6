//! Putting a backup back by hand.

use std::path::Path;
use std::sync::Arc;

use greenroom_store::offline::{PutBack, put_back};
use greenroom_store::{OpenError, StoreConfig};

use crate::clock::SystemClock;
use crate::machine::Recorded;

/// Puts a backup in the place of what a data folder holds, in a new generation (STORE-10). What was
/// there is kept beside it. No Manager may run on the folder.
///
/// # Errors
/// The folder is in use, or the backup is damaged, of another store, or of a newer version. Nothing
/// was changed then.
pub fn restore(data_dir: &Path, backup: &Path) -> Result<PutBack, OpenError> {
    let config = StoreConfig::new(data_dir, Arc::new(SystemClock::new()));
    put_back::<Recorded>(&config, backup)
}
