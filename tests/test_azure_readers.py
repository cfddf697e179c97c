"""The clients that read Azure Blob: what they read, and what their failures become."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

from seqrecord.errors import (
    AccessError,
    LocationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.storage.objects.azure import AzureContainer
from seqrecord.storage.objects.reader import ObstoreReader
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.requests import FsspecReader, RequestReader
from tests.canned_server import Canned, CannedServer, answer
from tests.obstore_runtime import obstore_is
from tests.services import Azurite

Make: TypeAlias = Callable[..., RequestReader]

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

DATA = np.random.default_rng(5).bytes(3 << 20)
SHOWN = "az://container/set"
KEY = "c2VjcmV0LWtleQ=="
SECRET_SAS = "sv=2024-01-01&sp=r&sig=S3CRET"


def by_urllib3(account: AzureContainer, shown: str, *, timeout: float = 30.0) -> RequestReader:
    return FsspecReader(partial(account.http_client, timeout), "", shown)


def by_obstore(account: AzureContainer, shown: str, *, timeout: float = 30.0) -> RequestReader:
    """obstore from the first byte on, and urllib3 only in a fork."""
    fallback = by_urllib3(account, shown, timeout=timeout)
    return ObstoreReader(account, shown, fallback=fallback, timeout=timeout)


KINDS: dict[str, Callable[..., RequestReader]] = {"obstore": by_obstore, "urllib3": by_urllib3}


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes a reader of each kind; obstore's reads what is small, too."""
    if request.param == "obstore":
        pytest.importorskip("obstore", reason="pip install obstore")
    made: list[RequestReader] = []

    def make(account: AzureContainer, **settings: Any) -> RequestReader:
        reader: RequestReader = KINDS[request.param](account, SHOWN, **settings)
        made.append(reader)
        return reader

    with obstore_is(used=request.param == "obstore"):
        yield make
    for reader in made:
        reader.close()
    made.clear()
    gc.collect()


def account_at(endpoint: str, **settings: Any) -> AzureContainer:
    return AzureContainer(
        bucket="container",
        root="set",
        shown=SHOWN,
        config={n: v for n, v in {"account_key": KEY, **settings}.items() if v is not None},
        account="account",
        endpoint=endpoint,
    )


def get(reader: RequestReader, path: str, start: int, stop: int) -> bytes:
    out = np.full(stop - start, 7, np.uint8)
    reader.read_ranges(path, [ByteRange(start, stop)], [out.data])
    return out.tobytes()


# Answers that no good server gives


def part(body: bytes, **headers: Any) -> bytes:
    return answer(206, body, Content_Range="bytes 0-99/1000", **headers)


BODY = DATA[:100]
TRANSIENT = {
    "reset": Canned(b"", "reset"),
    "closed without an answer": Canned(b""),
    "cut, then an orderly end": Canned(part(BODY[:50], length=100)),
    "cut, then a reset": Canned(part(BODY[:50], length=100), "reset"),
    "500": Canned(answer(500)),
    "503": Canned(answer(503, Retry_After="7", x_ms_error_code="ServerBusy")),
    "429": Canned(answer(429)),
}


@pytest.mark.parametrize("kind", list(TRANSIENT))
def test_accidents_may_pass(make: Make, kind: str) -> None:
    with CannedServer([TRANSIENT[kind]] * 4 + [Canned(part(BODY))]) as server:
        reader = make(account_at(server.endpoint), timeout=10)
        failures = 0
        while failures < 5:
            try:
                got = get(reader, "records/0", 0, 100)
            except TransientError:
                failures += 1
            else:
                assert got == BODY
                break
        assert 1 <= failures <= 4
        reader.close()


def test_the_wish_of_a_busy_server_is_known(make: Make) -> None:
    with CannedServer([TRANSIENT["503"]]) as server:
        reader = make(account_at(server.endpoint))
        with pytest.raises(TransientError) as caught:
            get(reader, "records/0", 0, 100)
        reader.close()
    assert caught.value.retry_after == (None if isinstance(reader, ObstoreReader) else 7)


@pytest.mark.parametrize("data", [b"", part(BODY[:50], length=100)], ids=["answer", "body"])
def test_a_server_that_hangs_is_given_up(make: Make, data: bytes) -> None:
    with CannedServer([Canned(data, "hang")]) as server:
        reader = make(account_at(server.endpoint), timeout=0.2)
        with pytest.raises(TransientError):
            get(reader, "records/0", 0, 100)
        reader.close()


