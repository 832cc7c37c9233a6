//! Calls about one member of the Manager: how it stands, its store, the control plane beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom_proto::convert::WireError;
use greenroom_proto::convert::common::{read_time_optional, read_time_or_zero, write_time};
use greenroom_proto::manager;
use greenroom_types::Wall;

use crate::client::Client;
use crate::error::Error;
use crate::read::{bad_answer, read_all};

/// Where the control plane beside a member is (CTRL-01).
///
/// ```no_run
/// # fn example(plane: greenroom_sdk::ControlPlane) {
/// println!("{} {}", plane.member, plane.url);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlPlane {
    /// The member.
    pub member: String,
    /// Where workers reach the control plane.
    pub url: String,
    /// When it was last announced.
    pub announced_at: Option<Wall>,
    /// It is announced at least this often.
    pub interval: Option<Duration>,
    /// It was not announced for three intervals, or not since the member's start (CTRL-04).
    pub stale: bool,
    /// Its member is the primary.
    pub active: bool,
}

/// A member of the Manager's cluster.
///
/// ```no_run
/// # fn example(member: greenroom_sdk::Member) {
/// println!("{} {}", member.name, member.state);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// `full` or `witness`.
    pub kind: String,
    /// Its role, or why it has none.
    pub state: String,
    /// It votes.
    pub voting: bool,
    /// Version of its program.
    pub build: String,
    /// The control plane beside it, if one was announced.
    pub control_plane: Option<ControlPlane>,
}

/// Which entries of a member's cluster log are wanted (CLUST-24).
///
/// ```
/// let query = greenroom_sdk::ClusterEventQuery { kinds: vec!["role".into()], ..Default::default() };
/// assert_eq!(query.limit, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterEventQuery {
    /// At most so many; 0 means 100, and more than 1 000 are never told at once.
    pub limit: u32,
    /// Only entries before this number.
    pub before_seq: Option<u64>,
    /// Only entries from this time on.
    pub since: Option<Wall>,
    /// Only entries of these kinds; empty for all.
    pub kinds: Vec<String>,
}

/// One entry of a member's cluster log (CLUST-24).
///
/// ```no_run
/// # fn example(event: greenroom_sdk::ClusterEvent) {
/// println!("{} {} {}", event.seq, event.kind, event.text);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterEvent {
    /// The member that tells it.
    pub member: String,
    /// Its number in that member's log.
    pub seq: u64,
    /// When.
    pub at: Wall,
    /// The term of the primary then.
    pub term: u64,
    /// Kind, as `role` or `disk`.
    pub kind: String,
    /// What happened.
    pub text: String,
    /// Named values.
    pub details: BTreeMap<String, String>,
    /// How many more of the same within 10 s it stands for (CLUST-25).
    pub repeated: u32,
}

/// How the Manager's cluster stands, as one member sees it (CLUST-10).
///
/// ```no_run
/// # fn example(status: greenroom_sdk::ClusterStatus) {
/// println!("{} is {}", status.member, status.role);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterStatus {
    /// The member that answers.
    pub member: String,
    /// Its role.
    pub role: String,
    /// Generation of the cluster.
    pub generation: u64,
    /// Term of the newest commit.
    pub term: u64,
    /// Index of the newest commit.
    pub index: u64,
    /// The primary, empty while none is known.
    pub primary: String,
    /// Since when.
    pub primary_since: Option<Wall>,
    /// Every expected member.
    pub members: Vec<Member>,
    /// Votes that a commit needs.
    pub quorum_needed: u32,
    /// Votes that are there.
    pub quorum_present: u32,
    /// How many voters may be lost now.
    pub fault_tolerance: u32,
    /// What is to be looked at.
    pub warnings: Vec<String>,
}

/// The store of a member, and what stands beside it (STORE-07).
///
/// ```no_run
/// # fn example(info: greenroom_sdk::StoreInfo) {
/// println!("overrides: {}", info.overrides);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreInfo {
    /// Its databases.
    pub stores: Vec<StoreFile>,
    /// What its last start did: `nothing`, `created`, `migrated`, `restored`.
    pub boot: String,
    /// How the overrides file stands (OVR-03).
    pub overrides: String,
}

/// A database of a store.
///
/// ```no_run
/// # fn example(file: greenroom_sdk::StoreFile) {
/// println!("{} {} bytes", file.name, file.bytes);
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFile {
    /// Its name.
    pub name: String,
    /// Version of its schema.
    pub schema_version: u32,
    /// Bytes on disk.
    pub bytes: u64,
    /// When it was last backed up.
    pub last_backup_at: Option<Wall>,
}

impl TryFrom<manager::ControlPlane> for ControlPlane {
    type Error = WireError;
    fn try_from(plane: manager::ControlPlane) -> Result<Self, WireError> {
        let interval = Duration::from_millis(plane.interval_ms);
        Ok(Self {
            member: plane.member,
            url: plane.url,
            announced_at: read_time_optional(plane.announced_at, "announced_at")?,
            interval: (!interval.is_zero()).then_some(interval),
            stale: plane.stale,
            active: plane.active,
        })
    }
}

