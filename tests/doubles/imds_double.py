#!/usr/bin/env python3
"""A stand-in for the metadata service of a machine at EC2 or OCI (version 2), driven by a test.

usage: imds_double.py [ADDRESS [PORT]]     (127.0.0.1 and a free port)

Its first line on standard output is the port. It answers as the service does: a session token is
needed, asked for with PUT /latest/api/token. A test drives it with PUT /_set and a JSON body:

  {"path": "spot/instance-action", "value": "..."}   a document below /latest/meta-data/; null: none
  {"path": "/opc/v2/instance/", "value": "..."}      a document of OCI, given to who says "Bearer Oracle"
  {"down": true}                                     every answer is 503
  {"expire_tokens": true}                            tokens given so far are good no more
"""

import json
import secrets
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN_PATH = "/latest/api/token"
DOCUMENTS = "/latest/meta-data/"
OCI_DOCUMENTS = "/opc/v2/"
OCI_BEARER = "Bearer Oracle"
TOKEN = "x-aws-ec2-metadata-token"
TOKEN_LIFE = "x-aws-ec2-metadata-token-ttl-seconds"
LIFE_MAX = 21600

documents = {
    "instance-id": "i-0abc",
    "instance-type": "m5.xlarge",
    "instance-life-cycle": "spot",
    "placement/availability-zone": "eu-west-1a",
    "placement/region": "eu-west-1",
    "local-ipv4": "10.0.0.5",
}
tokens = {}
state = {"down": False}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        if self.path == "/_set":
            self.set(json.loads(body))
        elif state["down"]:
            self.answer(503)
        elif self.path != TOKEN_PATH:
            self.answer(404)
        elif self.headers.get("x-forwarded-for"):
            self.answer(403)
        else:
            self.give_token(self.headers.get(TOKEN_LIFE, ""))

    def set(self, wish):
        if "down" in wish:
            state["down"] = wish["down"]
        elif wish.get("expire_tokens"):
            tokens.clear()
        elif wish["value"] is None:
            documents.pop(wish["path"], None)
        else:
            documents[wish["path"]] = wish["value"]
        self.answer(200)

    def give_token(self, life):
        if not life.isdigit() or not 1 <= int(life) <= LIFE_MAX:
            return self.answer(400)
        token = secrets.token_urlsafe(40) + "=="
        tokens[token] = time.time() + int(life)
        self.answer(200, token.encode(), [(TOKEN_LIFE, life)])

    def do_GET(self):
        if state["down"]:
            return self.answer(503)
        if self.path.startswith(OCI_DOCUMENTS):
            known = self.headers.get("authorization") == OCI_BEARER
        else:
            known = tokens.get(self.headers.get(TOKEN), 0) >= time.time()
        if not known:
            return self.answer(401)
        document = documents.get(self.path.removeprefix(DOCUMENTS))
        if document is None:
            return self.answer(404, b"not found")
        self.answer(200, document.encode())

    def log_message(self, *args):
        pass


def main():
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1"
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    server = ThreadingHTTPServer((address, port), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
