"""Loaders that find frames by number: the original files, arrays on disk, and records of frames."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from benchmarks.reused import ByHand
from benchmarks.tartanair.compare.recordings import Clip, Feature, Recordings
from benchmarks.tartanair.loaders.base import (
    REUSED_GRID,
    Batch,
    Batches,
    Into,
    Loader,
    Order,
    Read,
    Settings,
    link_originals,
    load_features,
    loader_arguments,
    map_style,
    memory_of,
    places,
    without_one_worker,
)
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset
from benchmarks.tartanair.loaders.rootless import without_roots

__all__ = [
    "BY_HAND_GRID",
    "LOADERS",
    "make_memmaps",
    "open_by_hand",
    "open_lmdb",
    "open_memmaps",
    "prepare_lmdb",
    "read_frames",
    "read_slices",
    "write_arrays",
]

Arrays: TypeAlias = Mapping[str, Any]
"""Feature to array [frames, …]."""

Frames: TypeAlias = Callable[[range], Iterator[Arrays]]
"""Frames of consecutive rows, each valid until the next."""

_PIECE = 16  # frames per write; Zarr's chunk length; frames from a video's key frame to the next
_IMAGE, _FPS = "image_left", 25  # of the video
_ZARR_CACHE = 1 << 30  # bytes per process
_ZARR_BLOCK = 128  # clips


# ---- the original files, reopened for every frame of every clip


def read_originals(folder: Path, settings: Settings) -> Read:
    dataset = RawFilesDataset(
        folder / "originals",
        clip_len=settings.clip_len,
        stride=settings.stride,
        features=settings.features,
    )
    numbers = {place: number for number, place in enumerate(dataset.places())}

    def read(clip: Clip, _into: Into) -> Mapping[str, Any]:
        sample = dataset[numbers[clip.episode, clip.start]]
        return {name: sample[name] for name in dataset.features}

    return read


# ---- one array per feature; clips are slices


def write_arrays(
    make: Callable[[Path, Mapping[str, tuple[tuple[int, ...], str]]], Arrays],
) -> Callable[[Recordings, Path, Settings], None]:
    """`prepare` that writes all frames into arrays. `make` gets shape and dtype of each."""

    def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
        count = recordings.num_frames
        specs = {n: ((count, *f.shape), f.dtype) for n, f in recordings.features.items()}
        arrays, frames = make(folder, specs), list[Arrays]()
        for stop, frame in enumerate(recordings.rows(), 1):
            frames.append(frame)
            if len(frames) == _PIECE or stop == count:
                for name, array in arrays.items():
                    array[stop - len(frames) : stop] = np.stack([f[name] for f in frames])
                frames.clear()
        for array in arrays.values():
            if hasattr(array, "flush"):
                array.flush()

    return prepare


def read_slices(open_arrays: Callable[[Path], Arrays]) -> Callable[[Path, Settings], Read]:
    """Slices of arrays: views or, of HDF5, read straight into the given memory."""

    def make_read(folder: Path, settings: Settings) -> Read:
        arrays: dict[str, Any] = {}

        def read(clip: Clip, into: Into) -> Arrays:
            if not arrays:
                opened = open_arrays(folder)
                arrays.update({name: opened[name] for name in settings.features})
            rows = slice(clip.row, clip.row + clip.stop - clip.start)
            if into is None or not all(hasattr(array, "read_direct") for array in arrays.values()):
                return {name: array[rows] for name, array in arrays.items()}
            for name, array in arrays.items():
                array.read_direct(into[name], np.s_[rows])
            return into

        return read

    return make_read


def make_memmaps(folder: Path, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> Arrays:
    return {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, shape)
        for name, (shape, dtype) in specs.items()
    }


def open_memmaps(folder: Path) -> Arrays:
    return {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}


def open_by_hand(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
    """Copies of memory maps in reused batches, without any package for loading."""
    return HandMade(folder, clips, settings)


class HandMade:
    """`ByHand`, with the places of its clips."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        arrays = open_memmaps(folder)
        firsts = np.array([clip.row for clip in clips])
        rows = firsts[:, None] + np.arange(settings.clip_len)
        self._clips = clips
        self._loader = ByHand(
            {name: arrays[name] for name in settings.features},
            dict.fromkeys(settings.features, rows),
            settings.batch_size,
            threads=settings.threads,
            seed=settings.seed,
        )

    def __iter__(self) -> Iterator[Batch]:
        for numbers, batch in self._loader.numbered():
            yield {**batch, **places([self._clips[number] for number in numbers])}


