"""Datasets on a stub of the Hugging Face Hub: reads, requests, limits and tokens."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import seqrecord
from seqrecord import EngineOptions, errors
from seqrecord.errors import AccessError, DeadlineError, LocationError, NotFoundError, StorageError
from seqrecord.store.storage.base import Storage, fixed_url_of
from seqrecord.store.storage.opening import open_storage
from tests.kit.clip_data import digests
from tests.kit.command_line import main, run
from tests.kit.datasets import write_small
from tests.kit.lerobot_video_data import unpack
from tests.kit.services.hub_stub import HubStub, without_login
from tests.kit.services.local_server import Canned, CannedServer, answer
from tests.kit.services.places import with_short_waits
from tests.kit.tiny import read_all
from tests.store.storage_contract import Add, ReadContract, get

pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")

DATA = np.random.default_rng(3).bytes(300_000)
CLIPS: dict[str, Any] = {
    "clip_len": 3,
    "seed": 5,
    "engine": EngineOptions(num_threads=2),
    "features": ["image_left"],
}


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_login(monkeypatch, tmp_path)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubStub]:
    """A repository with a small file and one in LFS."""
    for name, data in {"meta/info.json": b"{}", "videos/a.mp4": DATA}.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    with HubStub(tmp_path / "repo") as stub:
        yield stub


def _opened(hub: HubStub, url: str = "", **options: Any) -> Storage:
    storage = open_storage(url or hub.url, {"endpoint": hub.endpoint, **options})
    return with_short_waits(storage)


class TestHub(ReadContract):
    @pytest.fixture
    def add(self, hub: HubStub) -> Add:
        def add(path: str, data: bytes) -> None:
            (hub.folder / "set" / path).parent.mkdir(parents=True, exist_ok=True)
            (hub.folder / "set" / path).write_bytes(data)
            hub.commit()

        return add

    @pytest.fixture
    def storage(self, hub: HubStub) -> Iterator[Storage]:
        storage = _opened(hub, f"{hub.url}/set")
        yield storage
        storage.close()


def _in_threads(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, items))


@pytest.mark.parametrize("cached", [False, True])
def test_each_file_is_resolved_once(hub: HubStub, cached: bool) -> None:
    """Among all threads and storages of a process."""
    hub.cached = cached
    storages = [_opened(hub, f"{hub.url}@main") for _ in range(2)]

    def read(storage: Storage) -> None:
        for at in range(0, 300_000, 50_000):
            assert get(storage, "videos/a.mp4", at, at + 50_000) == DATA[at : at + 50_000]

    _in_threads(read, storages * 4)
    assert hub.counts == {"api": 2, "resolve": 1, "store": 8 * 6}
    assert storages[0].files("meta")[0].size == 2
    assert get(storages[0], "meta/info.json") == b"{}"
    assert hub.counts["resolve"] == 2 + cached, "a small file needs no other request"
    assert not hub.leaked
    hub.cached, hub.mirrors = False, True  # mirrors send all files themselves
    for is_listed in (False, True):
        storage = _opened(hub, token="hf_S3CRET")
        assert not is_listed or storage.files("videos")
        hub.asked.clear()
        assert get(storage, "videos/a.mp4", 5, 9) == DATA[5:9]
        assert get(storage, "videos/a.mp4", 9, 20) == DATA[9:20]
        assert sum(each.startswith("HEAD") for each in hub.asked) == (not is_listed)


def test_a_revision_stays_at_its_commit(hub: HubStub) -> None:
    first = hub.branches["main"]
    storage = _opened(hub)
    assert get(storage, "videos/a.mp4", 0, 9) == DATA[:9]
    (hub.folder / "videos" / "a.mp4").write_bytes(DATA[::-1])
    second = hub.commit()
    copy = pickle.loads(pickle.dumps(storage))
    for each in (storage, copy):
        assert get(each, "videos/a.mp4", 9, 20) == DATA[9:20]
        assert fixed_url_of(each) == f"{hub.url}@{first}"
    for url in (hub.url, f"{hub.url}@main", f"{hub.url}@{second}"):
        assert get(_opened(hub, url), "videos/a.mp4", 0, 9) == DATA[::-1][:9]
    assert get(_opened(hub, f"{hub.url}@{first}"), "videos/a.mp4", 0, 9) == DATA[:9]


def test_expired_addresses_are_renewed(hub: HubStub) -> None:
    storage = _opened(hub)
    assert get(storage, "videos/a.mp4", 0, 9) == DATA[:9]
    hub.end_addresses()
    assert get(storage, "videos/a.mp4", 9, 20) == DATA[9:20]
    assert hub.counts == {"api": 1, "resolve": 2, "store": 3}
    hub.signed_seconds = -1.0
    hub.end_addresses()
    with pytest.raises(AccessError):
        get(storage, "videos/a.mp4", 9, 20)
    assert hub.counts["resolve"] == 3


@pytest.mark.parametrize(
    "header", ["RateLimit", pytest.param("Retry-After", marks=pytest.mark.slow)]
)
def test_all_threads_wait_for_as_long_as_the_hub_requests(
    hub: HubStub, header: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait is logged; a long wait is an error."""
    hub.limit_headers = (header,)
    for number in range(12):
        (hub.folder / "videos" / f"{number}.mp4").write_bytes(DATA[number:1000])
    hub.commit()
    hub.limit = (6, 0.5)
    storage, begin = _opened(hub), time.monotonic()
    _in_threads(lambda number: get(storage, f"videos/{number}.mp4", 0, 9), range(12))
    assert time.monotonic() - begin >= 1.0, "Retry-After is in whole seconds"
    assert hub.counts["store"] == 12
    assert hub.early <= 12 + 6, "only requests already in flight"
    assert any(re.search("hf://.*asks to wait 1 s", message) for message in caplog.messages)
    hub.limit = (0, 86400)
    asked = len(hub.asked)
    for _ in range(2):  # the second open sends no request
        with pytest.raises(DeadlineError, match=r"wait 86\d\d\d s.*hf://.*max_retry_after"):
            get(_opened(hub), "meta/info.json")
    assert len(hub.asked) == asked + 1
    hub.limit = None
    with pytest.raises(DeadlineError, match=r"at most 3 s"):
        get(_opened(hub, max_retry_after=3), "meta/info.json")


