"""Batches of features of bfloat16: `torch.bfloat16`, and float32 for users of NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import FrameTransform, SeqRecordMapDataset, SeqRecordMix, SeqRecordPipe, Vector
from tests.cuda.side_streams import STREAMS, late_streams
from tests.kit.clip_data import minimum_memory
from tests.kit.datasets import write_dataset, written_once
from tests.store.test_bfloat16 import FEATURES, latents

KEYS = {"a": 0, "b": 1}
FRAMES = {key: latents(9, seed) for key, seed in KEYS.items()}
CLIP: dict[str, Any] = {"clip_len": 3, "seed": 5}


path = written_once(write_dataset, FRAMES, features=FEATURES, chunk_frames=4)


def expected(name: str, key: str, start: int) -> list[torch.Tensor]:
    return [frame[name] for frame in FRAMES[key][start : start + 3]]


def check_batch(batch: Any, names: tuple[str, ...] = ("state", "latent", "tokens")) -> int:
    """Assert that a batch has the words that were written; returns its number of clips."""
    for slot, (key, start) in enumerate(
        zip(batch["episode"], batch["start"].tolist(), strict=True)
    ):
        for name in names:
            for value, frame in zip(batch[name][slot], expected(name, key, start), strict=True):
                assert value.dtype == torch.bfloat16, name
                assert torch.equal(value.cpu(), frame), name
    return len(batch["episode"])


def loaders(path: Path, **options: Any) -> Iterator[Any]:
    for kind in (SeqRecordPipe, seqrecord.SeqRecordIterableDataset, seqrecord.SeqRecordNode):
        yield kind(path, batch_size=4, **CLIP, **options)
    sources = {name: SeqRecordPipe(path, clip_len=3) for name in ("one", "two")}
    yield SeqRecordMix(sources, batch_size=4, **options)


def test_every_loader_yields_the_words(path: Path) -> None:
    for loader in loaders(path):
        assert sum(map(check_batch, loader)) >= 12
        for batch in loader:  # resident frames
            check_batch(batch)
            break


def test_batches_of_workers_are_the_same(path: Path) -> None:
    loader = SeqRecordPipe(path, batch_size=4, **CLIP)
    batches = list(DataLoader(loader, batch_size=None, num_workers=1))
    assert sum(map(check_batch, batches)) == 14


def test_single_clips_and_collate(path: Path) -> None:
    clips = SeqRecordMapDataset(path, clip_len=3)
    single = clips[8]
    assert single["latent"].dtype == torch.bfloat16
    assert torch.equal(single["latent"], torch.stack(expected("latent", "b", 1)))
    for part in ([clips[0], clips[8]], clips.__getitems__([3, 4, 9])):
        check_batch(seqrecord.collate(part))
    for clip in SeqRecordPipe(path, **CLIP).batch(3).collate(seqrecord.collate):
        check_batch(clip)


@pytest.mark.parametrize("memory", ["least", "resident"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_streamed_and_resident_frames_are_the_same(
    path: Path, memory: str, num_threads: int
) -> None:
    def make(**more: Any) -> SeqRecordPipe:
        engine = seqrecord.EngineOptions(num_threads=num_threads)
        return SeqRecordPipe(path, batch_size=4, engine=engine, **CLIP, **more)

    limit = minimum_memory(make) if memory == "least" else None
    loader = make(memory_limit=limit)
    for _ in range(2):
        assert sum(map(check_batch, loader)) == 14


def test_two_bytes_a_number_are_moved(path: Path, tmp_path: Path) -> None:
    wide = {k: [{"latent": f["latent"].float()} for f in frames] for k, frames in FRAMES.items()}
    write_dataset(tmp_path / "wide", wide, codecs="raw")
    narrow = {k: [{"latent": f["latent"]} for f in frames] for k, frames in FRAMES.items()}
    write_dataset(tmp_path / "narrow", narrow, codecs="raw")
    read = {}
    for name in ("wide", "narrow"):
        loader = SeqRecordPipe(tmp_path / name, batch_size=4, **CLIP)
        for batch in loader:
            assert batch["latent"].element_size() == {"wide": 4, "narrow": 2}[name]
        read[name] = loader.stats()["bytes_read"], loader.stats()["peak_buffer_bytes"]
    assert read["narrow"][0] < 0.55 * read["wide"][0]
    assert read["narrow"][1] < 0.55 * read["wide"][1]


def test_padded_and_nested_features(path: Path) -> None:
    for batch in SeqRecordPipe(path, batch_size=4, ragged={"tokens": "pad"}, **CLIP):
        check_batch(batch, ("state", "latent"))
        assert batch["tokens"].dtype == torch.bfloat16
        for slot, (key, start) in enumerate(zip(batch["episode"], batch["start"], strict=True)):
            for at, frame in enumerate(expected("tokens", key, int(start))):
                values, mask = batch["tokens"][slot, at], batch["tokens_mask"][slot, at]
                assert torch.equal(values[mask], frame)
                assert not values[~mask].any()
    for batch in SeqRecordPipe(path, batch_size=4, ragged={"tokens": "nested"}, **CLIP):
        places = zip(batch["episode"], batch["start"].tolist(), strict=True)
        frames = [frame for key, start in places for frame in expected("tokens", key, start)]
        assert torch.equal(batch["tokens"].values(), torch.cat(frames))


def test_vectors_are_placed_as_words_and_normalized_in_float32(path: Path) -> None:
    placed = SeqRecordPipe(path, batch_size=4, vectors={"state": Vector(pad_to=7)}, **CLIP)
    for batch in placed:
        check_batch({**batch, "state": batch["state"][..., :5]})
        assert not batch["state"][..., 5:].any()
    normal = SeqRecordPipe(
        path, batch_size=4, vectors={"state": Vector(normalize="mean_std")}, **CLIP
    )
    with seqrecord.open(path) as dataset:
        statistics = dataset.statistics["state"]
    for batch in normal:
        for slot, (key, start) in enumerate(zip(batch["episode"], batch["start"], strict=True)):
            values = torch.stack(expected("state", key, int(start))).float().numpy()
            assert batch["state"].dtype == torch.float32
            np.testing.assert_allclose(
                batch["state"][slot], statistics.normalize(values), rtol=2e-6, atol=1e-6
            )


def check_arrays(batch: Any) -> None:
    for slot, (key, start) in enumerate(
        zip(batch["episode"], batch["start"].tolist(), strict=True)
    ):
        for name in ("state", "latent", "tokens"):
            for value, frame in zip(batch[name][slot], expected(name, key, start), strict=True):
                np.testing.assert_array_equal(value, frame.float().numpy(), strict=True)


def _as_it_is(batch: Any) -> Any:
    return batch


def test_numpy_output_is_exact_float32(path: Path) -> None:
    for loader in loaders(path, output="numpy"):
        for batch in loader:
            check_arrays(batch)
    clips = SeqRecordMapDataset(path, clip_len=3, output="numpy")
    assert clips[0]["latent"].dtype == np.float32
    check_arrays(seqrecord.collate(clips.__getitems__([0, 9, 10]), output="numpy"))
    loader = SeqRecordPipe(path, batch_size=4, output="numpy", **CLIP)
    for batch in DataLoader(loader, batch_size=None, num_workers=1, collate_fn=_as_it_is):
        check_arrays(batch)


def test_transforms_get_float32_and_may_return_bfloat16(path: Path) -> None:
    seen = set[Any]()

    def narrow(frame: dict[str, Any]) -> dict[str, Any]:
        seen.update(value.dtype for value in frame.values())
        return {"wide": frame["state"] * 3, "narrow": torch.from_numpy(frame["state"]).bfloat16()}

    def of_clip(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        del generator
        tokens = [clip["tokens"]] if isinstance(clip["tokens"], np.ndarray) else clip["tokens"]
        seen.update(value.dtype for value in (clip["state"], *tokens))
        return {"wide": clip["state"] * 3, "narrow": torch.tensor(clip["state"]).bfloat16()}

    transforms: list[dict[str, Any]] = [
        {"frame_transform": narrow},
        {"frame_transform": FrameTransform(narrow, deterministic=True)},
        {"clip_transform": of_clip},
    ]
    for transform in transforms:
        for batch in SeqRecordPipe(path, batch_size=4, **transform, **CLIP):
            check_batch({**batch, "state": batch["narrow"]}, ("state",))
            assert batch["wide"].dtype == torch.float32
            assert torch.equal(batch["wide"], 3 * batch["narrow"].float())
    assert seen == {np.dtype(np.float32)}


def test_cached_frames_are_the_same(tmp_path: Path) -> None:
    frames = {k: [{"latent": f["latent"]} for f in frames] for k, frames in FRAMES.items()}
    write_dataset(tmp_path / "r", frames, codecs="small")
    made = FrameTransform(
        lambda frame: {"latent": torch.tensor(frame["latent"]).bfloat16()},
        deterministic=True,
        cache_key="1",
    )

    def make(**more: Any) -> SeqRecordPipe:
        cache = seqrecord.FrameCache(tmp_path / "cache", "1GiB")
        return SeqRecordPipe(
            tmp_path / "r", batch_size=4, frame_transform=made, frame_cache=cache, **CLIP, **more
        )

    loader = make(memory_limit=minimum_memory(make))
    for _ in range(2):
        for batch in loader:
            check_batch(batch, ("latent",))
    assert loader.stats()["frames_from_cache"] > 0


@pytest.mark.parametrize("kind", STREAMS)
def test_batches_on_a_device(path: Path, kind: str) -> None:
    with late_streams() if kind == "late" else nullcontext():
        device = "cpu" if kind == "late" else kind
        steps: list[Any] = [None, {"state": Vector(pad_to=5)}]
        for vectors in steps:
            loader = SeqRecordPipe(path, batch_size=4, device=device, vectors=vectors, **CLIP)
            assert sum(map(check_batch, loader)) == 14
        step = {"state": Vector(normalize="mean_std", pad_to=6)}
        host, moved = (
            SeqRecordPipe(path, batch_size=4, vectors=step, device=where, **CLIP)
            for where in (None, device)
        )
        for batch, other in zip(host, moved, strict=True):
            assert torch.allclose(batch["state"], other["state"].cpu(), atol=1e-6)


def test_a_mix_alternates_between_dtypes(path: Path, tmp_path: Path) -> None:
    wide = {k: [{"state": f["state"].float()} for f in frames] for k, frames in FRAMES.items()}
    write_dataset(tmp_path / "wide", wide, features={"state": {"kind": "state"}})
    sources = {
        "narrow": SeqRecordPipe(path, features=["state"], clip_len=3),
        "wide": SeqRecordPipe(tmp_path / "wide", clip_len=3),
    }
    mix = SeqRecordMix(sources, batch_size=2, single_source_batches=True)
    dtypes = {(batch["dataset"][0], batch["state"].dtype) for batch in mix}
    assert dtypes == {("narrow", torch.bfloat16), ("wide", torch.float32)}
    normal = SeqRecordMix(sources, batch_size=4, vectors={"state": Vector(normalize="mean_std")})
    assert {batch["state"].dtype for batch in normal} == {torch.float32}


def test_states_resume_at_the_same_words(path: Path) -> None:
    loader = SeqRecordPipe(path, batch_size=4, **CLIP)
    batches = iter(loader)
    next(batches)
    again = SeqRecordPipe(path, batch_size=4, **CLIP)
    again.load_state_dict(loader.state_dict())
    for batch, other in zip(batches, again, strict=True):
        assert torch.equal(batch["latent"], other["latent"])


def test_maps_with_pixels_are_cropped_and_not_interpolated(tmp_path: Path) -> None:
    depth = torch.randn(6, 8, 10).bfloat16()
    image = np.zeros((8, 10, 3), np.uint8)
    frames = [{"image": image, "near": plane} for plane in depth]
    write_dataset(tmp_path / "r", {"a": frames}, features={"near": {"kind": "depth"}})
    crop = SeqRecordPipe(
        tmp_path / "r", clip_len=1, batch_size=2, clip_transform=[seqrecord.RandomCrop((4, 5))]
    )
    for batch in crop:
        for slot, start in enumerate(batch["start"].tolist()):
            top, left, *_ = batch["crop"][slot].tolist()
            plane = depth[start][top : top + 4, left : left + 5]
            assert torch.equal(batch["near"][slot, 0], plane)
    flow = [{"image": image, "flow": torch.ones(8, 10, 2).bfloat16()}]
    write_dataset(tmp_path / "f", {"a": flow}, features={"flow": {"kind": "flow"}})
    for step in (seqrecord.HorizontalFlip(), seqrecord.Resize((4, 5))):
        with pytest.raises(
            seqrecord.ClipError, match=r"of flow in bfloat16.*expected: float32 flow"
        ):
            SeqRecordPipe(tmp_path / "f", clip_len=1, clip_transform=[step])
