//! One function per call. Each reads its input, asks the instance, and answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use greenroom_auto::{AutoManager, InstancePhase, Recording, Seat};
use greenroom_placement::Findings;
use greenroom_policy::effect::PlacementInfo;
use greenroom_policy::getters::Admission;
use greenroom_policy::migration::{MigrationPhase, MigrationState};
use greenroom_policy::settings::words as forms;
use greenroom_policy::{ApiAnswer, ApiCall, Metrics, Policy};
use greenroom_types::bundle::Bundle;
use greenroom_types::job::{Job, JobState};
use greenroom_types::{BundleId, JobId, Millis, NodeId, PoolName, TemplateName, tree};
use http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;

use crate::api::{
    BODY_BYTES_MAX, BundleRequest, BundleRow, HYDRATING, Health, Node, Pending, Phase,
    PlaceRequest, Placed, STARTING, SeatState, Standing, Why,
};
use crate::failure::Failure;
use crate::prometheus::{self, Shown};
use crate::server::Shared;
use crate::{feed, words};

type Ctx = State<Arc<Shared>>;
type Body = Result<Bytes, BytesRejection>;
type Answer<T> = Result<Json<T>, Failure>;

pub(crate) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(exposition))
        .route("/v1/why/{job_id}", get(why))
        .route("/v1/place", post(place))
        .route("/v1/validate", post(validate))
        .route("/v1/admit", post(admit))
        .route("/v1/call", post(call))
        .route("/v1/metrics", get(metrics))
        .route("/v1/pending", get(pending))
        .route("/v1/placements", get(placements))
        .route("/v1/nodes", get(nodes))
        .route("/v1/cordons", get(cordons))
        .route("/v1/standing", post(standing))
        .route("/v1/bundles", get(bundles))
        .route("/v1/pools", get(pools))
        .route("/v1/templates", get(templates))
        .route("/v1/migrations", get(migrations))
        .route("/v1/recording/{minutes}", get(recording))
        .route("/v1/callbacks", get(feed::callbacks))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(of_fair_size))
        .layer(middleware::from_fn(from_this_machine))
        .with_state(shared)
}

/// A page in a browser can be made to call any name that resolves to this machine. It cannot choose
/// the Host header, so only names of loopback are served.
async fn from_this_machine(request: Request, next: Next) -> Response {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    if is_loopback_name(host) {
        next.run(request).await
    } else {
        let message = format!("host {host:?} is not served; use 127.0.0.1, [::1] or localhost");
        Failure::new(StatusCode::FORBIDDEN, "badHost", message).into_response()
    }
}

/// A body that says it is too large is not waited for; one that does not say is cut off by the limit.
async fn of_fair_size(request: Request, next: Next) -> Response {
    let length = request
        .headers()
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        Failure::body_too_large().into_response()
    } else {
        next.run(request).await
    }
}

fn is_loopback_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || address
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

async fn no_such_path(request: Request) -> Failure {
    let message = format!("there is no {}", request.uri().path());
    Failure::new(StatusCode::NOT_FOUND, "noSuchPath", message)
}

async fn no_such_method(request: Request) -> Failure {
    let message = format!("{} is not for {}", request.uri().path(), request.method());
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "noSuchMethod", message)
}

// === questions ===

async fn healthz(State(shared): Ctx) -> Json<Health> {
    let instance = shared.provider.instance();
    Json(Health {
        phase: match instance.map(|instance| instance.phase()) {
            None => Phase::Waiting,
            Some(InstancePhase::Hydrating) => Phase::Hydrating,
            Some(InstancePhase::Live) => Phase::Live,
            Some(InstancePhase::Closed) => Phase::Closed,
        },
        problem: shared.provider.problem(),
        seat: match shared.provider.seat() {
            Seat::Alone => SeatState::Alone,
            Seat::Active { turn } => SeatState::Active { turn },
            Seat::Standby(holder) => {
                let holder = holder.unwrap_or_default();
                SeatState::Standby {
                    active: holder.name,
                    url: holder.url,
                }
            }
        },
    })
}

async fn why(State(shared): Ctx, Path(job_id): Path<String>) -> Answer<Why> {
    let instance = live(&shared)?;
    let job_id = JobId::new(job_id);
    let Some(report) = instance.explain(&job_id) else {
        return Err(instance.read(|policy| not_in_the_mirror(policy, &job_id)));
    };
    let text = words::of_report(&report);
    Ok(Json(Why { report, text }))
}

