//! Long lists in pages. All pages of one listing are cuts of one state (API-23): the whole list is
//! held for a while, up to a bound, and a token says where in it the next page begins. The same token
//! gives the same page, so that a page whose answer was lost can be asked for again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::call::{Refusal, Status};

/// Elements of a page where the request names no size (API-12).
const SIZE_DEFAULT: usize = 500;
/// Most elements of a page.
const SIZE_MAX: usize = 5_000;
/// Most bytes of a page whose elements are weighed, so that an answer stays below what a client of the
/// transport's defaults takes. One element is always given.
pub(super) const BYTES_MAX: usize = 2 * 1024 * 1024;
/// Listings held at once; the oldest gives way.
const HELD_MAX: usize = 32;
/// How long a listing is held after it was last asked for.
const HELD_FOR: Duration = Duration::from_secs(60);

/// The unfinished listings of one call.
#[derive(Debug)]
pub(super) struct Pages<T> {
    /// What is listed; begins every token, so that one of another call is known as such.
    name: &'static str,
    /// Bytes of an element; 0 where only the number counts.
    weigh: fn(&T) -> usize,
    held: Mutex<VecDeque<Listing<T>>>,
}

#[derive(Debug)]
struct Listing<T> {
    id: String,
    asked_at: Instant,
    items: Arc<[T]>,
}

impl<T: Clone> Pages<T> {
    pub(super) const fn new(name: &'static str) -> Self {
        Self::weighing(name, |_| 0)
    }

    /// Pages that are bounded by the bytes of their elements as well.
    pub(super) const fn weighing(name: &'static str, weigh: fn(&T) -> usize) -> Self {
        Self {
            name,
            weigh,
            held: Mutex::new(VecDeque::new()),
        }
    }

    /// The first page of `all`, or the page that a token stands for, and the token of the next one,
    /// empty at the end.
    pub(super) fn page(
        &self,
        size: u32,
        token: &str,
        all: impl FnOnce() -> Vec<T>,
    ) -> Result<(Vec<T>, String), Refusal> {
        let size = match size as usize {
            0 => SIZE_DEFAULT,
            size => size.min(SIZE_MAX),
        };
        let (id, items, from) = if token.is_empty() {
            let all = all();
            if self.fitting(&all, size) == all.len() {
                return Ok((all, String::new()));
            }
            let id = greenroom_auth::hex(&greenroom_auth::random::<16>());
            (id.clone(), self.hold(id, all), 0)
        } else {
            self.find(token)?
        };
        let upto = from + self.fitting(&items[from..], size);
        let next = match upto < items.len() {
            true => format!("{}.{id}.{upto}", self.name),
            false => String::new(),
        };
        Ok((items[from..upto].to_vec(), next))
    }

    /// How many of these make one page.
    fn fitting(&self, items: &[T], size: usize) -> usize {
        let mut bytes = 0;
        let fits = items.iter().take(size).take_while(|item| {
            bytes += (self.weigh)(item);
            bytes <= BYTES_MAX
        });
        fits.count().max(items.len().min(1))
    }

    fn hold(&self, id: String, items: Vec<T>) -> Arc<[T]> {
        let items: Arc<[T]> = items.into();
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() == HELD_MAX {
            held.pop_front();
        }
        held.push_back(Listing {
            id,
            asked_at: Instant::now(),
            items: Arc::clone(&items),
        });
        items
    }

    fn find(&self, token: &str) -> Result<(String, Arc<[T]>, usize), Refusal> {
        let bad = || {
            Refusal::new(
                Status::InvalidArgument,
                "bad_page_token",
                "the page token is none that this call gave: begin without one",
            )
        };
        let parts: Vec<&str> = token.split('.').collect();
        let [name, id, from] = parts[..] else {
            return Err(bad());
        };
        let from: usize = from.parse().map_err(|_| bad())?;
        if name != self.name || id.len() != 32 || !id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(bad());
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|listing| listing.asked_at.elapsed() < HELD_FOR);
        let Some(listing) = held.iter_mut().find(|listing| listing.id == id) else {
            return Err(Refusal::new(
                Status::FailedPrecondition,
                "page_expired",
                "the list behind this page token is no longer held: begin without one",
            ));
        };
        if from >= listing.items.len() {
            return Err(bad());
        }
        listing.asked_at = Instant::now();
        Ok((id.to_owned(), Arc::clone(&listing.items), from))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;
    use prost_types::FileDescriptorSet;

