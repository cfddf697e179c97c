"""The clients that read Azure Blob: what the answers of odd servers become, and credentials."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from seqrecord.errors import AccessError, LocationError, StorageError, TransientError
from seqrecord.storage import Storage, StorageWrapper, open_storage
from tests.canned_server import Canned, CannedServer, answer
from tests.obstore_runtime import obstore_is
from tests.services import Azurite
from tests.storage_contract import get

Make: TypeAlias = Callable[..., Storage]

KEY = "c2VjcmV0LWtleQ=="
SECRET_SAS = "sv=2024-01-01&sp=r&sig=S3CRET"


@pytest.fixture(params=["obstore", "urllib3"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a storage at an endpoint that repeats nothing; obstore reads what is small, too."""
    made: list[Storage] = []

    def make(
        endpoint: str, *, timeout: float = 30.0, container: str = "container", **settings: Any
    ) -> Storage:
        options = {"account_name": "account", "endpoint": endpoint, "deadline": 4 * timeout}
        credential = {} if {"sas_token", "anonymous"} & settings.keys() else {"account_key": KEY}
        options |= {"backend": request.param, **credential, **settings}
        storage = open_storage(f"az://{container}/set", options)
        while isinstance(storage, StorageWrapper):
            storage = storage.inner
        made.append(storage)
        return storage

    with obstore_is(used=request.param == "obstore"):
        yield make
    for storage in made:
        storage.close()


# Answers that no good server gives


def part(body: bytes, **headers: Any) -> bytes:
    return answer(206, body, Content_Range="bytes 0-99/1000", **headers)


BODY = bytes(range(100))
BUSY = Canned(answer(503, Retry_After="7", x_ms_error_code="ServerBusy"))


def test_the_wish_of_a_busy_server_is_known(make: Make) -> None:
    with CannedServer([BUSY]) as server:
        reader = make(server.endpoint)
        with pytest.raises(TransientError) as caught:
            get(reader, "records/0", 0, 100)
    assert caught.value.retry_after == (None if "Obstore" in repr(reader) else 7)


def test_a_connection_that_is_closed_without_an_answer_may_pass(make: Make) -> None:
    with CannedServer([Canned(b""), Canned(b""), Canned(part(BODY))]) as server:
        reader = make(server.endpoint)
        with pytest.raises(TransientError):
            get(reader, "records/0", 0, 100)


@pytest.mark.parametrize("data", [b"", part(BODY[:50], length=100)], ids=["answer", "body"])
def test_a_server_that_hangs_is_given_up(make: Make, data: bytes) -> None:
    with CannedServer([Canned(data, "hang")]) as server:
        reader = make(server.endpoint, timeout=0.2)
        with pytest.raises(TransientError):
            get(reader, "records/0", 0, 100)


@pytest.mark.parametrize(
    "body",
    [
        part(BODY[:50]),
        answer(206, BODY[:50], Content_Range="bytes 0-49/1000"),
        answer(206, BODY, Content_Range="bytes 100-199/1000"),
    ],
    ids=["another length", "less", "another range"],
)
def test_what_was_not_asked_for_is_not_taken(make: Make, body: bytes) -> None:
    """The server says that the file goes on, so it may be well the next time."""
    size = answer(200, length=1000, x_ms_blob_content_length="1000")
    with CannedServer([Canned(body), Canned(size)]) as server, pytest.raises(StorageError):
        get(make(server.endpoint, timeout=1), "records/0", 0, 100)


@pytest.mark.parametrize("status", [401, 403])
def test_refusals(make: Make, status: int) -> None:
    with CannedServer([Canned(answer(status))]) as server:
        reader = make(server.endpoint)
        for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
            with pytest.raises(AccessError, match="check the key"):
                action()


def test_nobody_listens(make: Make) -> None:
    reader = make("http://127.0.0.1:1/account")
    for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
        with pytest.raises(TransientError):
            action()


