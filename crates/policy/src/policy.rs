//! The policy itself: its state, and the one entry for all inputs.
//!
//! The page below is the whole loop: note the time, handle one input to completion, place what the
//! input made placeable. What each input means stands in the module of the noun it is about; every
//! module adds methods to [`Policy`], which owns all state. Nothing here performs anything.

use std::collections::{BTreeMap, BTreeSet};

use greenroom_placement::Fleet;
use greenroom_types::stream::LeasePause;
use greenroom_types::{BundleId, JobId, NodeId, Now, PoolName, TierName};

use crate::acts::ActsRecord;
use crate::bundle::BundleRecord;
use crate::calls::Calls;
use crate::drain::Drain;
use crate::effect::{Callback, Effect, Effects, ErrorInfo};
use crate::event::{ApiCall, ApiId, CallId, ConnectionState, Event};
use crate::hydration::Snapshot;
use crate::ids::IdSource;
use crate::interrupt::Notice;
use crate::job::JobRecord;
use crate::metrics::Counters;
use crate::migration::Migrations;
use crate::node::NodeRecord;
use crate::node_service::Services;
use crate::pending::Pending;
use crate::prefetch::Prefetch;
use crate::provision::TierRecord;
use crate::settings::{CLOSE_ABORT_GRACE, Settings};
use crate::spare::Spares;
use crate::timer::{Deadline, Due, Timer, TimerTable};

/// The AutoManager core.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) settings: Settings,
    pub(crate) ids: IdSource,
    /// Whether decisions carry a trace; costs nothing when nobody looks at it.
    pub(crate) traces: bool,
    pub(crate) phase: Phase,
    /// What the clocks say at the present input.
    pub(crate) now: Now,
    /// When the stream was opened (METR-06).
    pub(crate) opened: Option<Now>,
    pub(crate) timers: TimerTable,
    pub(crate) calls: Calls,
    /// A map keeps places free for as many more: what stands in them is to be small (PERF-03).
    pub(crate) jobs: BTreeMap<JobId, Box<JobRecord>>,
    pub(crate) nodes: BTreeMap<NodeId, NodeRecord>,
    pub(crate) bundles: BTreeMap<BundleId, BundleRecord>,
    pub(crate) tiers: BTreeMap<(PoolName, TierName), TierRecord>,
    /// Jobs of which an instance is still ending, by node. Follows from the records of the jobs.
    pub(crate) remains_at: BTreeMap<NodeId, BTreeSet<JobId>>,
    /// Nodes whose lists are to be read anew before the next decision. Empty between inputs.
    pub(crate) relist: BTreeSet<NodeId>,
    /// What placement sees; kept in step with the records above.
    pub(crate) fleet: Fleet,
    pub(crate) pending: Pending,
    pub(crate) spares: Spares,
    pub(crate) prefetch: Prefetch,
    /// Instances of node services (NSVC).
    pub(crate) services: Services,
    pub(crate) migrations: Migrations,
    /// By node, under way and ended (DRAIN-11).
    pub(crate) drains: BTreeMap<NodeId, Drain>,
    /// Standing notices of providers (INTR).
    pub(crate) notices: BTreeMap<NodeId, Notice>,
    /// What outlives the instance (ACTS).
    pub(crate) acts: ActsRecord,
    /// Why and since when leases stand still, as far as the stream told (LAUNCH-13).
    pub(crate) lease_pause: Option<LeasePause>,
    /// The calls that the channel stays open for, while it closes (LIFE-05).
    pub(crate) closing: Option<Closing>,
    pub(crate) counters: Counters,
    /// Gives everything that is seen for the first time its place in line.
    pub(crate) next_order: u64,
}

/// What a close waits for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Closing {
    calls: BTreeSet<CallId>,
    error: Option<String>,
}

/// How far an instance has come.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// The snapshot is being received; API calls wait for its end (HYDR-04).
    Snapshot {
        snapshot: Snapshot,
        waiting: Vec<(ApiId, ApiCall)>,
    },
    /// In service.
    Live,
    /// Over; getters go on answering (LIFE-06).
    Closed,
}

// === impl Policy ===

