//! Lists in which an entry says nothing when it stands there again.

use std::collections::BTreeSet;
use std::fmt::Display;

use super::Found;

/// Takes down every entry that stands in the list before.
pub(super) fn twice<T: Display>(list: &[T], path: &str, found: &mut Found<'_>) {
    let mut seen = BTreeSet::new();
    for (at, entry) in list.iter().enumerate() {
        let entry = entry.to_string();
        if !seen.insert(entry.clone()) {
            found.add(format!("{path}[{at}]"), format!("{entry} stands twice"));
        }
    }
}