@pytest.mark.parametrize(
    "body",
    [
        answer(206, BODY[:50], Content_Range="bytes 0-49/1000"),
        answer(206, BODY[:50], Content_Range="bytes 0-99/1000"),
    ],
    ids=["another range", "another length"],
)
def test_less_than_was_asked_is_an_error(make: Make, body: bytes) -> None:
    """The server says that the file goes on, so it may be well the next time."""
    size = answer(200, length=1000, x_ms_blob_content_length="1000")
    with CannedServer([Canned(body), Canned(size)]) as server:
        reader = make(account_at(server.endpoint), timeout=1)
        with pytest.raises(StorageError):
            get(reader, "records/0", 0, 100)
        reader.close()


def test_a_range_that_is_not_the_one_asked_for_is_not_taken(make: Make) -> None:
    body = answer(206, BODY, Content_Range="bytes 100-199/1000")
    size = answer(200, length=1000, x_ms_blob_content_length="1000")
    with CannedServer([Canned(body), Canned(size)]) as server:
        reader = make(account_at(server.endpoint), timeout=1)
        with pytest.raises(StorageError):
            get(reader, "records/0", 0, 100)
        reader.close()


@pytest.mark.parametrize("status", [401, 403])
def test_refusals(make: Make, status: int) -> None:
    with CannedServer([Canned(answer(status))]) as server:
        reader = make(account_at(server.endpoint))
        for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
            with pytest.raises(AccessError, match="check the key"):
                action()
        reader.close()


def test_nobody_listens(make: Make) -> None:
    reader = make(account_at("http://127.0.0.1:1/account"))
    for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
        with pytest.raises(TransientError):
            action()


@pytest.mark.parametrize("key", ["zzz", "S3CRET!"])
def test_a_key_that_is_none(make: Make, key: str) -> None:
    with CannedServer([Canned(part(BODY))]) as server:
        reader = make(account_at(server.endpoint, account_key=key))
        for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 100)):
            with pytest.raises(AccessError, match="key") as caught:
                action()
            assert key not in str(caught.value) or key == "="
        reader.close()


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
        ({"account_key": None, "sas_token": SECRET_SAS}, "sig=s3cret"),
        ({"account_key": None, "anonymous": True}, ""),
    ]
    for settings, expected in kinds:
        with CannedServer([Canned(part(BODY))]) as server:
            reader = make(account_at(server.endpoint, **settings))
            assert get(reader, "records/0", 0, 100) == BODY
            reader.close()
        if isinstance(reader, FsspecReader) and "sharedkey" in expected:
            expected = "?sp=r&"  # it signs URLs, which only read, and for an hour
        head = server.asked[0].lower()
        assert "/account/container/set/records/0" in head
        assert expected in head
        assert "other" not in head
        assert ("authorization:" in head) == ("sharedkey" in expected)
        assert ("sig=" in head) == (expected.startswith(("sig=", "?sp=r&")))


def test_a_token_is_asked_for_and_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity")
    aio = pytest.importorskip("azure.identity.aio")
    from azure.core.credentials import AccessToken, AccessTokenInfo

    class Credential:
        def __init__(self, **_: Any) -> None:
            pass

        def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            assert scopes == ("https://storage.azure.com/.default",)
            return AccessToken("T0KEN", 4_000_000_000)

        def get_token_info(self, *scopes: str, **_: Any) -> AccessTokenInfo:
            return AccessTokenInfo(*self.get_token(*scopes))

    class AsyncCredential:
        def __init__(self, **_: Any) -> None:
            pass

        async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
            return Credential().get_token(*scopes)

        async def get_token_info(self, *scopes: str, **_: Any) -> AccessTokenInfo:
            return Credential().get_token_info(*scopes)

        async def close(self) -> None:
            pass

    monkeypatch.setattr(identity, "DefaultAzureCredential", Credential)
    monkeypatch.setattr(aio, "DefaultAzureCredential", AsyncCredential)
    with CannedServer([Canned(part(BODY))]) as server:
        reader = make(account_at(server.endpoint, account_key=None))
        assert get(reader, "records/0", 0, 100) == BODY
        reader.close()
    assert "Bearer T0KEN" in server.asked[0]


