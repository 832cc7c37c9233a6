//! One module per verb or group of verbs.

pub(crate) mod media;
