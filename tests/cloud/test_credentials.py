"""Cloud credentials: sources, destinations, renewal after expiry."""

from __future__ import annotations

import datetime
import json
import logging
import pickle
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from seqrecord import errors
from seqrecord.cloud.objects.azure import AzureContainer
from seqrecord.errors import AccessError, DeadlineError, StorageError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.url import parse_location
from tests.kit.services import Azurite
from tests.kit.services.local_server import Canned, CannedServer, answer
from tests.kit.services.places import CLOUDS, Place, with_short_waits
from tests.store.storage_contract import get

DATA = bytes(range(200))


@pytest.fixture
def blobs(azurite: Azurite, container: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A container with one file; the environment has no credential for it."""
    for name in ("ACCOUNT_KEY", "KEY", "SAS_TOKEN", "CONNECTION_STRING"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    azurite.put(container, "set/records/0", DATA)
    return container


def opened(azurite: Azurite, container: str, **options: Any) -> Storage:
    where = {"account_name": azurite.account, "endpoint": azurite.endpoint, "deadline": 10}
    return open_storage(f"az://{container}/set", {**where, **options})


def read(storage: Storage) -> bytes:
    assert storage.size("records/0") == len(DATA)
    return get(storage, "records/0", 0, len(DATA))


@pytest.mark.parametrize("where", ["environment", "file"])
def test_an_expired_sas_is_read_again(
    azurite: Azurite,
    blobs: str,
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
    renew(-10)
    storage = opened(azurite, blobs, **options)
    with pytest.raises(AccessError, match="SAS"):
        read(storage)
    renew(10)
    assert read(storage) == DATA
    storage.close()


def test_credential_providers_and_sas_files(azurite: Azurite, blobs: str, tmp_path: Path) -> None:
    given: list[str] = []

    def credential() -> dict[str, Any]:
        """Return an expired SAS first, then a valid one."""
        given.append(azurite.sas(blobs, minutes=10 if given else -10))
        return {"sas_token": given[-1], "expires_at": None}

    with closing(opened(azurite, blobs, credential_provider=credential)) as storage:
        assert get(storage, "records/0", 0, len(DATA)) == DATA
    assert len(given) == 2

    def fail() -> None:
        raise RuntimeError("S3CRET")

    with pytest.raises(StorageError, match="RuntimeError") as caught:
        read(opened(azurite, blobs, credential_provider=fail))
    assert "S3CRET" not in str(caught.value)
    storage = opened(azurite, blobs, sas_token_file=str(tmp_path / "nothing"))
    with pytest.raises(AccessError, match=r"the file of the SAS cannot be read.*nothing"):
        storage.size("records/0")


def test_a_sas_file_that_is_being_written(tmp_path: Path) -> None:
    """Its reader tries again, and looks for no other credential meanwhile."""
    file = tmp_path / "sas"
    file.touch()
    with CannedServer([Canned(answer(200, length=7))]) as server:
        options = {"account_name": "account", "endpoint": server.endpoint, "deadline": 30}
        storage = open_storage("az://box/set", {**options, "sas_token_file": str(file)})
        writer = threading.Timer(0.5, file.write_text, ["\ufeff" + SECRET_SAS])
        writer.start()
        with closing(storage):
            assert storage.size("a") == 7
            assert storage.counters()["retries"] > 0
        writer.join()
        assert [f"?{SECRET_SAS}" in head for head in server.asked] == [True]
        options["deadline"] = 0.1
        for empty in ("\n", "\ufeff"):  # a byte order mark, as PowerShell writes
            file.write_text(empty)
            storage = open_storage("az://box/set", {**options, "sas_token_file": str(file)})
            with closing(storage), pytest.raises(DeadlineError, match=r"SAS is empty: .*sas"):
                storage.size("a")


def test_an_expired_token_of_s3_is_renewed_for_a_size() -> None:
    """Its answer to HEAD has status 400 and no body, so no reason."""
    pytest.importorskip("botocore", reason="pip install boto3")
    tokens: list[str] = []

    def credential() -> dict[str, Any]:
        tokens.append(f"T0KEN-{len(tokens)}")
        keys = {"access_key_id": "AKID", "secret_access_key": "S3CRET"}
        return {**keys, "token": tokens[-1], "expires_at": None}

    reason = b"<Error><Code>ExpiredToken</Code></Error>"
    answers = [answer(400), answer(400, reason), answer(200, length=7)]
    with CannedServer(list(map(Canned, answers))) as server:
        options = {"endpoint": f"http://{server.host}", "credential_provider": credential}
        with closing(open_storage("s3://box/set", options)) as storage:
            assert storage.size("a") == 7
    assert tokens[0] in server.asked[0]
    assert tokens[1] in server.asked[2]


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_an_expiring_credential_is_renewed_before_the_server_refuses_it(
    place: Place, request: pytest.FixtureRequest
) -> None:
    place.put("records/0", DATA)
    asked: list[str] = []
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

    def give() -> dict[str, Any]:
        asked.append("once more")
        return {**credential, "expires_at": datetime.datetime.now(datetime.timezone.utc)}

    options["credential_provider"] = give
    storage = open_storage(place.url, options)
    for count in (1, 2, 3):
        assert get(storage, "records/0", 0, len(DATA)) == DATA
        assert len(asked) >= count
    storage.close()


# Token servers may be busy or refuse, too: one for each cloud

TOKEN = "S3CRET-T0KEN"
REFUSAL = {"error": "invalid_grant", "error_description": "S3CRET", "message": "S3CRET"}


def json_response(status: int, value: object = REFUSAL) -> Canned:
    return Canned(answer(status, json.dumps(value).encode(), Content_Type="application/json"))


@dataclass
class Cloud:
    """A storage, its token server `tokens`, and the server's successful response `given`."""

    tokens: CannedServer
    given: Canned
    objects: CannedServer
    open: Callable[..., Storage]


@pytest.fixture(params=["az", "gs", "s3"])
def cloud(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cloud]:
    pytest.importorskip("obstore", reason="pip install obstore")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AZURE_CLIENT_SECRET"):
        monkeypatch.delenv(name, raising=False)
    expires = time.time() + 3600
    given: dict[str, Any] = {"access_token": TOKEN, "expires_in": 3600}
    data = Canned(answer(206, DATA[3:50], Content_Range=f"bytes 3-49/{len(DATA)}"))
    with CannedServer([data]) as objects, CannedServer([]) as tokens:
        asked, at = f"http://{tokens.host}/token", f"http://{objects.host}"
        if request.param == "az":
            pytest.importorskip("azure.identity", reason="pip install azure-identity")
            given |= {"resource": "x", "token_type": "Bearer", "expires_on": str(int(expires))}
            monkeypatch.setenv("IDENTITY_ENDPOINT", asked)
            monkeypatch.setenv("IDENTITY_HEADER", "header")
            options = {"account_name": "acme", "endpoint": f"{at}/acme"}
        elif request.param == "gs":
            pytest.importorskip("google.auth", reason="pip install google-auth")
            file = tmp_path / "account.json"
            file.write_text(json.dumps(_service_account(asked)))
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
            options = {"base_url": at}
        else:
            utils = pytest.importorskip("botocore.utils", reason="pip install boto3")
            monkeypatch.setattr(utils.ContainerMetadataFetcher, "SLEEP_TIME", 0.01)
            given = {"AccessKeyId": "AKID", "SecretAccessKey": "S3CRET", "Token": TOKEN}
            given["Expiration"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
            monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", asked)
            options = {"endpoint": at, "region": "us-east-1"}

        def open_cloud(deadline: float) -> Storage:
            more = {**options, "deadline": deadline}
            return with_short_waits(open_storage(f"{request.param}://box/p", more))

        yield Cloud(tokens, json_response(200, given), objects, open_cloud)


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


# google-auth warns about credentials whose file names the token server.
@pytest.mark.filterwarnings("ignore:.*load_credentials_from_file:DeprecationWarning")
@pytest.mark.usefixtures("impatient")
def test_requests_to_the_token_server(cloud: Cloud) -> None:
    """One request; retries if the server is busy; a refusal is an error at once."""
    # More failures than any client retries by itself.
    for statuses in ([], [429] * 5, [503] * 5):
        cloud.tokens.asked.clear()
        cloud.tokens.answers = [*map(json_response, statuses), cloud.given]
        with closing(cloud.open(60)) as storage:
            assert get(storage, "records/a", 3, 50) == DATA[3:50]
        assert len(cloud.tokens.asked) == len(statuses) + 1
        assert TOKEN in cloud.objects.asked[-1]
        assert "az:" not in storage.url or "storage.azure.com" in cloud.tokens.asked[-1]
    failing: list[tuple[int, float, type[StorageError]]] = [
        (429, 0.2, DeadlineError),
        (503, 0.2, DeadlineError),
        (400, 60, AccessError),
        (401, 60, AccessError),
    ]
    for status, deadline, error in failing:
        cloud.tokens.answers = [json_response(status)]
        start = time.monotonic()
        with closing(cloud.open(deadline)) as storage, pytest.raises(error) as caught:
            get(storage, "records/a", 3, 50)
        # Of 60, which an error that is retried takes; on a busy machine mean 1.6 s, standard
        # deviation 1.7 s for the slowest service.
        assert time.monotonic() - start < 50
        assert "S3CRET" not in str(caught.value)
        assert storage.url in str(caught.value) or cloud.objects.host in str(caught.value)


# Azure

Make: TypeAlias = Callable[..., Storage]

KEY = "c2VjcmV0LWtleQ=="
SECRET_SAS = "sv=2024-01-01&sp=r&sig=S3CRET"


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a storage at an endpoint, without retries."""
    made: list[Storage] = []

    def make(
        endpoint: str, *, timeout: float = 30.0, container: str = "container", **settings: Any
    ) -> Storage:
        options = {"account_name": "account", "endpoint": endpoint, "deadline": 4 * timeout}
        credential = {} if {"sas_token", "anonymous"} & settings.keys() else {"account_key": KEY}
        options |= {**credential, **settings}
        storage = open_storage(f"az://{container}/set", options)
        while isinstance(storage, StorageWrapper):
            storage = storage.inner
        made.append(storage)
        return storage

    yield make
    for storage in made:
        storage.close()


# Invalid responses


def part(body: bytes, **headers: Any) -> bytes:
    return answer(206, body, Content_Range="bytes 0-99/1000", **headers)


BODY = bytes(range(100))
BUSY = Canned(answer(503, Retry_After="7", x_ms_error_code="ServerBusy"))


@pytest.mark.parametrize(
    "answers",
    [
        [BUSY],
        [Canned(b""), Canned(b""), Canned(part(BODY))],
        [Canned(b"", "hang")],
        [Canned(part(BODY[:50], length=100), "hang")],
    ],
    ids=["busy", "closed", "no answer", "half a body"],
)
def test_busy_hanging_and_closing_servers_are_transient_errors(
    make: Make, answers: list[Canned]
) -> None:
    hangs = answers[-1].end == "hang"
    with CannedServer(answers) as server:
        reader = make(server.endpoint, timeout=0.2 if hangs else 30)
        with pytest.raises(errors.TransientError) as caught:
            get(reader, "records/0", 0, 100)
    has_delay = answers == [BUSY] and "Obstore" not in repr(reader)
    assert caught.value.retry_after == (7 if has_delay else None)


def test_wrong_ranges_and_refusals_are_errors(make: Make) -> None:
    """The file is longer than the response, so a retry may succeed."""
    size = answer(200, length=1000, x_ms_blob_content_length="1000")
    for body in (
        part(BODY[:50]),  # wrong length
        answer(206, BODY[:50], Content_Range="bytes 0-49/1000"),
        answer(206, BODY, Content_Range="bytes 100-199/1000"),
    ):
        with CannedServer([Canned(body), Canned(size)]) as server:
            reader = make(server.endpoint, timeout=1)
            with pytest.raises(errors.StorageError):
                get(reader, "records/0", 0, 100)
    # Refusals.
    with (
        CannedServer([Canned(answer(401))]) as server,
        CannedServer([Canned(answer(403))]) as other,
    ):
        for reader, error, match in (
            (make(server.endpoint), errors.AccessError, "check the key"),
            (make(other.endpoint), errors.AccessError, "check the key"),
            (make(other.endpoint, account_key="S3CRET!"), errors.AccessError, "key"),
            (make("http://127.0.0.1:1/account"), errors.TransientError, "."),
        ):
            for action in (partial(reader.size, "a"), partial(get, reader, "a", 0, 100)):
                with pytest.raises(error, match=match) as caught:
                    action()
                assert "S3CRET!" not in str(caught.value)


def test_requests_carry_only_the_given_credential(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients themselves would use the environment's credentials."""
    for name in ("SAS_TOKEN", "SAS_KEY", "ACCOUNT_KEY", "ACCESS_KEY", "KEY", "TOKEN"):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", "OTHER")
    for name in ("STORAGE_ACCOUNT", "STORAGE_ACCOUNT_NAME", "CLIENT_ID"):
        monkeypatch.setenv(f"AZURE_{name}", "other")
    text = "AccountName=other;AccountKey=T1RIRVI=;BlobEndpoint=http://127.0.0.1:1/other"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    kinds: list[tuple[dict[str, Any], str]] = [
        ({"account_key": KEY}, "authorization: sharedkey account:"),
        ({"sas_token": SECRET_SAS}, "sig=s3cret"),
        ({"anonymous": True}, ""),
    ]
    for settings, expected in kinds:
        with CannedServer([Canned(part(BODY))]) as server:
            reader = make(server.endpoint, **settings)
            assert get(reader, "records/0", 0, 100) == BODY
        if "Fsspec" in repr(reader) and "sharedkey" in expected:
            expected = "?sp=r&"  # signed URLs for reading, valid for an hour
        head = server.asked[0].lower()
        assert "/account/container/set/records/0" in head
        assert expected in head
        assert "other" not in head
        assert ("authorization:" in head) == ("sharedkey" in expected)
        assert ("sig=" in head) == expected.startswith(("sig=", "?sp=r&"))


def test_no_credential_in_errors_and_logs(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("", *logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, name)
    refused = [Canned(answer(status)) for status in (403, 404, 500)]
    for canned in (*refused, BUSY, Canned(b"", "reset")):
        for settings in ({"sas_token": SECRET_SAS}, {"account_key": KEY}):
            with CannedServer([canned]) as server:
                reader = make(server.endpoint, timeout=1, **settings)
                for length in (0, 100):  # a read of length 0 requests the size
                    with pytest.raises(errors.StorageError) as caught:
                        get(reader, "a", 0, length)
                    assert caught.value.__cause__ is caught.value.__context__ is None
                    text = "".join(traceback.format_exception(caught.value))
                    text += repr(reader) + repr(vars(caught.value))
                    assert "S3CRET" not in text
                    assert KEY not in text
    assert "S3CRET" not in caplog.text
    assert KEY not in caplog.text


# Azure account

SECRET = "MARKED-S3CRET"
HTTPS = "https://acme.blob.core.windows.net/box/path/to"
PRE = "AZURE_STORAGE_"
TRIO = {"tenant_id": "t", "client_id": "c", "client_secret": SECRET}


def resolve(
    url: str, options: dict[str, Any] | None = None, environ: dict[str, str] | None = None
) -> AzureContainer:
    return AzureContainer.resolve(parse_location(url), options or {}, environ or {})


def kind_of(container: AzureContainer) -> str:
    """The kind of the container's only credential."""
    names = {"account_key": "account key", "sas_token": "SAS", "anonymous": "anonymous"}
    if "client_secret" in container.config:
        return "client secret"
    [kind] = [names[name] for name in container.config] or ["default chain"]
    return kind


def test_sources_of_the_account_name() -> None:
    for url in (HTTPS, "abfs://box@acme.dfs.core.windows.net/path/to/"):
        account = resolve(url)
        assert (account.account, account.bucket, account.root) == ("acme", "box", "path/to")
        assert account.endpoint == "https://acme.blob.core.windows.net"
        assert kind_of(account) == "default chain"
        assert account.key("records/a") == "path/to/records/a"
    whole = resolve("https://acme.blob.core.windows.net/acme")  # named as its account
    assert (whole.bucket, whole.root, whole.key("records/a")) == ("acme", "", "records/a")
    text, other = f"AccountName=acme;AccountKey={SECRET}", {"AZURE_STORAGE_ACCOUNT_NAME": "other"}
    found: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"account_name": "acme"}, {}),
        ({"account_name": "acme"}, other),
        ({"account": "acme"}, other),
        ({}, {"AZURE_STORAGE_ACCOUNT_NAME": "acme"}),
        ({}, {"AZURE_STORAGE_ACCOUNT": "acme"}),
        ({"connection_string": text}, {}),
        ({}, {"AZURE_STORAGE_CONNECTION_STRING": f"{text}=="}),
    ]
    for options, environ in found:
        account = resolve("az://box/path", options, environ)
        assert (account.account, account.bucket, account.root) == ("acme", "box", "path")
        assert account.endpoint == "https://acme.blob.core.windows.net"