/// A job that the stream has not told of: its time is far, or there is none of that name.
fn not_in_the_mirror(policy: &Policy, job_id: &JobId) -> Failure {
    let start = policy.bundles().find_map(|status| {
        let job = status.jobs.iter().find(|job| job.job_id == *job_id)?;
        let bundle = &status.bundle;
        let own = bundle.job(job.job_name.as_str())?.start_date_time;
        own.or(bundle.start_date_time)
    });
    match start {
        Some(at) => {
            let window = Millis(u64::from(policy.settings().pending_window_sent_s()) * 1_000);
            let message = format!(
                "job {job_id:?} starts at {at}; it is looked at from {window} before that on"
            );
            Failure::new(StatusCode::NOT_FOUND, "notAnnounced", message)
        }
        None => {
            let message = format!("job {job_id:?} is not known; ids are BUNDLE.COPY.NAME");
            Failure::new(StatusCode::NOT_FOUND, "unknownJob", message)
        }
    }
}

async fn place(State(shared): Ctx, headers: HeaderMap, body: Body) -> Answer<Placed> {
    let request: PlaceRequest = read(&headers, body)?;
    let instance = live(&shared)?;
    let bundle: Bundle = match (request.bundle, request.bundle_id) {
        (Some(bundle), None) => bundle,
        (None, Some(bundle_id)) => {
            let bundle_id = BundleId::new(bundle_id);
            let Some(status) = instance.bundle_by_id(&bundle_id) else {
                let message = format!("bundle {bundle_id:?} is not known");
                return Err(Failure::new(
                    StatusCode::NOT_FOUND,
                    "unknownBundle",
                    message,
                ));
            };
            status.bundle.clone()
        }
        _ => {
            return Err(Failure::bad_request(
                "give either bundle or bundleId, and not both",
            ));
        }
    };
    let run = instance.place_dry_run(&bundle, request.replica, request.job.as_ref());
    let Some(run) = run else {
        let job = match &request.job {
            Some(job) => format!("job {job:?}"),
            None => "a first job".to_owned(),
        };
        let message = format!(
            "the bundle has no {job} in copy {}; it has {} job(s) in {} copy(ies), counted from 0",
            request.replica,
            bundle.jobs.len(),
            bundle.copies()
        );
        return Err(Failure::new(StatusCode::NOT_FOUND, "unknownJob", message));
    };
    let text = words::of_dry_run(&run.decision, &run.trace);
    Ok(Json(Placed {
        decision: run.decision,
        trace: run.trace,
        text,
    }))
}

async fn validate(State(shared): Ctx, headers: HeaderMap, body: Body) -> Answer<Findings> {
    let request: BundleRequest = read(&headers, body)?;
    Ok(Json(live(&shared)?.validate_bundle(&request.bundle)))
}

async fn admit(State(shared): Ctx, headers: HeaderMap, body: Body) -> Answer<Admission> {
    let request: BundleRequest = read(&headers, body)?;
    let instance = live(&shared)?;
    Ok(Json(instance.validate_bundle_admission(&request.bundle)))
}

// === acting ===

async fn call(State(shared): Ctx, headers: HeaderMap, body: Body) -> Answer<ApiAnswer> {
    let call: ApiCall = read(&headers, body)?;
    if matches!(call, ApiCall::Close) {
        let message = "the instance is closed by ending its process, not from here";
        return Err(Failure::new(StatusCode::FORBIDDEN, "notFromHere", message));
    }
    if let Some(fault) = too_much(&call) {
        return Err(Failure::bad_request(fault));
    }
    Ok(Json(live(&shared)?.call(call).await?))
}

/// Longest text that an operator gives of himself, in letters.
const REASON_MAX: usize = 500;

/// What people write and others are shown: one line, of a length that can be read and kept. A list of
/// spares is checked with the settings.
fn too_much(call: &ApiCall) -> Option<String> {
    let templates = |names: &Option<Vec<TemplateName>>| {
        let names = names.iter().flatten().map(TemplateName::as_str);
        forms::fault_of_templates(names.collect::<Vec<_>>().into_iter())
    };
    match call {
        ApiCall::AbortMigration { reason, .. } => {
            let fault = forms::fault_of_line(reason, REASON_MAX)?;
            Some(format!("reason {fault}"))
        }
        ApiCall::UpdateHotSpareNode { changes, .. } => {
            templates(&changes.warm_for).or_else(|| templates(&changes.reserved_for))
        }
        ApiCall::SetTemplateImages { template, refs } => {
            forms::fault_of_images(template.as_str(), refs)
        }
        _ => None,
    }
}

// === lists ===

async fn metrics(State(shared): Ctx) -> Answer<Metrics> {
    Ok(Json(present(&shared)?.metrics()))
}