impl Policy {
    /// A fresh instance that has not seen the Manager yet.
    pub fn new(settings: Settings, now: Now, ids: IdSource) -> Self {
        let mut fleet = Fleet::new(settings.placement_pools.clone());
        for (template, refs) in &settings.template_images {
            fleet.set_template_images(template.clone(), refs);
        }
        fleet.set_service_ports(crate::getters::service_ports(&settings));
        let mut timers = TimerTable::default();
        timers.look(now);
        let acts = ActsRecord::new(&settings);
        Self {
            settings,
            ids,
            traces: true,
            phase: Phase::Snapshot {
                snapshot: Snapshot::default(),
                waiting: Vec::new(),
            },
            now,
            opened: None,
            timers,
            calls: Calls::default(),
            jobs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            bundles: BTreeMap::new(),
            tiers: BTreeMap::new(),
            remains_at: BTreeMap::new(),
            relist: BTreeSet::new(),
            fleet,
            pending: Pending::default(),
            spares: Spares::default(),
            prefetch: Prefetch::default(),
            services: Services::default(),
            migrations: Migrations::default(),
            drains: BTreeMap::new(),
            notices: BTreeMap::new(),
            acts,
            lease_pause: None,
            closing: None,
            counters: Counters::default(),
            next_order: 0,
        }
    }

    /// Without traces in `onPlacementDecision` and in the placement of record: for an embedder that
    /// does not look at them. [`Policy::explain`] and dry runs have theirs all the same.
    #[must_use]
    pub const fn without_traces(mut self) -> Self {
        self.traces = false;
        self
    }

    /// Takes one event and adds everything that must follow from it to `out`, in order.
    pub fn handle(&mut self, now: Now, event: Event, out: &mut Effects) {
        self.now = now;
        self.timers.look(now);
        match event {
            Event::Acts(acts) => self.take_acts(*acts),
            Event::Stream(event) => self.apply_stream(event, out),
            Event::Reply { call_id, result } => self.apply_reply(call_id, result, out),
            Event::Api { id, call } => self.apply_api(id, call, out),
            Event::Wake => self.apply_wake(out),
            Event::ConnectionState(state) => self.apply_connection(state, out),
            Event::CallbackFailed { callback, error } => {
                let message = format!("{callback} failed: {error}");
                self.report(ErrorInfo::new("callbackFailed", message), out);
            }
            Event::Unreadable { error } => {
                let message = format!("an event of the stream could not be read: {error}");
                self.report(ErrorInfo::new("unreadableEvent", message), out);
            }
            Event::Closed { error } => self.wind_down(error, out),
        }
        self.finish_input(out);
    }

