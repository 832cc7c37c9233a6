"""The job's end of Greenroom's job socket, for Python 3.8 and newer, without dependencies.

A job that asked for the socket finds its path in GREENROOM_JOB_SOCKET::

    import greenroom_job

    job = greenroom_job.connect("encode")
    job.status("warming up", 0.1)
    for message in job:
        if message["type"] == "config":
            apply(message["configuration"])
            job.config_applied(message)
        elif message["type"] == "stopping":
            close_files(message["graceMs"])

The loop ends when the worker closes the connection, for instance because it is restarted; then
connect again, at the same path. Pings are answered while the loop runs, so it must not be left
waiting for more than half a minute: do long work on another thread. Every method that says
something may be called from any thread.

The steps of a migration are not wrapped: they come as messages and are answered with `say`.
"""

import json
import os
import socket
import threading

SOCKET_VARIABLE = "GREENROOM_JOB_SOCKET"
VERSION = 1
LINE_MAX = 512 << 10  # bytes, the end of the line included


class JobSocketError(Exception):
    """The worker cannot be talked to; `code` is its stable code, where it said one."""

    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


def connect(service, wants=(), path=None):
    """Says hello as this service and returns the connection.

    `wants` names what it takes part in: "handover" to speak for the job in migrations. `path` is
    that of the socket, for a job that knows it from elsewhere.
    """
    path = path or os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise JobSocketError(
            SOCKET_VARIABLE + " is not set: the job has no socket, ask for one with job_socket"
        )
    job = Job(_open(path))
    try:
        job.say("hello", versions=[VERSION], service=service, wants=list(wants))
        answer = next(job, None)
        if answer is None:
            raise JobSocketError("the worker has closed the connection")
        if answer["type"] == "error":
            raise JobSocketError(answer.get("text", ""), answer.get("code"))
        if answer["type"] != "welcome":
            raise JobSocketError("no welcome came, but " + answer["type"])
        job.welcome = answer
        return job
    except BaseException:
        job.close()
        raise


class Job:
    """A connection to the worker. Iterate over it for what the worker says.

    `welcome` says who the job is: `jobId`, `role`, `runtimeRole`, `startId`, `prepared`, `config`
    (with `configuration` of this service and `services` of all), and `fence` and `migrationId`
    where there is one.
    """

    def __init__(self, connection):
        self.welcome = None
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()
        self._next_id = 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            try:
                line = self._reader.readline(LINE_MAX)
            except (ConnectionError, ValueError):
                line = b""
            if not line:
                raise StopIteration
            try:
                message = json.loads(line)
                kind = message["type"]
            except (ValueError, KeyError, TypeError) as error:
                raise JobSocketError("the worker said what cannot be read: %s" % error) from error
            if kind == "ping":
                self.say("pong", re=message["id"])
                continue
            return message

    def status(self, text, progress=None):
        """Tells people how the job is doing; `progress` from 0 to 1."""
        if progress is None:
            return self.say("status", text=text)
        return self.say("status", text=text, progress=progress)

    def config_applied(self, message):
        """The configuration of this `config` message is in use. Due within 10 s."""
        return self.say("configApplied", re=message["id"])

    def config_refused(self, message, reason):
        """The configuration of this `config` message is not taken on. Due within 10 s."""
        return self.say("configRefused", re=message["id"], reason=reason)

    def say(self, kind, **fields):
        """Says a message of any type with these fields and returns its id."""
        with self._lock:
            own = self._next_id
            self._next_id += 1
            fields.update(type=kind, id=own)
            self._connection.sendall(json.dumps(fields).encode() + b"\n")
        return own

    def close(self):
        """Ends the connection."""
        self._reader.close()
        self._connection.close()


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