@pytest.mark.parametrize(
    ("url", "options", "environ", "kind"),
    [
        (f"{HTTPS}?sig={SECRET}", {}, {}, "SAS"),
        (HTTPS, {"sas_token": f"?sig={SECRET}"}, {}, "SAS"),
        (HTTPS, {"account_key": SECRET}, {}, "account key"),
        (HTTPS, TRIO, {}, "client secret"),
        (HTTPS, {"anonymous": True}, {}, "anonymous"),
        (HTTPS, {"anon": "true"}, {}, "anonymous"),
        (HTTPS, {}, {f"{PRE}ACCOUNT_KEY": SECRET}, "account key"),
        (HTTPS, {}, {f"{PRE}KEY": SECRET}, "account key"),
        (HTTPS, {}, {f"{PRE}SAS_TOKEN": SECRET}, "SAS"),
        (HTTPS, {}, {f"AZURE_{name.upper()}": v for name, v in TRIO.items()}, "client secret"),
        (HTTPS, {"account_key": SECRET}, {f"{PRE}SAS_TOKEN": "other"}, "account key"),
        (f"{HTTPS}?sig={SECRET}", {}, {f"{PRE}ACCOUNT_KEY": "other"}, "SAS"),
        # Several tools may have set variables.
        (HTTPS, {}, {f"{PRE}KEY": SECRET, f"{PRE}SAS_TOKEN": "x"}, "account key"),
        (HTTPS, {}, {"AZURE_CLIENT_SECRET": SECRET}, "default chain"),
        # The environment's credential is for another account.
        (HTTPS, {}, {f"{PRE}ACCOUNT_NAME": "x", f"{PRE}ACCOUNT_KEY": SECRET}, "default chain"),
        (
            HTTPS,
            {},
            {f"{PRE}CONNECTION_STRING": f"AccountName=x;AccountKey={SECRET}"},
            "default chain",
        ),
    ],
)
def test_the_credential(
    url: str, options: dict[str, Any], environ: dict[str, str], kind: str
) -> None:
    account = resolve(url, options, environ)
    assert kind_of(account) == kind
    assert set(account.config.values()) <= {SECRET, f"sig={SECRET}", "t", "c", True}
    assert SECRET not in repr(account) + str(account)
    assert pickle.loads(pickle.dumps(account)) == account


