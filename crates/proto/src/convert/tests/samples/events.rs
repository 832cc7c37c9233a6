//! Random events of the stream, every kind among them.

use greenroom_types::{call::AuditEntry, stream::*};
use proptest::{collection::vec, option, prelude::*};

use super::*;

fn provider_health() -> impl Strategy<Value = ProviderHealth> {
    let health = || one_of(&[Health::Healthy, Health::Unstable, Health::Failed]);
    let list = move || vec((text(), health()), 0..3);
    prop_oneof![
        list().prop_map(ProviderHealth::Aws),
        list().prop_map(ProviderHealth::Oci),
        health().prop_map(ProviderHealth::Local),
        list().prop_map(ProviderHealth::CloudHypervisor),
    ]
}

fn node_stopping_reason() -> impl Strategy<Value = NodeStoppingReason> {
    use NodeStoppingReason::*;
    one_of(&[
        CreateFailed,
        PendingTimeExceeded,
        StartupTimeExceeded,
        InitialisationHealthPingTimeExceeded,
        HealthPingTimeExceeded,
        DuplicateJob,
        ProviderStop,
        ProviderTerminate,
        UserRequested,
        UnknownNode,
    ])
}

fn node_event() -> impl Strategy<Value = StreamEvent> {
    let node = || node_metadata().prop_map(Arc::new);
    let running = || running().prop_map(Arc::new);
    let inventory = || inventory().prop_map(Arc::new);
    let phase = one_of(&[None, Some(StartPhase::Requested), Some(StartPhase::Booting)]);
    let result =
        (text(), any::<bool>(), text(), text()).prop_map(|(image_ref, ok, error, text)| {
            PrefetchResult {
                image_ref,
                ok,
                error,
                text,
            }
        });
    prop_oneof![
        (node(), running(), vec(running_job(), 0..3), any::<bool>()).prop_map(
            |(metadata, running, instances, reachable)| StreamEvent::NodeRunning {
                metadata,
                running,
                instances,
                reachable,
            }
        ),
        (node(), phase).prop_map(|(metadata, phase)| StreamEvent::NodeStarting { metadata, phase }),
        (node(), running())
            .prop_map(|(metadata, running)| StreamEvent::NodeStarted { metadata, running }),
        (node_id(), node_stopping_reason(), text(), text()).prop_map(
            |(node_id, reason, detail, provider_code)| StreamEvent::NodeStopping {
                node_id,
                reason,
                detail,
                provider_code,
            }
        ),
        node_id().prop_map(|node_id| StreamEvent::NodeStopped { node_id }),
        (node_id(), inventory()).prop_map(|(node_id, inventory)| {
            StreamEvent::NodeInventorySnapshot { node_id, inventory }
        }),
        (node_id(), inventory()).prop_map(|(node_id, inventory)| {
            StreamEvent::NodeInventoryUpdated { node_id, inventory }
        }),
        (node_id(), any::<bool>()).prop_map(|(node_id, reachable)| {
            StreamEvent::NodeReachabilityChanged { node_id, reachable }
        }),
        (node(), any::<u64>())
            .prop_map(|(metadata, revision)| StreamEvent::NodeTagsUpdated { metadata, revision }),
        (node_id(), interruption()).prop_map(|(node_id, notice)| {
            StreamEvent::NodeInterruptionNotice {
                node_id,
                kind: notice.kind,
                deadline: notice.deadline,
                noticed_at: notice.seen_at,
            }
        }),
        (node_id(), text(), vec(result, 0..3)).prop_map(|(node_id, batch_id, results)| {
            StreamEvent::ImagesPrefetched {
                node_id,
                batch_id,
                results,
            }
        }),
    ]
}

fn job_event() -> impl Strategy<Value = StreamEvent> {
    let job = || job_with_history().prop_map(Arc::new);
    let bundle = || bundle_status().prop_map(Arc::new);
    prop_oneof![
        job().prop_map(StreamEvent::JobActive),
        job().prop_map(StreamEvent::JobPending),
        job().prop_map(StreamEvent::JobUpdated),
        job().prop_map(StreamEvent::JobOutOfWindow),
        job_id().prop_map(StreamEvent::JobDeleted),
        job_info().prop_map(StreamEvent::JobInfo),
        bundle().prop_map(StreamEvent::BundleActive),
        bundle().prop_map(StreamEvent::BundleUpdated),
        name().prop_map(|id| StreamEvent::BundleDeleted(BundleId::new(id))),
        (node_id(), start_id(), rejection()).prop_map(|(node_id, start_id, rejection)| {
            StreamEvent::JobRejected {
                node_id,
                key: rejection.key,
                start_id,
                code: rejection.code,
                reason: rejection.detail,
                inventory: rejection.inventory,
            }
        }),
        (key(), node_id(), start_id()).prop_map(|(key, node_id, start_id)| {
            StreamEvent::JobPrepared {
                key,
                node_id,
                start_id,
            }
        }),
        migration_news().prop_map(|news| StreamEvent::Migration {
            key: news.key,
            migration_id: news.migration_id,
            signal: news.signal,
        }),
    ]
}

fn other_event() -> impl Strategy<Value = StreamEvent> {
    let state =
        one_of(&["held", "lost_waiting", "paused_kept", "released"]).prop_map(str::to_owned);
    let numbers = (any::<(u64, u64, u64)>(), option::of(wall()));
    let lease = (key(), start_id(), node_id(), numbers, state).prop_map(
        |(key, start_id, node_id, ((fence, ttl_ms, remaining_ms), refreshed_at), state)| {
            JobLeaseInfo {
                key,
                start_id,
                node_id,
                fence,
                ttl_ms,
                state,
                remaining_ms,
                refreshed_at,
            }
        },
    );
    let texts = (text(), text(), text(), text());
    let hashes = ("([0-9a-f]{2}){0,4}", "([0-9a-f]{2}){0,4}");
    let entry =
        (any::<u64>(), wall(), texts, hashes).prop_map(|(seq, at, texts, hashes)| AuditEntry {
            seq,
            at,
            source: texts.0,
            kind: texts.1,
            actor: texts.2,
            payload: texts.3,
            prev_hash: hashes.0,
            hash: hashes.1,
        });
    prop_oneof![
        provider_health().prop_map(StreamEvent::ProviderHealthChange),
        vec(provider_health(), 0..4).prop_map(StreamEvent::InitialDataComplete),
        lease.prop_map(StreamEvent::LeaseChanged),
        (any::<bool>(), text(), text(), option::of(wall())).prop_map(
            |(paused, reason, by, since)| StreamEvent::LeasesPaused {
                paused,
                reason,
                by,
                since
            }
        ),
        entry.prop_map(StreamEvent::AuditAppended),
        wall().prop_map(|server_time| StreamEvent::Heartbeat { server_time }),
        (text(), any::<u64>()).prop_map(|(kind, count)| StreamEvent::EventsLost { kind, count }),
        (any::<bool>(), text(), any::<u64>()).prop_map(|(complete, reason, from_seq)| {
            StreamEvent::StreamResumed {
                complete,
                reason,
                from_seq,
            }
        }),
    ]
}

pub(in crate::convert::tests) fn stamped() -> impl Strategy<Value = Stamped> {
    (
        any::<u64>(),
        wall(),
        prop_oneof![node_event(), job_event(), other_event()],
    )
        .prop_map(|(seq, at, event)| Stamped { seq, at, event })
}
