"""Object stores and web servers: reads return the same bytes and clips."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import seqrecord
from seqrecord import EngineOptions, errors
from seqrecord.cloud.objects import OBJECTS
from seqrecord.store.storage.base import Storage, identity_of
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.url import parse_location
from tests.kit.clip_data import digests
from tests.kit.command_line import fail, run
from tests.kit.processes import busy_threads, in_fork
from tests.kit.services import Authority, Nginx
from tests.kit.services.blobfile_pool import pool_to
from tests.kit.services.fault_proxy import FaultProxy, ScriptedFaults
from tests.kit.services.local_server import (
    Canned,
    CannedServer,
    ConnectProxy,
    Handler,
    LocalServer,
    answer,
)
from tests.kit.services.places import PLACES, Place, with_deadline
from tests.kit.services.web_server import WebFolder
from tests.kit.trees import make_frames, write_v1
from tests.store.storage_contract import PATH, Add, ReadContract, get, put

# Some tests fork a process with threads on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

DATA = np.random.default_rng(5).bytes(3 << 20)
NAME = "records/a b/ü%2F+#&=~.bin"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("scheme", OBJECTS)
def test_every_scheme(scheme: str) -> None:
    """Its class has a row in docs/storage.md and a kind of place; passwords in URLs are refused."""
    page = (Path(__file__).parents[2] / "docs/storage.md").read_text()
    kinds = [each if isinstance(each, str) else each.values[0] for each in PLACES]
    names = {name for name, bucket in OBJECTS.items() if bucket is OBJECTS[scheme]}
    assert any(f"| `{name}://" in page or f", `{name}://" in page for name in names)
    assert names & {{"azurite": "az"}.get(kind, kind) for kind in kinds}
    if OBJECTS[scheme] is not OBJECTS["http"]:
        with pytest.raises(errors.LocationError) as caught:
            parse_location(f"{scheme}://KEY:S3CRET@bucket/path")
        assert "S3CRET" not in str(caught.value)


# Reads


class TestReading(ReadContract):
    @pytest.fixture
    def add(self, place: Place) -> Add:
        return place.put

    @pytest.fixture
    def storage(self, place: Place) -> Iterator[Storage]:
        storage = place.open(deadline=60)
        yield storage
        storage.close()


def test_odd_names_long_ranges_and_a_replaced_file(place: Place) -> None:
    place.put(NAME, DATA)
    storage = place.open()
    assert storage.size(NAME) == len(DATA)
    for start, stop in ((70, 90), (0, 2_000_000), (2_900_000, 3_000_000)):
        assert get(storage, NAME, start, stop) == DATA[start:stop]
    place.put(NAME, DATA[::-1])
    for again in (storage, pickle.loads(pickle.dumps(storage))):
        for _ in range(2):
            with pytest.raises(errors.StorageError, match="replaced while it was read") as caught:
                get(again, NAME, 0, 10)
            assert not isinstance(caught.value, errors.TransientError)
            again.close()  # the next read makes a new client
    assert storage.size(NAME) == len(DATA)  # requests the size again
    assert get(storage, NAME, 0, 10) == DATA[::-1][:10]
    identity = identity_of(storage, NAME)  # originals are compared by it, then read
    place.put(NAME, DATA)
    with pytest.raises(errors.StorageError, match="replaced while it was read"):
        get(storage, NAME, 0, 10)
    assert identity_of(storage, NAME) != identity
    assert get(storage, NAME, 0, 10) == DATA[:10]
    storage.close()


def clips(location: Any, options: Mapping[str, Any] | None = None) -> list[Any]:
    pipe = seqrecord.SeqRecordPipe(
        seqrecord.open(location, storage_options=options),
        clip_len=3,
        seed=5,
        features=["image_left", "depth_left", "pose"],
        engine=EngineOptions(num_threads=2),
    )
    return digests(pipe)


def test_clips_equal_those_of_the_local_disk(place: Place, small: Path) -> None:
    place.copy(small)
    assert clips(place.url, place.options) == clips(small) != []


@pytest.mark.service
@pytest.mark.parametrize(
    ("place", "backend"),
    [("s3", "s3fs"), ("s3", "fsspec"), ("azurite", "adlfs"), ("azurite", "blobfile")],
    indirect=["place"],
)
def test_clips_through_fsspec(
    place: Place,
    backend: str,
    small: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the filesystem's own options."""
    place.copy(small)
    url, options = place.url, dict(place.options)
    if backend == "blobfile":
        azurite = request.getfixturevalue("azurite")
        url = url.replace("az://", f"az://{azurite.account}/")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azurite.key)
        options = {"get_http_pool": partial(pool_to, azurite.host)}
    elif place.kind == "s3":
        pytest.importorskip("s3fs", reason="pip install s3fs")
        names = {"access_key_id": "key", "secret_access_key": "secret", "endpoint": "endpoint_url"}
        options = {new: options[name] for name, new in names.items()}
    assert clips(url, {**options, "backend": backend}) == clips(small)


