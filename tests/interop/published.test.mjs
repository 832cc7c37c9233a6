// Every published RPC with good and bad input, by the published client package.
// spec: API-02, API-03
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { call, collect, common, Empty, events, grpc, job, jobId, nodeId, pb, start, Timestamp } from "./harness.mjs";

const { INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION, RESOURCE_EXHAUSTED } = grpc.status;

let system;
let client;
before(async () => {
  system = await start();
  client = system.client;
});
after(() => system.stop());

async function refused(promise, code, reason) {
  const failure = await promise.then(() => assert.fail("the call was not refused"), (refusal) => refusal);
  assert.equal(failure.code, code, failure.message);
  assert.equal(failure.reason, reason, failure.message);
  assert.ok(failure.status, "a refusal carries norsk.api.error.Status");
  assert.equal(failure.status.code, code);
  return failure;
}

const search = (filters = []) => collect(client.jobSearch(new pb.JobSearchRequest({ jobFilter: filters })));
const tag = (tagName, comparison) =>
  new pb.JobFilter({ jobFilter: { case: "tagFilter", value: new pb.TagFilter({ tagName, comparison }) } });
const byId = (comparison) =>
  new pb.JobFilter({ jobFilter: { case: "idFilter", value: new pb.IdFilter({ comparison }) } });
const byDate = (comparison) =>
  new pb.JobFilter({ jobFilter: { case: "dateFilter", value: new pb.DateFilter({ comparison }) } });
const ids = (found) => found.map((one) => one.job.jobId.jobId);

test("CreateStatusChannel begins with a hello", async () => {
  const stream = client.createStatusChannel(new Empty());
  const first = await new Promise((resolve, reject) => {
    stream.once("data", resolve);
    stream.once("error", reject);
  });
  stream.on("error", () => {});
  stream.cancel();
  assert.equal(first.message.case, "hello");
  assert.ok(first.message.value.version instanceof common.Version);
});

test("CreateJob, UpdateJob, JobSearch, CompleteJob and DeleteJob", async () => {
  const first = await call(client, "createJob", job("life", "sleep 60", { tags: { kind: "life" } }));
  assert.ok(first.hash > 0n, "a hash is a positive number");
  await refused(call(client, "createJob", job("life", "sleep 60")), ALREADY_EXISTS, "job_exists");
  const same = await call(client, "updateJob", job("life", "sleep 60", { tags: { kind: "life" } }));
  assert.equal(same.hash, first.hash, "equal content, equal hash");
  const changed = await call(client, "updateJob", job("life", "sleep 61", { tags: { kind: "life" }, currentHash: first.hash }));
  assert.notEqual(changed.hash, first.hash);
  await refused(call(client, "updateJob", job("life", "sleep 62", { currentHash: first.hash })), FAILED_PRECONDITION, "hash_mismatch");
  await refused(call(client, "updateJob", job("nobody", "sleep 1")), NOT_FOUND, "unknown_job");

  const [found] = await search([tag("kind", { case: "eq", value: "life" })]);
  assert.equal(found.job.jobId.jobId, "life");
  assert.equal(found.job.state, pb.Job_JobState.PRE);
  assert.equal(found.job.services[0].command, "sleep 61");
  assert.equal(found.job.currentHash, changed.hash);
  assert.deepEqual(found.instances, []);

  assert.ok((await call(client, "completeJob", jobId("life"))) instanceof Empty);
  assert.ok((await call(client, "completeJob", jobId("life"))) instanceof Empty, "repeated is fine");
  assert.equal((await search([byId({ case: "eq", value: "life" })]))[0].job.state, pb.Job_JobState.POST);
  await refused(call(client, "completeJob", jobId("nobody")), NOT_FOUND, "unknown_job");

  assert.ok((await call(client, "deleteJob", jobId("life"))) instanceof Empty);
  await refused(call(client, "deleteJob", jobId("life")), NOT_FOUND, "unknown_job");
  assert.deepEqual(await search([byId({ case: "eq", value: "life" })]), []);
});

