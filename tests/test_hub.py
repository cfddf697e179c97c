"""`hf://`: a dataset on the Hugging Face Hub, here a stub of its API, through fsspec."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import seqrecord
from seqrecord import EngineOptions
from seqrecord.errors import NotFoundError, StorageError
from seqrecord.storage import open_storage
from tests.datasets import write_small
from tests.hub_stub import HubStub
from tests.storage_contract import get

pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")

URL = "hf://datasets/org/name/records"
CLIPS: dict[str, Any] = {
    "clip_len": 3,
    "seed": 5,
    "engine": EngineOptions(num_threads=2),
    "features": ["image_left"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    write_small(folder / "records")
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubStub]:
    with HubStub(folder) as stub:
        yield stub


def test_clips_are_those_of_the_local_disk(hub: HubStub, folder: Path) -> None:
    local = list(seqrecord.SeqRecordPipe(folder / "records", **CLIPS))
    options = {"endpoint": hub.endpoint}
    found = list(seqrecord.SeqRecordPipe(seqrecord.open(URL, storage_options=options), **CLIPS))
    assert len(found) == len(local) > 0
    for ours, theirs in zip(found, local, strict=True):
        assert (ours["episode"], ours["start"]) == (theirs["episode"], theirs["start"])
        assert torch.equal(ours["image_left"], theirs["image_left"])


def test_nothing_is_read_ahead(hub: HubStub, folder: Path) -> None:
    """fsspec's buffered files would read 5 MiB beyond each range."""
    (folder / "records" / "big").write_bytes(bytes(8 << 20))
    storage = open_storage(URL, {"endpoint": hub.endpoint})
    assert get(storage, "big", 100, 1100) == bytes(1000)
    assert hub.sent == 1000
    with pytest.raises(StorageError, match="the file ended early"):
        get(storage, "big", (8 << 20) - 5, (8 << 20) + 5)
    with pytest.raises(NotFoundError, match="no such file"):
        storage.size("nothing")
    storage.close()


@pytest.mark.usefixtures("impatient")
def test_a_busy_hub_is_asked_again(hub: HubStub) -> None:
    storage = open_storage(URL, {"endpoint": hub.endpoint})
    hub.busy = 2
    assert get(storage, "manifest.json", 0, 1) == b"{"
    assert hub.busy == 0
    storage.close()


def test_the_command_line_with_a_token_and_an_endpoint_of_the_environment(folder: Path) -> None:
    with HubStub(folder, token="hf_S3CRET") as hub:
        for token in ("hf_S3CRET", "hf_WR0NG"):
            done = subprocess.run(
                [sys.executable, "-m", "seqrecord", "info", URL],
                env={**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_TOKEN": token},
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )
            said = done.stdout + done.stderr
            assert token not in said
            if token == "hf_S3CRET":
                assert done.returncode == 0, said
                assert "image_left" in done.stdout
            else:
                assert done.returncode != 0
                assert "Traceback" not in said
