//! Long lists in pages. All pages of one listing are cuts of one state (API-23): what is left after
//! the first page is held, for a while and up to a bound, under a token.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use greenroom_types::call::{Refusal, Status};

/// Elements of a page where the request names no size (API-12).
const SIZE_DEFAULT: usize = 500;
/// Most elements of a page.
const SIZE_MAX: usize = 5_000;
/// Listings held at once; the oldest gives way.
const HELD_MAX: usize = 32;
/// How long the rest of a listing is held.
const HELD_FOR: Duration = Duration::from_secs(60);

/// The unfinished listings of one call.
#[derive(Debug)]
pub(super) struct Pages<T> {
    held: Mutex<VecDeque<Rest<T>>>,
}

#[derive(Debug)]
struct Rest<T> {
    token: String,
    at: Instant,
    items: Vec<T>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self {
            held: Mutex::default(),
        }
    }
}

impl<T> Pages<T> {
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
        let mut items = if token.is_empty() {
            all()
        } else {
            self.take(token)?
        };
        if items.len() <= size {
            return Ok((items, String::new()));
        }
        let rest = items.split_off(size);
        let token = greenroom_auth::hex(&greenroom_auth::random::<16>());
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() == HELD_MAX {
            held.pop_front();
        }
        held.push_back(Rest {
            token: token.clone(),
            at: Instant::now(),
            items: rest,
        });
        Ok((items, token))
    }

    fn take(&self, token: &str) -> Result<Vec<T>, Refusal> {
        if token.len() != 32 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Refusal::new(
                Status::InvalidArgument,
                "bad_page_token",
                "the page token is none that this call gave: begin without one",
            ));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|rest| rest.at.elapsed() < HELD_FOR);
        let found = held.iter().position(|rest| rest.token == token);
        found
            .and_then(|at| held.remove(at))
            .map(|rest| rest.items)
            .ok_or_else(|| {
                Refusal::new(
                    Status::FailedPrecondition,
                    "page_expired",
                    "the list behind this page token is no longer held: begin without one",
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: API-23
    #[test]
    fn pages_are_cuts_of_one_list_and_a_token_works_once() {
        let pages = Pages::default();
        let (first, token) = pages.page(2, "", || vec![1, 2, 3, 4, 5]).unwrap();
        assert_eq!(first, [1, 2]);
        let (second, next) = pages.page(2, &token, || unreachable!()).unwrap();
        assert_eq!(second, [3, 4]);
        let (third, end) = pages.page(2, &next, || unreachable!()).unwrap();
        assert_eq!((third, end.as_str()), (vec![5], ""));
        assert_eq!(
            pages.page(2, &token, Vec::new).unwrap_err().reason,
            "page_expired"
        );
        assert_eq!(
            pages.page(2, "nonsense", Vec::new).unwrap_err().reason,
            "bad_page_token"
        );
    }

    #[test]
    fn held_lists_are_bounded() {
        let pages = Pages::default();
        let (_, first) = pages.page(1, "", || vec![1, 2]).unwrap();
        for _ in 0..HELD_MAX {
            pages.page(1, "", || vec![1, 2]).unwrap();
        }
        assert_eq!(
            pages.page(1, &first, Vec::new).unwrap_err().reason,
            "page_expired"
        );
    }
}
