// Starts the built binary and speaks to it with the published client package, unchanged.
import { spawn, execFile } from "node:child_process";
import { mkdtempSync, writeFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const require = createRequire(import.meta.url);
export const grpc = require("@grpc/grpc-js");
export const pb = require("@norskvideo/norsk-api/lib/manager_pb.js");
export const common = require("@norskvideo/norsk-api/lib/shared/common_pb.js");
export const error = require("@norskvideo/norsk-api/lib/shared/error_pb.js");
export const { Empty, Timestamp } = require("@bufbuild/protobuf");
const workerPb = require("@norskvideo/norsk-api/lib/worker_pb.js");
const { WorkerService } = require("@norskvideo/norsk-api/lib/worker_grpc_pb.js");
export const worker = { pb: workerPb, WorkerService };
const { ManagerClient } = require("@norskvideo/norsk-api/lib/manager_grpc_pb.js");

const here = dirname(fileURLToPath(import.meta.url));
const binary = process.env.GREENROOM_BIN ?? join(here, "../../target/debug/greenroom");

/** One process of the product; `ready` resolves with the first JSON line it prints. */
function launch(args) {
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "pipe"] });
  const errors = [];
  child.stderr.on("data", (chunk) => errors.push(chunk));
  const exited = new Promise((resolve) => child.once("exit", (code, signal) => resolve({ code, signal })));
  const ready = new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", (line) => resolve(JSON.parse(line)));
    exited.then(({ code, signal }) =>
      reject(new Error(`${args.join(" ")} ended (${code ?? signal}): ${Buffer.concat(errors)}`)));
  });
  ready.catch(() => {});
  return { child, ready, exited };
}

/** A Manager on a free port, with its client; `worker(name)` adds a worker on the process runtime. */
export async function start(settings) {
  const folder = mkdtempSync(join(tmpdir(), "greenroom-interop-"));
  const parts = [];
  const args = ["manager", "--data-dir", join(folder, "manager"), "--listen", "127.0.0.1:0", "--json"];
  if (settings) {
    writeFileSync(join(folder, "manager.yaml"), JSON.stringify(settings));
    args.push("--config", join(folder, "manager.yaml"));
  }
  let manager = launch(args);
  parts.push(manager);
  const { address } = await manager.ready;
  const client = new ManagerClient(address, grpc.credentials.createInsecure());

  async function greenroom(...args) {
    const { stdout } = await promisify(execFile)(binary, [...args, "--manager", `http://${address}`, "--json"]);
    return stdout.trim() === "" ? null : JSON.parse(stdout);
  }

  /** Any call by its name, also one that the package does not know. */
  async function ctl(name, request) {
    const args = ["ctl", name, "--json", JSON.stringify(request), "--show-secrets", "--manager", `http://${address}`];
    const { stdout } = await promisify(execFile)(binary, args);
    return stdout.trim() === "" ? null : JSON.parse(stdout);
  }

  async function worker(name) {
    const { nodeId, token } = await greenroom("node", "register", name, "--pool", "local");
    const tokenFile = join(folder, `${name}.token`);
    writeFileSync(tokenFile, token, { mode: 0o600 });
    const part = launch(["worker", "--mode", "local", "--runtime", "process", "--manager-url", `http://${address}`,
      "--token-file", tokenFile, "--state-dir", join(folder, name), "--listen", "127.0.0.1:0", "--leave", "--json"]);
    parts.push(part);
    await part.ready;
    return { nodeId, part };
  }

  async function stop() {
    client.close();
    for (const part of parts.reverse()) {
      part.child.kill("SIGTERM");
      await part.exited;
    }
    rmSync(folder, { recursive: true, force: true });
  }

  return { client, address, greenroom, ctl, worker, stop };
}

/** A unary call as a promise; a refusal rejects with the published error, reason and details read. */
export function call(client, method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, (failure, answer) => {
      if (!failure) return resolve(answer);
      failure.reason = failure.metadata.get("greenroom-reason")[0];
      const details = failure.metadata.get("grpc-status-details-bin")[0];
      if (details) failure.status = error.Status.fromBinary(new Uint8Array(details));
      reject(failure);
    });
  });
}

/** Everything a finite stream sends. */
export function collect(stream) {
  return new Promise((resolve, reject) => {
    const items = [];
    stream.on("data", (item) => items.push(item));
    stream.on("end", () => resolve(items));
    stream.on("error", reject);
  });
}

/** An event stream with its events kept; `until(test)` resolves with the first event that passes. */
export function events(client, pendingWindowS = 3600) {
  const stream = client.eventStream(new pb.EventStreamRequest({ pendingWindowS }));
  const seen = [];
  let waiting = [];
  let failure;
  const wake = () => (waiting = waiting.filter((waiter) => !waiter()));
  stream.on("data", (event) => { seen.push(event.event); wake(); });
  stream.on("error", (cause) => { failure = cause; wake(); });
  function until(test) {
    return new Promise((resolve, reject) => {
      const waiter = () => {
        const found = seen.find(test);
        if (found) return resolve(found), true;
        if (failure) return reject(failure), true;
        return false;
      };
      if (!waiter()) waiting.push(waiter);
    });
  }
  return { seen, until, stream, close: () => stream.cancel(), failed: () => failure };
}

/** A job whose one service is a plain command. */
export function job(id, command, more = {}) {
  return new pb.Job({
    jobId: new common.JobId({ jobId: id }),
    description: "interop",
    services: command ? [new common.Service({ name: "main", command })] : [],
    ...more,
  });
}

export const jobId = (id) => new common.JobId({ jobId: id });
export const nodeId = (id) => new common.NodeId({ nodeId: id });
