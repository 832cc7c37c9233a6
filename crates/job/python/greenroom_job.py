"""The job's end of Greenroom's job socket, for Python 3.8 and newer, without dependencies.

A job that asked for the socket finds its path in GREENROOM_JOB_SOCKET::

    import greenroom_job

    job = greenroom_job.connect("encode", wants=["handover"])
    job.status("warming up", 0.1)
    if job.migration_id:                            # the target of a handover
        job.ready(b"from frame 9000")               # no output before "begin"
    for message in job:
        kind = message["type"]
        if kind == "getState":                      # the source: the output goes on
            job.state(message, b"what the target should know")
        elif kind == "stopOutput":                  # the source: at message["at"] or later
            job.stopped_output(message, b"last frame 9017")
        elif kind == "begin":                       # the target: where the source ended
            job.applied(message)
        elif kind == "abort":                       # the source outputs again
            job.resumed(message)                    # the target says job.dropped(message)
        elif kind == "config":
            job.config_applied(message)
        elif kind == "fence":                       # the fencing number, which may have grown
            outputs.fence(message["value"])
        elif kind == "lease":                       # no output after it, by time.CLOCK_BOOTTIME
            outputs.until(message["untilMs"])       # None: without end
        elif kind == "leaseWarning":                # killed then, unless the lease is answered
            note(message["remainingMs"])
        elif kind == "stopping":
            close_files(message["graceMs"])

`payload` and `at` of a message are bytes here. The loop ends when the worker closes the connection,
for instance because it is restarted; then call `reconnect`, in a migration within 5 s. Pings are
answered while the loop runs, and so is a step that the worker repeats after it was answered; the loop
must not be left waiting for more than half a minute: do long work on another thread. Every method that
says something may be called from any thread.
"""

import base64
import json
import os
import socket
import threading

SOCKET_VARIABLE = "GREENROOM_JOB_SOCKET"
VERSION = 1
LINE_MAX = 512 << 10  # bytes, the end of the line included
STEPS = ("getState", "stopOutput", "begin", "abort")


class JobSocketError(Exception):
    """The worker cannot be talked to; `code` is its stable code, where it said one."""

    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


def connect(service, wants=(), path=None):
    """Says hello as this service and returns the connection.

    `wants` names what it takes part in: "handover" to speak for the job in migrations, "lease" to
    hear until when it may output. `path` is that of the socket, for a job that knows it from elsewhere.
    """
    path = path or os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise JobSocketError(
            SOCKET_VARIABLE + " is not set: the job has no socket, ask for one with job_socket"
        )
    job = Job(path, {"versions": [VERSION], "service": service, "wants": list(wants)})
    job.reconnect()
    return job