test("JobSearch filters by tag, id and date, combined with and", async () => {
  const at = (text) => Timestamp.fromDate(new Date(text));
  await call(client, "createJob", job("s/a", "true", { tags: { show: "news" }, startDateTime: at("2031-01-01T10:00:00Z") }));
  await call(client, "createJob", job("s/b", "true", { tags: { show: "sport" }, startDateTime: at("2031-01-02T10:00:00Z") }));
  await call(client, "createJob", job("s/c", "true"));
  const mine = byId({ case: "re", value: "^s/" });
  const list = async (...filters) => ids(await search([mine, ...filters]));
  assert.deepEqual(await list(), ["s/a", "s/b", "s/c"], "in id order");
  assert.deepEqual(await list(tag("show", { case: "eq", value: "news" })), ["s/a"]);
  assert.deepEqual(await list(tag("show", { case: "neq", value: "news" })), ["s/b", "s/c"], "also when absent");
  assert.deepEqual(await list(tag("show", { case: "re", value: "^sp" })), ["s/b"]);
  assert.deepEqual(await list(tag("show", { case: "exists", value: true })), ["s/a", "s/b"]);
  assert.deepEqual(await list(tag("show", { case: "exists", value: false })), ["s/c"]);
  assert.deepEqual(await list(byId({ case: "neq", value: "s/a" })), ["s/b", "s/c"]);
  assert.deepEqual(await list(byDate({ case: "lt", value: at("2031-01-02T00:00:00Z") })), ["s/a"]);
  assert.deepEqual(await list(byDate({ case: "gte", value: at("2031-01-02T10:00:00Z") })), ["s/b"]);
  const within = new pb.DateFilter_Within({ startDate: at("2031-01-01T10:00:00Z"), endDate: at("2031-01-02T10:00:00Z") });
  assert.deepEqual(await list(byDate({ case: "within", value: within })), ["s/a", "s/b"], "both ends");
  const bad = await search([tag("show", { case: "re", value: "(" })]).catch((failure) => failure);
  assert.equal(bad.code, INVALID_ARGUMENT);
  assert.equal(bad.metadata.get("greenroom-reason")[0], "bad_regex");
  const none = await search([tag("show", { case: undefined })]).catch((failure) => failure);
  assert.equal(none.code, INVALID_ARGUMENT);
  assert.equal(none.metadata.get("greenroom-reason")[0], "empty_filter");
});

test("cloud calls without a provider are refused by name", async () => {
  const aws = new pb.CreateAwsNodeRequest({ nodeId: nodeId("aws-1"), region: "eu-west-1", instanceType: "m7i.large" });
  const told = await refused(call(client, "createAwsNode", aws), FAILED_PRECONDITION, "provider_not_configured");
  assert.match(told.message, /aws/);
  const oci = new pb.CreateOciNodeRequest({ nodeId: nodeId("oci-1"), availabilityDomain: "AD-1", shape: "VM.Standard3.Flex" });
  await refused(call(client, "createOciNode", oci), FAILED_PRECONDITION, "provider_not_configured");
});

test("node calls refuse unknown ids", async () => {
  await refused(call(client, "terminateNode", nodeId("nowhere")), NOT_FOUND, "unknown_node");
  const update = new pb.UpdatePhysicalNodeRequest({ id: "nowhere", daemonVersion: "1.2.3" });
  await refused(call(client, "updatePhysicalNode", update), NOT_FOUND, "unknown_node");
});

