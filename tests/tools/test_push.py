"""Datasets pushed to a stub of the Hugging Face Hub and read from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import errors, export
from seqrecord.errors import ConflictError, DestinationError, StorageError
from tests.kit.command_line import fail, run
from tests.kit.datasets import small_frames, small_schema, write_dataset
from tests.kit.lerobot_video_data import unpack
from tests.kit.services.hub_stub import HubStub, without_login
from tests.kit.tiny import read_all

pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
pytestmark = pytest.mark.filterwarnings(  # of huggingface_hub 2.4.0, about its own call
    "ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _without_login_and_xet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads use LFS, since Xet's client cannot use a stub."""
    without_login(monkeypatch, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_PROGRESS_BARS", True)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubStub]:
    """A Hub without the dataset."""
    (tmp_path / "repo").mkdir()
    with HubStub(tmp_path / "repo", token="hf_S3CRET", exists=False) as stub:
        yield stub


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A dataset of one episode in two record files."""
    _append(tmp_path / "records", "one", mode="create")
    return tmp_path / "records"


def _append(folder: Path, key: str, *, mode: Any = "append", num_frames: int = 4) -> None:
    schema = small_schema() if mode == "create" else None
    frames = {key: small_frames(len(key), num_frames)}
    write_dataset(folder, frames, schema=schema, mode=mode, statistics=False)


def _options(hub: HubStub, **more: Any) -> dict[str, Any]:
    return {"endpoint": hub.endpoint, "token": "hf_S3CRET", **more}


def _push(dataset: Any, hub: HubStub, url: str = "", **options: Any) -> export.HubPush:
    return export.to_hub(dataset, url or hub.url, storage_options=_options(hub), **options)


def _read_pushed(hub: HubStub, url: str = "", **options: Any) -> dict[str, list[Any]]:
    return read_all(url or hub.url, storage_options=_options(hub), **options)


def _paths(folder: Path) -> set[str]:
    """Files of a dataset except for saved manifests."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.parent.name != "manifests"
    }


def _card(hub: HubStub, revision: str = "main") -> str:
    return hub.read("README.md", revision).decode()


def test_a_pushed_dataset_reads_back_equal(hub: HubStub, records: Path) -> None:
    done = _push(records, hub, private=True, license="mit")
    head = hub.branches["main"]
    assert done.url == f"{hub.url}@{head}"
    assert set(done.sent) == _paths(records) | {"README.md"}
    assert done.sent_bytes == sum(len(hub.read(path)) for path in done.sent)
    assert (done.removed, done.is_card_kept) == ((), False)
    assert (hub.is_private, len(hub.messages)) == (True, 1)
    for path in _paths(records):
        assert hub.read(path) == (records / path).read_bytes()
    np.testing.assert_equal(_read_pushed(hub, hub.url), read_all(records))
    assert not hub.leaked, "the LFS store gets no token"


def test_the_card(hub: HubStub, records: Path) -> None:
    """An edited card is kept until it is removed."""
    import huggingface_hub

    _push(records, hub, license="cc-by-4.0")
    text = _card(hub)
    card: Any = huggingface_hub.DatasetCard(text)
    assert card.data.to_dict() == {"license": "cc-by-4.0", "tags": ["seqrecord"], "viewer": False}
    for part in (
        "1 episode, 4 frames",
        "| `image_left` | uint8 | 32 x 40 x 3 |  | 4 |",
        "| `range` | uint16 | ? x 40 |",
        f'dataset = seqrecord.open("{hub.url}")',
    ):
        assert part in text
    _append(records, "two")
    _push(records, hub)
    assert "2 episodes, 8 frames" in _card(hub)
    assert "license: cc-by-4.0" in _card(hub), "license of the previous card"
    files = hub.commits[hub.branches["main"]]
    edited = f"{_card(hub)}Recorded in our kitchen.\n"
    (hub.folder / "README.md").write_text(edited)
    hub.commit()
    hub.add_commit({**files, **hub.commits[hub.branches["main"]]})
    _append(records, "three")
    done = _push(records, hub)
    assert done.is_card_kept
    assert "README.md" not in done.sent
    assert _card(hub) == edited
    files = hub.commits[hub.branches["main"]]
    hub.add_commit({path: data for path, data in files.items() if path != "README.md"})
    assert _push(records, hub).sent == ("README.md",)
    assert "3 episodes" in _card(hub)


