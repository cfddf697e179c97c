"""Servers that give credentials may be busy or refuse, too: one for each cloud."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import AccessError, DeadlineError
from seqrecord.storage import Storage, open_storage
from tests.local_server import LocalServer
from tests.obstore_runtime import obstore_is
from tests.places import hastened
from tests.storage_contract import get

# google-auth says so of credentials whose file names where they are to be asked for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*load_credentials_from_file:DeprecationWarning"),
    pytest.mark.usefixtures("impatient"),
]

TOKEN = "S3CRET-T0KEN"


class TokenServer(LocalServer):
    """Answers with the `statuses`, one after the other, and then with a token, `given`."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.statuses: Sequence[int] = ()
        self.asked = 0
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/token"


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        number, statuses = self.server.asked, self.server.statuses
        self.server.asked += 1
        status = statuses[number] if number < len(statuses) else 200
        refusal = {"error": "invalid_grant", "error_description": "S3CRET", "message": "S3CRET"}
        body = json.dumps(self.server.given if status == 200 else refusal).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815 - looked up by name


class Objects(LocalServer):
    """A store of any kind in which each object is `DATA`; `heads` are the requests' headers."""

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        super().__init__(_Object)


DATA = bytes(range(200))


class _Object(BaseHTTPRequestHandler):
    server: Objects
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.heads.append({name.lower(): text for name, text in self.headers.items()})
        item = self.headers.get("Range") or self.headers.get("x-ms-range") or ""
        start, _, last = item.removeprefix("bytes=").partition("-")
        body = DATA[int(start) : int(last) + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{last}/{len(DATA)}")
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@dataclass
class Cloud:
    """A storage whose credential comes from `tokens`."""

    tokens: TokenServer
    objects: Objects
    open: Callable[[float], Storage]


@pytest.fixture(params=["az", "gs", "s3"])
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    pytest.importorskip("obstore", reason="pip install obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    with Objects() as objects, obstore_is(used=True):  # else it looks without obstore
        if request.param == "az":
            pytest.importorskip("azure.identity", reason="pip install azure-identity")
            given: dict[str, Any] = {"access_token": TOKEN, "resource": "x", "token_type": "Bearer"}
            given["expires_on"] = str(int(time.time()) + 3600)
            with TokenServer(given) as tokens:
                monkeypatch.setenv("IDENTITY_ENDPOINT", tokens.url)
                monkeypatch.setenv("IDENTITY_HEADER", "header")
                options = {"account_name": "acme", "endpoint": f"http://{objects.host}/acme"}
                yield Cloud(
                    tokens,
                    objects,
                    lambda d: hastened(open_storage("az://box/p", {**options, "deadline": d})),
                )
        elif request.param == "gs":
            pytest.importorskip("google.auth", reason="pip install google-auth")
            with TokenServer({"access_token": TOKEN, "expires_in": 3600}) as tokens:
                file = tmp_path / "account.json"
                file.write_text(json.dumps(_service_account(tokens.url)))
                monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
                options = {"base_url": f"http://{objects.host}"}
                yield Cloud(
                    tokens,
                    objects,
                    lambda d: hastened(open_storage("gs://box/p", {**options, "deadline": d})),
                )
        else:
            utils = pytest.importorskip("botocore.utils", reason="pip install boto3")
            monkeypatch.setattr(utils.ContainerMetadataFetcher, "SLEEP_TIME", 0.01)
            keys = {"AccessKeyId": "AKID", "SecretAccessKey": "S3CRET", "Token": TOKEN}
            with TokenServer({**keys, "Expiration": expires}) as tokens:
                monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", tokens.url)
                options = {"endpoint": f"http://{objects.host}", "region": "us-east-1"}
                yield Cloud(
                    tokens,
                    objects,
                    lambda d: hastened(open_storage("s3://box/p", {**options, "deadline": d})),
                )


def _service_account(token_uri: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return {
        "type": "service_account",
        "client_email": "nobody@example.org",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": token_uri,
    }


def test_a_token_is_asked_for_and_sent(cloud: Cloud) -> None:
    storage = cloud.open(20)
    assert get(storage, "records/a", 3, 50) == DATA[3:50]
    assert cloud.tokens.asked == 1
    head = cloud.objects.heads[0]
    assert TOKEN in head["authorization"] + head.get("x-amz-security-token", "")
    storage.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_token_endpoint_that_is_busy_may_pass(cloud: Cloud, status: int) -> None:
    cloud.tokens.statuses = [status] * 5  # more than any client repeats by itself
    storage = cloud.open(60)
    assert get(storage, "records/a", 3, 50) == DATA[3:50]
    storage.close()


@pytest.mark.parametrize("status", [429, 503])
def test_a_token_endpoint_that_stays_busy_is_a_deadline(cloud: Cloud, status: int) -> None:
    cloud.tokens.statuses = [status] * 1000
    storage = cloud.open(0.2)
    with pytest.raises(DeadlineError) as caught:
        get(storage, "records/a", 3, 50)
    assert "S3CRET" not in str(caught.value)
    storage.close()


@pytest.mark.parametrize("status", [400, 401])
def test_a_token_endpoint_that_refuses_is_an_error_at_once(cloud: Cloud, status: int) -> None:
    cloud.tokens.statuses = [status] * 1000
    storage = cloud.open(60)
    start = time.monotonic()
    with pytest.raises(AccessError) as caught:
        get(storage, "records/a", 3, 50)
    assert time.monotonic() - start < 50  # of 60
    assert "S3CRET" not in str(caught.value)
    assert storage.url in str(caught.value) or cloud.objects.host in str(caught.value)
    storage.close()
