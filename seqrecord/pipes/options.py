"""The arguments of the loaders, each written once: names, types, defaults, checks, text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqrecord.clips.clip_lists import ClipList, lists_frames
from seqrecord.clips.tables import MAX_SETTING, ClipSpec
from seqrecord.clips.transforms import ClipTransform, chain_of, checked_size, is_probability
from seqrecord.clips.windows import Latest, Windows, check_windows
from seqrecord.errors import ClipError
from seqrecord.pipes.arrays import Ragged, check_ragged
from seqrecord.pipes.checks import are_names, check, check_names
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.frames import FrameTransform
from seqrecord.reading.resizing import Sizes
from seqrecord.sampling.bounds import ORDERS
from seqrecord.storage import local_path
from seqrecord.units import MAX_INT, check_integer, check_seed, check_size, is_integer

if TYPE_CHECKING:
    import torch

_MOST_RANKS = (1 << 31) - 1
_OF_FRAMES = ("clip_len", "windows", "pad", "reverse")
_SHUFFLING = ("num_cursors", "shuffle_buffer")


_Check: TypeAlias = Callable[[str, Any], Any]
"""From an argument's name and value to the value that is kept; raises `ClipError`."""


def _checked(default: Any, check: _Check, **more: Any) -> Any:
    """A dataclass field of an argument, with its check; `None` needs none where it is the default.

    `more` is as of `dataclasses.field`.
    """
    return field(default=default, metadata={"check": check}, **more)


def _such(is_right: Callable[[Any], bool], expected: str) -> _Check:
    """Checks that an argument is right."""
    return lambda name, value: check(name, value, is_right(value), expected)


def one_of(*texts: str) -> _Check:
    """Checks that an argument is one of these."""
    expected = " or ".join(map(repr, texts))
    return _such(lambda value: isinstance(value, str) and value in texts, expected)


def _integer_from(least: int, most: int = MAX_INT) -> _Check:
    """Checks that an argument is an integer from `least` to `most`."""
    return lambda name, value: check_integer(name, value, least=least, most=most)


def _only(function: Callable[[Any], object]) -> _Check:
    """Checks an argument by a function that raises, and keeps it as it is."""
    return lambda _, value: (function(value), value)[1]


def _check_flag(name: str, value: Any) -> bool:
    return bool(check(name, value, isinstance(value, (bool, np.bool_)), "True or False"))


def _check_probability(name: str, value: Any) -> float:
    return float(check(name, value, is_probability(value), "a probability: 0 to 1"))


def _check_niceness(name: str, value: Any) -> int:
    niceness = check_integer(name, value, least=0, most=19)
    if niceness and sys.platform != "linux":
        got = f"{niceness} on {sys.platform}"
        raise ClipError(f"{name} is available on Linux only", expected="0", got=got)
    return niceness


def _check_dilation(name: str, value: Any) -> int | tuple[int, ...]:
    """A dilation, or several in ascending order."""
    many = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    # An array without dimensions is iterable by its type, too.
    given = list(value) if many and getattr(value, "ndim", 1) > 0 else [value]
    expected = "an integer, or several different ones such as (1, 2, 4)"
    several = sorted(check_integer(name, one, least=1, expected=expected) for one in given)
    check(name, value, 0 < len(several) == len(set(several)), expected)
    return tuple(several) if len(several) > 1 else several[0]


def _check_resize(name: str, value: Any) -> Any:
    """A size, or sizes by feature."""
    if not isinstance(value, Mapping):
        return checked_size(name, value)
    is_right = bool(value) and are_names(list(value))
    check(name, value, is_right, 'a dict by feature: {"camera": (224, 224)}')
    return {feature: checked_size(f"{name} of {feature}", size) for feature, size in value.items()}


def _check_rename(name: str, value: Any) -> Any:
    """New names by the stored ones."""
    is_dict = isinstance(value, Mapping) and are_names(value) and are_names([*value.values()])
    is_right = is_dict and len({*value.values()}) == len(value)
    return check(name, value, is_right, 'a dict such as {"image_left": "image"}: no name twice')


