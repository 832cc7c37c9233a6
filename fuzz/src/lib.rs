//! What fuzz targets share: cutting an input into pieces, and a request by the number of its call.

use greenroom_proto::convert::call::Request;

/// So many pieces of one input are used.
const PIECES_MAX: usize = 16;

/// Cuts an input into pieces: a tag, a length of two bytes, and so many bytes, again and again.
pub fn pieces(mut input: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let [tag, low, high, rest @ ..] = input
        && found.len() < PIECES_MAX
    {
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let (piece, after) = rest.split_at(length.min(rest.len()));
        found.push((*tag, piece));
        input = after;
    }
    found
}

/// An input of one piece, as [`pieces`] takes it apart.
pub fn piece(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let mut made = vec![tag];
    made.extend(length.to_le_bytes());
    made.extend(&bytes[..usize::from(length)]);
    made
}

macro_rules! calls {
    ($($number:literal $name:ident;)*) => {
        /// Names of the calls that change something, by their number here.
        pub const CALLS: &[&str] = &[$(stringify!($name)),*];

        /// Reads the request of a call; none for bytes that are no message of its type.
        pub fn request(number: u8, bytes: &[u8]) -> Option<Request> {
            match usize::from(number) % CALLS.len() {
                $($number => prost::Message::decode(bytes).ok().map(Request::$name),)*
                _ => None,
            }
        }

        /// The number of a request's call.
        pub fn number(request: &Request) -> u8 {
            match request {
                $(Request::$name(_) => $number,)*
            }
        }
    };
}

calls! {
    0 CreateJob; 1 UpdateJob; 2 DeleteJob; 3 CompleteJob; 4 StartJob; 5 StartPreparedJob; 6 StopJob;
    7 MarkJobFailed; 8 CreateBundle; 9 UpdateBundle; 10 DeleteBundle; 11 StartBundleJob;
    12 StopBundleJob; 13 SetBundleStopTime; 14 CreateAwsNode; 15 CreateOciNode; 16 TerminateNode;
    17 UpdatePhysicalNode; 18 SetNodeTags; 19 RegisterClusterNode; 20 DeregisterClusterNode;
    21 PrefetchImages; 22 NotifyMigrationGetState; 23 NotifyMigrationCutoverReady;
    24 NotifyMigrationCutoverApply; 25 KvCommit; 26 SetNodeIdleExpiry; 27 SetClusterNodePool;
    28 RotateClusterNodeToken; 29 AppendAuditEntry; 30 PruneAuditLog; 31 AbortMigration;
    32 PublishDiscoveryFleet; 33 RotateDiscoveryTierSecret; 34 PublishAccessReplica;
    35 ReloadExternalConfig; 36 RenewBundleLease; 37 PauseLeases; 38 ResumeLeases; 39 AdoptInstance;
}

/// The encoded request of a call of the domain, as one piece of an input.
pub fn call_piece(call: &greenroom_types::call::Call) -> Vec<u8> {
    let request = Request::from(call);
    piece(number(&request), &request.body())
}

/// Runs several of a Manager's calls at once, on threads that a panic ends with the process.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Decodes a message of the interface.
pub fn decode<T: prost::Message + Default>(bytes: &[u8]) -> Option<T> {
    T::decode(bytes).ok()
}
