"""A Hugging Face hub for tests, on this machine, with one data set."""

import contextlib
import http.server
import json
import threading

import pytest


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download of a data set takes."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    asked: list[str] = []  # noqa: RUF012

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        body, kind = self.found(path)
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        self.send_header("ETag", f'"{len(body or b"")}"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.end_headers()
        if self.command == "GET" and body is not None:
            self.wfile.write(body)

    def found(self, path):
        if "/tree/" in path:
            tree = [{"type": "file", "path": name, "size": len(self.files[name]), "oid": name} for name in self.files]
            return json.dumps(tree).encode(), "application/json"
        if path.startswith("/api/datasets/"):
            siblings = [{"rfilename": name} for name in self.files]
            return json.dumps({"id": "own/set", "sha": "c" * 40, "siblings": siblings}).encode(), "application/json"
        return self.files.get(path.partition(f"/resolve/{'c' * 40}/")[2]), "application/octet-stream"

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def hub(files):
    class Served(Hub):
        pass

    Served.files, Served.asked = files, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Served)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", Served.asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parquet(path, rows):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    pq.write_table(pyarrow.Table.from_pylist(rows), path)
    return path.read_bytes()
