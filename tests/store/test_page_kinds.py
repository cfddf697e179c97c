"""Page kinds: another kind is entries in `store.areas`; the rest of the package asks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import FeatureSpec, FrameCache, SeqRecordMapDataset, SeqRecordPipe, edit, errors
from seqrecord.errors import CodecError, FormatError, SchemaError, SeqRecordError
from seqrecord.store import areas
from seqrecord.store.areas import (
    CACHE,
    CODEC_CHECKS,
    CODEC_KINDS,
    EXTERNAL_FILES,
    FORMATS,
    IN_PLACE,
    IS_ORIGINAL,
    NAMED_CODECS,
    PAGE_KINDS,
    STORAGES,
    load_entry,
)
from seqrecord.store.checksum import Buffer
from seqrecord.store.codecs.base import ERRORS
from seqrecord.store.codecs.compressors import Zstd
from seqrecord.store.format.page_kinds import Blob, EncodedColumn, Memo, PageCodec, PageKind
from seqrecord.store.format.pages import are_bools, check_fits
from tests.kit.datasets import check_rebuilt, chunk_lengths, write_dataset

BLOCK = 8
ZSTD = Zstd(level=1)
DECODED: list[int] = []
"""Numbers of decoded blocks."""


class BlockCodec(PageCodec):
    """Blocks of frames, compressed together: u32 [blocks + 1] offsets, then the blocks."""

    def encode_frame(self, frame: Any) -> Blob:
        array = np.asarray(frame)
        check_fits(self.spec, array.dtype, array.shape)
        if not are_bools(array):
            raise errors.FrameError("a bool that is neither 0 nor 1", feature=self.spec.name)
        return Blob(array.astype(self.spec.dtype).tobytes(), array.shape)

    def join(self, frames: Sequence[bytes | memoryview]) -> bytes:
        starts = range(0, len(frames), BLOCK)
        blocks = [ZSTD.encode(_bytes(frames[at : at + BLOCK])) for at in starts]
        if not blocks:
            return b""
        offsets = np.cumsum([4 * len(blocks) + 4, *map(len, blocks)])
        return b"".join([offsets.astype("<u4").tobytes(), *blocks])

    def cut(self, page: memoryview, count: int, positions: range) -> Buffer:
        frames = np.empty((len(positions), *self.shapes(page, 1)[0]), self.spec.dtype)
        self.decode_into(page, count, frames, positions)
        return self.join([frame.tobytes() for frame in frames])

    def decode_into(
        self,
        page: memoryview,
        count: int,
        out: Sequence[npt.NDArray[Any]] | npt.NDArray[Any],
        positions: Sequence[int] | range | None = None,
        memo: Memo | None = None,
    ) -> None:
        blocks = {} if memo is None else memo.setdefault("blocks", {})
        for i, position in enumerate(range(count) if positions is None else positions):
            number, inside = divmod(position, BLOCK)
            if number not in blocks:
                blocks.clear()
                blocks[number] = self.block(page, count, number)
            target = out[i, ...] if isinstance(out, np.ndarray) else out[i]
            target[...] = blocks[number][inside]

    def block(self, page: memoryview, count: int, number: int) -> npt.NDArray[Any]:
        table = 4 * (-(-count // BLOCK) + 1)
        if len(page) < table:
            raise FormatError("a page without its offsets", offset=0)
        offsets = np.frombuffer(page[:table], "<u4").astype(np.int64)
        if offsets[0] != table or offsets[-1] != len(page) or (np.diff(offsets) < 0).any():
            raise FormatError("offsets of blocks out of order", offset=0)
        frames = np.empty(
            (min(BLOCK, count - number * BLOCK), *self.shapes(page, 1)[0]), self.spec.dtype
        )
        DECODED.append(number)
        try:
            blob = page[offsets[number] : offsets[number + 1]]
            ZSTD.decode_into(blob, frames.reshape(-1).view(np.uint8))  # checks the declared size
        except ERRORS as error:
            raise CodecError("not a block", offset=int(offsets[number]), got=str(error)) from error
        if not are_bools(frames):
            raise CodecError("a bool that is neither 0 nor 1", offset=int(offsets[number]))
        return frames


def _bytes(frames: Sequence[bytes | memoryview]) -> npt.NDArray[np.uint8]:
    return np.frombuffer(b"".join(frames), np.uint8)


class BlockColumn:
    def __init__(self, codec: BlockCodec) -> None:
        self.codec = codec
        self.clear()

    def clear(self) -> None:
        self.frames: list[bytes | memoryview] = []

    def add(self, column: EncodedColumn, rows: range, expected: int) -> None:
        self.frames += [cast("Blob", blob).data for blob in column[rows.start : rows.stop]]

    def take(self, count: int) -> tuple[Buffer, Sequence[Blob]]:
        frames, self.frames = self.frames[:count], self.frames[count:]
        return self.codec.join(frames), ()


class Blocks(PageKind):
    name = "blocks"
    codec = BlockCodec

    def can_be_length(
        self, spec: FeatureSpec, length: npt.NDArray[Any], count: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        table = 4 * (-(-count // BLOCK) + 1)
        fits: npt.NDArray[np.bool_] = np.where(count == 0, length == 0, length > table)
        return fits

    def is_costly(self, spec: FeatureSpec) -> bool:
        return True

    def column(self, codec: PageCodec) -> BlockColumn:
        return BlockColumn(cast("BlockCodec", codec))


KIND = Blocks()


def check(configs: Sequence[Mapping[str, Any]], dtype: np.dtype[Any], shape: Any) -> None:
    if len(configs) != 1 or {*configs[0]} != {"id"}:
        raise ValueError("blocks take no parameters")
    if None in shape:
        raise ValueError(f"blocks need a fixed shape, got {list(shape)}")


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, key, value in (
        (areas.PAGE_KINDS, "blocks", f"{__name__}:KIND"),
        (areas.CODEC_KINDS, "blocks", "blocks"),
        (areas.CODEC_CHECKS, "blocks", f"{__name__}:check"),
    ):
        monkeypatch.setitem(cast("dict[str, str]", table), key, value)


LENGTHS = {"a": 37, "b": 5, "c": 20}
"""Frames per episode; every fifth has no `volume`."""


def volume(key: str, number: int) -> npt.NDArray[np.uint16]:
    return np.arange(60, dtype=np.uint16).reshape(5, 12) * (ord(key) + number)


def frames(key: str) -> Iterator[dict[str, Any]]:
    for number in range(LENGTHS[key]):
        frame = {"number": np.float32(number), "text": f"{key}{number}"}
        yield frame if number % 5 == 4 else {**frame, "volume": volume(key, number)}


def write(path: Path, *keys: str, **options: Any) -> Path:
    codecs = {"volume": [{"id": "blocks"}]}
    write_dataset(path, {key: frames(key) for key in keys}, codecs=codecs, **options)
    return path


def volume_of(frame: Mapping[str, Any]) -> Any:
    return frame["volume"].tolist() if "volume" in frame else None


def content(path: Path) -> dict[str, list[Any]]:
    with seqrecord.open(path) as dataset:
        assert dataset.features["volume"].codec == ({"id": "blocks"},)
        return {
            key: [volume_of(episode[number]) for number in range(len(episode))]
            for key, episode in dataset.episodes.items()
        }


def expected(*keys: str, start: int = 0) -> dict[str, list[Any]]:
    return {key: [*map(volume_of, frames(key))][start:] for key in keys}


def test_merged_datasets(tmp_path: Path) -> None:
    both = [write(tmp_path / "ab", "a", "b"), write(tmp_path / "c", "c")]
    edit.merge_datasets(both, tmp_path / "abc")
    check_rebuilt(tmp_path / "abc", content, expected("a", "b", "c"))


def test_edited_datasets(tmp_path: Path) -> None:
    path = write(tmp_path / "r", *LENGTHS)
    edit.trim_episodes(path, ["a", "c"], slice(11, None))
    edit.delete_episodes(path, ["b"])
    edit.rename_features(path, {"volume": "scan"})
    edit.rewrite_files(path, min_unused=0.01)
    edit.rename_features(path, {"scan": "volume"})
    check_rebuilt(path, content, expected("a", "c", start=11))


def clips(batches: Iterable[Any]) -> list[Any]:
    return sorted(
        (key, int(start), volumes.tolist())
        for batch in batches
        for key, start, volumes in zip(
            batch["episode"], batch["start"], batch["volume"], strict=True
        )
    )


CLIPS = sorted(
    (key, start, [volume(key, start + i).tolist() for i in range(3)])
    for key, length in LENGTHS.items()
    for start in range(length - 2)
    if start % 5 < 2
)


@pytest.mark.parametrize("features", [None, ["volume"], ["volume", "text"]])
def test_streams_and_map_style(tmp_path: Path, features: list[str] | None) -> None:
    path = write(tmp_path / "r", *LENGTHS)
    options: dict[str, Any] = {"clip_len": 3, "features": features}
    pipe = SeqRecordPipe(path, batch_size=4, **options)  # shuffled
    assert clips(pipe) == CLIPS
    DECODED.clear()
    assert clips(pipe) == CLIPS
    assert not DECODED  # resident
    options["frame_cache"] = FrameCache(tmp_path / "frames", "1MiB")
    assert clips(SeqRecordPipe(path, batch_size=4, **options)) == CLIPS
    DECODED.clear()
    assert clips(SeqRecordPipe(path, batch_size=4, **options)) == CLIPS
    assert not DECODED  # from the cache
    del options["frame_cache"]
    dataset = SeqRecordMapDataset(path, **options)
    for i in (23, 0, 11):
        clip = dataset[i]
        assert (clip["episode"], clip["start"], clip["volume"].tolist()) in CLIPS


def test_a_frame_decodes_one_block(tmp_path: Path) -> None:
    with seqrecord.open(write(tmp_path / "r", "a")) as dataset:
        DECODED.clear()
        assert dataset.episodes["a"][12]["volume"].tolist() == volume("a", 12).tolist()
        assert DECODED == [1]  # frame 12 is the 11th of the page


def test_wrong_configurations_are_refused(tmp_path: Path) -> None:
    for config, shape in (({"id": "blocks", "level": 1}, (2,)), ({"id": "blocks"}, (None,))):
        spec = FeatureSpec("x", np.dtype("u1"), shape, (config,))
        frame = {"x": np.zeros(2, np.uint8)}
        with pytest.raises(SchemaError, match="blocks"):
            write_dataset(tmp_path / "r", {"a": [frame]}, schema=seqrecord.Schema([spec]))


@pytest.mark.parametrize(("at", "error"), [(0, FormatError), (7, FormatError), (60, CodecError)])
def test_damaged_pages(tmp_path: Path, at: int, error: type[SeqRecordError]) -> None:
    """A page with a wrong byte is refused, with its place, also if checksums are not verified."""
    path = write(tmp_path / "r", "a")
    [file] = (path / "records").glob("*")
    with seqrecord.open(path) as dataset:
        [page] = (
            page
            for page in dataset.contents.chunks.pages(dataset.contents.chunks.chunk_at(0, 0))
            if page.feature == "volume"
        )
    data = bytearray(file.read_bytes())
    data[page.start + at] ^= 0xFF
    file.write_bytes(data)
    kinds: list[tuple[bool, type[SeqRecordError]]] = [(True, errors.ChecksumError), (False, error)]
    for verify, kind in kinds:
        with seqrecord.open(path, verify=verify) as dataset, pytest.raises(kind) as caught:
            dataset.episodes["a"][0]
        assert str(file) in str(caught.value)
        assert page.start <= (caught.value.offset or 0) < page.stop


@pytest.mark.parametrize("chunk_frames", [None, 5, 32])
def test_chunks_are_as_short_as_the_kind_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_frames: int | None
) -> None:
    monkeypatch.setattr(Blocks, "max_chunk_frames", 16)
    path = write(tmp_path / "r", "a", chunk_frames=chunk_frames)
    check_rebuilt(path, content, expected("a"))
    assert {max(lengths) for lengths in chunk_lengths(path)} == {min(16, chunk_frames or 16)}


def test_a_kind_that_shares_no_chunks_has_its_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {name: {"group": 0} for name in ("number", "text", "volume")}
    path = write(tmp_path / "r", "a", features=groups)
    monkeypatch.setattr(Blocks, "shares_chunks", False)
    with pytest.raises(SchemaError, match="blocks shares its group with another feature"):
        write(tmp_path / "s", "a", features=groups)
    with pytest.raises(FormatError, match="blocks shares its group with another feature"):
        seqrecord.open(path)


# Names of modules in other parts


def test_every_entry_exists() -> None:
    for name, module in FORMATS.items():
        assert load_entry(f"seqrecord.formats.sources.{module}:FORMAT").name == name
    for entry in (IN_PLACE, IS_ORIGINAL, EXTERNAL_FILES, CACHE, *STORAGES.values()):
        assert callable(load_entry(entry))


def test_entries_of_page_kinds_and_codecs_exist() -> None:
    assert {*CODEC_KINDS.values()} <= {*PAGE_KINDS}
    assert {*CODEC_CHECKS} == {*CODEC_KINDS}
    for name, entry in PAGE_KINDS.items():
        assert load_entry(entry).name == name
    for entry in (*CODEC_CHECKS.values(), *NAMED_CODECS.values()):
        assert callable(load_entry(entry))
