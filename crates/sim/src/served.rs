//! What this version of the cores can be asked and can say. A scenario that needs more is refused
//! (exit 2), so that no file passes without having been played.

/// Names of one kind, as a scenario writes them.
pub(crate) struct Names {
    /// `call` or `callback`.
    pub(crate) kind: &'static str,
    /// Those that the policy can send now.
    pub(crate) now: &'static [&'static str],
    /// Those of the specification that it does not send yet.
    pub(crate) later: &'static [&'static str],
}

/// Calls on the Manager.
pub(crate) const CALLS: Names = Names {
    kind: "call",
    now: &[
        "startJob",
        "stopJob",
        "markJobFailed",
        "createBundle",
        "updateBundle",
        "deleteBundle",
        "startBundleJob",
        "stopBundleJob",
        "setBundleStopTime",
        "createAwsNode",
        "createOciNode",
        "terminateNode",
        "setNodeTags",
        "startPreparedJob",
        "notifyMigrationGetState",
        "notifyMigrationCutoverReady",
        "notifyMigrationCutoverApply",
        "abortMigration",
    ],
    later: &["createJob", "deleteJob", "prefetchImages"],
};

/// Callbacks.
pub(crate) const CALLBACKS: Names = Names {
    kind: "callback",
    now: &[
        "onConnectionStateChange",
        "onError",
        "onJobUpdated",
        "onJobDeleted",
        "onJobInfo",
        "onAuditAppended",
        "onJobRejected",
        "onJobDropped",
        "onNodeStarting",
        "onNodeStarted",
        "onNodeStopping",
        "onNodeStopped",
        "onNodeTerminated",
        "onNodeUnhealthy",
        "onNodeHealthy",
        "onBundleUpdated",
        "onBundleDeleted",
        "onBundleBroken",
        "onPlacementDecision",
        "onPlacementFailed",
        "onResilienceDegraded",
        "onSpareUnderflow",
        "onMigrationPhase",
        "onMigrationCompleted",
        "onMigrationAborted",
        "onDrainProgress",
        "onNodeInterrupted",
    ],
    later: &["onImagesPrefetched", "onDrainProgress", "onNodeInterrupted"],
};