def _check_episodes(name: str, value: Any) -> Any:
    """Keys, numbers, a glob, or a predicate."""
    is_list = isinstance(value, Collection) and getattr(value, "ndim", 1) == 1
    is_right = isinstance(value, str) or callable(value) or are_names(value)
    is_right = is_right or (is_list and all(map(is_integer, value)))
    expected = "a list of keys or of numbers, a glob, or a function of an episode's metadata"
    return check(name, value, is_right, expected)


def _check_fields(options: Any, of: str = "") -> None:
    """Check a dataclass's fields, and keep each as Python's value, whatever gave it."""
    for item in fields(options):
        value = getattr(options, item.name)
        if "check" in item.metadata and not value is item.default is None:
            value = item.metadata["check"](of + item.name, value)
            object.__setattr__(options, item.name, value)


def _check_device(value: Any) -> None:
    from seqrecord.engine.device.streams import check_device  # torch takes seconds

    check_device(value)


@dataclass(frozen=True, kw_only=True)
class ClipOptions:
    """Which clips of a dataset, and how they are read.

    Args:
        clip_len: frames of a clip, N, at most 2^20. May be left out where there are `windows`;
            those features that have one do not depend on it.
        stride: frames from one clip's start to the next. By default 1, for all clips; with
            `order="sequences"` a clip's own length, so that clips follow each other.
        dilation: frames from one frame of a clip to the next, of `clip_len` frames. With several,
            such as `(1, 2, 4)`, one of those with which the clip lacks nothing is drawn for each
            clip, from seed, epoch and clip (`SeqRecordMapDataset` draws from torch's global
            generator); `dilation`, int64, says which. A clip is left out only where it fits with
            none of them. Not with `windows` and `order="sequences"`.
        reverse: the probability that a clip's frames come in reverse, the last one first, drawn as
            `dilation` is; `reversed`, bool, says so, and `start` is the earliest frame still. Only
            the order changes: flow, poses and actions are as stored, so they tell of the motion
            forwards. Not with `windows` and `order="sequences"`.
        windows: the frames that clips have of some features, counted from the frame `start`: a
            dict such as `{"image": [-1, 0], "action": range(16), "imu": Seconds(-0.5, 0)}`, of
            offsets in frames, or of seconds, by the episodes' frames a second or by timestamps.
            Features without a window have `clip_len` frames, or, where that is left out, the frame
            `start` alone. Each feature is read and held for its own window. With `frame_transform`
            windows are those of the arrays that it returns. `{"gps": Latest(max_age=60)}`: of a
            feature that not every frame has, the newest value at or before each frame.
        squeeze_time: leave out the axis of frames of features without a window, which have the
            frame `start` alone: [batch, …] in place of [batch, 1, …], a text in place of a list of
            one. Not with a `clip_len` above 1. Features of variable shapes that are not padded, and
            what functions of a `clip_transform` make, stay as they are.
        pad: what to do with clips that have frames before an episode's first one or behind its
            last one. `None` leaves them out. "edge" puts that frame in the place of those that do
            not exist, so that every frame is a start; "before" does so for the first frame alone,
            and "after" for the last one. Then `<feature>_is_pad`, bool [T], says where, of each
            feature with a window: of all features where `clip_len` is given.
        drop_last_frames: no clip starts in so many last frames of an episode. Not with `clips`.
        features: names of features to read; all by default. Clips in which a frame lacks one of
            them are left out.
        rename: other names of features: a dict such as `{"image_left": "image"}`, of names that
            are stored, as `features` has them. All other arguments, functions and clips have the
            new names, and so has `loader.dataset`. A saved state does not depend on it.
        episodes: keys, numbers in the order of the dataset, a glob on keys, or a function of an
            episode that says whether to take it: a dict of its metadata, with the attributes
            `key`, `num_frames`, `fps` and `split`.
        split: only episodes of the split of this name; see `seqrecord split`.
        clips: a table of the clips to give, instead of all: a dict of columns, or an Arrow or
            pandas table. `episode` has keys, `start` first frames, and `weight`, which may be left
            out, how often the clip comes in an epoch: 2.3 is two times in most epochs, three times
            in the others, which the seed decides. With `stride=1`; `episodes` leaves out those of
            other episodes. In place of `start`, `frames` has the frames of each clip, a list of
            equal length for all, in any order: pairs such as `[3, 41]`. Then there is no
            `clip_len`; `frames`, int64 [T], comes with each clip, and `start` is the earliest one.
        metadata: names of entries of the episodes' metadata that clips have beside their features:
            the value of its episode for a clip, a list of values for a batch; `None` where an
            episode has no such entry.
        resize: height and width of frames in batches, `{"camera": (224, 224)}` by feature, or one
            `(224, 224)` for all images. Frames are resized once, as they are decoded: memory and
            batches contain resized frames only. Images (kind `image`, or uint8 with 3 or 4 channels
            and no kind) are interpolated with antialiasing; depth, masks, segmentation and normals
            take the nearest pixel; other kinds are refused. `frame_transform`, `clip_transform` and
            `loader.dataset` get resized frames. `<feature>_intrinsics`, float64 [4], are those of
            the resized frame, where an episode's metadata has a `camera`.
        frame_transform: a function that is called once for each decoded frame, with a dict of
            arrays. It returns the arrays that clips are made of; their dtypes and shapes must be
            the same for every frame. Texts are `str` and `bytes`, and it may give such under the
            names of features of them. It is called from several threads, and twice for the first
            frame when the loader is made: one with random results is refused.
        deterministic_transform: `frame_transform` gives the same for a frame whenever it is called.
            Then its results may stay in memory, see `memory_limit`.
        clip_transform: `RandomCrop`, `CenterCrop`, `RandomResizedCrop`, `Resize`, `HorizontalFlip`,
            a function, or a list of these, one after the other. A clip has one window for all of
            its frames, and only the window is copied, or resized. The window is drawn from seed,
            epoch and clip (`SeqRecordMapDataset` draws it from torch's global generator). `crop`
            says which it is: top, left, height and width in pixels of the stored frame, int64 [4],
            and `flipped` whether it is mirrored. `intrinsics` are fx, fy, cx and cy of what is
            seen, float64 [4], where an episode's metadata has them as `camera`. These three stay on
            the host. A dict has steps for each of several features, such as cameras of different
            sizes: `{"front": RandomCrop(224), "wrist": Resize(224)}`; the three are then
            `front_crop` and so on. Where frames of episodes differ in size, each window lies in
            those of its own.

            Functions come after crops and flips. One is called for each clip with a dict of
            read-only arrays [clip_len, …], which are valid during the call (a list of arrays for a
            feature with a variable shape), and a `numpy.random.Generator`, drawn from seed, epoch
            and clip. It returns the arrays that batches are made of, with one axis at least; their
            dtypes and shapes must be the same for every clip. Of features of texts it gets and may
            give lists of these. It is called from several threads, and twice for the first clip
            when the loader is made: one that draws from a global generator (of torch,
            `numpy.random` or `random`), or whose results differ, is refused. Not with a `device`.
        ragged: what clips have of features whose shape varies from frame to frame, but for texts.
            "list": a list of tensors, one for each frame. "pad": a tensor as large as the largest
            frame of the selected episodes, with zeros behind each frame, and `<feature>_mask`, bool
            [clip_len, length], which is true for what is the frame's. "nested": a nested tensor of
            layout `torch.jagged`, [clip_len, ?, …] and [batch * clip_len, ?, …], for features of
            which only the first dimension varies. A dict has one of these for each feature,
            where sizes to pad to may stand, one for each dimension that varies: `{"points":
            "nested", "image": (480, 640)}`; features that it does not name are lists.
    """

    clip_len: int | None = _checked(None, _integer_from(1))
    stride: int | None = _checked(None, _integer_from(1))
    dilation: int | Sequence[int] = _checked(1, _check_dilation)
    reverse: float = _checked(0.0, _check_probability)
    windows: Windows | None = _checked(None, lambda _, value: check_windows(value))
    squeeze_time: bool = _checked(False, _check_flag)
    pad: str | None = _checked(None, one_of("edge", "before", "after"))
    drop_last_frames: int = _checked(0, _integer_from(0, MAX_SETTING - 1))
    features: Sequence[str] | None = _checked(None, check_names)
    rename: Mapping[str, str] | None = _checked(None, _check_rename)
    episodes: EpisodeFilter = _checked(None, _check_episodes)
    split: str | None = _checked(None, _such(lambda name: isinstance(name, str), "a split's name"))
    clips: ClipList | None = field(default=None, repr=False)
    metadata: Sequence[str] | None = _checked(None, check_names)
    resize: Sizes | None = _checked(None, _check_resize)
    frame_transform: FrameTransform | None = _checked(None, _such(callable, "a function"))
    deterministic_transform: bool = _checked(False, _check_flag)
    clip_transform: ClipTransform | None = _checked(None, _only(chain_of))
    ragged: Ragged = _checked("list", _only(check_ragged))

    def __post_init__(self) -> None:
        """Raise `ClipError` for a value that makes no sense, with the name of its argument."""
        _check_fields(self)
        if self.clip_len is None and self.windows is None and not self.lists_frames:
            raise ClipError("neither clip_len nor windows is given", expected="one, or both")
        if self.clip_len is None and self.dilation != 1:
            raise ClipError(
                "dilation is that of clip_len", expected="clip_len too", got=self.dilation
            )
        if self.squeeze_time and (self.clip_len not in (None, 1) or self.lists_frames):
            raise ClipError(
                "squeeze_time is for clips with one frame of each feature without a window",
                expected="no lists of frames, and clip_len=1 or none",
                got=f"clip_len={self.clip_len}",
            )
        for dilation in self.dilations:
            ClipSpec(self.clip_len or 1, self.spec.stride, dilation)  # has limits of its own
        if self.has_drawn_steps and self.own_windows:
            raise ClipError(
                "several dilations, and reverse, are for clips of clip_len frames",
                expected="no windows, but for Latest()",
                got=f"dilation={self.dilation}, reverse={self.reverse:g}",
            )
        taken = {"stride": self.stride not in (None, 1), "drop_last_frames": self.drop_last_frames}
        if self.lists_frames:
            taken |= {name: getattr(self, name) for name in _OF_FRAMES}
        if self.clips is not None and (given := [name for name in taken if taken[name]]):
            expected = f"no {', '.join(given)}"
            raise ClipError("clips has the starts, or the frames of each clip", expected=expected)

    @property
    def spec(self) -> ClipSpec:
        """The clips, of phase 0; with windows or `pad`, the frames at which they start."""
        stride = self.stride or self._usual_stride
        if self.clip_len is None or self.has_windows or not isinstance(self.dilation, int):
            return ClipSpec(1, stride)
        return ClipSpec(self.clip_len, stride, self.dilation)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Those that may be drawn, in ascending order, or the only one."""
        return (self.dilation,) if isinstance(self.dilation, int) else tuple(self.dilation)

    @property
    def lists_frames(self) -> bool:
        """Whether `clips` says which frames each clip has."""
        return lists_frames(self.clips)

    @property
    def has_drawn_steps(self) -> bool:
        """Whether the frames of a clip are drawn."""
        return len(self.dilations) > 1 or self.reverse > 0

    @property
    def has_windows(self) -> bool:
        """Whether clips are not simply `clip_len` frames inside their episodes."""
        return bool(self.own_windows) or self.pad is not None or self.has_drawn_steps

    @property
    def own_windows(self) -> dict[str, Any]:
        """Offsets or `Seconds` of the features that do not have `clip_len` frames."""
        windows = (self.windows or {}).items()
        found = {name: w.window if isinstance(w, Latest) else w for name, w in windows}
        return {name: window for name, window in found.items() if window is not None}

    @property
    def latest(self) -> dict[str, Latest]:
        """The features of which clips have the newest values."""
        windows = (self.windows or {}).items()
        return {name: window for name, window in windows if isinstance(window, Latest)}

    @property
    def _usual_stride(self) -> int:
        return 1


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(ClipOptions):
    """What `SeqRecordMapDataset` is told beside the dataset.

    Args:
        memory_limit: bytes, or text such as "512MiB", for each process: for frames of small raw
            features, which stay in memory once they were read and checked, as long as the object
            lives. A feature of which not all frames of the selected episodes fit is read anew for
            every call, and so is everything else. The memory of batches comes on top. 0 keeps
            nothing.
    """

    memory_limit: int | str = _checked("512MiB", check_size)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How an epoch is executed: the argument `engine` of the loaders.

    Defaults suit most trainings; `seqrecord bench` says where they do not. `ClipError` names
    `engine.num_threads` and so on, what was expected, and what came.

    Args:
        num_cursors: the number of places in the dataset from which clips are mixed; chosen by
            default. An error with `shuffle=False`.
        shuffle_buffer: the most clips from which the next clip is drawn. It refers to frames and
            copies none. By default `memory_limit` decides, so an epoch that fits into it is fully
            shuffled. An epoch begins with 256 clips, and the number at most doubles from round to
            round, so that the first batch comes soon. An error with `shuffle=False`.
        num_threads: threads for reading, decoding and copying; by default this process's share of
            the cores. These are the cores of its affinity and of the container's CPU quota, divided
            by the ranks on this machine (torchrun's `LOCAL_WORLD_SIZE`, or what MPI or Slurm say)
            and by the workers.
        thread_niceness: lowers the priority of the loader's threads on Linux: 0 to 19, added to the
            niceness of the thread that iterates. A training step on few cores then takes less time,
            but other busy processes can starve the loader; see docs/performance.md. `ClipError` on
            other systems, `ResourceError` if the system refuses. Threads that a `frame_transform`
            starts inherit it.
        video_decoder: "pyav" decodes video on the host. "torchcodec" decodes it on the `device`,
            straight into its memory: on a GPU by NVDEC. What it cannot decode there, PyAV decodes,
            as without torchcodec; the log says so once. Pixels may differ by a few units of 255,
            for YUV becomes RGB by other code. An error without a `device`, and with
            `frame_transform` or `resize`, which are for frames of the host.
        trace: a file for the spans of each iteration, Chrome trace event JSON: open it at
            https://ui.perfetto.dev. It is written during the iteration and replaced by the next.
            Ranks and workers write files beside it: `epoch.worker0.json`.
    """

    num_cursors: int | None = _checked(None, _integer_from(1))
    shuffle_buffer: int | None = _checked(None, _integer_from(1))
    num_threads: int | None = _checked(None, _integer_from(1))
    thread_niceness: int = _checked(0, _check_niceness)
    video_decoder: str = _checked("pyav", one_of("pyav", "torchcodec"))
    trace: str | PathLike[str] | None = _checked(
        None, lambda name, value: (local_path(value, name), value)[1]
    )

    def __post_init__(self) -> None:
        """Raise `ClipError` for a value that makes no sense."""
        _check_fields(self, "engine.")


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(ClipOptions):
    """What `SeqRecordPipe`, `SeqRecordIterableDataset` and `SeqRecordNode` are told beside the
    dataset.

    They take these as keyword arguments, or all at once by `from_options`; `options` is what they
    were given. `dataclasses.replace` makes a copy that differs in some. Values are checked here:
    `ClipError` names the argument, what was expected, and what came.

    Args:
        order: "clips", each on its own; or "sequences": row b of every batch follows an episode,
            clip by clip, and begins another one when that ends, for models with a hidden state.
            `is_first` and `is_last`, bool [batch], say where a row's sequence begins and ends: at
            an episode's ends, and where clips between are left out. `stride` is then `clip_len *
            dilation` by default: clips do not overlap, and the frames behind the last whole clip
            are left out and counted. With `shuffle` episodes come in a drawn order. A `batch_size`
            is needed; `clips`, and the engine's `num_cursors` and `shuffle_buffer`, are errors. A
            DataLoader's workers each have rows of their own: batch i continues batch
            i - num_workers. What a `clip_transform` draws is the same for all clips of a sequence.
        shuffle: a shuffled order; else episode by episode, front to back.
        seed: the order is a function of it, and so is all else that is drawn. An integer, of which
            64 bits count. With `shuffle=False` it has no effect where nothing is drawn.
        rotate_phase: with a `stride` above 1, move the clip starts from epoch to epoch. An epoch
            has the starts `phase`, `phase + stride`, … of one phase below `stride`; `stride` epochs
            use each phase once, and so every start. A phase without any clip gets no epoch. The
            lengths of epochs then differ by a few clips. An error with a `stride` of 1.
        batch_size: clips of a batch, or `None` for single clips.
        drop_last: leave out clips that do not fill a batch on every rank. Without `batch_size`,
            those that not every rank would have, see `even_batches`; with `even_batches=False` an
            error.
        fixed_shards: while all frames of a process stay in memory (see `memory_limit`), every rank
            and worker has the same clips in every epoch, and each epoch after the first is a full
            shuffle of them. If false, the clips of ranks and workers change from epoch to epoch, as
            they do where frames do not stay. With `shuffle=False` they never change.
        even_batches: give all ranks and workers equally many clips and batches. If the clips cannot
            be divided so, some parts repeat one clip of another part, or with `drop_last` leave one
            out. If false, every clip comes exactly once, and ranks may get one batch more than
            others, or none: for evaluation. With `order="sequences"` episodes are cut so that all
            rows are equally long; if false, no episode is, and the last batches have fewer rows.
        memory_limit: bytes, or text such as "2GiB", for each process: for the frames held, for
            batches being filled and the two that the consumer has at a time, and for chunks being
            read. By default 2 GiB, or what it takes to mix batches well where that is more; but at
            most 8 GiB for a rank, divided among its worker processes. So the default follows from
            the clips, the batches and the number of workers, never from the machine; a warning says
            what would mix better. An epoch is refused where the ranks of a machine would take more
            than 80 % of its memory. With a `device`, frames and batches are in the device's memory;
            the host also needs pinned memory for the decoded frames of the chunks being read and of
            two more, each rounded up to a power of two by torch. Where all frames that this process
            needs fit into the limit beside batches and chunks, they stay in memory, decoded, as
            long as the object lives: later epochs decode no frame again. This applies to frames of
            fixed shapes that are small (64 KiB), or of which a feature is video or encoded, and for
            the results of a `frame_transform` under `deterministic_transform`; large raw frames are
            read again. Frames stay on a `device` under an explicit limit only, but for small ones.
            Worker processes keep frames as long as they live: `persistent_workers=True`. The
            batches that a DataLoader prefetches from its workers (`prefetch_factor` for each
            worker, two by default) come on top.
        device: where tensors go, such as "cuda:1"; "cuda" is the GPU that is the current one of the
            thread that asks for an iteration's first batch. Behind threads of others, as those of
            torchdata's nodes, that is the first GPU for every rank: say "cuda:1" there. Each frame
            is copied to the device once, and batches are made there, on a stream of their own. The
            stream that is current in `next` waits for that stream, so you need not synchronize. Not
            in a DataLoader's worker processes. By default tensors stay on the host; "cpu" gives the
            same tensors by the steps that a device takes.
        rank: which part of the epoch this process gets, of `world_size`. By default both are found
            when an epoch begins: from `torch.distributed` if it is initialized, else from `RANK`
            and `WORLD_SIZE` in the environment (torchrun), or `LOCAL_RANK`, `NODE_RANK` and
            `WORLD_SIZE` (Lightning). Workers take them from the process that started them, and
            always share the part of that process. Accelerate with several processes finds none:
            see docs/ranks.md.
        world_size: how many ranks share the epoch. 1: every process gets the whole epoch.
        engine: `EngineOptions`: how an epoch is executed, for those who tune it.
    """

    order: str = _checked("clips", one_of(*ORDERS))
    shuffle: bool = _checked(True, _check_flag)
    seed: int = _checked(0, lambda _, value: check_seed(value))
    rotate_phase: bool = _checked(False, _check_flag)
    batch_size: int | None = _checked(None, _integer_from(1))
    drop_last: bool = _checked(False, _check_flag)
    fixed_shards: bool = _checked(True, _check_flag)
    even_batches: bool = _checked(True, _check_flag)
    memory_limit: int | str | None = _checked(None, check_size)
    device: str | torch.device | None = _checked(None, _only(_check_device))
    rank: int | None = _checked(None, _integer_from(0))
    world_size: int | None = _checked(None, _integer_from(1, _MOST_RANKS))
    engine: EngineOptions | None = _checked(
        None, _such(lambda one: isinstance(one, EngineOptions), "seqrecord.EngineOptions(…)")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.rank is self.world_size is None:
            rank = 0 if self.rank is None and self.world_size == 1 else self.rank
            if rank is None or rank >= (self.world_size or 0):
                raise ClipError(
                    "rank and world_size do not go together",
                    expected="0 <= rank < world_size; or world_size=1 alone; or neither",
                    got=f"rank={self.rank} world_size={self.world_size}",
                )
            object.__setattr__(self, "rank", rank)
        if self.order == "sequences":
            self._check_sequences()
        for name in _SHUFFLING:
            value = getattr(self.tuning, name)
            if value is not None and not self.shuffle:
                raise ClipError(
                    f"engine.{name} shuffles clips, and shuffle=False",
                    expected=f"shuffle=True, or no {name}",
                    got=value,
                )
        if self.rotate_phase and self.spec.stride == 1:
            raise ClipError(
                "rotate_phase has no effect: with stride=1 every epoch has every start",
                expected="a stride above 1, or no rotate_phase",
            )
        if self.drop_last and self.batch_size is None and not self.even_batches:
            raise ClipError(
                "drop_last has no effect on single clips with even_batches=False",
                expected="a batch_size, or even_batches=True, or no drop_last",
            )
        decoder = f"engine.video_decoder={self.tuning.video_decoder!r}"
        if self.tuning.video_decoder != "pyav" and self.device is None:
            expected = "a device too, such as device='cuda'; or no video_decoder"
            raise ClipError(f"{decoder} decodes on a device", expected=expected, got="no device")
        is_on_host = self.frame_transform is not None or self.resize is not None
        if self.tuning.video_decoder != "pyav" and is_on_host:
            raise ClipError(
                f"{decoder}, but frame_transform and resize are for frames of the host",
                expected="no resize and no frame_transform; or no video_decoder",
                got=f"device={self.device}, and both",
            )

    @property
    def tuning(self) -> EngineOptions:
        """`engine`, or its defaults."""
        return self.engine or EngineOptions()

    @property
    def _usual_stride(self) -> int:
        return (self.clip_len or 1) * self.dilations[0] if self.order == "sequences" else 1

    def _check_sequences(self) -> None:
        if self.batch_size is None:
            expected = "the number of rows in a batch; a mix has no sequences"
            raise ClipError('order="sequences" needs a batch_size', expected=expected)
        taken = {"clips": self.clips}
        taken |= {f"engine.{name}": getattr(self.tuning, name) for name in _SHUFFLING}
        if given := [name for name in taken if taken[name] is not None]:
            names = " and ".join(given)
            raise ClipError(f'order="sequences" takes no {names}', expected=f"no {names}")
        if self.has_drawn_steps:
            raise ClipError(
                'order="sequences" takes neither several dilations nor reverse',
                expected="one dilation, reverse=0",
                got=f"dilation={self.dilation}, reverse={self.reverse:g}",
            )
