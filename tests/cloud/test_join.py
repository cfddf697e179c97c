"""Joined datasets on several storages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordPipe
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.services.moto import Moto

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
