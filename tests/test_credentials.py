"""Credentials that change or expire while a dataset is being read."""

from __future__ import annotations

import datetime
import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import AccessError, DeadlineError, StorageError
from seqrecord.storage import Storage, open_storage
from seqrecord.storage.ranges import ByteRange
from tests.local_server import Handler, LocalServer
from tests.obstore_runtime import obstore_is
from tests.places import CLOUDS, Place, hastened
from tests.services import Authority, Azurite
from tests.storage_contract import get

DATA = bytes(range(200))
BACKENDS = ("obstore", "urllib3")


@pytest.fixture(autouse=True)
def obstore_reads_all() -> Iterator[None]:
    """Small files too."""
    with obstore_is(used=True):
        yield


@pytest.fixture
def blobs(azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A container with one file; nothing of the environment opens it."""
    for name in ("ACCOUNT_KEY", "KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    azurite.put(container, "set/records/0", DATA)
    return container


def opened(azurite: Azurite, container: str, backend: str, **options: Any) -> Storage:
    where = {"account_name": azurite.account, "endpoint": azurite.endpoint, "deadline": 10}
    return open_storage(f"az://{container}/set", {**where, "backend": backend, **options})


def read(storage: Storage) -> bytes:
    assert storage.size("records/0") == len(DATA)
    return get(storage, "records/0", 0, len(DATA))


def until_it_is_refused(storage: Storage) -> None:
    """Read until the signature has expired, however long that takes."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            storage.read_ranges("records/0", [ByteRange(0, 1)], [memoryview(bytearray(1))])
        except AccessError:
            return
        time.sleep(0.05)
    raise AssertionError("the signature did not expire")


@pytest.mark.parametrize(("where", "backend"), [("environment", "obstore"), ("file", "urllib3")])
def test_a_signature_that_expires_is_read_again(
    azurite: Azurite,
    blobs: str,
    backend: str,
    where: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "sas"

    def renew(minutes: float) -> None:
        sas = azurite.sas(blobs, minutes=minutes)
        if where == "environment":
            monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
        else:
            file.write_text(f"?{sas}\n")

    options = {"sas_token_file": str(file)} if where == "file" else {}
    for seconds in (3, 10, 30, 90):  # a slow machine needs more to read before it expires
        renew(seconds / 60)
        storage = opened(azurite, blobs, backend, **options)
        try:
            assert read(storage) == DATA
            break
        except AccessError:
            storage.close()
    else:
        raise AssertionError("the signature expired too early")
    until_it_is_refused(storage)
    with pytest.raises(AccessError, match="SAS"):
        read(storage)
    renew(10)
    assert read(storage) == DATA
    storage.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_and_files_of_credentials(
    azurite: Azurite, blobs: str, backend: str, tmp_path: Path
) -> None:
    given: list[str] = []

    def credential() -> dict[str, Any]:
        """One that has expired, and after its refusal another."""
        given.append(azurite.sas(blobs, minutes=10 if given else -10))
        return {"sas_token": given[-1], "expires_at": None}

    with closing(opened(azurite, blobs, backend, credential_provider=credential)) as storage:
        assert get(storage, "records/0", 0, len(DATA)) == DATA
    assert len(given) == 2

    def fail() -> None:
        raise RuntimeError("S3CRET")

    with pytest.raises(StorageError, match="RuntimeError") as caught:
        read(opened(azurite, blobs, backend, credential_provider=fail))
    assert "S3CRET" not in str(caught.value)
    storage = opened(azurite, blobs, backend, sas_token_file=str(tmp_path / "nothing"))
    with pytest.raises(AccessError, match=r"the file of the SAS cannot be read.*nothing"):
        storage.size("records/0")


def expired(credential: dict[str, Any], asked: list[None]) -> Callable[[], dict[str, Any]]:
    """Gives a credential that expires at once, and notes each time."""

    def give() -> dict[str, Any]:
        asked.append(None)
        return {**credential, "expires_at": datetime.datetime.now(datetime.timezone.utc)}

    return give


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_a_credential_that_expires_is_asked_for_before_it_is_refused(
    place: Place, backend: str, request: pytest.FixtureRequest
) -> None:
    place.put("records/0", DATA)
    asked: list[None] = []
    options = dict(place.options)
    if place.kind == "azurite":
        azurite: Azurite = request.getfixturevalue("azurite")
        options = {"account_name": azurite.account, "endpoint": azurite.endpoint}
        credential: dict[str, Any] = {"sas_token": azurite.sas(place.url.split("/")[2])}
    elif place.kind == "s3":
        credential = {name: options.pop(name) for name in ("access_key_id", "secret_access_key")}
        credential["token"] = None
    else:
        options = {"base_url": options["base_url"]}
        credential = {"token": "T0KEN"}
    options |= {"credential_provider": expired(credential, asked), "backend": backend}
    storage = open_storage(place.url, options)
    for count in (1, 2, 3):
        assert get(storage, "records/0", 0, len(DATA)) == DATA
        assert len(asked) >= count
    storage.close()


# Servers that give credentials may be busy or refuse, too: one for each cloud

# google-auth says so of credentials whose file names where they are to be asked for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*load_credentials_from_file:DeprecationWarning"),
    pytest.mark.usefixtures("impatient"),
]

TOKEN = "S3CRET-T0KEN"


class TokenServer(LocalServer):
    """Answers with the `statuses`, one after the other, and then with a token, `given`.

    With a certificate and its key over TLS: the tenant `tenant` of an Azure authority.
    """

    def __init__(self, given: dict[str, Any], certificate: tuple[Path, Path] | None = None) -> None:
        self.given = given
        self.statuses: Sequence[int] = ()
        self.asked = 0
        self._context: ssl.SSLContext | None = None
        if certificate is not None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(*certificate)
        super().__init__(_Handler)

    @property
    def url(self) -> str:
        return f"http://{self.host}/token"

    def get_request(self) -> Any:
        connection, address = super().get_request()
        if self._context is not None:
            connection = self._context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address


class _Handler(Handler):
    server: TokenServer

    def serve(self) -> None:
        self.body()
        if self.path.endswith("/openid-configuration"):
            tenant = f"https://{self.server.host}/tenant"
            self._send(
                200,
                {
                    "issuer": f"{tenant}/v2.0",
                    "authorization_endpoint": f"{tenant}/oauth2/v2.0/authorize",
                    "token_endpoint": f"{tenant}/oauth2/v2.0/token",
                },
            )
            return
        number, statuses = self.server.asked, self.server.statuses
        self.server.asked += 1
        status = statuses[number] if number < len(statuses) else 200
        refusal = {"error": "invalid_grant", "error_description": "S3CRET", "message": "S3CRET"}
        self._send(status, self.server.given if status == 200 else refusal)

    def _send(self, status: int, value: object) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class Objects(LocalServer):
    """A store of any kind in which each object is `DATA`; `heads` are the requests' headers."""

    def __init__(self) -> None:
        self.heads: list[dict[str, str]] = []
        super().__init__(_Object)


class _Object(Handler):
    server: Objects

    def serve(self) -> None:
        self.server.heads.append({name.lower(): text for name, text in self.headers.items()})
        headers = {"Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT", "ETag": '"tag"'}
        self.send_range(DATA, headers)


@dataclass
class Cloud:
    """A storage whose credential comes from `tokens`."""

    tokens: TokenServer
    objects: Objects
    open: Callable[[float], Storage]


@pytest.fixture(params=["az identity", "az secret", "gs", "s3"])
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    pytest.importorskip("obstore", reason="pip install obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    expires = time.time() + 3600
    certificate: tuple[Path, Path] | None = None
    if request.param == "az identity":
        pytest.importorskip("azure.identity", reason="pip install azure-identity")
        given: dict[str, Any] = {"access_token": TOKEN, "resource": "x", "token_type": "Bearer"}
        given["expires_on"] = str(int(expires))
    elif request.param == "az secret":
        identity = pytest.importorskip("azure.identity", reason="pip install azure-identity")

        class Here(identity.ClientSecretCredential):  # type: ignore[misc, name-defined]
            """Does not ask Microsoft which authorities there are."""

            def __init__(self, *words: Any, **settings: Any) -> None:
                super().__init__(*words, disable_instance_discovery=True, **settings)

        monkeypatch.setattr(identity, "ClientSecretCredential", Here)
        authority = Authority(tmp_path)
        certificate = authority.issue()
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority.certificate))
        given = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
    elif request.param == "gs":
        pytest.importorskip("google.auth", reason="pip install google-auth")
        given = {"access_token": TOKEN, "expires_in": 3600}
    else:
        utils = pytest.importorskip("botocore.utils", reason="pip install boto3")
        monkeypatch.setattr(utils.ContainerMetadataFetcher, "SLEEP_TIME", 0.01)
        given = {"AccessKeyId": "AKID", "SecretAccessKey": "S3CRET", "Token": TOKEN}
        given["Expiration"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
    # Else it looks without obstore.
    with Objects() as objects, TokenServer(given, certificate) as tokens, obstore_is(used=True):
        url = "az://box/p"
        options = {"account_name": "acme", "endpoint": f"http://{objects.host}/acme"}
        if request.param == "az identity":
            monkeypatch.setenv("IDENTITY_ENDPOINT", tokens.url)
            monkeypatch.setenv("IDENTITY_HEADER", "header")
        elif request.param == "az secret":
            monkeypatch.setenv("AZURE_AUTHORITY_HOST", f"https://{tokens.host}")
            options |= {"tenant_id": "tenant", "client_id": "me", "client_secret": "S3CRET"}
        elif request.param == "gs":
            file = tmp_path / "account.json"
            file.write_text(json.dumps(_service_account(tokens.url)))
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            url, options = "gs://box/p", {"base_url": f"http://{objects.host}"}
        else:
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", tokens.url)
            options = {"endpoint": f"http://{objects.host}", "region": "us-east-1"}
            url = "s3://box/p"
        yield Cloud(
            tokens, objects, lambda d: hastened(open_storage(url, {**options, "deadline": d}))
        )


def _service_account(token_uri: str) -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "client_email": "nobody@example.org",
        "private_key": key.decode(),
        "private_key_id": "1",
        "token_uri": token_uri,
    }