def test_connection_strings_and_endpoints() -> None:
    def of(text: str) -> AzureContainer:
        return resolve("az://box/path", {"connection_string": text})

    development = of("UseDevelopmentStorage=true")
    assert development.endpoint == "http://127.0.0.1:10000/devstoreaccount1"
    assert kind_of(development) == "account key"
    acme = "https://acme.blob.core.windows.net"
    signed = of(f"BlobEndpoint={acme}/;SharedAccessSignature=?sv=1&sig={SECRET}%3D")
    assert (signed.account, signed.endpoint) == ("acme", acme)
    assert signed.config["sas_token"] == f"sv=1&sig={SECRET}%3D"
    china = of("AccountName=a;AccountKey=k;EndpointSuffix=core.chinacloudapi.cn")
    assert china.endpoint == "https://a.blob.core.chinacloudapi.cn"
    other = {f"{PRE}ENDPOINT": "http://elsewhere:1/acme"}
    for environ in ({}, other):
        account = resolve(HTTPS, {"endpoint": "http://127.0.0.1:1/acme/"}, environ)
        assert account.endpoint == "http://127.0.0.1:1/acme", "options override the environment"
        assert resolve(HTTPS, {}, environ).endpoint == acme
    account = resolve("az://b/p", {"account_name": "acme"}, other)
    assert account.endpoint == "http://elsewhere:1/acme"


# Credentials of azure-identity


def test_a_failure_of_the_default_chain_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not once per request: the message has fifteen lines."""
    identity = pytest.importorskip("azure.identity")
    name = f"Credential{uuid.uuid4().hex}"
    none = type(name, (identity.EnvironmentCredential,), {})
    monkeypatch.setattr(
        identity, "DefaultAzureCredential", lambda **_: identity.ChainedTokenCredential(none())
    )
    options = {"account_name": "acme", "endpoint": "https://127.0.0.1:9", "deadline": 0.3}
    with closing(open_storage("az://box/p", options)) as storage:
        for _ in range(3):
            with pytest.raises(errors.AccessError):
                storage.size("a")
    assert sum(name in record.getMessage() for record in caplog.records) == 1
