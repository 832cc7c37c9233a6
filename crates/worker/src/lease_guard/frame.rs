//! What passes between a worker and its guard: requests and replies of a fixed size, so that neither
//! end needs more memory than it has.

use greenroom_types::Mono;

use crate::lease::START_ID_MAX;

/// Bytes of a request.
pub(crate) const REQUEST: usize = 256;
/// Bytes of a reply.
pub(crate) const REPLY: usize = 32;
/// Bytes of a container's id.
pub(crate) const CONTAINER_ID: usize = 64;
/// The version of these frames; both ends must have the same.
const VERSION: u8 = 1;

const ID_AT: usize = 24;
const CONTAINER_AT: usize = ID_AT + START_ID_MAX;

/// What a worker asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request<'a> {
    /// A worker begins: what it does not name until it has settled is no lease any more.
    Begin,
    /// Kill this start then, unless told otherwise.
    Hold { start_id: &'a [u8], until: Mono },
    /// This container belongs to the start.
    Contain {
        start_id: &'a [u8],
        container: &'a [u8],
    },
    /// Nothing is left of this start.
    Release { start_id: &'a [u8] },
    /// The worker has named everything.
    Settle,
    /// Is somebody there?
    Ping,
}

/// How a request was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Done,
    /// There is no room left.
    Full,
    /// It is too late: this start is being killed.
    Late,
    /// It cannot be read.
    Unread,
}

/// What the guard answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The number of the request.
    pub(crate) number: u64,
    pub(crate) taken: Taken,
    /// Kills sent so far; a process that is slow to go gets more than one.
    pub(crate) killed: u64,
    /// It does not end with its worker.
    pub(crate) stays: bool,
}

// === impl Request ===

impl<'a> Request<'a> {
    pub(crate) fn write(&self, number: u64) -> [u8; REQUEST] {
        let mut frame = [0; REQUEST];
        frame[1] = VERSION;
        frame[8..16].copy_from_slice(&number.to_be_bytes());
        let (kind, start_id): (u8, &[u8]) = match self {
            Self::Begin => (1, &[]),
            Self::Hold { start_id, until } => {
                frame[16..24].copy_from_slice(&until.0.to_be_bytes());
                (2, start_id)
            }
            Self::Contain {
                start_id,
                container,
            } => {
                let len = container.len().min(CONTAINER_ID);
                frame[CONTAINER_AT..CONTAINER_AT + len].copy_from_slice(&container[..len]);
                (3, start_id)
            }
            Self::Release { start_id } => (4, start_id),
            Self::Settle => (5, &[]),
            Self::Ping => (6, &[]),
        };
        frame[0] = kind;
        let len = start_id.len().min(START_ID_MAX);
        frame[2] = u8::try_from(len).unwrap_or(u8::MAX);
        frame[ID_AT..ID_AT + len].copy_from_slice(&start_id[..len]);
        frame
    }

    /// The number and the request; none for what this version cannot read.
    pub(crate) fn read(frame: &'a [u8; REQUEST]) -> (u64, Option<Self>) {
        let number = number_at(frame, 8);
        let len = usize::from(frame[2]);
        if frame[1] != VERSION || len > START_ID_MAX {
            return (number, None);
        }
        let start_id = &frame[ID_AT..ID_AT + len];
        let container = &frame[CONTAINER_AT..CONTAINER_AT + CONTAINER_ID];
        let named = len > 0;
        let request = match frame[0] {
            1 => Some(Self::Begin),
            2 if named => Some(Self::Hold {
                start_id,
                until: Mono(number_at(frame, 16)),
            }),
            3 if named => Some(Self::Contain {
                start_id,
                container,
            }),
            4 if named => Some(Self::Release { start_id }),
            5 => Some(Self::Settle),
            6 => Some(Self::Ping),
            _ => None,
        };
        (number, request)
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn write(self) -> [u8; REPLY] {
        let mut frame = [0; REPLY];
        frame[0] = match self.taken {
            Taken::Done => 1,
            Taken::Full => 2,
            Taken::Late => 3,
            Taken::Unread => 4,
        };
        frame[1] = VERSION;
        frame[2] = u8::from(self.stays);
        frame[8..16].copy_from_slice(&self.number.to_be_bytes());
        frame[16..24].copy_from_slice(&self.killed.to_be_bytes());
        frame
    }

    pub(crate) fn read(frame: &[u8; REPLY]) -> Option<Self> {
        let taken = match frame[0] {
            1 => Taken::Done,
            2 => Taken::Full,
            3 => Taken::Late,
            4 => Taken::Unread,
            _ => return None,
        };
        (frame[1] == VERSION).then(|| Self {
            number: number_at(frame, 8),
            taken,
            killed: number_at(frame, 16),
            stays: frame[2] != 0,
        })
    }
}

fn number_at(frame: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&frame[at..at + 8]);
    u64::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let container = [b'c'; CONTAINER_ID];
        let requests = [
            Request::Begin,
            Request::Hold {
                start_id: b"s1",
                until: Mono(u64::MAX),
            },
            Request::Contain {
                start_id: &[b'x'; START_ID_MAX],
                container: &container,
            },
            Request::Release { start_id: b"s1" },
            Request::Settle,
            Request::Ping,
        ];
        for (number, request) in (7..).zip(requests) {
            assert_eq!(
                Request::read(&request.write(number)),
                (number, Some(request))
            );
        }
        for taken in [Taken::Done, Taken::Full, Taken::Late, Taken::Unread] {
            let reply = Reply {
                number: 9,
                taken,
                killed: 3,
                stays: taken == Taken::Late,
            };
            assert_eq!(Reply::read(&reply.write()), Some(reply));
        }
    }

    #[test]
    fn another_version_and_nonsense_are_not_read() {
        let mut frame = Request::Ping.write(5);
        frame[1] = 9;
        assert_eq!(Request::read(&frame), (5, None));
        assert_eq!(Request::read(&[0xff; REQUEST]).1, None);
        let nobody = Request::Release { start_id: b"" }.write(1);
        assert_eq!(Request::read(&nobody), (1, None));
        assert_eq!(Reply::read(&[0xff; REPLY]), None);
    }
}