test("bad input gets its status and changes nothing", async () => {
  const before = (await search()).length;
  await refused(call(client, "createJob", job("", "true")), INVALID_ARGUMENT, "missing_field");
  await refused(call(client, "createJob", job("no spaces please", "true")), INVALID_ARGUMENT, "bad_job_id");
  await refused(call(client, "createJob", job("x".repeat(201), "true")), INVALID_ARGUMENT, "bad_job_id");
  const twice = new pb.Job({ jobId: jobId("dup"), services: [1, 2].map(() => new common.Service({ name: "a", command: "true" })) });
  await refused(call(client, "createJob", twice), INVALID_ARGUMENT, "bad_job");
  const enumeration = job("enum", "true");
  enumeration.services[0].restart = 77;
  await refused(call(client, "createJob", enumeration), INVALID_ARGUMENT, "unknown_enum");
  const late = job("late", "true", { startDateTime: new Timestamp({ seconds: 300000000000n }) });
  await refused(call(client, "createJob", late), INVALID_ARGUMENT, "bad_timestamp");
  await refused(call(client, "createJob", job("tagged", "true", { tags: { bundleId: "b" } })), INVALID_ARGUMENT, "reserved_tag");
  await refused(call(client, "deleteJob", jobId("")), INVALID_ARGUMENT, "missing_field");
  await refused(call(client, "terminateNode", nodeId("")), INVALID_ARGUMENT, "missing_field");
  const start = new pb.StartJobRequest({ jobId: jobId("s/c"), role: "", nodeId: nodeId("n") });
  await refused(call(client, "startJob", start), INVALID_ARGUMENT, "missing_field");
  const huge = await call(client, "createJob", job("huge", "true", { description: "x".repeat(5 * 1024 * 1024) })).catch((failure) => failure);
  assert.equal(huge.code, RESOURCE_EXHAUSTED, "a message above 4 MiB");
  assert.equal((await search()).length, before);
});

test("the event stream begins with a snapshot and then tells changes in order", async () => {
  await call(client, "createJob", job("ev/before", "true"));
  const stream = events(client);
  await stream.until((event) => event.case === "initialDataComplete");
  const complete = stream.seen.findIndex((event) => event.case === "initialDataComplete");
  const snapshot = stream.seen.slice(0, complete);
  const pending = snapshot.filter((event) => event.case === "jobPending").map((event) => event.value.jobWithHistory.job.jobId.jobId);
  assert.ok(pending.includes("ev/before"));
  assert.equal(new Set(pending).size, pending.length, "none twice");

  await call(client, "createJob", job("ev/after", "true"));
  await call(client, "updateJob", job("ev/after", "false"));
  await call(client, "deleteJob", jobId("ev/after"));
  await stream.until((event) => event.case === "jobDeleted" && event.value.jobId.jobId === "ev/after");
  const about = stream.seen.slice(complete + 1).filter((event) =>
    (event.value.jobWithHistory?.job.jobId ?? event.value.jobId)?.jobId === "ev/after");
  assert.deepEqual(about.map((event) => event.case), ["jobPending", "jobUpdated", "jobDeleted"]);
  const published = new Set(["nodeRunning", "jobActive", "initialDataComplete", "jobUpdated", "jobDeleted", "jobPending",
    "jobOutOfWindow", "nodeStarting", "nodeStarted", "nodeStopping", "nodeStopped", "physicalNodeConnected",
    "providerHealthChange", "jobInfo"]);
  for (const event of stream.seen) assert.ok(published.has(event.case), `only published kinds, not ${event.case}`);
  stream.close();

  const far = events(client, 60);
  await far.until((event) => event.case === "initialDataComplete");
  const inAYear = Timestamp.fromDate(new Date(Date.now() + 365 * 86400e3));
  await call(client, "createJob", job("ev/far", "true", { startDateTime: inAYear }));
  await call(client, "createJob", job("ev/near", "true"));
  await far.until((event) => event.value.jobWithHistory?.job.jobId.jobId === "ev/near");
  assert.ok(!far.seen.some((event) => event.value.jobWithHistory?.job.jobId.jobId === "ev/far"), "outside the window");
  far.close();
  const bad = events(client, -1);
  const failure = await bad.until(() => false).catch((cause) => cause);
  assert.equal(failure.code, INVALID_ARGUMENT);
  assert.equal(failure.metadata.get("greenroom-reason")[0], "bad_window");
});

