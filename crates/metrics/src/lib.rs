//! Numbers as a Prometheus scraper reads them: a page of text, one family after the other. Who has
//! numbers to show writes a [`Page`]; [`samples`] reads one back, strictly, for those who check it.

mod histogram;
mod page;
mod read;

pub use histogram::Histogram;
pub use page::{CONTENT_TYPE, Kind, Page};
pub use read::samples;