def test_pushing_a_grown_dataset_sends_only_new_files(hub: HubStub, records: Path) -> None:
    _push(records, hub)
    first, before = read_all(records), len(hub.uploads)
    old = _paths(records)
    hub.branches["v1"] = hub.branches["main"]  # a tag
    done = _push(records, hub)
    assert (done.sent, done.url) == ((), f"{hub.url}@{hub.branches['v1']}")
    assert (len(hub.messages), len(hub.uploads)) == (1, before), "no changes to push"
    _append(records, "two")
    done = _push(records, hub)
    new = {path for path in _paths(records) if (records / path).is_file()} - old
    assert set(done.sent) == new | {"manifest.json", "README.md"}
    assert len(hub.uploads) - before == len([p for p in new if p.endswith((".seqrec", ".arrow"))])
    assert done.removed
    assert not hub.commits[hub.branches["main"]].keys() & set(done.removed)
    assert set(hub.commits[hub.branches["v1"]]) >= set(done.removed)
    np.testing.assert_equal(_read_pushed(hub), read_all(records))
    np.testing.assert_equal(_read_pushed(hub, f"{hub.url}@v1"), first)


def test_another_branch(hub: HubStub, records: Path) -> None:
    """A new branch of a repository with other files."""
    hub.exists = True
    (hub.folder / "notes.txt").write_text("mine")
    hub.commit()
    url = f"{hub.url}@next%2F2"
    _push(records, hub, url)
    assert hub.read("notes.txt", "next/2") == b"mine"
    assert set(hub.commits[hub.branches["main"]]) == {"notes.txt"}
    np.testing.assert_equal(_read_pushed(hub, url), read_all(records))
    assert f'seqrecord.open("{url}")' in hub.read("README.md", "next/2").decode()


def test_another_dataset_is_replaced_only_on_request(
    hub: HubStub, records: Path, tmp_path: Path
) -> None:
    _push(records, hub)
    shutil.copytree(records, tmp_path / "later")
    _append(tmp_path / "later", "two")
    _append(tmp_path / "other", "other", mode="create", num_frames=2)
    for folder, onto in (("other", records), ("records", tmp_path / "later")):
        _push(onto, hub)
        head = hub.branches["main"]
        with pytest.raises(ConflictError, match="--replace"):
            _push(tmp_path / folder, hub)
        assert hub.branches["main"] == head
    done = _push(tmp_path / "other", hub, replace=True)
    assert len(done.removed) >= 4
    np.testing.assert_equal(_read_pushed(hub), read_all(tmp_path / "other"))


def test_a_push_that_fails_in_the_middle_is_resumed(hub: HubStub, records: Path) -> None:
    _push(records, hub)
    before, frames = hub.branches["main"], read_all(records)
    _append(records, "two")
    hub.most_uploads = len(hub.uploads) + 1
    with pytest.raises(errors.AccessError):
        _push(records, hub)
    assert hub.branches["main"] == before
    np.testing.assert_equal(_read_pushed(hub), frames)
    hub.most_uploads = None
    _push(records, hub)
    assert len(hub.uploads) == len(set(hub.uploads)), "no file is sent twice"
    np.testing.assert_equal(_read_pushed(hub), read_all(records))


@pytest.mark.usefixtures("impatient")
def test_rate_limits_lost_responses_and_concurrent_commits(hub: HubStub, records: Path) -> None:
    hub.limit, hub.lost = (8, 0.2), 1
    _push(records, hub)
    hub.limit = None
    assert len(hub.messages) == 1
    np.testing.assert_equal(_read_pushed(hub), read_all(records))
    # A concurrent commit
    _append(records, "three")
    (hub.folder / "notes.txt").write_text("mine")
    hub.before_commit = hub.commit
    with pytest.raises(ConflictError, match="meanwhile"):
        _push(records, hub)
    assert set(hub.commits[hub.branches["main"]]) == {"notes.txt"}


def test_requests_refused_by_the_hub(hub: HubStub, records: Path) -> None:
    with pytest.raises(DestinationError, match="license"):
        _push(records, hub, license="nonsense")
    with pytest.raises(StorageError, match="HF_TOKEN"):
        export.to_hub(records, hub.url, storage_options=_options(hub, token="hf_WR0NG"))
    hub.exists = True
    with pytest.raises(DestinationError, match="public"):
        _push(records, hub, private=True)
    assert not hub.uploads
    hub.gated = True
    with pytest.raises(errors.AccessError):
        _push(records, hub)
    assert not hub.messages
    hub.gated, hub.ignored = False, tuple(each for each in _paths(records) if "records/" in each)
    with pytest.raises(StorageError, match="gitignore"):
        _push(records, hub)