/// For scrapers: never an error, so that a control plane that is not in service is seen as such.
async fn exposition(State(shared): Ctx) -> Response {
    let shown = live(&shared).ok().map(|instance| {
        let pending = instance.read(unplaced);
        let is_over = |phase| matches!(phase, MigrationPhase::Done | MigrationPhase::Aborted);
        let migrations = instance.migrations();
        Shown {
            metrics: instance.metrics(),
            checks: instance.checks(),
            jobs_unplaced: pending.unplaced.len(),
            jobs_scheduled: pending.scheduled.len(),
            migrations: migrations.iter().filter(|it| !is_over(it.phase)).count(),
        }
    });
    let kind = [(header::CONTENT_TYPE, greenroom_metrics::CONTENT_TYPE)];
    (kind, prometheus::page(shown.as_ref())).into_response()
}

async fn pools(State(shared): Ctx) -> Answer<Vec<PoolName>> {
    Ok(Json(live(&shared)?.read(|policy| {
        let pools = policy.settings().placement_pools.iter();
        pools.map(|pool| pool.name.clone()).collect()
    })))
}

async fn templates(State(shared): Ctx) -> Answer<BTreeMap<TemplateName, Vec<String>>> {
    let instance = live(&shared)?;
    Ok(Json(
        instance.read(|policy| policy.settings().template_images.clone()),
    ))
}

async fn migrations(State(shared): Ctx) -> Answer<Vec<MigrationState>> {
    Ok(Json(live(&shared)?.migrations()))
}

async fn recording(State(shared): Ctx, Path(minutes): Path<String>) -> Answer<Recording> {
    let Ok(minutes) = minutes.parse() else {
        let message = format!("{minutes:?} is no whole number of minutes");
        return Err(Failure::bad_request(message));
    };
    live(&shared)?.recording(minutes).map(Json).ok_or_else(|| {
        let message = "there was no calm moment to begin a recording from, or the fleet has more \
                       than 2000 nodes";
        Failure::new(StatusCode::CONFLICT, "nothingRecorded", message)
    })
}

async fn pending(State(shared): Ctx) -> Answer<Pending> {
    Ok(Json(live(&shared)?.read(unplaced)))
}

fn unplaced(policy: &Policy) -> Pending {
    let scheduled = policy.pending_placements();
    let waits = |job_id: &JobId| scheduled.iter().any(|it| it.job_id == *job_id);
    let (dormant, unplaced): (Vec<_>, Vec<_>) = policy
        .jobs()
        .filter(|job| job.state != JobState::Post)
        .map(|job| &job.job)
        .filter(|job| policy.node_for_job(&job.job_id).is_none() && !waits(&job.job_id))
        .partition(|job| job.is_dormant());
    let ids = |jobs: Vec<&Job>| -> Vec<JobId> {
        jobs.into_iter().map(|job| job.job_id.clone()).collect()
    };
    let unplaced = ids(unplaced);
    let not_bought = unplaced
        .iter()
        .map(|job_id| (job_id.clone(), policy.troubles_of(job_id)))
        .filter(|(_, troubles)| !troubles.is_empty())
        .collect();
    Pending {
        unplaced,
        not_bought,
        dormant: ids(dormant),
        scheduled,
    }
}

async fn placements(State(shared): Ctx) -> Answer<Vec<PlacementInfo>> {
    let mut placements = live(&shared)?.placements();
    for placement in &mut placements {
        placement.trace = None;
    }
    Ok(Json(placements))
}

async fn nodes(State(shared): Ctx) -> Answer<Vec<Node>> {
    Ok(Json(live(&shared)?.read(|policy| {
        let nodes = policy.nodes().into_iter();
        nodes
            .map(|node| Node {
                cordoned: policy.is_cordoned(&node.node_id),
                inventory: policy.inventory(&node.node_id).cloned(),
                spare_hindrance: policy
                    .is_hot_spare_node(&node.node_id)
                    .then(|| policy.spare_hindrance(&node.node_id).map(str::to_owned))
                    .flatten(),
                node,
            })
            .collect()
    })))
}

/// Nodes that new jobs are kept off, by id; those among them for which a cordon waits (ACTS-05).
async fn cordons(State(shared): Ctx) -> Answer<Vec<NodeId>> {
    Ok(Json(live(&shared)?.read(|policy| {
        let nodes = policy.nodes().into_iter().map(|node| node.node_id);
        let there = nodes.filter(|node_id| policy.is_cordoned(node_id));
        let mut cordoned: Vec<NodeId> = there.chain(policy.waiting_cordons().cloned()).collect();
        cordoned.sort_unstable();
        cordoned
    })))
}

