"""Joined datasets on several storages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import SeqRecordPipe
from seqrecord.errors import JoinError, NotFoundError
from seqrecord.store.storage.opening import open_storage
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.services.moto import Moto
from tests.kit.services.web_server import WebFolder

pytest.importorskip("obstore", reason="pip install obstore")
LENGTHS = {"a": 40, "b": 9, "c": 23}


@pytest.mark.parametrize("is_remote", [(True, False), (False, True), (True, True)])
def test_clips_of_two_storages(moto: Moto, tmp_path: Path, is_remote: tuple[bool, bool]) -> None:
    frames = {
        key: columns(
            image=noise(length, 20, 30, 3, seed=length),
            step=np.arange(length, dtype="<i4"),
            latent=noise(length, 200, dtype="f4", seed=length),
        )
        for key, length in LENGTHS.items()
    }
    names = (("image", "step"), ("latent",))
    places: list[tuple[Any, dict[str, Any]]] = []
    for number, (features, remote) in enumerate(zip(names, is_remote, strict=True)):
        place: Any = f"s3://{moto.new_bucket()}/records" if remote else tmp_path / str(number)
        options: dict[str, Any] = {"storage_options": moto.options()} if remote else {}
        part = {k: [{n: f[n] for n in features} for f in episode] for k, episode in frames.items()}
        write_dataset(place, part, chunk_frames=8, codecs="raw", **options)
        places.append((place, options))
    (base, options), (companion, companion_options) = places
    expected = {}
    for key, episode in frames.items():
        for start in range(len(episode) - 4):
            values = {name: [f[name] for f in episode[start : start + 5]] for name in episode[0]}
            expected[key, start] = values
    with (
        seqrecord.open(companion, **companion_options) as opened,
        seqrecord.open(base, join=[opened], **options) as dataset,
    ):
        pipe = SeqRecordPipe(dataset, clip_len=5, batch_size=4, last_batch="keep")
        for epoch in range(2):
            clips = 0
            for batch in pipe:
                for place, key in enumerate(batch["episode"]):
                    values = expected[key, int(batch["start"][place])]
                    for name, value in values.items():
                        np.testing.assert_array_equal(batch[name][place], value)
                    clips += 1
            assert clips == len(expected)
            assert epoch or pipe.stats()["bytes_read"] > sum(LENGTHS.values()) * 4 * 650
    if all(is_remote):  # options of the dataset are for URLs among its companions, too
        with seqrecord.open(base, join=[companion], **options) as dataset:
            assert {*dataset.features} == {"image", "step", "latent"}


def test_a_table_at_a_url(moto: Moto, tmp_path: Path, home: Path) -> None:
    write_dataset(tmp_path / "records", {key: columns(x=range(n)) for key, n in LENGTHS.items()})
    table = pa.table({"index": range(72), "v": np.arange(72.0)})
    pq.write_table(table, tmp_path / "t.parquet")
    url = f"s3://{moto.new_bucket()}/some/t.parquet"
    upload = open_storage(url.rpartition("/")[0], moto.options()).create("t.parquet")
    upload.write((tmp_path / "t.parquet").read_bytes())
    upload.commit()
    with (
        WebFolder(tmp_path) as server,
        seqrecord.open(tmp_path / "records", join=f"{server.endpoint}/t.parquet") as from_web,
        seqrecord.open(tmp_path / "records", join=[url], storage_options=moto.options()) as from_s3,
    ):
        for dataset in (from_web, from_s3):
            assert [dataset.episodes["b"][i]["v"] for i in range(9)] == [*range(40, 49)]
        with pytest.raises(NotFoundError, match=r"no such table.*/another\.parquet"):
            seqrecord.open(tmp_path / "records", join=f"{server.endpoint}/another.parquet")
    assert len([path for path in (home / "tables").iterdir() if path.is_dir()]) == 1
    pq.write_table(table.slice(0, 3).drop_columns("index"), tmp_path / "w.parquet")
    with WebFolder(tmp_path) as server, pytest.raises(JoinError, match=r"names no.*/w\.parquet"):
        seqrecord.open(tmp_path / "records", join=f"{server.endpoint}/w.parquet")