def make_hdf5(folder: Path, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> Arrays:
    import h5py

    file = h5py.File(folder / "frames.h5", "w")
    return {name: file.create_dataset(name, shape, dtype) for name, (shape, dtype) in specs.items()}


def open_hdf5(folder: Path) -> Arrays:
    import h5py

    file: Arrays = h5py.File(folder / "frames.h5", "r")
    return file


def make_zarr(folder: Path, specs: Mapping[str, tuple[tuple[int, ...], str]]) -> Arrays:
    import zarr

    group = zarr.open_group(str(folder / "frames"), mode="w")
    return {
        name: group.create_array(
            name,
            shape=shape,
            chunks=(min(_PIECE, shape[0]), *shape[1:]),
            dtype=dtype,
            compressors=None,
        )
        for name, (shape, dtype) in specs.items()
    }


def open_zarr(folder: Path, *, cached: bool) -> Arrays:
    """`cached` keeps the encoded bytes of recently read chunks."""
    import zarr
    from zarr.storage import LocalStore, MemoryStore

    store: Any = LocalStore(folder / "frames", read_only=True)
    if cached:
        from zarr.experimental.cache_store import CacheStore

        store = CacheStore(store, cache_store=MemoryStore(), max_size=_ZARR_CACHE)
    group: Any = zarr.open_group(store, mode="r")
    return dict(group.arrays())


class Blocks(Order):
    """Large blocks of neighbouring clips, the blocks shuffled and the clips inside each."""

    def numbers(self, rng: np.random.Generator) -> Iterable[int]:
        blocks = np.split(np.arange(self._count), range(_ZARR_BLOCK, self._count, _ZARR_BLOCK))
        for number in rng.permutation(len(blocks)):
            yield from rng.permutation(blocks[number]).tolist()


# ---- TensorDict of mapped files: a batch is one indexing


def prepare_tensordict(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from tensordict import TensorDict

    frames = TensorDict({}, batch_size=[recordings.num_frames]).memmap_(folder / "frames")
    for name, feature in recordings.features.items():
        dtype = torch.from_numpy(np.empty(0, feature.dtype)).dtype
        frames.make_memmap(name, (recordings.num_frames, *feature.shape), dtype=dtype)
    for row, frame in enumerate(recordings.rows()):
        for name, array in frame.items():
            frames[name][row] = torch.from_numpy(array)


class Indexed(Dataset[Batch]):
    """Batches by the numbers of their clips."""

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        self._folder = folder / "frames"
        self._clips = clips
        self._features = settings.features
        self._steps = torch.arange(settings.clip_len)
        self._frames: Any = None

    def __getitem__(self, numbers: Sequence[int]) -> Batch:
        if self._frames is None:
            from tensordict import TensorDict

            self._frames = TensorDict.load_memmap(self._folder).select(*self._features)
        clips = [self._clips[number] for number in numbers]
        rows = torch.tensor([clip.row for clip in clips])[:, None] + self._steps
        return {**self._frames[rows].to_dict(), **places(clips)}


def _open_tensors(folder: Path) -> Arrays:
    from tensordict import TensorDict

    frames: Any = TensorDict.load_memmap(folder / "frames")
    return {name: tensor.numpy() for name, tensor in frames.items()}


def open_tensordict(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
    if settings.reused:
        return map_style(read_slices(_open_tensors))(folder, clips, settings)
    order = BatchSampler(Order(len(clips), settings), settings.batch_size, drop_last=False)
    indexed = Indexed(folder, clips, settings)
    return DataLoader(indexed, batch_size=None, sampler=order, **loader_arguments(settings))


# ---- frames as records, each copied into its clip's array


def read_frames(
    open_frames: Callable[[Path, Sequence[str]], Frames],
) -> Callable[[Path, Settings], Read]:
    def make_read(folder: Path, settings: Settings) -> Read:
        features = load_features(folder, settings.features)
        opened = list[Frames]()

        def read(clip: Clip, into: Into) -> Arrays:
            if not opened:
                opened.append(open_frames(folder, settings.features))
            length = clip.stop - clip.start
            arrays = into or {
                name: np.empty((length, *feature.shape), feature.dtype)
                for name, feature in features.items()
            }
            for i, frame in enumerate(opened[0](range(clip.row, clip.row + length))):
                for name, array in arrays.items():
                    array[i] = frame[name]
            return arrays

        return read

    return make_read


def _view(data: Any, feature: Feature, offset: int = 0) -> npt.NDArray[Any]:
    count = feature.nbytes // np.dtype(feature.dtype).itemsize
    return np.frombuffer(data, feature.dtype, count, offset).reshape(feature.shape)


def _key(feature: str, row: int) -> bytes:
    return f"{feature}/{row:08d}".encode()


def prepare_lmdb(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """One value per frame and feature."""
    import lmdb

    values = recordings.num_frames * recordings.frame_nbytes()
    pages = 8192 * recordings.num_frames * len(recordings.features)  # at most two partly filled
    with lmdb.open(str(folder / "frames"), map_size=values + pages + 2**24) as database:
        for row, frame in enumerate(recordings.rows()):
            with database.begin(write=True) as transaction:
                for name, array in frame.items():
                    transaction.put(_key(name, row), np.ascontiguousarray(array).data)


def open_lmdb(folder: Path, names: Sequence[str]) -> Frames:
    import lmdb

    database = lmdb.open(
        str(folder / "frames"), readonly=True, lock=False, readahead=False, create=False
    )
    features = load_features(folder, names)

    def frames(rows: range) -> Iterator[Arrays]:
        with database.begin(buffers=True) as transaction:
            for row in rows:
                yield {n: _view(transaction.get(_key(n, row)), f) for n, f in features.items()}

    return frames


def prepare_array_record(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """One record per frame, with all features concatenated."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "frames.array_record"), "group_size:1,uncompressed")
    for frame in recordings.rows():
        writer.write(b"".join(array.tobytes() for array in frame.values()))
    writer.close()


def open_array_record(folder: Path, names: Sequence[str]) -> Frames:
    import grain

    records = grain.sources.ArrayRecordDataSource([str(folder / "frames.array_record")])
    everything = load_features(folder)
    ends = np.cumsum([feature.nbytes for feature in everything.values()]).tolist()
    features = {
        name: (feature, end - feature.nbytes)
        for (name, feature), end in zip(everything.items(), ends, strict=True)
        if name in names
    }

    def frames(rows: range) -> Iterator[Arrays]:
        for row in rows:
            record = records[row]
            yield {name: _view(record, *place) for name, place in features.items()}

    return frames


class GrainEpochs:
    """Batches of a Grain dataset, reshuffled for each epoch.

    An element is a batch: `_read_batch` reads its frames into one array, without stacking clips.
    """

    def __init__(self, folder: Path, clips: Sequence[Clip], settings: Settings) -> None:
        self._read = read_frames(open_array_record)(folder, settings)
        self._features = load_features(folder, settings.features)
        self._clips = clips
        self._settings = settings
        self._epoch = 0

    def __iter__(self) -> Iterator[Batch]:
        import grain

        settings = self._settings
        dataset = grain.MapDataset.range(len(self._clips))
        if settings.shuffle != "off":
            dataset = dataset.shuffle(seed=settings.seed + self._epoch)
        self._epoch += 1
        dataset = dataset.batch(settings.batch_size).map(self._read_batch)
        threads = settings.threads
        ahead = max(threads, settings.prefetch) if threads else 0
        batches = dataset.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
        )
        if settings.workers:
            flags: Any = importlib.import_module("absl.flags")
            flags.FLAGS.mark_as_parsed()  # Grain reads a flag, which needs a program of absl
            batches = batches.mp_prefetch(
                grain.MultiprocessingOptions(settings.workers, settings.prefetch)
            )
        yield from batches

    def _read_batch(self, numbers: Any) -> Batch:
        clips = [self._clips[int(number)] for number in numbers]
        batch = memory_of(self._features, self._settings).take(len(clips))
        for place, clip in enumerate(clips):
            self._read(clip, {name: array[place] for name, array in batch.items()})
        starts = np.array([clip.start for clip in clips])
        return {**batch, "episode": np.array([clip.episode for clip in clips]), "start": starts}


def _frames_of(recordings: Recordings, _part: int) -> Iterator[Arrays]:
    yield from recordings.rows()


def prepare_litdata(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    from litdata import optimize

    optimize(
        partial(_frames_of, recordings),
        [0],
        output_dir=str(folder / "chunks"),
        chunk_bytes="64MB",
        num_workers=1,  # items keep their order
        start_method="fork",
        verbose=False,
    )


def open_litdata(folder: Path, _names: Sequence[str]) -> Frames:
    from litdata import StreamingDataset

    dataset = StreamingDataset(input_dir=str(folder / "chunks"))
    return lambda rows: (dataset[row] for row in rows)


def _mosaic() -> Any:
    """`streaming.base`; the package's root imports vision and text models."""
    spec = importlib.util.find_spec("streaming")
    assert spec is not None
    [path] = spec.submodule_search_locations or []
    with without_roots(Path(path).parent, "streaming"):
        return importlib.import_module("streaming.base")


def prepare_mosaic(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    columns = {
        name: f"ndarray:{np.dtype(dtype).name}:{','.join(map(str, shape))}"
        for name, (dtype, shape) in recordings.features.items()
    }
    with _mosaic().MDSWriter(out=str(folder / "shards"), columns=columns) as out:
        for frame in recordings.rows():
            out.write({**frame})


def read_mosaic(folder: Path, settings: Settings) -> Read:
    dataset = _mosaic().StreamingDataset(local=str(folder / "shards"), batch_size=1)  # before forks
    return read_frames(lambda *_: lambda rows: (dataset[row] for row in rows))(folder, settings)


# ---- one H.264 video of all images


def prepare_video(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import av

    height, width, _ = recordings.features[_IMAGE].shape
    with av.open(str(folder / "frames.mp4"), "w") as file:
        options = {"crf": "18", "g": str(_PIECE), "bf": "0"}
        stream = file.add_stream("libx264", rate=_FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for frame in recordings.rows():
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[_IMAGE]))
            file.mux(stream.encode(picture))
        file.mux(stream.encode())


def open_video(folder: Path, _names: Sequence[str]) -> Frames:
    """Decodes from the key frame before the first row."""
    import av

    file = av.open(str(folder / "frames.mp4"))
    stream = file.streams.video[0]

    def frames(rows: range) -> Iterator[Arrays]:
        file.seek(int(rows.start / _FPS / stream.time_base), stream=stream)
        for frame in file.decode(stream):
            row = round(frame.time * _FPS)
            if row in rows:
                yield {_IMAGE: frame.to_ndarray(format="rgb24")}
            if row == rows[-1]:
                break

    return frames


BY_HAND_GRID = tuple({"reused": True, "threads": count} for count in (0, 1, 2))
_MAPPED = "mapped"
_DECODED_EACH = "decoded for each clip"
_GRID = without_one_worker(REUSED_GRID)
# LitData and Streaming read a frame with state of their own: one thread.
_ONE_READER = tuple(cell for cell in _GRID if cell.get("threads", 0) < 2)
_GRAIN_GRID = tuple({"threads": count} for count in (0, 1, 2, 4))

LOADERS = [
    Loader(
        "original",
        "original",
        link_originals,
        map_style(read_originals),
        frames=_DECODED_EACH,
        grid=_GRID,
    ),
    Loader(
        "by-hand",
        "memmap",
        write_arrays(make_memmaps),
        open_by_hand,
        shuffles=("full",),
        frames=_MAPPED,
        grid=BY_HAND_GRID,
    ),
    Loader(
        "memmap",
        "memmap",
        write_arrays(make_memmaps),
        map_style(read_slices(open_memmaps)),
        frames=_MAPPED,
        grid=_GRID,
    ),
    Loader(
        "hdf5",
        "hdf5",
        write_arrays(make_hdf5),
        map_style(read_slices(open_hdf5)),
        needs=("h5py",),
        grid=_GRID,
    ),
    Loader(
        "zarr",
        "zarr",
        write_arrays(make_zarr),
        map_style(read_slices(partial(open_zarr, cached=False))),
        needs=("zarr",),
        grid=_GRID,
    ),
    Loader(
        "zarr-cached",
        "zarr",
        write_arrays(make_zarr),
        map_style(read_slices(partial(open_zarr, cached=True)), Blocks),
        shuffles=("off", "buffer"),
        needs=("zarr.experimental.cache_store",),
        frames="cached chunks",
        grid=_GRID,
    ),
    Loader(
        "tensordict",
        "tensordict",
        prepare_tensordict,
        open_tensordict,
        needs=("tensordict",),
        frames=_MAPPED,
        grid=_GRID,
    ),
    Loader(
        "lmdb",
        "lmdb",
        prepare_lmdb,
        map_style(read_frames(open_lmdb)),
        needs=("lmdb",),
        frames=_MAPPED,
        grid=_GRID,
    ),
    Loader(
        "grain",
        "array-record",
        prepare_array_record,
        GrainEpochs,
        needs=("grain", "array_record"),
        grid=(*_GRAIN_GRID, {"workers": 2, "threads": 1}),
    ),
    Loader(
        "litdata",
        "litdata",
        prepare_litdata,
        map_style(read_frames(open_litdata)),
        needs=("litdata",),
        alone=True,
        grid=_ONE_READER,
    ),
    Loader(
        "mosaic",
        "mosaic",
        prepare_mosaic,
        map_style(read_mosaic),
        needs=("streaming",),
        grid=_ONE_READER,
    ),
    Loader(
        "video",
        "video",
        prepare_video,
        map_style(read_frames(open_video)),
        needs=("av",),
        lossy=(_IMAGE,),
        frames=_DECODED_EACH,
        grid=_ONE_READER,
    ),
]
