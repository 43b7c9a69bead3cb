"""Follows a job as its page in a browser does, and goes on where it was whenever that breaks off, until it is ended.

usage: page_reader.py SOCKETS RUN_ID OUT page|socket

page: has the launcher or daemon whose control socket is in the folder SOCKETS open its page, loads that, and reads the
stream by its port and with its token. socket: reads the stream by the socket itself, as any node may.

A line of OUT each: {"from": the event behind which it reads, for it had none}, {"gap": how many are lost},
{"seq": of an event, "event": its name, "verb": of an order}.
"""

import http.client
import json
import pathlib
import socket
import sys
import time
import urllib.parse

SILENT_S = 40  # a stream that lives says something each 15 s


class SocketConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=SILENT_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(SILENT_S)
        self.sock.connect(str(self.path))


class Reader:
    def __init__(self, sockets, run_id, out, by_page):
        self.sockets = pathlib.Path(sockets)
        self.job = urllib.parse.quote(run_id, safe="")
        self.out, self.by_page = open(out, "a", buffering=1), by_page
        self.last = None

    def tell(self, **members):
        self.out.write(json.dumps(members) + "\n")

    def at_socket(self):
        newest = max(self.sockets.glob("*.sock"), key=lambda path: path.stat().st_mtime)
        return SocketConnection(newest)

    def answer(self, connection, method, path, headers=None, body=None):
        connection.request(method, path, body=body, headers=headers or {})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ConnectionError(f"{path}: {answer.status}")
        return answer

    def door(self):
        """A connection, and the headers that it needs."""
        if not self.by_page:
            return self.at_socket(), {}
        opened = self.answer(self.at_socket(), "POST", "/v1/node/page", {"Content-Type": "application/json"}, "{}")
        url = urllib.parse.urlsplit(json.load(opened)["url"])
        page = self.answer(http.client.HTTPConnection(url.netloc, timeout=SILENT_S), "GET", url.path).read()
        assert b"<html" in page, page[:200]
        token = url.fragment.removeprefix("token=")
        return http.client.HTTPConnection(url.netloc, timeout=SILENT_S), {"Authorization": f"Bearer {token}"}

    def follow(self):
        connection, headers = self.door()
        if self.last is not None:
            headers["Last-Event-ID"] = str(self.last)
        stream = self.answer(connection, "GET", f"/v1/jobs/{self.job}/stream", headers)
        kind, data = "", ""
        while line := stream.readline():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                self.last = int(value)
            elif name == "data":
                data = value
            elif not name and kind:
                self.take(kind, json.loads(data))
                kind, data = "", ""

    def take(self, kind, data):
        if kind == "snapshot" and self.last is None:
            self.last = data["seq"]
            self.tell(**{"from": self.last})
        elif kind == "gap":
            self.tell(gap=data["lost"])
        elif kind == "event" and "seq" in data:
            self.tell(seq=data["seq"], event=data["event"], verb=data.get("verb"))


def main():
    reader = Reader(*sys.argv[1:4], by_page=sys.argv[4] == "page")
    while True:
        try:
            reader.follow()
        except (OSError, ValueError, http.client.HTTPException):  # also where there is no socket yet
            pass
        time.sleep(0.5)


if __name__ == "__main__":
    main()
