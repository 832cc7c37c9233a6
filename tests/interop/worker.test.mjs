// A worker made of the published package alone is served by the Manager, where that is allowed.
// spec: WORK-04
import assert from "node:assert/strict";
import { after, before, test as bare } from "node:test";
import { call, common, events, grpc, job, jobId, nodeId, pb, start, worker as wire } from "./harness.mjs";

const { ALREADY_EXISTS, FAILED_PRECONDITION } = grpc.status;

/** A wait that is never over ends the test, and not the whole run. */
const test = (name, run) => bare(name, { timeout: 60_000 }, run);

let system;
let node;
before(async () => {
  system = await start({ workers: { allowPublished: true } });
  node = await PublishedWorker.join(system, "studio");
});
after(async () => {
  node?.end();
  await system.stop();
});

/** What the package has for a worker: the gRPC server of its stream, which the Manager dials. */
class PublishedWorker {
  static async join(system, name, secretOf = (key) => key.toString("hex")) {
    const slot = await system.greenroom("node", "register", name, "--pool", "local");
    const self = new PublishedWorker();
    self.nodeId = slot.nodeId;
    self.heard = [];
    self.running = [];
    self.waiting = [];
    self.streams = 0;
    self.server = new grpc.Server();
    self.server.addService(wire.WorkerService, { nodeControllerStream: (stream) => self.serve(stream) });
    const port = await new Promise((resolve, reject) =>
      self.server.bindAsync("127.0.0.1:0", grpc.ServerCredentials.createInsecure(), (cause, port) =>
        cause ? reject(cause) : resolve(port)));
    const request = { token: slot.token, machineId: "published-machine", listenAddress: "127.0.0.1", listenPort: port };
    const answer = await system.ctl("ClusterMemberRegister", request).catch((failure) => {
      self.end();
      throw failure;
    });
    self.secret = secretOf(Buffer.from(answer.keyShare, "base64"));
    return self;
  }

  serve(stream) {
    this.stream = stream;
    this.streams += 1;
    stream.on("error", () => {});
    this.say("hello", new wire.pb.WorkerHello({
      nodeMetadata: new common.NodeMetadata({ nodeId: nodeId(this.nodeId) }),
      sharedSecret: this.secret,
      runningJobs: this.running,
    }));
    const health = setInterval(() => this.say("health", new wire.pb.Health({})), 500);
    stream.on("data", (message) => { this.heard.push(message.message); this.wake(); });
    stream.on("close", () => clearInterval(health));
    stream.on("end", () => stream.end());
    this.wake();
  }

  say(kind, value) {
    this.stream.write(new wire.pb.WorkerMessage({ message: { case: kind, value } }));
  }

  wake() {
    this.waiting = this.waiting.filter((waiter) => !waiter());
  }

  until(found) {
    return new Promise((resolve) => {
      const waiter = () => {
        const it = found();
        if (it) resolve(it);
        return Boolean(it);
      };
      if (!waiter()) this.waiting.push(waiter);
    });
  }

  /** The first order of a kind about a job; each is given once. */
  async order(kind, id) {
    const of = (message) => (message.value.jobId ?? message.value)?.jobId;
    const at = () => this.heard.findIndex((message) => message.case === kind && (id === undefined || [of(message), of(message)?.jobId].includes(id)));
    await this.until(() => at() >= 0);
    return this.heard.splice(at(), 1)[0].value;
  }

  end() {
    this.server.forceShutdown();
  }
}

const key = (id, role = "primary") => new common.ActiveJobKey({ jobId: jobId(id), role });
/** Whether an event shows a job whose history has an entry of a kind. */
const tells = (event, id, kind) =>
  event.case === "jobUpdated" && event.value.jobWithHistory.job.jobId.jobId === id &&
  event.value.jobWithHistory.historyEntry.some((entry) => entry.historyEntry.case === kind);
const startJob = (id, more = {}) =>
  call(system.client, "startJob", new pb.StartJobRequest({ jobId: jobId(id), nodeId: nodeId(node.nodeId), role: "primary", ...more }));

async function refused(promise, code, reason) {
  const failure = await promise.then(() => assert.fail("the call was not refused"), (refusal) => refusal);
  assert.equal(failure.code, code, failure.message);
  assert.equal(failure.reason, reason, failure.message);
}