    /// The earliest moment at which time alone may change something. The driver sends
    /// [`Event::Wake`] then, and asks again after every input.
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.timers.next()
    }

    /// The settings in force.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// True once the instance is over (LIFE-06).
    pub const fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// True from the end of the snapshot to the close.
    pub const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    /// Each timer that is due is an input of its own.
    fn apply_wake(&mut self, out: &mut Effects) {
        while let Some(timer) = self.timers.pop_due() {
            self.fire(timer, out);
            self.finish_input(out);
        }
    }

    /// What each timer does when its time comes. Every handler looks first whether its reason still
    /// holds (TIME-07).
    fn fire(&mut self, timer: Timer, out: &mut Effects) {
        match timer {
            Timer::ScheduledStart(job_id) => self.refresh(&job_id),
            Timer::LaunchGate(job_id) => self.pending.try_now(&job_id),
            Timer::StartRetry(job_id) | Timer::RecoverySpacing(job_id) => self.end_wait(&job_id),
            Timer::LeaseWait(job_id) => self.start_held_back(&job_id, out),
            Timer::VerdictRetry(job_id) => self.send_verdict(&job_id, out),
            Timer::StrayStop(job_id) => self.stop_strays(&job_id, out),
            Timer::JobExclusion(job_id, node_id) => self.end_job_exclusion(&job_id, &node_id),
            Timer::RecentlyFailed(node_id) => self.end_recently_failed(&node_id),
            Timer::UnhealthyCooldown(node_id) => self.make_healthy(&node_id, out),
            Timer::OrphanedRemains(node_id) => self.end_orphans(&node_id),
            Timer::StartupGrace(node_id) => self.end_startup_grace(&node_id, out),
            Timer::ProvisionTimeout(node_id) => self.end_provision_timeout(&node_id, out),
            Timer::TierBackoff(pool, tier) => self.end_tier_backoff(&pool, &tier),
            Timer::StopTime(bundle_id) | Timer::StopTimeRetry(bundle_id) => {
                self.end_stop_time(&bundle_id, out);
            }
            Timer::MigrationPhase(id) => self.end_phase(&id, out),
            Timer::DrainTimeout(node_id) => self.end_drain_time(&node_id, out),
            // The look itself is part of the end of this input.
            Timer::DrainRetry(_) => {}
            Timer::CloseGrace => self.close_channel(out),
            Timer::SpareTick => self.spare_tick(),
            Timer::SpareRetry(pool) => self.end_spare_wait(&pool),
            Timer::ServiceTick => self.service_tick(),
            Timer::ServiceRetry(service_id, node_id) => {
                self.end_service_wait(&service_id, &node_id);
            }
            Timer::Sweep => self.sweep(out),
        }
    }

    /// What one input made placeable is placed at its end, in one pass (PEND-03). Jobs go before the
    /// reserve: a spare that a waiting job can use is no excess, and its place is filled right after;
    /// images are pulled on what is a spare after that.
    fn finish_input(&mut self, out: &mut Effects) {
        self.relist();
        if self.is_live() {
            self.run_drains(self.pending.is_woken(), out);
            self.run_pending(out);
            self.run_spares(out);
            self.run_prefetch(out);
            self.run_services(out);
            self.relist();
        }
    }

    fn apply_connection(&mut self, state: ConnectionState, out: &mut Effects) {
        if self.is_closed() && state != ConnectionState::Shutdown {
            return;
        }
        if state == ConnectionState::Ready {
            self.opened.get_or_insert(self.now);
        }
        out.callback(Callback::OnConnectionStateChange { state });
    }

    /// Tells what is wrong and has no better place (CALLB-04).
    pub(crate) fn report(&self, error: ErrorInfo, out: &mut Effects) {
        if !self.is_closed() {
            out.error(error);
        }
    }

    /// Winds everything down and closes the channel (LIFE-02, LIFE-07). API calls that wait for an
    /// answer of the Manager get none any more, so they fail here.
    pub(crate) fn wind_down(&mut self, error: Option<String>, out: &mut Effects) {
        if self.is_closed() {
            return;
        }
        self.closing = Some(Closing {
            calls: BTreeSet::new(),
            error,
        });
        self.wind_down_migrations(out);
        let phase = std::mem::replace(&mut self.phase, Phase::Closed);
        self.timers.clear();
        self.pending = Pending::default();
        let mut callers: BTreeSet<ApiId> = self.calls.abandon();
        if let Phase::Snapshot { waiting, .. } = phase {
            callers.extend(waiting.into_iter().map(|(id, _)| id));
        }
        for id in callers {
            let result = Err(crate::event::ApiError::Closed);
            out.push(Effect::ApiReply { id, result });
        }
        if self
            .closing
            .as_ref()
            .is_some_and(|closing| closing.calls.is_empty())
        {
            self.close_channel(out);
        } else {
            let due = Due::Mono(self.now.mono + CLOSE_ABORT_GRACE);
            self.timers.set(Timer::CloseGrace, due);
        }
    }

    /// A call of the wind-down: the channel stays open for its reply (LIFE-05).
    pub(crate) fn note_closing_call(&mut self, call_id: CallId) {
        if let Some(closing) = &mut self.closing {
            closing.calls.insert(call_id);
        }
    }

    /// A reply while closing; with the last one the channel closes.
    pub(crate) fn closing_replied(&mut self, call_id: CallId, out: &mut Effects) {
        let Some(closing) = &mut self.closing else {
            return;
        };
        if closing.calls.remove(&call_id) && closing.calls.is_empty() {
            self.close_channel(out);
        }
    }

    fn close_channel(&mut self, out: &mut Effects) {
        if let Some(closing) = self.closing.take() {
            self.timers.stop(&Timer::CloseGrace);
            out.push(Effect::CloseChannel {
                error: closing.error,
            });
        }
    }

    pub(crate) const fn order(&mut self) -> u64 {
        self.next_order += 1;
        self.next_order
    }
}