@pytest.mark.parametrize("key", ["zzz", "S3CRET!"])
def test_a_key_that_is_none(make: Make, key: str) -> None:
    with CannedServer([Canned(part(BODY))]) as server:
        reader = make(server.endpoint, account_key=key)
        for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
            with pytest.raises(AccessError, match="key") as caught:
                action()
            assert key not in str(caught.value) or key == "="


def test_credentials_go_where_they_belong_and_nowhere_else(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the environment, which the clients themselves would take."""
    for name in ("SAS_TOKEN", "SAS_KEY", "ACCOUNT_KEY", "ACCESS_KEY", "KEY", "TOKEN"):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", "OTHER")
    for name in ("ACCOUNT", "ACCOUNT_NAME"):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", "other")
    text = "AccountName=other;AccountKey=T1RIRVI=;BlobEndpoint=http://127.0.0.1:1/other"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    monkeypatch.setenv("AZURE_CLIENT_ID", "other")
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
            expected = "?sp=r&"  # it signs URLs, which only read, and for an hour
        head = server.asked[0].lower()
        assert "/account/container/set/records/0" in head
        assert expected in head
        assert "other" not in head
        assert ("authorization:" in head) == ("sharedkey" in expected)
        assert ("sig=" in head) == (expected.startswith(("sig=", "?sp=r&")))


def test_a_token_is_asked_for_and_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity")
    from azure.core.credentials import AccessToken

    class Credential:
        def __init__(self, **_: Any) -> None:
            pass

        def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            assert scopes == ("https://storage.azure.com/.default",)
            return AccessToken("T0KEN", 4_000_000_000)

    monkeypatch.setattr(identity, "DefaultAzureCredential", Credential)
    with CannedServer([Canned(part(BODY))]) as server:
        reader = make(server.endpoint, account_key=None)
        assert get(reader, "records/0", 0, 100) == BODY
    assert "Bearer T0KEN" in server.asked[0]


@pytest.mark.parametrize(
    "canned", [Canned(answer(403)), BUSY, Canned(b"", "reset")], ids=["403", "503", "reset"]
)
def test_no_failure_shows_a_credential(
    make: Make, canned: Canned, caplog: pytest.LogCaptureFixture
) -> None:
    for settings in ({"sas_token": SECRET_SAS}, {"account_key": KEY}):
        with CannedServer([canned]) as server:
            reader = make(server.endpoint, timeout=1, **settings)
            for length in (0, 100):  # of nothing it asks for the size
                with pytest.raises(StorageError) as caught:
                    get(reader, "a", 0, length)
                assert caught.value.__cause__ is None
                assert caught.value.__context__ is None
                said = "".join(traceback.format_exception(caught.value)) + caplog.text
                said += repr(reader) + repr(vars(caught.value))
                assert "S3CRET" not in said
                assert KEY not in said


def test_a_missing_package_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make("http://127.0.0.1:1/account")
    if "Fsspec" in repr(reader):
        pytest.skip("it needs none")
    for package in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LocationError, match="pip install obstore") as caught:
        get(reader, "a", 0, 100)
    assert caught.value.__cause__ is None


# The real service


def test_a_service_refuses_who_may_not_read(make: Make, azurite: Azurite, container: str) -> None:
    """Nothing of one storage is another's."""
    azurite.put(container, "set/records/0", BODY)

    def opened(**credential: Any) -> Storage:
        return make(
            azurite.endpoint, container=container, account_name=azurite.account, **credential
        )

    allowed = opened(sas_token=azurite.sas(container, permission="r"))
    others = {
        r"SAS": opened(sas_token=azurite.sas(container, permission="w")),
        r"check the key": opened(account_key=KEY),
        r"access is refused|no such": opened(anonymous=True),
    }
    for _ in range(2):
        assert (allowed.size("records/0"), get(allowed, "records/0", 5, 50)) == (100, BODY[5:50])
        for says, refused in others.items():
            for path in ("records/0", "nothing"):
                with pytest.raises(StorageError, match=says):
                    refused.size(path)
                with pytest.raises(StorageError, match=says):
                    get(refused, path, 0, 5)