@pytest.mark.parametrize("kind", ["403", "503", "reset"])
def test_no_failure_shows_a_credential(
    make: Make, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    canned = TRANSIENT.get(kind, Canned(answer(403)))
    for settings in ({"sas_token": SECRET_SAS, "account_key": None}, {"account_key": KEY}):
        with CannedServer([canned]) as server:
            reader = make(account_at(server.endpoint, **settings), timeout=1)
            for length in (0, 100):  # of nothing it asks for the size
                with pytest.raises(StorageError) as caught:
                    get(reader, "a", 0, length)
                assert caught.value.__cause__ is None
                assert caught.value.__context__ is None
                said = "".join(traceback.format_exception(caught.value)) + caplog.text
                said += repr(reader) + repr(vars(caught.value))
                assert "S3CRET" not in said
                assert KEY not in said
            reader.close()


def test_a_missing_package_is_named(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make(account_at("http://127.0.0.1:1/account"))
    if isinstance(reader, FsspecReader):
        pytest.skip("it needs none")
    for package in ("obstore", "obstore.store"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(LocationError, match="pip install obstore") as caught:
        get(reader, "a", 0, 100)
    assert caught.value.__cause__ is None


# The real service


@pytest.fixture
def account(azurite: Azurite, container: str) -> AzureContainer:
    azurite.put(container, "set/records/0", DATA)
    azurite.put(container, "set/a b/ü%2F+#&=~.bin", DATA[:1000])
    azurite.put(container, "set/empty", b"")
    return AzureContainer(
        bucket=container,
        root="set",
        shown=SHOWN,
        config={"account_key": azurite.key},
        account=azurite.account,
        endpoint=azurite.endpoint,
    )


def test_ranges_are_read(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    assert reader.size("records/0") == len(DATA)
    assert get(reader, "records/0", 0, len(DATA)) == DATA
    for start, stop in ((0, 1), (5, 5), (len(DATA) - 1, len(DATA)), (1 << 20, 2 << 20)):
        assert get(reader, "records/0", start, stop) == DATA[start:stop]


def test_ranges_of_one_call_fill_their_buffers(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    pairs = [(70, 90), (0, 1), (0, 2_000_000), (5, 5), (80, 99), (2_900_000, 3_000_000)]
    ranges = [ByteRange(*pair) for pair in pairs]
    arrays = [np.full(item.length, 7, np.uint8) for item in ranges]
    reader.read_ranges("records/0", ranges, [array.data for array in arrays])
    for item, array in zip(ranges, arrays, strict=True):
        assert array.tobytes() == DATA[item.start : item.stop]
    out = np.empty((3, 5), "<u4")
    reader.read_ranges("records/0", [ByteRange(8, 68)], [out.data])
    assert out.tobytes() == DATA[8:68]


def test_names_are_sent_as_they_are(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    name = "a b/ü%2F+#&=~.bin"
    assert reader.size(name) == 1000
    assert get(reader, name, 10, 900) == DATA[10:900]


def test_an_empty_file(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    assert reader.size("empty") == 0
    assert get(reader, "empty", 0, 0) == b""
    reader.read_ranges("empty", [], [])


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 1), (0, 5), (5, 10)], ids=["partly", "just", "wholly"]
)
def test_a_range_beyond_the_end_is_no_accident(
    make: Make, account: AzureContainer, start: int, stop: int
) -> None:
    reader = make(account)
    with pytest.raises(StorageError, match="the file ended early") as caught:
        get(reader, "records/0", len(DATA) + start, len(DATA) + stop)
    assert not isinstance(caught.value, TransientError)
    with pytest.raises(StorageError, match="the file ended early"):
        get(reader, "empty", 0, 5)


def test_what_is_not_there(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    for action in (
        lambda: reader.size("nothing"),
        lambda: get(reader, "nothing", 0, 5),
        lambda: get(reader, "nothing", 0, 0),
    ):
        with pytest.raises(NotFoundError, match=r"no such file; file: az://container/set/nothing"):
            action()


def test_a_container_that_is_not_there(make: Make, account: AzureContainer) -> None:
    nowhere = replace(account, bucket="nowhere", root="")
    reader = make(nowhere)
    for action in (lambda: reader.size("a"), lambda: get(reader, "a", 0, 5)):
        with pytest.raises(NotFoundError, match="no such container"):
            action()


def test_a_wrong_key(make: Make, account: AzureContainer) -> None:
    wrong = replace(account, config={"account_key": KEY})
    reader = make(wrong)
    for action in (lambda: reader.size("records/0"), lambda: get(reader, "records/0", 0, 5)):
        with pytest.raises(AccessError, match=r"check the key"):
            action()


def test_a_signature(make: Make, account: AzureContainer, azurite: Azurite) -> None:
    def signed(**settings: Any) -> RequestReader:
        sas = azurite.sas(account.bucket, **settings)
        return make(replace(account, config={"sas_token": sas}))

    reader = signed(permission="r")
    assert reader.size("records/0") == len(DATA)
    assert get(reader, "records/0", 5, 500) == DATA[5:500]
    for refused in (signed(minutes=-10), signed(permission="w")):
        for path in ("records/0", "nothing"):
            with pytest.raises(AccessError, match="SAS"):
                refused.size(path)
            with pytest.raises(AccessError, match="SAS"):
                get(refused, path, 0, 5)


def test_nobody_may_come_without_a_credential(make: Make, account: AzureContainer) -> None:
    reader = make(replace(account, config={"anonymous": True}))
    for action in (lambda: reader.size("records/0"), lambda: get(reader, "records/0", 0, 5)):
        with pytest.raises(StorageError, match=r"access is refused|no such"):
            action()


def test_two_readers_with_two_credentials(
    make: Make, account: AzureContainer, azurite: Azurite
) -> None:
    """Nothing of one is another's."""
    sas = azurite.sas(account.bucket, minutes=-10)
    refused = replace(account, config={"sas_token": sas})
    first, second = make(account), make(refused)
    for _ in range(2):
        assert get(first, "records/0", 0, 5) == DATA[:5]
        with pytest.raises(AccessError):
            get(second, "records/0", 0, 5)


def test_many_threads_read_and_one_closes(make: Make, account: AzureContainer) -> None:
    reader = make(account)

    def read(i: int) -> bool:
        start = (i * 99_991) % 1_000_000
        if i % 50 == 25:
            reader.close()
        return get(reader, "records/0", start, start + 50_000) == DATA[start : start + 50_000]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(150)))


def test_a_pickled_copy_reads_the_same(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    assert get(reader, "records/0", 0, 5) == DATA[:5]
    copy = pickle.loads(pickle.dumps(reader))
    assert get(copy, "records/0", 5, 10) == DATA[5:10]
    copy.close()


# Processes


def _reads(reader: RequestReader) -> bool:
    return get(reader, "records/0", 100, 2_000_000) == DATA[100:2_000_000]


def _in_a_fork(work: Callable[[], bool]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(100)  # a call that hangs hangs in C
            code = 0 if work() else 2
        os._exit(code)
    return os.waitpid(pid, 0)[1]


def test_a_forked_child_reads(make: Make, account: AzureContainer) -> None:
    """Though its parent has used the client, and uses it at this moment."""
    reader = make(account)
    assert _reads(reader)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            _reads(reader)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(3):
            assert _in_a_fork(lambda: _reads(reader)) == 0
            assert _in_a_fork(lambda: _reads(pickle.loads(pickle.dumps(reader)))) == 0
    finally:
        stop.set()
        thread.join()
    assert _reads(reader)


def _spawned(reader: RequestReader) -> None:
    assert _reads(reader)
    reader.close()


def test_a_spawned_child_reads(make: Make, account: AzureContainer) -> None:
    reader = make(account)
    assert _reads(reader)
    process = multiprocessing.get_context("spawn").Process(target=_spawned, args=(reader,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_process_that_only_looks_leaves_obstore_to_its_children(account: AzureContainer) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    program = """
import os, pickle, signal, sys

reader = pickle.load(sys.stdin.buffer)
def get(length):
    out = bytearray(length)
    from seqrecord.storage.ranges import ByteRange
    reader.read_ranges("records/0", [ByteRange(0, length)], [memoryview(out)])
    return out

reader.size("records/0")
small = get(1000)
assert "obstore" not in sys.modules

def fork(loads):
    pid = os.fork()
    if pid == 0:
        signal.alarm(100)
        before = "obstore" in sys.modules
        ok = get(2_000_000)[:1000] == small and ("obstore" in sys.modules) and before != loads
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0

fork(loads=True)
get(2_000_000)
assert "obstore" in sys.modules
fork(loads=False)
print("well")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(ObstoreReader(account, SHOWN, fallback=by_urllib3(account, SHOWN))),
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == b"well\n", done.stderr.decode()