impl TryFrom<manager::ClusterMember> for Member {
    type Error = WireError;
    fn try_from(member: manager::ClusterMember) -> Result<Self, WireError> {
        let control_plane = member.control_plane.map(ControlPlane::try_from);
        Ok(Self {
            name: member.name,
            kind: member.kind,
            state: member.state,
            voting: member.voting,
            build: member.build,
            control_plane: control_plane
                .transpose()
                .map_err(|error| error.under("control_plane"))?,
        })
    }
}

impl TryFrom<manager::ClusterEvent> for ClusterEvent {
    type Error = WireError;
    fn try_from(event: manager::ClusterEvent) -> Result<Self, WireError> {
        Ok(Self {
            member: event.member,
            seq: event.seq,
            at: read_time_or_zero(event.at, "at")?,
            term: event.term,
            kind: event.kind,
            text: event.text,
            details: event.details.into_iter().collect(),
            repeated: event.repeated,
        })
    }
}

impl TryFrom<manager::StoreInfo> for StoreFile {
    type Error = WireError;
    fn try_from(file: manager::StoreInfo) -> Result<Self, WireError> {
        Ok(Self {
            name: file.name,
            schema_version: file.schema_version,
            bytes: file.size_bytes,
            last_backup_at: read_time_optional(file.last_backup_at, "last_backup_at")?,
        })
    }
}

impl Client {
    /// Tells the member that is called where the control plane beside it is, at least every `interval`
    /// if one is given; an empty url withdraws it. Answers all that it knows (CTRL-01, CTRL-03).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_url`, `bad_value`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let every = Some(Duration::from_secs(10));
    /// client.announce_control_plane("https://control.example:7000", every).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn announce_control_plane(
        &self,
        url: impl Into<String>,
        interval: Option<Duration>,
    ) -> Result<Vec<ControlPlane>, Error> {
        const METHOD: &str = "AnnounceControlPlane";
        let millis = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
        let request = manager::AnnounceControlPlaneRequest {
            url: url.into(),
            interval_ms: interval.map(millis),
        };
        // Saying it twice is saying it once.
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.announce_control_plane(request).await
            })
            .await?;
        read_all(METHOD, "members", answer.members)
    }

    /// What happened to the member that is called, newest first (CLUST-24).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] `bad_timestamp`.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// for event in client.get_cluster_events(Default::default()).await? {
    ///     println!("{} {}", event.kind, event.text);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_cluster_events(
        &self,
        query: ClusterEventQuery,
    ) -> Result<Vec<ClusterEvent>, Error> {
        const METHOD: &str = "GetClusterEvents";
        let request = manager::GetClusterEventsRequest {
            limit: query.limit,
            before_seq: query.before_seq.unwrap_or(0),
            since: query.since.map(write_time),
            kinds: query.kinds,
        };
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_cluster_events(request).await
            })
            .await?;
        read_all(METHOD, "events", answer.events)
    }

    /// How the Manager's cluster stands (CLUST-10).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// let status = client.get_cluster_status().await?;
    /// println!("{} of {} votes", status.quorum_present, status.quorum_needed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_cluster_status(&self) -> Result<ClusterStatus, Error> {
        const METHOD: &str = "GetClusterStatus";
        let request = manager::GetClusterStatusRequest {};
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_cluster_status(request).await
            })
            .await?;
        let since = read_time_optional(answer.primary_since, "primary_since");
        Ok(ClusterStatus {
            member: answer.member,
            role: answer.role,
            generation: answer.generation,
            term: answer.term,
            index: answer.index,
            primary: answer.primary,
            primary_since: since.map_err(|error| bad_answer(METHOD, error))?,
            members: read_all(METHOD, "members", answer.members)?,
            quorum_needed: answer.quorum_needed,
            quorum_present: answer.quorum_present,
            fault_tolerance: answer.fault_tolerance,
            warnings: answer.warnings,
        })
    }

    /// The store of the member that is called, and how its overrides file stands (STORE-07, OVR-03).
    ///
    /// # Errors
    /// As for any reading call.
    ///
    /// ```no_run
    /// # async fn example(client: greenroom_sdk::Client) -> Result<(), greenroom_sdk::Error> {
    /// println!("{}", client.get_store_info().await?.overrides);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get_store_info(&self) -> Result<StoreInfo, Error> {
        const METHOD: &str = "GetStoreInfo";
        let request = manager::GetStoreInfoRequest {};
        let answer = self
            .read(METHOD, request, |mut raw, request| async move {
                raw.get_store_info(request).await
            })
            .await?;
        Ok(StoreInfo {
            stores: read_all(METHOD, "stores", answer.stores)?,
            boot: answer.boot.unwrap_or_default().action,
            overrides: answer.overrides,
        })
    }
}