def test_datasets_and_urls_that_cannot_be_pushed(
    hub: HubStub, records: Path, tmp_path: Path
) -> None:
    at = f"@{'0' * 40}"
    for url in (f"{hub.url}/folder", f"{hub.url}{at}", "hf://org/name", "s3://b/path", "records/"):
        with pytest.raises(errors.LocationError):
            export.to_hub(records, url)
    with pytest.raises(DestinationError, match="seqrecord write"):  # an index of local files
        _push(unpack(tmp_path, "lerobot_video_v3"), hub)
    damaged = shutil.copytree(records, tmp_path / "damaged")
    [path] = damaged.glob("records/*.seqrec")
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(errors.FormatError):
        _push(damaged, hub)
    assert not hub.exists
    with seqrecord.open(records) as dataset:
        _append(records, "two")
        with pytest.raises(ConflictError):  # it has changed since it was opened
            _push(dataset, hub)
    _push(records, hub)
    remote = seqrecord.open(hub.url, storage_options=_options(hub))
    with remote, pytest.raises(errors.LocationError, match="copy"):
        _push(remote, hub)


def test_an_index_of_an_original_on_the_hub(
    hub: HubStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers pass `originals`, as the card shows."""
    root = unpack(tmp_path, "lerobot_video_v3")
    with HubStub(root, "org/original") as remote:
        options = {"endpoint": remote.endpoint}
        with seqrecord.open(remote.url, storage_options=options) as dataset:
            _push(dataset, hub)
        original = f"{remote.url}@{remote.branches['main']}"
        assert f'seqrecord.open("{hub.url}", originals="{original}")' in _card(hub)
        assert any(path.startswith("externals/") for path in hub.commits[hub.branches["main"]])
        # In production one endpoint serves both; here each has its own stub.
        with seqrecord.open(remote.url, storage_options=options) as dataset:
            mine = dataset.contents.storage.url
        hub.token = None
        monkeypatch.setenv("SEQRECORD_HOME", str(tmp_path / "another"))
        with pytest.raises(StorageError, match="originals="):
            _read_pushed(hub)
        np.testing.assert_equal(_read_pushed(hub, originals=root), read_all(mine, originals=root))


def test_an_index_of_several_originals(hub: HubStub, tmp_path: Path) -> None:
    """The card has a URL for each."""
    made, places = [], {}
    for name in "ab":
        root = unpack(tmp_path / name, "lerobot_video_v3")
        with HubStub(root, f"org/{name}") as remote:
            source = seqrecord.open_source(
                remote.url,
                storage_options={"endpoint": remote.endpoint},
                features=["observation.images.front"],
            )
            made.append(tmp_path / f"index-{name}")
            seqrecord.convert(source, made[-1], in_place=True, workers=1)
            places[remote.url] = f"{remote.url}@{remote.branches['main']}"
    both = tmp_path / "both"
    seqrecord.edit.merge_datasets(made, both, prefixes=["", "b/"])
    _push(both, hub)
    assert f"originals={json.dumps(places)})" in _card(hub)


def test_the_command(hub: HubStub, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_TOKEN", "hf_S3CRET")
    done = run("push", records, hub.url, "--private", "--license", "mit")
    assert f"{hub.url}@{hub.branches['main']}" in done.stdout
    assert "license: mit" in _card(hub)
    assert "nothing new" in run("push", records, hub.url).stdout
    (hub.folder / "README.md").write_text("mine")
    hub.commit()
    done = run("push", records, hub.url)
    assert "README.md kept" in done.stderr
    assert "hf://datasets/ORG/NAME" in fail("push", records, "records/")


def test_values_of_texts_are_pushed(hub: HubStub, tmp_path: Path) -> None:
    frames = [{"image": np.full((2, 3), i, np.uint8), "task": "open it"} for i in range(4)]
    write_dataset(tmp_path / "source", {"one": frames}, fps=5.0)
    folder = tmp_path / "derived"
    seqrecord.derive(
        *(tmp_path / "source", lambda batch: {"mean": batch["image"].float().mean((1, 2))}, folder),
        features=["image"],
        keep=["task"],
        per_text={"task": lambda text: np.full((len(text), 2), 3, np.float32)},
    )
    done = _push(folder, hub)
    assert set(done.sent) == _paths(folder) | {"README.md"}
    for path in _paths(folder):
        assert hub.read(path) == (folder / path).read_bytes()
    with seqrecord.open(hub.url, storage_options=_options(hub)) as dataset:
        dictionary = dataset.dictionaries["task_embedding"]
        np.testing.assert_equal(dictionary["open it"], np.full((7, 2), 3, np.float32))
        [batch, *_] = seqrecord.SeqRecordPipe(dataset, clip_len=2, batch_size=2)
        assert [value.shape for value in batch["task_embedding"][0]] == [(7, 2)] * 2
    assert not _push(folder, hub).sent