/** A call of ours that the package does not know, refused. */
async function refusedByName(method, request, reason) {
  const failure = await system.ctl(method, request).then(
    () => assert.fail("the call was not refused"), (failure) => failure);
  assert.match(String(failure.stderr), new RegExp(reason));
}

test("its node runs once the hello was heard", async () => {
  await node.order("helloResponse");
  const seen = events(system.client);
  // In the snapshot, or after it.
  const told = await seen.until((event) => ["nodeRunning", "nodeStarted"].includes(event.case));
  assert.equal(told.value.nodeMetadata.nodeId.nodeId, node.nodeId);
  seen.close();
});

test("a job runs there, is told in its history, and stops", async () => {
  const seen = events(system.client);
  await call(system.client, "createJob", job("life", "sleep 60"));
  await startJob("life");
  const provision = await node.order("provisionJob", "life");
  assert.equal(provision.services[0].command, "sleep 60");
  node.say("jobStarted", new wire.pb.WorkerJobStarted({ jobKey: key("life") }));
  await seen.until((event) => tells(event, "life", "jobRunning"));
  await call(system.client, "stopJob", new pb.StopJobRequest({ jobId: jobId("life"), role: "primary", nodeId: nodeId(node.nodeId) }));
  await node.order("stopJob", "life");
  node.say("jobStopped", key("life"));
  await seen.until((event) => tells(event, "life", "jobStopped"));
  seen.close();
});

test("what runs is matched by its key when the stream comes back, and is not started again", async () => {
  await call(system.client, "createJob", job("stays", "sleep 60"));
  await startJob("stays");
  const provision = await node.order("provisionJob", "stays");
  node.say("jobStarted", new wire.pb.WorkerJobStarted({ jobKey: key("stays") }));
  node.running = [
    new wire.pb.WorkerRunningJob({ job: provision }),
    new wire.pb.WorkerRunningJob({ job: new wire.pb.WorkerJob({ jobId: jobId("stranger"), role: "primary" }) }),
  ];
  const before = node.streams;
  node.stream.end();
  await node.until(() => node.streams > before);
  // Nobody knows this one: it is told to stop. The one that is expected hears nothing.
  await node.order("stopJob", "stranger");
  assert.equal(node.heard.filter((message) => message.case === "provisionJob").length, 0);
  await refused(startJob("stays"), ALREADY_EXISTS, "already_on_node");
});

test("what it has no word for is refused", async () => {
  const services = [{ name: "main", command: "sleep 60" }];
  await system.ctl("CreateJob", { jobId: { jobId: "leased" }, services, lease: { ttlMs: "5000" } });
  await refused(startJob("leased"), FAILED_PRECONDITION, "worker_too_old");
  await call(system.client, "createJob", job("later", "sleep 60"));
  const start = { jobId: { jobId: "later" }, nodeId: { nodeId: node.nodeId }, role: "primary" };
  await refusedByName("StartJob", { ...start, deferStart: true }, "worker_too_old");
  await refusedByName("StartJob", { ...start, migrationId: "m1" }, "worker_too_old");
  await refusedByName("PrefetchImages", { nodeId: { nodeId: node.nodeId }, imageRefs: ["a:1"] }, "worker_too_old");
});

test("a worker with another secret is not served", async () => {
  const impostor = await PublishedWorker.join(system, "impostor", () => "00".repeat(32));
  await impostor.until(() => impostor.streams > 1);
  assert.equal(impostor.heard.filter((message) => message.case === "helloResponse").length, 0);
  impostor.end();
});

test("told to end, it stops what runs, and then its node is gone", async () => {
  const seen = events(system.client);
  await system.greenroom("node", "deregister", node.nodeId);
  await node.order("stopJob", "stays");
  node.say("jobStopped", key("stays"));
  await seen.until((event) => event.case === "nodeStopped");
  seen.close();
});

test("without the setting nobody calls in without a key", async () => {
  const strict = await start();
  try {
    const failure = await PublishedWorker.join(strict, "studio").then(
      () => assert.fail("it was let in"), (failure) => failure);
    assert.match(String(failure.stderr), /public_key/);
  } finally {
    await strict.stop();
  }
});