/// How the nodes stand that are named; those that are not known are left out.
async fn standing(
    State(shared): Ctx,
    headers: HeaderMap,
    body: Body,
) -> Answer<BTreeMap<NodeId, Standing>> {
    let asked: Vec<NodeId> = read(&headers, body)?;
    Ok(Json(live(&shared)?.read(|policy| {
        let found = asked.into_iter().filter_map(|node_id| {
            let state = policy.node_state(&node_id);
            let waits = policy.is_cordon_waiting(&node_id);
            let picture = policy.inventory(&node_id);
            let standing = Standing {
                state,
                cordoned: policy.is_cordoned(&node_id) || waits,
                kept_off_by_itself: picture.is_some_and(|it| it.cordoned),
            };
            (state.is_some() || waits).then_some((node_id, standing))
        });
        found.collect()
    })))
}

async fn bundles(State(shared): Ctx) -> Answer<Vec<BundleRow>> {
    Ok(Json(live(&shared)?.read(|policy| {
        let bundles = policy.bundles();
        bundles
            .map(|status| BundleRow {
                broken: policy.is_bundle_broken(&status.bundle.bundle_id),
                status: Arc::clone(status),
            })
            .collect()
    })))
}

// === helpers ===

/// The instance, in whatever phase.
pub(crate) fn present(shared: &Shared) -> Result<AutoManager, Failure> {
    shared.provider.instance().ok_or_else(|| {
        let standby = matches!(shared.provider.seat(), Seat::Standby(_));
        let (code, message) = match shared.provider.problem() {
            Some(why) => (
                "noInstance",
                format!("no instance runs at the moment: {why}"),
            ),
            None if standby => (
                "noInstance",
                "this control plane is a standby; ask the active one".to_owned(),
            ),
            None => (
                STARTING,
                "the control plane is starting; ask again in a moment".to_owned(),
            ),
        };
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    })
}

/// The instance, in service: an answer from half a snapshot, or from the mirror of one that is over,
/// would mislead.
fn live(shared: &Shared) -> Result<AutoManager, Failure> {
    let instance = present(shared)?;
    let (code, message) = match instance.phase() {
        InstancePhase::Live => return Ok(instance),
        InstancePhase::Hydrating => (
            HYDRATING,
            "the Manager's snapshot is being received; ask again in a moment",
        ),
        InstancePhase::Closed => (
            "closed",
            "the instance is over; ask again when the next one runs",
        ),
    };
    Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, code, message))
}

fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, Failure> {
    let body = body?;
    // A page in a browser cannot send this type to another site without asking first.
    let is_json = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default();
            kind.trim().eq_ignore_ascii_case("application/json")
        });
    if !is_json {
        let message = "the body must be sent as content-type application/json";
        return Err(Failure::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "notJson",
            message,
        ));
    }
    serde_json::from_slice(&body).map_err(|error| {
        // What is no JSON is told as such; what is of another form, by key and in plain words.
        let fault = serde_json::from_slice(&body)
            .ok()
            .and_then(|tree: serde_json::Value| tree::read::<T>(&tree).err());
        Failure::bad_request(fault.map_or_else(
            || format!("the body is no JSON that is read here: {error}"),
            |fault| format!("in the body: {fault}"),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_and_shown_is_one_line_of_a_length_that_can_be_read() {
        let abort = |reason: &str| {
            too_much(&ApiCall::AbortMigration {
                migration_id: "m".into(),
                reason: reason.to_owned(),
            })
        };
        assert_eq!(abort("the studio's network is worked on"), None);
        for (reason, wanted) in [
            ("a\nb".to_owned(), "one line"),
            ("\u{1b}[2J".to_owned(), "one line"),
            ("x".repeat(100_000), "at most 500"),
        ] {
            let fault = abort(&reason).unwrap_or_default();
            assert!(fault.contains(wanted) && fault.len() < 200, "{fault}");
        }
        let set = |template: &str, refs: Vec<String>| {
            too_much(&ApiCall::SetTemplateImages {
                template: template.into(),
                refs,
            })
        };
        assert_eq!(set("enc", vec!["enc:1".to_owned()]), None);
        assert!(set("", Vec::new()).is_some());
        assert!(set(&"x".repeat(129), Vec::new()).is_some());
        assert!(set("e\nc", Vec::new()).is_some());
        assert!(set("enc", vec!["x".repeat(513)]).is_some());
        assert!(set("enc", vec!["x".to_owned(); 257]).is_some());
    }

    #[test]
    fn only_names_of_this_machine_are_served() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost:6790",
            "LOCALHOST",
            "[::1]",
            "[::1]:80",
        ] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in [
            "",
            "example.com",
            "127.0.0.1.example.com:80",
            "10.0.0.1:80",
            "localhost.example",
        ] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
