//! Names of everything that the policy can call and tell. A scenario that names another is refused
//! (exit 2), so that no expectation passes by a typing slip.

/// Names of one kind, as a scenario writes them.
pub(crate) struct Names {
    /// `call` or `callback`.
    pub(crate) kind: &'static str,
    /// All of them.
    pub(crate) now: &'static [&'static str],
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
        "prefetchImages",
        "createJob",
        "deleteJob",
    ],
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
        "onImagesPrefetched",
    ],
};