@pytest.mark.service
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_fsspec_copies_no_file_in_an_object_store(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects appear when they are complete, so no temporary name is needed."""
    s3fs = pytest.importorskip("s3fs", reason="pip install s3fs")
    monkeypatch.setattr(s3fs.S3FileSystem, "mv", None)
    given = place.options
    options = {"key": given["access_key_id"], "secret": given["secret_access_key"]}
    storage = open_storage(
        place.url, {**options, "endpoint_url": given["endpoint"], "backend": "fsspec"}
    )
    put(storage, PATH, DATA)
    assert get(storage, PATH) == DATA
    storage.close()


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_commands_take_storage_options(place: Place, tmp_path: Path) -> None:
    for number in range(2):
        write_v1(tmp_path / "tree" / "cave" / "Easy" / f"P00{number}", make_frames(number, 3))
    words = [f"--storage-option={key}={value}" for key, value in place.options.items()]
    assert "no dataset here" in fail("info", place.url, *words)
    write = ["write", "--src", tmp_path / "tree", "--dst", place.url, "--workers", 1, *words]
    assert f"{place.url}: wrote 2 episodes" in run(*write).stdout
    assert "dataset exists already" in fail(*write, "--quiet")
    for command in ("info", "verify", "reindex", "stats", "clean"):
        run(command, place.url, *words)
    run("view", place.url, "--clip-len", 2, "-o", tmp_path / "clip.png", *words)
    assert (tmp_path / "clip.png").stat().st_size > 0
    run("export", place.url, "cave/Easy/P000", tmp_path / "files", *words)
    assert (tmp_path / "files/cave/Easy/P000/metadata.json").exists()
    run("bench", place.url, "--clip-len", 2, "--batch-size", 2, *words)


# Forks


def test_a_forked_child_reads_while_its_parent_reads(place: Place) -> None:
    place.put("records/0", DATA)
    storage = place.open()

    def reads() -> bool:
        return get(storage, "records/0", 100, 2_000_000) == DATA[100:2_000_000]

    assert reads()
    with busy_threads(reads):
        assert all(in_fork(reads) for _ in range(2))
    assert reads()
    storage.close()


# Failures


@pytest.mark.parametrize(
    "place",
    [pytest.param(each, marks=pytest.mark.slow) if each == "http" else each for each in PLACES],
    indirect=True,
)
def test_transient_errors_are_retried_and_counted(place: Place) -> None:
    place.put("records/0", DATA)
    with FaultProxy(place.host, retry_after=0) as proxy:
        storage = place.hasty(proxy.host)
        for count, kind in enumerate(("reset", "cut", "short", "503", "429", "500"), 1):
            proxy.fault = ScriptedFaults([kind])
            assert get(storage, "records/0", 0, len(DATA)) == DATA
            assert storage.counters()["retries"] >= count
        storage.close()
    for asked in ("86400", "Thu, 31 Dec 2099 23:59:59 GMT"):
        with FaultProxy(place.host, ScriptedFaults(["503", "503"]), retry_after=asked) as proxy:
            storage = place.hasty(proxy.host)
            with pytest.raises(errors.DeadlineError, match=r"asks to wait \d+ s.*max_retry_after"):
                get(storage, "records/0", 0, len(DATA))
            assert proxy.requests == 1
            storage.close()


def body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>S3CRET</Message></Error>".encode()


RESPONSES: list[tuple[int, str, type[errors.StorageError], str]] = [
    (403, "AccessDenied", errors.AccessError, "without permission to list"),
    (403, "InvalidAccessKeyId", errors.AccessError, "this access key does not exist"),
    (403, "SignatureDoesNotMatch", errors.AccessError, "secret access key is wrong"),
    (401, "AuthenticationRequired", errors.AccessError, "access is refused"),
    (400, "ExpiredToken", errors.AccessError, "has expired"),
    (404, "NoSuchBucket", errors.NotFoundError, "no such bucket"),
    (400, "AuthorizationHeaderMalformed", errors.LocationError, "another region"),
    (301, "PermanentRedirect", errors.LocationError, "another region"),
    (503, "SlowDown", errors.DeadlineError, "SlowDown"),
    (429, "TooManyRequests", errors.DeadlineError, "429"),
    (400, "RequestTimeout", errors.DeadlineError, "RequestTimeout"),
    (403, "rateLimitExceeded", errors.DeadlineError, "rateLimitExceeded"),
]
ACTIONS: list[Callable[[Storage], object]] = [
    lambda storage: get(storage, "a", 0, 5),
    lambda storage: storage.put("manifest.json", b"x", expected=None),
    lambda storage: storage.files("records"),
    lambda storage: put(storage, PATH, DATA[:1000]),
]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_errors_of_s3_and_gcs(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    """Errors and logs contain no credentials."""
    for name in ("", *logging.root.manager.loggerDict):
        caplog.set_level(logging.DEBUG, name)
    for number, (status, code, error, match) in enumerate(RESPONSES):
        with CannedServer([Canned(answer(status, body(code)))]) as server:
            at = f"http://{server.host}"
            options = {"bearer_token": "T-S3CRET", "base_url": at}
            if scheme == "s3":
                names = ("access_key_id", "secret_access_key", "session_token")
                options = {"endpoint": at, **dict.fromkeys(names, "K-S3CRET")}
            storage = with_deadline(open_storage(f"{scheme}://bucket/set", options), 0)
            for action in ACTIONS if number < 2 else ACTIONS[number % 4 :: 4]:
                with pytest.raises(error, match=match) as caught:
                    action(storage)
                assert type(caught.value) is error
                assert storage.url in str(caught.value)
                shown = [*traceback.format_exception(caught.value), repr(vars(caught.value))]
                assert "S3CRET" not in "".join(shown) + repr(storage)
            storage.close()
    assert "S3CRET" not in caplog.text


def test_a_server_without_ranges_is_an_error_and_sends_no_whole_file(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(30 << 20))
    with WebFolder(tmp_path, ranges=False) as server:
        storage = open_storage(server.endpoint)
        assert storage.size("big") == 30 << 20
        for start in (0, 20 << 20):
            with pytest.raises(errors.StorageError, match="does not support ranges") as caught:
                get(storage, "big", start, start + 1000)
            assert not isinstance(caught.value, errors.TransientError)
        storage.close()
        gc.collect()
        assert server.sent < 16 << 20


def test_a_server_without_ranges_through_fsspec(tmp_path: Path) -> None:
    """It answers with the whole file: an error at once, not until the deadline."""
    pytest.importorskip("aiohttp", reason="pip install aiohttp")
    (tmp_path / "a").write_bytes(DATA)
    with (
        WebFolder(tmp_path, ranges=False) as server,
        closing(open_storage(server.endpoint, {"backend": "fsspec"})) as storage,
    ):
        with pytest.raises(errors.StorageError, match="does not support ranges") as caught:
            get(storage, "a", 5, 15)
        assert not isinstance(caught.value, errors.TransientError)
        assert server.sent <= len(DATA)


@pytest.mark.parametrize("ranges", [True, False])
def test_sizes_of_a_server_without_head(tmp_path: Path, ranges: bool) -> None:
    (tmp_path / "a").write_bytes(DATA[:1000])
    (tmp_path / "empty").touch()
    with (
        WebFolder(tmp_path, ranges=ranges, head=False) as server,
        closing(open_storage(server.endpoint)) as storage,
    ):
        assert [storage.size(name) for name in ("a", "empty")] == [1000, 0]
        assert storage.read_whole("empty", 10)[0] == b""
        with pytest.raises(errors.NotFoundError):
            storage.size("b")
        if ranges:
            assert get(storage, "a", 3, 900) == DATA[3:900]
            return
        with pytest.raises(errors.StorageError, match="does not support ranges"):
            get(storage, "a", 3, 900)


def test_a_server_that_ignores_the_version_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with (
        WebFolder(tmp_path, if_match=False) as server,
        closing(open_storage(server.endpoint)) as storage,
    ):
        assert get(storage, "a", 0, 10) == DATA[:10]
        (tmp_path / "a").write_bytes(DATA[::-1] + b"x")
        with pytest.raises(errors.StorageError, match="was replaced"):
            get(storage, "a", 10, 20)


@pytest.mark.parametrize("sends", ["weak", "time", "total", "weak time", "strong total"])
@pytest.mark.parametrize("begins", ["size", "read", "identity"])
def test_a_replaced_file_on_a_server_with_any_evidence(
    tmp_path: Path, sends: str, begins: str
) -> None:
    file = tmp_path / "a"
    file.write_bytes(DATA)
    os.utime(file, (1e9, 1e9))
    with (
        WebFolder(tmp_path, sends=sends.split()) as server,
        closing(open_storage(server.endpoint)) as storage,
    ):
        begin: dict[str, Callable[[], object]] = {
            "size": lambda: storage.size("a"),
            "identity": lambda: identity_of(storage, "a"),
            "read": lambda: None,
        }
        begin[begins]()
        for start in (0, 1000):
            assert get(storage, "a", start, start + 10) == DATA[start : start + 10]
        file.write_bytes(DATA[::-1] + (b"x" if "total" in sends else b""))
        for _ in range(2):
            with pytest.raises(errors.StorageError, match="was replaced") as caught:
                get(storage, "a", 10, 20)
            assert not isinstance(caught.value, errors.TransientError)
        assert storage.size("a") == file.stat().st_size  # accepts the new version
        assert get(storage, "a", 10, 20) == file.read_bytes()[10:20]


def test_answers_that_differ_in_headers_are_of_one_version() -> None:
    with (
        _answering(
            ("*", "", ""),
            ("9", 'W/"a"', "Mon"),
            ("9", "", "Mon"),
            ("9", '"a"', "Tue"),
            ("9", "", "Tue"),
        ) as server,
        closing(open_storage(f"http://{server.host}")) as storage,
    ):
        for _ in range(5):
            assert get(storage, "a", 0, 4) == b"abcd"


def test_the_first_evidence_of_a_version_counts() -> None:
    with (
        _answering(("*", "", ""), ("9", 'W/"a"', ""), ("9", 'W/"b"', "")) as server,
        closing(open_storage(f"http://{server.host}")) as storage,
    ):
        for _ in range(2):
            assert get(storage, "a", 0, 4) == b"abcd"
        with pytest.raises(errors.StorageError, match="was replaced"):
            get(storage, "a", 0, 4)


def test_a_cut_answer_and_a_server_that_is_busy_keep_the_version(tmp_path: Path) -> None:
    """The size is asked after a cut answer. If that fails, the retry has the version of before."""
    (tmp_path / "a").write_bytes(DATA)
    with (
        WebFolder(tmp_path) as server,
        closing(open_storage(server.endpoint)) as storage,
    ):
        assert get(storage, "a", 0, 10) == DATA[:10]

        def replace() -> None:
            (tmp_path / "a").write_bytes(DATA[::-1])
            server.num_busy = 1  # for the HEAD request behind the cut answer

        server.cut = replace
        with pytest.raises(errors.StorageError, match="was replaced"):
            get(storage, "a", 0, 200_000)


def test_a_cut_answer_of_a_file_that_grows_is_not_whole() -> None:
    """10 bytes before, and 15 of 20 in the first answer."""
    heads = [answer(200, length=10), answer(200, length=20)]
    cut = answer(206, b"a" * 15, Content_Range="bytes 0-14/20", ETag='"b"')
    whole = answer(206, b"a" * 20, Content_Range="bytes 0-19/20", ETag='"b"')
    with (
        CannedServer([Canned(item) for item in (heads[0], cut, heads[1], whole)]) as server,
        closing(open_storage(f"http://{server.host}")) as storage,
    ):
        assert storage.read_whole("a", 100)[0] == b"a" * 20


def test_a_range_behind_the_end_of_a_shorter_version(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    with (
        WebFolder(tmp_path, sends=["total"]) as server,
        closing(open_storage(server.endpoint)) as storage,
    ):
        assert get(storage, "a", 0, 10) == DATA[:10]
        (tmp_path / "a").write_bytes(DATA[:100])
        with pytest.raises(errors.StorageError, match="was replaced"):
            get(storage, "a", 1000, 1010)


def _answering(*versions: tuple[str, str, str]) -> CannedServer:
    """A server that answers with `abcd`, and in turn these totals, e-tags and times."""
    answers = [
        answer(206, b"abcd", Content_Range=f"bytes 0-3/{total}", ETag=tag, Last_Modified=time)
        for total, tag, time in versions
    ]
    return CannedServer([Canned(item) for item in answers])


def test_units_of_ranges_ignore_case() -> None:
    response = answer(206, b"abcd", Content_Range="Bytes 0-3/9")
    with (
        CannedServer([Canned(response)]) as server,
        closing(open_storage(f"http://{server.host}")) as storage,
    ):
        assert get(storage, "a", 0, 4) == b"abcd"


def test_a_percent_sign_in_a_url_that_encodes_nothing(tmp_path: Path) -> None:
    (tmp_path / "100%" / "set").mkdir(parents=True)
    (tmp_path / "100%" / "set" / "x y").write_bytes(b"abcd")
    with (
        WebFolder(tmp_path) as server,
        closing(open_storage(f"{server.endpoint}/100%/set")) as storage,
    ):
        assert get(storage, "x y", 0, 4) == b"abcd"


def test_a_server_that_refuses_ranges_tells_no_size(tmp_path: Path) -> None:
    refusals = [Canned(answer(405)), Canned(answer(416))]
    with (
        CannedServer(refusals * 9) as server,
        closing(open_storage(f"http://{server.host}")) as storage,
        pytest.raises(errors.StorageError, match="does not report the file's size"),
    ):
        storage.size("a")


def test_connections_are_reused_and_handshake_errors_time_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    counts: list[int] = []
    while not counts or (counts[-1] > 3 and len(counts) < 5):
        # On a busy machine, a connection may not be free before the next request.
        with WebFolder(tmp_path) as server, closing(open_storage(server.endpoint)) as storage:
            for start in range(0, 200_000, 10_000):
                assert get(storage, "a", start, start + 5000) == DATA[start : start + 5000]
            counts.append(server.connections)
    assert counts[-1] <= 3
    with CannedServer([Canned(b"", "reset")]) as broken:
        storage = open_storage(f"https://{broken.host}/a", {"deadline": 0.3})
        with pytest.raises(errors.DeadlineError):
            get(storage, "a", 0, 50)
        storage.close()


@pytest.mark.parametrize("user", ["me:secret", "me@lab:a/b?c", "jürgen:größe", "me:", ":token"])
def test_name_and_password_of_a_web_server(tmp_path: Path, user: str) -> None:
    (tmp_path / "a").write_bytes(DATA)
    name, _, password = user.partition(":")
    with WebFolder(tmp_path, user=user) as server:
        place = f"{quote(name, '')}:{quote(password, '')}@{server.host}"
        with closing(open_storage(f"http://{place}")) as storage:
            assert storage.size("a") == len(DATA)
            assert get(storage, "a", 3, 900) == DATA[3:900]
            assert not password or password not in f"{storage.url}{storage!r}"
        with closing(open_storage(server.endpoint)) as storage, pytest.raises(errors.AccessError):
            storage.size("a")


@pytest.mark.usefixtures("impatient")
def test_a_cut_answer_is_not_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    cuts = list[int]()
    with WebFolder(tmp_path) as server, closing(open_storage(server.endpoint)) as storage:
        server.least_cut, server.cut = 100, lambda: cuts.append(len(cuts))
        assert storage.read_whole("a", len(DATA) + 10)[0] == DATA
    assert cuts == [0]


def test_a_web_server_is_not_written_to(tmp_path: Path) -> None:
    with WebFolder(tmp_path) as server, closing(open_storage(server.endpoint)) as storage:
        for write in (
            storage.create,
            storage.remove,
            lambda path: storage.put(path, b"x", expected=None),
            lambda path: storage.put(path, b"x", expected="tag"),
        ):
            with pytest.raises(errors.DestinationError, match="cannot list or write"):
                write("a")
        with pytest.raises(errors.StorageError, match="cannot list"):
            storage.files("records")
        assert storage.unfinished("records") == []  # uploads are complete files or nothing


def test_tokens_are_not_sent_over_plain_http() -> None:
    with pytest.raises(errors.LocationError, match="plain http"):
        open_storage("gs://b/p", {"bearer_token": "S3CRET", "base_url": "http://example.org"})
    pytest.importorskip("azure.identity")
    options = {"account_name": "acme", "endpoint": "http://example.org", "deadline": 0.3}
    storage = open_storage("az://b/p", options)
    with pytest.raises(errors.LocationError, match="plain http"):
        storage.size("a")
    with pytest.raises(errors.LocationError, match="plain http"):
        storage.put("a", b"x", expected=None)


# nginx over HTTPS: its own certificate authority, proxies, connections that break


@pytest.fixture
def url(nginx: Nginx, tmp_path: Path) -> str:
    """URL of a folder with the file `records/0`."""
    nginx.put(f"{tmp_path.name}/records/0", DATA)
    return f"{nginx.endpoint}/{tmp_path.name}"


@pytest.fixture
def cafile(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root certificate, trusted by all clients of this process."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return authority.certificate


class TestNginx(ReadContract):
    @pytest.fixture
    def add(self, nginx: Nginx, tmp_path: Path) -> Add:
        return lambda path, data: nginx.put(f"{tmp_path.name}/set/{path}", data)

    @pytest.fixture
    def storage(self, nginx: Nginx, cafile: Path, tmp_path: Path) -> Iterator[Storage]:
        storage = open_storage(f"{nginx.endpoint}/{tmp_path.name}/set")
        yield storage
        storage.close()


def test_certificates_of_an_unknown_authority_or_another_host_are_refused(
    url: str,
    new_nginx: Callable[..., Nginx],
    cafile: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = new_nginx("files.example.org")
    other.put("records/0", DATA[:1000])
    strange = Authority(tmp_path / "strange", "that signed nothing").certificate
    for where, authority, message in (
        (other.endpoint, cafile, "certificate"),
        (url, strange, "certificate is not trusted.*SSL_CERT_FILE"),
    ):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        storage = open_storage(where)
        for item in ((0, 50), (0, None)):  # the second requests the size first
            with pytest.raises(errors.StorageError, match=message) as caught:
                get(storage, "records/0", *item)
            assert not isinstance(caught.value, errors.TransientError)
        storage.close()


def test_broken_connections_are_retried(
    url: str, cafile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the handshake, in the headers, in the body."""
    cuts: list[int | None] = [1, 700, 2500, 500_000]
    with ConnectProxy(lambda number: cuts[number] if number < len(cuts) else None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        storage = open_storage(url, {"deadline": 60})
        assert get(storage, "records/0", 0, len(DATA)) == DATA
        assert len(proxy.asked) > len(cuts)
        assert storage.counters()["retries"] >= len(cuts)
        storage.close()


def test_redirects_to_hosts_with_other_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of the first host stays there."""
    asked: list[tuple[str, bool]] = []

    class Web(Handler):
        def serve(self) -> None:
            asked.append((self.path, "Authorization" in self.headers))
            if "moved" in self.path:
                target = self.path if "loop" in self.path else f"{web.endpoint}/data"
                self.send(302, b"", {"Location": target})
            else:
                self.send_range(DATA)

    with LocalServer(Web) as web:
        monkeypatch.setenv("HTTP_PROXY", web.endpoint)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with closing(open_storage("http://me:secret@first.invalid/moved")) as storage:
            assert get(storage, "file", 0, 50) == DATA[:50]
            assert asked == [("http://first.invalid/moved/file", True), ("/data", False)]
            asked.clear()
            with pytest.raises(errors.StorageError, match="HTTP status 302"):
                get(storage, "loop", 0, 50)
            assert len(asked) == 6


def test_proxies_of_the_environment(
    nginx: Nginx, url: str, cafile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(**options: Any) -> None:
        with closing(open_storage(url, options)) as storage:
            assert get(storage, "records/0", 0, 50) == DATA[:50]
            assert storage.size("records/0") == len(DATA)

    with ConnectProxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.endpoint)
        read()
        assert set(proxy.asked) == {nginx.host}
        proxy.asked.clear()
        monkeypatch.setenv("NO_PROXY", "example.org,127.0.0.1")
        read()
        assert proxy.asked == []
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    with pytest.raises(errors.DeadlineError):  # an unreachable proxy is not bypassed
        read(deadline=0.3)
    monkeypatch.delenv("HTTPS_PROXY")
    with closing(open_storage(url)) as storage:  # the authority of the environment
        assert get(storage, "records/0", 0, 50) == DATA[:50]