    use super::*;

    // spec: API-23
    #[test]
    fn pages_are_cuts_of_one_list_and_a_lost_page_can_be_asked_for_again() {
        let pages = Pages::new("numbers");
        let (first, token) = pages.page(2, "", || vec![1, 2, 3, 4, 5]).unwrap();
        assert_eq!(first, [1, 2]);
        for _ in 0..2 {
            let (second, next) = pages.page(2, &token, || unreachable!()).unwrap();
            assert_eq!(second, [3, 4]);
            let (third, end) = pages.page(2, &next, || unreachable!()).unwrap();
            assert_eq!((third, end.as_str()), (vec![5], ""));
        }
    }

    #[test]
    fn heavy_elements_make_short_pages_and_one_always_fits() {
        let pages = Pages::weighing("blobs", |bytes: &usize| *bytes);
        let blobs = || vec![BYTES_MAX / 2, BYTES_MAX / 2, 1, BYTES_MAX + 1];
        let (first, token) = pages.page(0, "", blobs).unwrap();
        assert_eq!(first, [BYTES_MAX / 2, BYTES_MAX / 2]);
        let (second, token) = pages.page(0, &token, || unreachable!()).unwrap();
        assert_eq!(second, [1]);
        let (third, end) = pages.page(0, &token, || unreachable!()).unwrap();
        assert_eq!((third, end.as_str()), (vec![BYTES_MAX + 1], ""));
    }

    // spec: API-23
    #[test]
    fn unknown_and_foreign_tokens_are_bad_and_old_ones_expired() {
        let (pages, others) = (Pages::new("numbers"), Pages::new("others"));
        let (_, foreign) = others.page(1, "", || vec![1, 2]).unwrap();
        let (_, token) = pages.page(1, "", || vec![1, 2]).unwrap();
        let beyond = token.rsplit_once('.').unwrap().0.to_owned() + ".9";
        for bad in ["nonsense", foreign.as_str(), beyond.as_str()] {
            let refusal = pages.page(2, bad, Vec::<i32>::new).unwrap_err();
            assert_eq!(refusal.reason, "bad_page_token", "{bad}");
        }
        for _ in 0..HELD_MAX {
            pages.page(1, "", || vec![1, 2]).unwrap();
        }
        let refusal = pages.page(1, &token, Vec::new).unwrap_err();
        assert_eq!(refusal.reason, "page_expired");
    }

    // spec: API-23
    #[test]
    fn lists_have_tokens_and_logs_have_numbers() {
        let set = FileDescriptorSet::decode(greenroom_proto::FILE_DESCRIPTOR_SET).unwrap();
        let with = |field: &str| -> BTreeSet<String> {
            let messages = set.file.iter().flat_map(|file| &file.message_type);
            messages
                .filter(|message| message.field.iter().any(|it| it.name() == field))
                .map(|message| message.name().to_owned())
                .collect()
        };
        let named = |calls: &[&str], what: &str| -> BTreeSet<String> {
            calls.iter().map(|call| format!("{call}{what}")).collect()
        };
        let lists = ["KvList", "ListBundles", "ListInstanceTypes", "ListNodes"];
        let asked = named(&lists, "Request");
        assert_eq!(
            (with("page_token"), with("page_size")),
            (asked.clone(), asked)
        );
        assert_eq!(with("next_page_token"), named(&lists, "Response"));
        let logs = named(&["GetAuditLog", "GetClusterEvents"], "Request");
        assert_eq!(with("before_seq"), logs);
    }
}
