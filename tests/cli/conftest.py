"""An API server that knows three services, over real HTTP, and a kubeconfig that leads to it."""

import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

HERE = Path(__file__).parent
BASE = "/apis/forebay.dev/v1alpha1"


def recorded() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((HERE / "chat-8b.yaml").read_text())
    return document


def named(namespace: str, name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name, "generation": 1}, "spec": {"model": {"uri": "hf://a/b"}}}


class FakeApi(BaseHTTPRequestHandler):
    services = [recorded(), named("chat", "chat-70b"), named("code", "code-8b")]  # noqa: RUF012 - never changed

    def do_GET(self) -> None:
        if self.path == f"{BASE}/inferenceservices":
            return self._answer(200, {"items": self.services})
        if self.path.startswith(f"{BASE}/namespaces/secret/"):
            return self._answer(403, {"message": "forbidden"})
        if self.path.startswith(f"{BASE}/namespaces/broken/"):
            return self._answer(500, {"message": "etcd is away"})
        for service in self.services:
            meta = service["metadata"]
            if self.path == f"{BASE}/namespaces/{meta['namespace']}/inferenceservices/{meta['name']}":
                return self._answer(200, service)
        return self._answer(404, {"message": "not found"})

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = orjson.dumps(document)
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def write_kubeconfig(path: Path, port: int) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "chat"}}],
    }
    path.write_text(yaml.safe_dump(document))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeApi)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    write_kubeconfig(tmp_path / "config", server.server_port)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """The command line speaks for a whole process; what it sets there ends with each test."""
    yield
    logging.disable(logging.NOTSET)