test("a job runs on a worker, is told in its history, and stops", async () => {
  const stream = events(client);
  await stream.until((event) => event.case === "initialDataComplete");
  const { nodeId: node } = await system.worker("interop-1");
  const started = await stream.until((event) => event.case === "nodeStarted");
  assert.equal(started.value.nodeMetadata.nodeId.nodeId, node);

  await call(client, "createJob", job("run/a", "sleep 600"));
  const request = new pb.StartJobRequest({ jobId: jobId("run/a"), role: "primary", nodeId: nodeId(node) });
  assert.ok((await call(client, "startJob", request)) instanceof Empty);
  await refused(call(client, "startJob", request), ALREADY_EXISTS, "already_on_node");
  const unknown = new pb.StartJobRequest({ jobId: jobId("nobody"), role: "primary", nodeId: nodeId(node) });
  await refused(call(client, "startJob", unknown), NOT_FOUND, "unknown_job");
  const nowhere = new pb.StartJobRequest({ jobId: jobId("run/a"), role: "backup", nodeId: nodeId("nowhere") });
  await refused(call(client, "startJob", nowhere), NOT_FOUND, "unknown_node");

  const kinds = (event) => event.value.jobWithHistory.historyEntry.map((entry) => entry.historyEntry.case);
  const mine = (event) => event.case === "jobUpdated" && event.value.jobWithHistory.job.jobId.jobId === "run/a";
  const running = await stream.until((event) => mine(event) && kinds(event).includes("jobRunning"));
  assert.deepEqual(kinds(running), ["jobCreated", "jobProvisioned", "jobRunning"]);
  assert.equal(running.value.jobWithHistory.job.state, pb.Job_JobState.ACTIVE);
  const [found] = await search([byId({ case: "eq", value: "run/a" })]);
  assert.equal(found.instances[0].nodeId.nodeId, node);
  assert.equal(found.instances[0].jobKey.role, "primary");

  const stop = new pb.StopJobRequest({ jobId: jobId("run/a"), role: "primary", nodeId: nodeId(node) });
  assert.ok((await call(client, "stopJob", stop)) instanceof Empty);
  const stopped = await stream.until((event) => mine(event) && kinds(event).includes("jobStopped"));
  assert.deepEqual(kinds(stopped), ["jobCreated", "jobProvisioned", "jobRunning", "jobStopping", "jobStopped"]);
  const stopping = stopped.value.jobWithHistory.historyEntry[3].historyEntry.value;
  assert.equal(stopping.reason, pb.JobHistoryJobStopping_Reason.JOB_STOPPED_USER_REQUESTED);
  assert.ok((await call(client, "stopJob", stop)) instanceof Empty, "stopping what is stopped is fine");
  const never = new pb.StopJobRequest({ jobId: jobId("run/a"), role: "backup", nodeId: nodeId(node) });
  await refused(call(client, "stopJob", never), NOT_FOUND, "no_instance");

  await call(client, "createJob", job("run/fails", "sh -c 'exit 3'"));
  await call(client, "startJob", new pb.StartJobRequest({ jobId: jobId("run/fails"), role: "primary", nodeId: nodeId(node) }));
  const failed = await stream.until((event) => event.case === "jobUpdated"
    && event.value.jobWithHistory.job.jobId.jobId === "run/fails" && kinds(event).includes("jobStopped"));
  const why = failed.value.jobWithHistory.historyEntry.find((entry) => entry.historyEntry.case === "jobStopping").historyEntry.value;
  assert.equal(why.reason, pb.JobHistoryJobStopping_Reason.JOB_STOPPED_JOB_FAILED);

  const update = new pb.UpdatePhysicalNodeRequest({ id: node, daemonVersion: "9.9.9" });
  assert.ok((await call(client, "updatePhysicalNode", update)) instanceof Empty);
  assert.ok((await call(client, "terminateNode", nodeId(node))) instanceof Empty);
  await stream.until((event) => event.case === "nodeStopping" && event.value.nodeId.nodeId === node);
  await stream.until((event) => event.case === "nodeStopped" && event.value.nodeId.nodeId === node);
  assert.ok((await call(client, "terminateNode", nodeId(node))) instanceof Empty, "repeated is fine");
  stream.close();
});
