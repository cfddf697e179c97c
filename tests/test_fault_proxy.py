"""The proxy does to requests what it says, and nothing else."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.fault_proxy import FaultProxy, Request, Scripted, Seeded
from tests.services import Azurite

CONTENT = bytes(range(256)) * 400
IDLE = 0.1  # seconds until the service ends a connection that nobody uses


class _Echo(BaseHTTPRequestHandler):
    """Answers GET with `CONTENT`, and PUT with what it was sent; keeps what it has seen."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, str | None]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(CONTENT)

    def do_HEAD(self) -> None:
        self._answer(CONTENT)

    def do_PUT(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, content: bytes) -> None:
        self.seen.append((self.command, self.path, self.headers["Host"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-ms-mark", "kept")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.connection.settimeout(IDLE)  # from now on: the first request may take its time


@pytest.fixture
def seen() -> list[tuple[str, str, str | None]]:
    return []


@pytest.fixture
def proxy(seen: list[tuple[str, str, str | None]]) -> Iterator[FaultProxy]:
    handler = type("Handler", (_Echo,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with FaultProxy(f"127.0.0.1:{server.server_address[1]}", slow_seconds=0.2) as made:
            yield made
        server.shutdown()
        thread.join()


class Client:
    """One keep-alive connection."""

    def __init__(self, proxy: FaultProxy, timeout: float = 60) -> None:
        self._connection = http.client.HTTPConnection(proxy.host, timeout=timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes, Any]:
        self._connection.request(method, "/a%20b?q=1", body)
        answer = self._connection.getresponse()
        return answer.status, answer.read(), answer.headers


def test_good_requests_pass_unchanged_over_one_connection(
    proxy: FaultProxy, seen: list[tuple[str, str, str | None]]
) -> None:
    with Client(proxy) as client:
        status, content, headers = client.ask()
        assert (status, content, headers["x-ms-mark"]) == (200, CONTENT, "kept")
        assert client.ask("PUT", b"body")[1] == b"body"
        status, content, headers = client.ask("HEAD")
        assert (content, headers["Content-Length"]) == (b"", str(len(CONTENT)))
    assert seen == [(method, "/a%20b?q=1", proxy.host) for method in ("GET", "PUT", "HEAD")]
    assert (proxy.requests, sum(proxy.faults.values())) == (3, 0)


@pytest.mark.parametrize(("kind", "reached"), [("reset", 0), ("lost", 1)])
def test_a_connection_is_reset(
    proxy: FaultProxy, seen: list[tuple[str, str, str | None]], kind: str, reached: int
) -> None:
    proxy.fault = Scripted([kind])
    with Client(proxy) as client:
        with pytest.raises(ConnectionResetError):
            client.ask()
        assert len(seen) == reached
    with Client(proxy) as client:
        assert client.ask()[0] == 200
    assert dict(proxy.faults) == {kind: 1}
    assert proxy.requests == 2


def test_an_answer_is_an_error_and_the_connection_stays(proxy: FaultProxy) -> None:
    proxy.fault = Scripted(["500", "503", None, "403"])
    with Client(proxy) as client:
        assert client.ask()[0] == 500
        status, content, headers = client.ask()
        assert (status, headers["Retry-After"]) == (503, "1")
        assert b"ServerBusy" in content
        assert client.ask()[0] == 200
        assert client.ask()[0] == 403


def test_a_body_ends_early(proxy: FaultProxy) -> None:
    proxy.fault = Scripted(["short"])
    with Client(proxy) as client, pytest.raises(http.client.IncompleteRead) as error:
        client.ask()
    assert error.value.partial == CONTENT[: len(CONTENT) // 2]


def test_a_body_is_cut_by_a_reset(proxy: FaultProxy) -> None:
    proxy.fault = Scripted(["cut"])
    with Client(proxy) as client, pytest.raises(ConnectionResetError):
        client.ask()


def test_a_body_trickles(proxy: FaultProxy) -> None:
    proxy.fault = Scripted(["slow"])
    start = time.monotonic()
    with Client(proxy) as client:
        assert client.ask()[1] == CONTENT
    assert time.monotonic() - start >= 0.2


def test_nothing_comes_until_the_client_gives_up(proxy: FaultProxy) -> None:
    proxy.fault = Scripted(["hang"])
    with Client(proxy, timeout=0.1) as client, pytest.raises(TimeoutError):
        client.ask()


def test_a_hanging_request_ends_with_the_proxy(proxy: FaultProxy) -> None:
    came = threading.Event()

    def hang(request: Request) -> str:
        came.set()
        return "hang"

    def ask() -> None:
        with Client(proxy) as client, pytest.raises((OSError, http.client.HTTPException)):
            client.ask()

    proxy.fault = hang
    thread = threading.Thread(target=ask)
    thread.start()
    came.wait()
    proxy.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_service_that_ends_idle_connections_is_no_fault(proxy: FaultProxy) -> None:
    with Client(proxy) as client:
        for _ in range(2):
            assert client.ask()[0] == 200
            time.sleep(5 * IDLE)


def test_a_dead_service_resets(proxy: FaultProxy) -> None:
    with FaultProxy("127.0.0.1:9") as dead, Client(dead) as client, pytest.raises(OSError):
        client.ask()


def test_a_script_counts_only_the_requests_it_picks() -> None:
    script = Scripted(["500", "reset"], of=lambda request: request.method == "PUT")
    requests = [Request(0, 0, method, "/", "") for method in ("GET", "PUT", "GET", "PUT", "PUT")]
    assert [script(request) for request in requests] == [None, "500", None, "reset", None]


def test_seeded_faults_are_the_requests_own_and_end() -> None:
    def fates(seed: int, rate: float, signature: str) -> list[str | None]:
        fault = Seeded(seed, rate, in_a_row=2)
        paths = [f"/blob?sig={signature}"] * 300
        return [fault(Request(9, 0, "GET", path, f"{i}-")) for i, path in enumerate(paths)]

    once = fates(1, 0.2, "a")
    assert once == fates(1, 0.2, "b")
    assert once != fates(2, 0.2, "a")
    assert 30 < sum(kind is not None for kind in once) < 90
    assert set(once) == {None, "reset", "500", "503", "short", "cut"}
    every = Seeded(0, 1.0, in_a_row=2)
    attempts = [every(Request(0, attempt, "GET", "/", "")) for attempt in range(4)]
    assert None not in attempts[:2]
    assert attempts[2:] == [None, None]
    assert every(Request(0, 0, "PUT", "/", "")) is None


def test_signed_requests_pass(azurite: Azurite, container: str) -> None:
    from azure.storage.blob import BlobServiceClient, ExponentialRetry

    with FaultProxy(azurite.host, Scripted(["503"]), retry_after=0) as proxy:
        string = azurite.connection_string_at(f"http://{proxy.host}/{azurite.account}")
        policy = ExponentialRetry(initial_backoff=0, increment_base=0, random_jitter_range=0)
        with BlobServiceClient.from_connection_string(string, retry_policy=policy) as client:
            blob = client.get_blob_client(container, "a")
            blob.upload_blob(CONTENT, overwrite=True)
            proxy.fault = Scripted(["cut"])
            assert blob.download_blob().readall() == CONTENT
        assert dict(proxy.faults) == {"503": 1, "cut": 1}
        assert proxy.requests >= 4