def test_a_private_dataset(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_S3CRET"
    with pytest.raises(NotFoundError, match="HF_TOKEN"):
        get(_opened(hub), "videos/a.mp4", 0, 9)
    storage = _opened(hub, token="hf_S3CRET")
    assert get(storage, "videos/a.mp4", 0, 9) == DATA[:9]
    assert get(storage, "meta/info.json") == b"{}"
    monkeypatch.setenv("HF_TOKEN", "hf_S3CRET")
    assert get(_opened(hub), "meta/info.json") == b"{}"
    assert not hub.leaked, "the store of files in LFS gets no token"
    assert "S3CRET" not in repr(storage)
    hub.gated = True
    with pytest.raises(AccessError, match="gated"):
        get(_opened(hub, token="hf_S3CRET"), "videos/a.mp4", 0, 9)


def test_a_proxy_for_files_in_lfs_alone(hub: HubStub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub itself may be a mirror in the own network, which has no proxy in between."""
    url = f"{hub.url}@{hub.branches['main']}"
    before = _opened(hub, url)
    assert before.files("videos")
    assert get(before, "videos/a.mp4", 0, 9) == DATA[:9]  # huggingface_hub is not asked again
    part = answer(206, b"by proxy!", Content_Range=f"bytes 0-8/{len(DATA)}")
    with CannedServer([Canned(part)]) as proxy:
        monkeypatch.setenv("http_proxy", f"http://{proxy.host}")
        monkeypatch.setenv("no_proxy", hub.host)
        storage = _opened(hub, url)
        assert get(storage, "meta/info.json") == b"{}"
        assert get(storage, "videos/a.mp4", 0, 9) == b"by proxy!"
        assert proxy.asked[0].startswith(f"GET {hub.store.endpoint}/")


def test_missing_repositories_and_html_instead_of_json(hub: HubStub) -> None:
    for url, message in (
        (f"{hub.url}@nothing", "no such revision"),
        ("hf://datasets/org/other", "no such dataset"),
    ):
        with pytest.raises(NotFoundError, match=message):
            get(_opened(hub, url), "videos/a.mp4", 0, 9)
    assert _opened(hub, f"{hub.url}/nothing").files("records") == []
    opened = _opened(hub)
    assert get(opened, "meta/info.json") == b"{}"
    hub.html = True
    for storage in (_opened(hub), opened):
        with pytest.raises(StorageError, match="HF_ENDPOINT"):
            storage.files("meta")
    for path in ("videos/a.mp4", "meta/info.json"):
        with pytest.raises(StorageError):
            get(opened, path, 0, 1)
    hub.html = False
    hub.commits.clear()  # the branch was squashed
    with pytest.raises(NotFoundError, match="no such revision"):
        get(opened, "videos/a.mp4", 0, 9)


def test_a_listing_of_many_pages(hub: HubStub) -> None:
    names = [f"videos/chunk-{n % 3}/{n}.mp4" for n in range(10)]
    for name in names:
        (hub.folder / name).parent.mkdir(exist_ok=True)
        (hub.folder / name).write_bytes(name.encode())
    hub.commit()
    hub.page = 4
    storage = _opened(hub)
    assert [each.path for each in storage.files("videos/chunk-0")] == sorted(names[::3])
    assert [each.name for each in storage.entries("videos")][:2] == ["a.mp4", "chunk-0"]  # type: ignore[attr-defined]
    assert hub.counts == {"api": 1 + 5}


def test_invalid_urls_options_and_writes_are_refused() -> None:
    for name in ("", "/a", "/a/b@", "/a/b@c@d/e"):
        with pytest.raises(LocationError):
            open_storage(f"hf://datasets{name}")
    with pytest.raises(LocationError, match="unknown storage option"):
        open_storage("hf://datasets/a/b", {"key": "x"})
    storage = open_storage("hf://datasets/a/b", {"endpoint": "http://hub.test", "token": "hf_X"})
    with pytest.raises(LocationError, match="plain http"):
        storage.files("meta")
    for write in (
        lambda: storage.create("records/a"),
        lambda: storage.put("a", b"", expected=None),
        lambda: storage.remove("meta/info.json"),
    ):
        with pytest.raises(errors.DestinationError, match="read-only"):
            write()


# Datasets of this package


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_small(folder / "records")
    return folder


@pytest.mark.parametrize("backend", ["urllib3", "fsspec"])
def test_clips_equal_the_local_clips(folder: Path, backend: str) -> None:
    local = digests(seqrecord.SeqRecordPipe(folder / "records", **CLIPS))
    with HubStub(folder) as hub:
        options = {"endpoint": hub.endpoint, "backend": backend}
        with seqrecord.open(f"{hub.url}/records", storage_options=options) as dataset:
            assert digests(seqrecord.SeqRecordPipe(dataset, **CLIPS)) == local != []


@pytest.mark.usefixtures("impatient")
def test_requests_to_a_busy_hub_are_repeated(hub: HubStub) -> None:
    for backend in ("urllib3", "fsspec"):
        storage = open_storage(hub.url, {"endpoint": hub.endpoint, "backend": backend})
        hub.busy = 2
        assert get(storage, "videos/a.mp4", 0, 1) == DATA[:1]
        assert hub.busy == 0
        storage.close()


def test_the_command_line_takes_token_and_endpoint_from_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubStub(folder, token="hf_S3CRET") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for token, code in (("hf_S3CRET", 0), ("hf_WR0NG", 1)):
            monkeypatch.setenv("HF_TOKEN", token)
            done = run("info", f"{hub.url}/records", code=code)
            assert token not in done.output
            assert ("image_left" in done.stdout) == (code == 0)
            assert "Traceback" not in done.output


# Originals


@pytest.mark.parametrize(
    "name", [pytest.param("lerobot_video_v3", marks=pytest.mark.slow), "lerobot_video_v21"]
)
def test_a_lerobot_dataset_is_read_in_place(name: str, tmp_path: Path) -> None:
    root = unpack(tmp_path, name)
    with HubStub(root) as hub:
        options: dict[str, Any] = {"storage_options": {"endpoint": hub.endpoint}}
        np.testing.assert_equal(read_all(hub.url, **options), read_all(root))
        heads = [each for each in hub.asked if each.startswith("HEAD")]
        assert len(heads) == len(set(heads)), "each file is resolved once"
        assert not hub.leaked
        summary = seqrecord.summarize(hub.url, **options)
        assert summary.originals == (f"{hub.url}@{hub.branches['main']}",)
    with HubStub(root) as hub:
        options["storage_options"] = {"endpoint": hub.endpoint}
        options |= {"cache_dir": tmp_path / "cache", "cache_limit": "1GiB"}
        before = None
        for _ in range(2):
            with seqrecord.open(hub.url, **options) as dataset:
                assert len(list(seqrecord.SeqRecordPipe(dataset, clip_len=2))) == 13
            before = before or hub.counts["store"]
        assert max(hub.of_file.values()) <= 4  # of a video: tables, keyframes, packets
        assert hub.counts["api"] <= 10, "no file is listed alone"
        assert hub.counts["store"] == before, "another epoch reads nothing"


@pytest.mark.slow
def test_every_reader_of_originals(tmp_path: Path) -> None:
    """Loaders in workers, `index`, `doctor`, `write`, and folders of video."""
    root = unpack(tmp_path, "lerobot_video_v21")
    with HubStub(root) as stub, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", stub.endpoint)
        frames = read_all(stub.url)
        for context in ("fork", "spawn"):  # a forkserver keeps the environment of its start
            stub.of_file.clear()
            loader = torch.utils.data.DataLoader(
                seqrecord.SeqRecordIterableDataset(stub.url, clip_len=2, batch_size=4),
                batch_size=None,
                num_workers=2,
                multiprocessing_context=context,
            )
            found = {c for b in loader for c in zip(b["episode"], b["start"].tolist(), strict=True)}
            assert len(found) == 13
            heads = Counter(x for x in stub.asked if x.startswith("HEAD") and "mp4" in x)
            assert len(heads) == 6
            assert max(heads.values()) <= (1 if context == "fork" else 3), "once a process"
        for words in (
            ["doctor", stub.url],
            ["index", stub.url, "-o", str(tmp_path / "index")],
            ["write", "--src", stub.url, "--dst", str(tmp_path / "packed"), "--workers", "1"],
        ):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
        for name in ("index", "packed"):
            np.testing.assert_equal(read_all(tmp_path / name), frames)
    folder = tmp_path / "clips"
    (folder / "more").mkdir(parents=True)
    for number, path in enumerate(sorted(root.rglob("*front/*.mp4"))):
        path.rename(folder / ("more" if number else ".") / path.name)
    with HubStub(folder) as stub:
        options: dict[str, Any] = {"storage_options": {"endpoint": stub.endpoint}}
        local = read_all(folder)
        np.testing.assert_equal(read_all(stub.url, **options), local)
        inner = read_all(f"{stub.url}/more", **options)
        assert list(inner) == ["episode_000001", "episode_000002"]
        [alone] = read_all(f"{stub.url}/more/episode_000001.mp4", **options).values()
        np.testing.assert_equal(alone, inner["episode_000001"])


def test_the_next_open_reads_the_new_commit(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_video_v3")
    with HubStub(root) as hub:
        options: dict[str, Any] = {"storage_options": {"endpoint": hub.endpoint}}
        opened = seqrecord.open(hub.url, **options)
        frames = read_all(hub.url, **options)
        before = sorted((tmp_path / "home").glob("indexes/*-*"))
        (root / "README.md").write_text("more")
        hub.commit()
        np.testing.assert_equal(read_all(hub.url, **options), frames)
        after = sorted((tmp_path / "home").glob("indexes/*-*"))
        assert after == before, "unchanged files need no new index"
        first, second = sorted(root.rglob("*.mp4"))
        first.write_bytes(second.read_bytes())
        hub.commit()
        new = read_all(hub.url, **options)
        a, b = (re.sub(r"/chunk.*", "", str(p.relative_to(root)))[7:] for p in (first, second))
        for frame in itertools.chain(*new.values()):
            assert np.array_equal(frame[a], frame[b])
        still = opened.episodes["episode_000000"][0]
        np.testing.assert_equal(
            {name: np.asarray(value) for name, value in still.items()}, frames["episode_000000"][0]
        )
        opened.close()


def test_no_secret_leaks(hub: HubStub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    get(_opened(hub, token="hf_S3CRET"), "videos/a.mp4", 0, 9)
    assert not re.search(r"S3CRET|Signature=[0-9a-f]{8}", caplog.text)
    hub.signed_seconds = -1.0
    (hub.folder / "b.mp4").write_bytes(b"b")
    hub.commit()
    storage = _opened(hub, token="hf_S3CRET")
    with pytest.raises(errors.SeqRecordError) as info:
        get(storage, "b.mp4", 0, 1)
    error: BaseException | None = info.value
    while error is not None:
        assert not re.search("Signature|S3CRET", repr(error))
        error = error.__cause__ or error.__context__


def test_a_cache_that_is_too_small_causes_no_extra_reads(hub: HubStub) -> None:
    size = 40 << 20
    with (hub.folder / "big.mp4").open("wb") as file:
        file.truncate(size)
    url = f"{hub.url}@{hub.commit()}"
    folder = hub.folder.parent / "cache"
    options = {"endpoint": hub.endpoint}
    storage = open_storage(url, options, cache_dir=folder, cache_limit="20MiB")
    for start in range(0, size, 8 << 20):
        get(storage, "big.mp4", start, start + 9)
    before = hub.sent
    for start in range(0, size, 8 << 20):
        get(storage, "big.mp4", start + 99, start + 109)
    assert hub.sent - before <= 5 * (128 << 10), "whole slots"
    storage.close()


def test_one_thread_fills_the_cache(hub: HubStub, tmp_path: Path) -> None:
    with (hub.folder / "big.mp4").open("wb") as file:
        file.truncate(size := 1 << 20)
    url, options = f"{hub.url}@{hub.commit()}", {"endpoint": hub.endpoint}
    storage = open_storage(url, options, cache_dir=tmp_path / "cache", cache_limit="20MiB")
    before = hub.sent
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda start: get(storage, "big.mp4", start, start + 9), range(0, size, 1 << 18)
            )
        )
    assert size <= hub.sent - before < 2 * size
    storage.close()


@pytest.mark.slow
def test_requests_of_large_files(tmp_path: Path) -> None:
    """Random pages of files of 128 MiB."""
    (tmp_path / "repo").mkdir()
    size = 128 << 20
    for name in "ab":
        with (tmp_path / "repo" / f"{name}.mp4").open("wb") as file:
            file.truncate(size - 100)
            file.seek(0, os.SEEK_END)
            file.write(name.encode() * 100)
    order = np.random.default_rng(0).permutation(size >> 18).tolist()
    with HubStub(tmp_path / "repo") as hub:
        url = f"{hub.url}@{hub.branches['main']}"
        storage = open_storage(
            *(url, {"endpoint": hub.endpoint}), cache_dir=tmp_path / "cache", cache_limit="1GiB"
        )
        for name in "ab":
            for number in order:
                stop = (number + 1) << 18
                last = name.encode() if stop == size else b"\0"
                assert get(storage, f"{name}.mp4", stop - (1 << 18), stop)[-100:] == last * 100
        assert hub.sent == 2 * size
        for count in hub.of_file.values():
            assert count <= 1.25 * size / (8 << 20) + 1
        whole = open_storage(url, {"endpoint": hub.endpoint})
        begin = hub.of_file["a.mp4"]
        get(whole, "a.mp4", 0, size)
        assert hub.of_file["a.mp4"] - begin == 8, "in ranges of 16 MiB"
        storage.close()