class Job:
    """A connection to the worker. Iterate over it for what the worker says.

    `welcome` says who the job is: `jobId`, `role`, `runtimeRole`, `startId`, `prepared`, `config`
    (with `configuration` of this service and `services` of all), and `fence`, `leaseUntilMs` and
    `migrationId` where there is one. `migration_id` is that of the handover that the job is or was in.
    """

    def __init__(self, path, hello):
        self.welcome = None
        self.migration_id = None
        self._path = path
        self._hello = hello
        self._connection = None
        self._reader = None
        self._lock = threading.Lock()
        self._next_id = 1
        self._asked = {}  # types of steps, by id
        self._answered = {}  # answers of this migration, by type of step

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return self

    def reconnect(self):
        """Connects (again), and says in which migration the job is."""
        self.close()
        with self._lock:
            self._connection = _open(self._path)
            self._reader = self._connection.makefile("rb")
            self._next_id = 1
            self._asked.clear()
        try:
            hello = dict(self._hello)
            if self.migration_id:
                hello["migrationId"] = self.migration_id
            self.say("hello", **hello)
            answer = next(self, None)
            if answer is None:
                raise JobSocketError("the worker has closed the connection")
            if answer["type"] == "error":
                raise JobSocketError(answer.get("text", ""), answer.get("code"))
            if answer["type"] != "welcome":
                raise JobSocketError("no welcome came, but " + answer["type"])
        except BaseException:
            self.close()
            raise
        self.welcome = answer
        self._enter(answer.get("migrationId"))

    def __next__(self):
        while True:
            try:
                line = self._reader.readline(LINE_MAX)
            except (OSError, ValueError, AttributeError):
                line = b""
            if not line:
                raise StopIteration
            try:
                message = json.loads(line)
                kind = message["type"]
                for name in ("at", "payload"):
                    if name in message:
                        message[name] = base64.b64decode(message[name], validate=True)
            except (ValueError, KeyError, TypeError) as error:
                raise JobSocketError("the worker said what cannot be read: %s" % error) from error
            if kind == "ping":
                self.say("pong", re=message["id"])
            elif kind not in STEPS or not self._repeats(message):
                return message

    def status(self, text, progress=None):
        """Tells people how the job is doing; `progress` from 0 to 1."""
        if progress is None:
            return self.say("status", text=text)
        return self.say("status", text=text, progress=progress)

    def config_applied(self, message):
        """The configuration of this `config` message is in use. Due within 10 s."""
        return self.answer(message, "configApplied")

    def config_refused(self, message, reason):
        """The configuration of this `config` message is not taken on. Due within 10 s."""
        return self.answer(message, "configRefused", reason=reason)

    def state(self, message, payload=b""):
        """Source: what the target must know."""
        return self.answer(message, "state", payload=payload)

    def refuse(self, message, reason):
        """Source: it cannot hand over now. Nothing happens to it."""
        return self.answer(message, "refuse", reason=reason)

    def stopped_output(self, message, payload=b""):
        """Source: the output has ended; the payload says where."""
        return self.answer(message, "stoppedOutput", payload=payload)

    def applied(self, message, payload=b""):
        """Target: the output has begun."""
        return self.answer(message, "applied", payload=payload)

    def resumed(self, message):
        """Source, after an abort: it outputs again."""
        return self.answer(message, "resumed")

    def dropped(self, message):
        """Target, after an abort: it outputs nothing and has forgotten the migration."""
        return self.answer(message, "dropped")

    def working(self, message):
        """The step is under way and needs more time: its deadline is extended once."""
        return self.say("working", re=message["id"])

    def ready(self, payload=b""):
        """Target: it can take over; the payload says from where on."""
        return self.say("ready", migrationId=self.migration_id or "", payload=payload)

    def failed(self, reason):
        """The job gives the migration up."""
        return self.say("failed", migrationId=self.migration_id or "", reason=reason)

    def answer(self, message, kind, **fields):
        """Answers a message, and again should the worker repeat it."""
        with self._lock:
            step = self._asked.pop(message["id"], None)
            if step:
                self._answered[step] = (kind, dict(fields))
        return self.say(kind, re=message["id"], **fields)

    def say(self, kind, **fields):
        """Says a message of any type with these fields and returns its id."""
        if isinstance(fields.get("payload"), bytes):
            fields["payload"] = base64.b64encode(fields["payload"]).decode()
        with self._lock:
            own = self._next_id
            self._next_id += 1
            fields.update(type=kind, id=own)
            self._connection.sendall(json.dumps(fields).encode() + b"\n")
        return own

    def close(self):
        """Ends the connection."""
        for end in (self._reader, self._connection):
            if end is not None:
                end.close()

    def _enter(self, migration_id):
        """What was answered in another migration is no answer in this one."""
        if migration_id and migration_id != self.migration_id:
            self.migration_id = migration_id
            self._answered.clear()

    def _repeats(self, message):
        """Answers a step that was answered before; true when it was."""
        with self._lock:
            self._enter(message.get("migrationId"))
            answered = self._answered.get(message["type"])
            if answered is None:
                self._asked[message["id"]] = message["type"]
                return False
        kind, fields = answered
        self.say(kind, re=message["id"], **fields)
        return True


def _open(path):
    """Connects also where the path is longer than a socket's address may be."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) < 108:
            connection.connect(path)
        else:
            directory, name = os.path.split(path)
            number = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY)
            try:
                connection.connect("/proc/self/fd/%d/%s" % (number, name))
            finally:
                os.close(number)
        return connection
    except OSError as error:
        connection.close()
        raise JobSocketError("the job socket %s cannot be used: %s" % (path, error)) from error
