#!/usr/bin/env python3
"""An ffmpeg job that hands over at a segment boundary.

ffmpeg encodes a test picture into segments of one second, each of which begins with a key frame and
can be decoded alone. This wrapper sends finished segments as an MPEG transport stream over UDP, and
speaks the job socket: the source sends up to a segment and says which, the target encodes from its
start on, holds what it encoded, and sends on from the next segment. Segments are numbered by the wall
clock, so both sides mean the same by a number. The continuity counters of the stream go along, so that
a receiver sees one stream.

    encode.py --to 127.0.0.1:5030

Needs ffmpeg, Python 3.8, and greenroom_job.py (crates/job/python) beside it.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import greenroom_job

RATE = 25  # frames a second, and frames of a segment
KEPT = 40  # segments that a target holds, at most: longer than a handover may take
TS = 188
PER_DATAGRAM = 7
# The clock of a transport stream has 33 bits: numbers are told from the start of a period of it.
PERIOD_S = 80_000


class Encoder:
    """ffmpeg in a folder of segments. `next()` waits for the next finished one."""

    def __init__(self, folder):
        self.folder = folder
        now = time.time()
        self.first = int(now) + 1
        time.sleep(self.first - now)  # segments begin with the second of their number
        offset = self.first % PERIOD_S
        command = [
            "ffmpeg", "-hide_banner", "-nostdin", "-loglevel", "error",
            "-re", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=%d" % RATE,
            "-c:v", "mpeg2video", "-b:v", "600k", "-g", str(RATE), "-bf", "0",
            "-sc_threshold", "1000000000", "-flags", "+cgop",
            "-output_ts_offset", str(offset), "-muxdelay", "0", "-muxpreload", "0",
            "-f", "segment", "-segment_time", "1", "-segment_format", "mpegts",
            os.path.join(folder, "%d.ts"),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.done = 0

    def next(self):
        """Number and bytes of the next finished segment; None when ffmpeg has ended."""
        path = os.path.join(self.folder, "%d.ts" % self.done)
        # A segment is finished when the next one is begun.
        after = os.path.join(self.folder, "%d.ts" % (self.done + 1))
        while not os.path.exists(after):
            if self.process.poll() is not None:
                return None
            time.sleep(0.02)
        with open(path, "rb") as segment:
            data = segment.read()
        os.unlink(path)
        self.done += 1
        return self.first + self.done - 1, data

    def end(self):
        self.process.kill()
        self.process.wait()


class Output:
    """Sends segments in order, and knows the last one. Everything is under one lock."""

    def __init__(self, target, holds):
        host, port = target.rsplit(":", 1)
        self.address = (host, int(port))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.changed = threading.Condition()
        self.holds = holds
        self.kept = {}
        self.last = None
        self.counters = {}
        # A source ends after this one.
        self.until = None

    def offer(self, number, data):
        """A finished segment: it is sent if it is its turn, and kept while the output is held."""
        with self.changed:
            self.kept[number] = data
            for old in sorted(self.kept)[:-KEPT]:
                del self.kept[old]
            self._send()

    def begin(self, last, counters):
        """Goes on after the source's last segment."""
        with self.changed:
            self.last = last
            self.counters = {int(pid): value for pid, value in counters.items()}
            self.holds = False
            self._send()

    def resume(self):
        with self.changed:
            self.holds, self.until = False, None
            # What was encoded meanwhile is too late for a viewer.
            self.last = max(list(self.kept) + [self.last or 0])
            self.kept.clear()

    def hold(self):
        with self.changed:
            self.holds = True

    def stop_after(self, number):
        """Ends the output after this segment or the last one sent; waits until that is so."""
        with self.changed:
            self.until = max(number, self.last or 0)
            self._stop_if_due()
            self.changed.wait_for(lambda: self.holds)
            return self.last, self.counters

    def _send(self):
        for number in sorted(self.kept):
            if self.holds:
                return
            if self.last is not None and number <= self.last:
                del self.kept[number]
                continue
            self._transmit(self.kept.pop(number))
            self.last = number
            self._stop_if_due()

    def _stop_if_due(self):
        if self.until is not None and self.last is not None and self.last >= self.until:
            self.holds = True
            self.changed.notify_all()

    def _transmit(self, data):
        packets = [self._renumbered(data[at : at + TS]) for at in range(0, len(data), TS)]
        for at in range(0, len(packets), PER_DATAGRAM):
            self.socket.sendto(b"".join(packets[at : at + PER_DATAGRAM]), self.address)
            time.sleep(0.0005)  # not faster than a receiver's buffer takes it

    def _renumbered(self, packet):
        """The packet with the continuity counter that follows in the stream (ISO 13818-1)."""
        packet = bytearray(packet)
        pid = (packet[1] & 0x1F) << 8 | packet[2]
        value = self.counters.get(pid, 15)
        if packet[3] & 0x10:  # it has a payload
            value = (value + 1) & 15
        self.counters[pid] = value
        packet[3] = packet[3] & 0xF0 | value
        return bytes(packet)


def speak(job, output, encoder):
    """Answers the worker until the process is stopped."""
    while True:
        for message in job:
            kind = message["type"]
            if kind == "getState":
                job.state(message, json.dumps({"rate": RATE}).encode())
            elif kind == "sourceState":
                if json.loads(message["payload"]) != {"rate": RATE}:
                    job.failed("the source encodes otherwise")
            elif kind == "stopOutput":
                job.working(message)
                last, counters = output.stop_after(json.loads(message["at"])["from"] - 1)
                job.stopped_output(message, json.dumps({"last": last, "cc": counters}).encode())
            elif kind == "begin":
                at = json.loads(message["at"])
                output.begin(at["last"], at["cc"])
                job.applied(message)
            elif kind == "abort" and job.is_target:
                output.hold()
                job.dropped(message)
            elif kind == "abort":
                output.resume()
                job.resumed(message)
            if kind in ("getState", "stopOutput"):
                job.is_target = False
        # The worker is restarted, and is there again within seconds.
        while True:
            time.sleep(0.05)
            try:
                job.reconnect()
                break
            except greenroom_job.JobSocketError:
                pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    to = parser.parse_args().to
    if shutil.which("ffmpeg") is None:
        sys.exit("encode.py: ffmpeg is not installed")
    job = None
    if os.environ.get(greenroom_job.SOCKET_VARIABLE):
        job = greenroom_job.connect(os.environ.get("GREENROOM_SERVICE", ""), wants=["handover"])
        job.is_target = bool(job.migration_id)
    folder = tempfile.mkdtemp(prefix="encode-")
    encoder = Encoder(folder)

    def ended(*_):
        encoder.end()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, ended)
    output = Output(to, holds=job is not None and job.is_target)
    if job:
        if job.is_target:
            job.ready(json.dumps({"from": encoder.first}).encode())
        threading.Thread(target=speak, args=(job, output, encoder), daemon=True).start()
    while True:
        segment = encoder.next()
        if segment is None:
            shutil.rmtree(folder, ignore_errors=True)
            sys.exit("encode.py: ffmpeg has ended")
        output.offer(*segment)


if __name__ == "__main__":
    main()
