"""A busy endpoint that gives Azure tokens for a client secret: msal remembers its failures."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import DeadlineError
from seqrecord.storage import Storage, open_storage
from tests.canned_server import Canned, CannedServer, answer
from tests.local_server import LocalServer
from tests.obstore_runtime import obstore_is
from tests.places import giving_up, hastened
from tests.services.authority import Authority
from tests.storage_contract import get

identity = pytest.importorskip("azure.identity", reason="pip install azure-identity")

BODY = bytes(range(100))
SECRET = "S3CRET"


class TokenEndpoint(LocalServer):
    """Over TLS. The next `busy` requests for a token are answered by `status`."""

    def __init__(self, folder: Path) -> None:
        self.busy, self.status, self.asked = 0, 503, 0
        authority = Authority(folder)
        self.certificate = authority.certificate
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.issue())
        super().__init__(_Handler)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        secure = self._context.wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return secure, address


class _Handler(BaseHTTPRequestHandler):
    server: TokenEndpoint
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        tenant = f"https://{self.server.host}/tenant"
        self._send(
            200,
            {
                "issuer": f"{tenant}/v2.0",
                "authorization_endpoint": f"{tenant}/oauth2/v2.0/authorize",
                "token_endpoint": f"{tenant}/oauth2/v2.0/token",
            },
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        if self.server.busy > 0:
            self.server.busy -= 1
            self._send(self.server.status, {"error": "temporarily_unavailable"})
        else:
            self._send(200, {"access_token": "T0KEN", "expires_in": 3600, "token_type": "Bearer"})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenEndpoint]:
    class Here(identity.ClientSecretCredential):  # type: ignore[misc, name-defined]
        """Does not ask Microsoft which authorities there are."""

        def __init__(self, *words: Any, **settings: Any) -> None:
            super().__init__(*words, disable_instance_discovery=True, **settings)

    monkeypatch.setattr(identity, "ClientSecretCredential", Here)
    with TokenEndpoint(tmp_path) as server, obstore_is(used=True):
        monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://{server.host}")
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.certificate))
        yield server


def opened(server: CannedServer, **options: Any) -> Storage:
    account = {"account_name": "account", "endpoint": server.endpoint}
    secret = {"tenant_id": "tenant", "client_id": "me", "client_secret": SECRET}
    return hastened(open_storage("az://container/set", {**account, **secret, **options}))


def part() -> Canned:
    return Canned(answer(206, BODY, Content_Range="bytes 0-99/1000"))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", [503, 429])
def test_a_busy_token_endpoint_is_asked_again(endpoint: TokenEndpoint, status: int) -> None:
    endpoint.busy, endpoint.status = 4, status
    with CannedServer([part()]) as server:
        storage = opened(server)
        assert get(storage, "records/0", 0, 100) == BODY
        assert storage.counters()["retries"] >= 1
        storage.close()
    assert endpoint.asked == 5
    assert "Bearer T0KEN" in server.asked[-1]


def test_a_token_endpoint_that_stays_busy_ends_with_the_deadline(endpoint: TokenEndpoint) -> None:
    endpoint.busy = 10_000
    with CannedServer([part()]) as server:
        storage = giving_up(opened(server), 1)
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match="HTTP status 503") as caught:
            get(storage, "records/0", 0, 100)
        assert time.monotonic() - begin < 60  # of 120
        assert SECRET not in str(caught.value)
        storage.close()