def test_a_server_of_tokens(cloud: Cloud) -> None:
    """It is asked once; where it is busy, asked again; a refusal is an error at once."""
    for statuses in ([], [429] * 5, [503] * 5):  # more than any client repeats by itself
        cloud.tokens.statuses, cloud.tokens.asked = statuses, 0
        with closing(cloud.open(60)) as storage:
            assert get(storage, "records/a", 3, 50) == DATA[3:50]
        assert cloud.tokens.asked == len(statuses) + 1
        head = cloud.objects.heads[-1]
        assert TOKEN in head["authorization"] + head.get("x-amz-security-token", "")
    failing: list[tuple[int, float, type[StorageError]]] = [
        (429, 0.2, DeadlineError),
        (503, 0.2, DeadlineError),
        (400, 60, AccessError),
        (401, 60, AccessError),
    ]
    for status, deadline, error in failing:
        cloud.tokens.statuses, cloud.tokens.asked = [status] * 1000, 0
        start = time.monotonic()
        with closing(cloud.open(deadline)) as storage, pytest.raises(error) as caught:
            get(storage, "records/a", 3, 50)
        assert time.monotonic() - start < 50  # of 60
        assert "S3CRET" not in str(caught.value)
        assert storage.url in str(caught.value) or cloud.objects.host in str(caught.value)
