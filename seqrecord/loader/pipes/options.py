"""Arguments of the loaders, each defined once: name, type, default, check and documentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from seqrecord.errors import ClipError
from seqrecord.loader.clips.samples import OF_CLIPS
from seqrecord.loader.clips.windows import Nearest, Windows, check_windows
from seqrecord.loader.frames.trials import check_signature
from seqrecord.loader.pipes.option_values import (
    Budget,
    FrameCache,
    FrameTransform,
    Ragged,
    Vector,
    check_ragged,
    check_vectors,
)
from seqrecord.loader.pipes.registered_columns import ColumnOptions, check_columns
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.orders import ORDERS, Order, find_order
from seqrecord.loader.sampling.plan_settings import LAST_BATCH
from seqrecord.loader.sampling.sample_functions import BuiltIn, SampleFunction, SampleFunctions
from seqrecord.loader.sampling.shard_batches import BatchDraws
from seqrecord.store.areas import DEVICE, load_entry
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.filters import EpisodeFilter, check_filter
from seqrecord.store.reading.resizing import Sizes
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import repr_of
from seqrecord.store.units import (
    MAX_INT,
    are_names,
    check,
    check_flag,
    check_integer,
    check_names,
    check_seed,
    check_size,
    raise_if,
)
from seqrecord.store.value_kinds import FrameFunction

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from seqrecord.loader.clips.transforms import Camera, ClipFunction, ClipTransform
    from seqrecord.store.tables.arrow_tables import TableLike

MOST_THREADS = 1024  # of a loader, or of all sources of a mix
MOST_RANKS = (1 << 31) - 1
_OF_FRAMES = ("clip_len", "windows", "pad")
_FRAMES_BY_WINDOWS = (
    "; or a column start instead of frames, and windows with anchors where frames differ from clip "
    'to clip: windows={"image": [0, At("goal")]}'
)
_STEPS = {"dilate": "dilation", "reverse": "reverse", "subset": ""}
"""Built-in functions that choose the frames of clips, and the column of a table that does so."""


SamplesLike: TypeAlias = "TableLike | SampleFunction | Sequence[TableLike | SampleFunction]"
"""A table, a function that changes an epoch's table, or a list, first maybe a table."""

_Kind = TypeVar("_Kind")
_Options = TypeVar("_Options")

_Check: TypeAlias = Callable[[str, Any], Any]
"""Takes an argument's name and value, and returns the stored value; raises `ClipError`."""


def _checked(default: Any, check: _Check, **more: Any) -> Any:
    """Define a dataclass field of an argument with its check.

    The default passes unchecked. `more` has further arguments of `dataclasses.field`.
    """
    return field(default=default, metadata={"check": check}, **more)


def _satisfies(is_right: Callable[[Any], bool], expected: str) -> _Check:
    """Make a check from a predicate."""
    return lambda name, value: check(name, value, is_right(value), expected)


def _is_a(kind: type, arguments: str) -> _Check:
    """Make a check for a value of a class in the package."""
    expected = f"seqrecord.{kind.__name__}({arguments})"
    return lambda name, value: check(name, value, isinstance(value, kind), expected)


def one_of(*texts: str) -> _Check:
    """Make a check for a choice of texts."""
    expected, words = " or ".join(map(repr, texts)), {*texts}
    return lambda name, value: check(
        name, value, isinstance(value, str) and value in words, expected
    )


def _integer_from(least: int, most: int = MAX_INT) -> _Check:
    """Make a check for an integer in [least, most]."""
    return lambda name, value: check_integer(name, value, least=least, most=most)


def _passes(function: Callable[[Any], object]) -> _Check:
    """Make a check from a function that raises; the value is unchanged."""
    return lambda _, value: (function(value), value)[1]


def _check_clip_len(name: str, value: Any) -> int | tuple[int, int]:
    """Return a length, or the least and the greatest one."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return check_integer(name, value, least=1)
    expected = "an integer, or the least and the greatest one such as (2, 24)"
    check(name, value, len(value) == 2, expected)
    least, most = (check_integer(name, one, least=1, expected=expected) for one in value)
    check(name, value, least <= most, expected)
    return (least, most) if least < most else most


def _check_resize(name: str, value: Any) -> Any:
    """Return a size, or sizes by feature."""
    from seqrecord.loader.clips.transforms import checked_size

    if not isinstance(value, Mapping):
        pair = f"height and width in pixels: {name}=(H, W), in YAML [H, W]"
        return checked_size(name, value, pair=pair)
    is_right = bool(value) and are_names(list(value))
    check(name, value, is_right, 'a dict by feature: {"camera": (224, 224)}')
    return {
        feature: checked_size(
            f"{name} of {feature}",
            size,
            pair=f"height and width in pixels: {name}={{{feature!r}: (H, W)}}, in YAML [H, W]",
        )
        for feature, size in value.items()
    }


def _check_clip_transform(_name: str, value: Any) -> Any:
    """Return crops, flips and functions."""
    from seqrecord.loader.clips.transforms import chain_of

    chain_of(value)
    return value


def _check_rename(name: str, value: Any) -> Any:
    """Return new names by stored names."""
    is_dict = isinstance(value, Mapping) and are_names(value) and are_names([*value.values()])
    is_right = is_dict and len({*value.values()}) == len(value)
    return check(name, value, is_right, 'a dict such as {"image_left": "image"}: no name twice')


def _check_function(function: Any) -> None:
    """Raise `ClipError` for a function of samples with other arguments."""
    if not isinstance(function, BuiltIn):
        check_signature("a function of samples", function, "samples", "epoch", "rng")


def _check_samples(name: str, value: Any) -> Any:
    """Return a table, a function, or a list of functions that may begin with a table.

    The path of a Parquet file becomes a `Path`.
    """
    if isinstance(value, (list, tuple)):
        expected = "a list of functions, which may begin with a table"
        check(name, value, bool(value) and all(map(callable, value[1:])), expected)
        for function in value[1:]:
            _check_function(function)
        return [_check_samples(name, value[0]), *value[1:]]
    if callable(value):
        _check_function(value)
    is_path = isinstance(value, (str, PathLike))
    return Path(local_path(value, name)) if is_path else value


def _check_batch_size(name: str, value: Any) -> Any:
    """Return a number of clips, or a `Budget`."""
    return value if isinstance(value, Budget) else check_integer(name, value, least=1, most=MAX_INT)


def _check_order(name: str, value: Any) -> Any:
    """Return the name of an order."""
    is_right = isinstance(value, str) and value in ORDERS
    return check(name, value, is_right, " or ".join(map(repr, ORDERS)))


def _check_rank(name: str, value: Any) -> tuple[int, int]:
    """Return a rank and the number of ranks."""
    expected = f"a pair (rank, world_size) with 0 <= rank < world_size <= {MOST_RANKS}"
    check(name, value, isinstance(value, Sequence) and len(value) == 2, expected)
    rank, ranks = (check_integer(name, one, least=0, expected=expected) for one in value)
    check(name, value, rank < ranks <= MOST_RANKS, expected)
    return rank, ranks


def _check_fields(options: Any, of: str = "") -> None:
    """Check a dataclass's fields, and store each as a Python value; `of` prefixes names."""
    for item in fields(options):
        value = getattr(options, item.name)
        if "check" in item.metadata and value is not item.default:
            value = item.metadata["check"](of + item.name, value)
            object.__setattr__(options, item.name, value)


def _check_rules(options: _Options, rules: Iterable[Rule[_Options]]) -> None:
    """Raise `ClipError` for the first rule that options break."""
    for rule in rules:
        if rule.concerns(options) and rule.is_broken(options):
            raise rule.error(options)


def _check_device(value: Any) -> None:
    load_entry(DEVICE).check(value)


class DerivedOptions:
    """What follows from the arguments, computed once when they are checked.

    Attributes:
        table: the table of `samples`, if it has one.
        table_columns: its columns; those of clips, not of segments.
        lists_frames: whether it lists the frames of each clip.
        functions: the functions of `samples`.
        built_ins: the arguments of the built-in ones by name; of the first of two.
        clip_lens: the least and the greatest `clip_len`, if it is drawn for each batch.
        most_frames: the greatest `clip_len`.
        span: the number of frames from which the frames of a clip are drawn.
        frames_of_span: the frames from which a clip's frames come; 1 without `clip_len`.
        dilations: the dilations to draw from, in ascending order, or the only one.
        has_drawn_steps: whether frames, dilation or direction are drawn for each clip.
        own_windows: offsets or `Seconds` of the features with a window of their own.
        nearest: the features with the newest or the next value in each frame.
        has_windows: whether clips differ from plain runs of `clip_len` frames inside their
            episodes.
        cameras, clip_functions: the parts of `clip_transform`: crops and flips of each camera, then
            functions.
        draws_sizes: whether the size of frames is drawn for each batch.
        epoch_order: the order of epochs that `order` names.
        spec: the clips, of phase 0; with windows or `pad`, clips of one frame at each start.
    """

    table: TableLike | None
    table_columns: frozenset[str]
    lists_frames: bool
    functions: SampleFunctions
    built_ins: Mapping[str, Mapping[str, Any]]
    clip_lens: tuple[int, int] | None
    most_frames: int | None
    span: int | None
    frames_of_span: int
    dilations: tuple[int, ...]
    has_drawn_steps: bool
    own_windows: Mapping[str, Any]
    nearest: Mapping[str, Nearest]
    has_windows: bool
    cameras: tuple[Camera, ...]
    clip_functions: tuple[ClipFunction, ...]
    draws_sizes: bool
    epoch_order: Order
    spec: ClipSpec


@dataclass(frozen=True, kw_only=True)
class ClipOptions(DerivedOptions):
    """Selection and form of a dataset's clips: arguments of every loader.

    Args:
        clip_len: frames of a clip, N, at most 2^20. Optional if there are `windows`; features with
            a window do not depend on it. `(2, 24)`: drawn for each batch from 2 to 24, each equally
            likely, and equal on all ranks at each step. A clip is skipped if it is incomplete with
            the greatest length. Requires a `batch_size`, of the loader or of the mix around it, and
            excludes `windows`, `order="sequences"`, functions in `clip_transform`, and
            `SeqRecordMapDataset`.
        stride: frames from the start of one clip to the start of the next, at least 1. Default: 1,
            every start; with `order="sequences"` the length of a clip.
        dilation: frames between neighbouring frames in a clip of `clip_len` frames, at least 1.
        windows: frames of individual features relative to the clip's `start`, as a dict of frame
            offsets or seconds: `{"image": [-1, 0], "action": range(16), "imu": Seconds(-0.5, 0)}`.
            Seconds use the episode's frames per second, or its timestamps. `{"gps":
            Latest(max_age=60)}` returns the newest value at or before each frame, for features that
            some frames lack, and `Next` the next one. `{"image": [0, At("goal")]}` has the frames
            `start` and `goal`, a column of `samples`. A feature without a window has `clip_len`
            frames; without `clip_len`, the frame `start` alone. Each feature is read for its own
            window only. With `frame_transform`, windows apply to the arrays that it returns.
        squeeze_time: remove the frame axis of features without a window, which have one frame:
            [batch, …] instead of [batch, 1, …], and a text instead of a list with one text. For
            `clip_len` 1 or `None`. Features of variable shape without padding and results of
            `clip_transform` functions keep their axis.
        pad: clips with frames outside their episode. `None` (default): skipped. "edge": the
            episode's first or last frame replaces missing frames, so every frame is a start.
            "before": only before the first frame. "after": only behind the last frame. Each feature
            with a window (with `clip_len`: every feature) gets a mask `<feature>_is_pad`, bool [T].
        features: names of the features to read. Default: all. Clips are skipped if one of their
            frames lacks a requested feature.
        rename: new names by stored names, such as `{"image_left": "image"}`; `features` uses stored
            names. All other arguments, transforms, clips and the loader's `dataset` use the new
            names. Saved states do not depend on it.
        episodes: selection of episodes: a list of keys, a list of numbers in dataset order (of an
            original read in place with its bad episodes), a glob on keys, or a predicate. A
            predicate receives the metadata of an episode, a dict with the attributes `key`,
            `num_frames`, `fps` and `split`.
        split: name of a split; selects its episodes. See `seqrecord split`.
        skip_bad_episodes: leave out selected episodes of an original that cannot be read. Default:
            an error. `Dataset.bad_episodes` has the reasons.
        samples: the samples of an epoch, a clip for each: a table, a function of an epoch's table,
            or a list of functions, which may begin with a table. Default: every start at which a
            clip is complete, every `stride` frames.

            A function is a built-in one of `seqrecord.samples`, such as `future_goal()`, or one of
            your own, `f(samples, epoch, rng)`. It takes and returns `seqrecord.samples.Samples`:
            rows that it leaves out, and columns that it adds. Every process calls it once per
            epoch, so it must depend on its arguments alone.

            A table is a dict of columns, a table of Arrow, pandas or Polars, or the path of a
            Parquet or Arrow file. Columns: `episode`, keys or numbers; `start`, first frames, or
            `frames`; in place of these also `episode_index`, `frame_index`, `frame` and `index`,
            see docs/join.md. Without start and frames, a row stands for all clips of its episode.
            `frames` lists the frames of each clip, such as `[3, 41]`, in any order; then `clip_len`
            must be `None`, batches have the column `frames`, int64 [batch, T], and `start` is the
            earliest frame. If lists differ in length, `ragged` gives the form of features, `frames`
            has -1 behind a shorter list, and `frames_is_pad`, bool [batch, T], is true there.
            `episodes` filters the table; with `start` or `frames`, `stride` must be 1.

            Optional columns: `repeat`, mean number of occurrences in an epoch, 1 by default: 2.3
            means two occurrences in most epochs and three in the others, as the seed decides;
            `dilation` and `reverse`, integers and booleans, the frames of each clip. Batches have
            every other column: numbers as a tensor [batch], texts as a list, lists of numbers, all
            of one length, as a tensor [batch, length]. Missing numbers of a float column are NaN,
            missing texts `None`. Rows may be equal, or differ only in these columns. For spans with
            `start` and `stop` or `end` see `seqrecord.samples.segments`.
        metadata: names of the episodes' metadata entries that become columns: the value for a clip,
            a list of values for a batch. `None` if an episode lacks the entry.
        resize: height and width in pixels: `{"camera": (224, 224)}` by feature, or `(224, 224)` for
            all images. Frames are resized once, directly after decoding. Images (kind `image`, or
            uint8 with 3 or 4 channels and no kind) are interpolated with antialiasing; depth,
            masks, segmentation and normals take the nearest pixel; other kinds are refused.
            `frame_transform`, `clip_transform` and the loader's `dataset` receive resized frames.
            Features of kind `intrinsics` become those of the resized frames, and so do the
            intrinsics of `camera`.
        frame_cache: `FrameCache("/nvme/frames", "200GiB")`: a folder on a local disk where decoded
            frames are kept, for later epochs, processes and trainings: of video, encoded images and
            resized features, if all have one shape. Frames that are missing there are decoded. It
            changes no frame, order, state or memory, and its errors are warnings. Also used by
            `SeqRecordMapDataset`. With a `frame_transform`, its results are kept if it has a
            `cache_key`. Not for video decoded on a `device`. Default: the environment variables
            `SEQRECORD_FRAME_CACHE` and `SEQRECORD_FRAME_CACHE_LIMIT`. See docs/performance.md.
        frame_transform: function called once for each decoded frame with a dict of arrays. It
            returns the arrays that make up clips, with the same dtypes and shapes for every frame.
            Texts are `str` and `bytes`, also in results under the names of text features. It runs
            in several threads, and twice for the first frame when the loader is created: results
            must not be random. `FrameTransform(function, deterministic=True)` declares that the
            result for a frame is always the same: results may then be kept in memory, see
            `memory_limit`.
        clip_transform: `RandomCrop`, `CenterCrop`, `RandomResizedCrop`, `Resize`, `BatchResize`,
            `HorizontalFlip`, a function, or a list of these, applied in order. All frames of a clip
            share one crop window, and only the window is copied or resized. Windows are drawn from
            seed, epoch and clip (`SeqRecordMapDataset` draws from torch's global generator).
            Batches have the columns `crop`, int64 [batch, 4], with top, left, height and width in
            pixels of the stored frame, and `flipped`, bool [batch], on the host. Features of kind
            `intrinsics` and `distortion`, and the columns of `camera`, become those of the visible
            image. A dict has separate steps for features, such as cameras of different sizes:
            `{"front": RandomCrop(224), "wrist": Resize((224, 224))}`; features that it does not
            name, such as a camera's depth, are unchanged, and columns are `front_crop` and so on.
            If frame sizes differ between episodes, each window fits its own episode.

            Functions come after crops and flips. A function is called once for each clip with a
            dict and a `numpy.random.Generator` seeded by seed, epoch and clip. The dict has
            arrays [clip_len, …] that it may change (a list of arrays for a feature of variable
            shape, a list of texts for a text feature), and the clip's values in all
            columns of the batch: `episode`, `start`, masks `<feature>_is_pad`, columns of
            `samples`, metadata. A function returns the arrays of the batch, each with at least one
            axis and with the same dtype and shape for every clip, or lists of texts for a text
            feature. Unchanged columns in the result are ignored, others under the name of a column
            are an error. An example of the largest declares other texts and arrays of varying
            length, see `seqrecord.types.VaryingClipFunction`. It runs in several threads, and twice
            for the first clip when the loader is created: a function that uses a global generator
            (`torch`, `numpy.random` or `random`), or whose results differ, raises `ClipError`. With
            a `device`, there are crops and flips only.
        ragged: form of features with variable shape, except texts. "list" (default): a list of
            tensors, one per frame. "pad": one tensor as large as the largest frame in the selected
            episodes (with a `Budget`, in the batch), filled with zeros, and `<feature>_mask`, bool
            [clip_len, length], true for values of the frame. "nested": a nested tensor of layout
            `torch.jagged`, [clip_len, ?, …] or [batch * clip_len, ?, …], if only the first
            dimension varies. A dict has a form for each feature, or the sizes to pad to, one per
            varying dimension: `{"points": "nested", "image": (480, 640)}`; other features are
            lists. Also the form of all features for lists of `frames` that differ in length:
            "list", a tensor [length, …] per clip; "pad", the last frame of a shorter list repeated;
            "nested", [batch, ?, …].
        vectors: form of vectors [D] and scalars in batches, by feature: `{"action":
            Vector(pad_to=32, normalize="mean_std")}`. `place` and `pad_to` make longer vectors,
            also in windows [T, D] that `derive` kept, and the column `action_dim_is_pad`, bool
            [batch, size], true where the source has no value; it is on the host. `normalize` makes
            float32 values by the stored statistics of the whole dataset (see `seqrecord stats`), or
            by a `Normalization`; a channel with one value only is divided by 1, and zeros of
            padding are kept. This comes last: `frame_transform` and the functions of
            `clip_transform` receive stored values, and intrinsics are those of the visible image. A
            feature that a crop, flip, resize or function changes needs a `Normalization` of the
            changed values. Not for images.
        camera: columns of the cameras of images, in one convention for all sources: `True`, or a
            `Camera`. For each image that has one: `<image>_pose`, [batch, T, 4, 4], camera-to-world
            with OpenCV's axes; `<image>_K`, [batch, T, 3, 3], in pixels of the image in the batch;
            `<image>_distortion`, [batch, T, 14], in OpenCV's order, and
            `<image>_distortion_model`, int64 [batch], 0 for none, 1 for OpenCV's, 2 for its fisheye
            model. Unknown values are 0, and true in `<image>_pose_is_missing`,
            `<image>_K_is_missing` and `<image>_distortion_is_missing`, bool [batch, T]. Positions
            are in metres where `is_metric`, bool [batch], and `camera_offset`, float64 [batch, 3],
            was subtracted from them. A dataset without features of poses has none of the columns of
            poses and positions. Poses and intrinsics are read although they are not in
            `features`; they have the frames of their image. They are on the host. Functions that
            change the size or number of such images are a `ClipError`. See docs/cameras.md.
        output: "torch" (default): tensors. "numpy": writable NumPy arrays on the same memory, which
            is reused after the last array or view is gone. Extra columns are arrays as well. Give a
            DataLoader a `collate_fn` that keeps arrays; see docs/jax.md. Excludes `device` and
            nested tensors. Saved states do not depend on it.
        seed: seed of the order and of every random draw, an integer of which 64 bits count.
    """

    clip_len: int | Sequence[int] | None = _checked(None, _check_clip_len)
    stride: int | None = _checked(None, _integer_from(1))
    dilation: int = _checked(1, _integer_from(1))
    windows: Windows | None = _checked(None, lambda _, value: check_windows(value))
    squeeze_time: bool = _checked(False, check_flag)
    pad: str | None = _checked(None, one_of("edge", "before", "after"))
    features: Sequence[str] | None = _checked(None, check_names)
    rename: Mapping[str, str] | None = _checked(None, _check_rename)
    episodes: EpisodeFilter = _checked(None, check_filter)
    split: str | None = _checked(
        None, _satisfies(lambda name: isinstance(name, str), "a split's name")
    )
    skip_bad_episodes: bool = _checked(False, check_flag)
    samples: SamplesLike | None = _checked(None, _check_samples, repr=False)
    metadata: Sequence[str] | None = _checked(None, check_names)
    resize: Sizes | None = _checked(None, _check_resize)
    frame_cache: FrameCache | None = _checked(None, _is_a(FrameCache, 'folder, "200GiB"'))
    frame_transform: FrameFunction | FrameTransform | None = _checked(
        None,
        _satisfies(lambda one: callable(one) or isinstance(one, FrameTransform), "a function"),
    )
    clip_transform: ClipTransform | None = _checked(None, _check_clip_transform)
    ragged: Ragged = _checked("list", _passes(check_ragged))
    vectors: Mapping[str, Vector] | None = _checked(None, check_vectors)
    camera: bool | ColumnOptions | None = _checked(None, check_columns)
    output: str = _checked("torch", one_of("torch", "numpy"))
    seed: int = _checked(0, lambda _, value: check_seed(value))

    usual_clip_len: ClassVar[int | None] = None
    """`clip_len` without windows and lists of frames, if it has a default."""

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value, with the argument's name."""
        _check_fields(self)
        self._derive_samples()
        self._derive_frames()
        _check_rules(self, _FRAME_RULES)
        length, dilations = self.most_frames or 1, self.dilations
        stride = self.stride or self.epoch_order.stride(length, dilations[0])
        if self.has_windows or not isinstance(self.clip_len, int):
            length, dilations = 1, (1,)  # single frames
        vars(self)["spec"] = ClipSpec(length, stride, dilations[0])  # has limits of its own
        if self.has_windows:
            for dilation in self.dilations:
                ClipSpec(self.frames_of_span, stride, dilation)
        _check_rules(self, _START_RULES)

    def _derive_samples(self) -> None:
        """Derive the values of `samples`."""
        parts: list[Any] = self.samples if isinstance(self.samples, list) else [self.samples]
        table, built_ins = None if callable(parts[0]) else parts[0], dict[str, Any]()
        functions, columns = tuple(filter(callable, parts)), frozenset[str]()
        for function in functions:
            if isinstance(function, BuiltIn):
                built_ins.setdefault(function.name, function.arguments)
        if table is not None:
            from seqrecord.loader.clips.sample_tables import column_names
            from seqrecord.loader.clips.segments import Segments

            columns = column_names(table.table if isinstance(table, Segments) else table)
            if isinstance(table, Segments):  # clips start every `stride` frames
                columns -= {"start", "stop", "end", "frames"}
        vars(self).update(table=table, functions=functions, built_ins=built_ins)
        vars(self).update(table_columns=columns, lists_frames="frames" in columns)

    def _derive_frames(self) -> None:
        """Derive the frames of clips."""
        if self.clip_len is None and self.windows is None and not self.lists_frames:
            vars(self)["clip_len"] = self.usual_clip_len
        length, lengths, built_ins = self.clip_len, None, self.built_ins
        if length is not None and not isinstance(length, int):
            lengths, length = length, length[1]
        span = built_ins.get("subset", {}).get("of")
        is_of_rows = not self.table_columns.isdisjoint(OF_CLIPS)
        is_drawn = lengths is not None or is_of_rows or not built_ins.keys().isdisjoint(_STEPS)
        windows, nearest = dict[str, Any](), dict[str, Nearest]()
        for name, window in (self.windows or {}).items():
            offsets: Any = window
            if isinstance(window, Nearest):
                nearest[name], offsets = window, window.window
            if offsets is not None:
                windows[name] = offsets
        cameras: tuple[Camera, ...] = ()
        functions: tuple[ClipFunction, ...] = ()
        if self.clip_transform is not None:
            from seqrecord.loader.clips.transforms import chain_of

            cameras, functions = chain_of(self.clip_transform)
        vars(self).update(
            clip_lens=lengths,
            most_frames=length,
            span=span,
            frames_of_span=span or length or 1,
            dilations=built_ins.get("dilate", {}).get("dilations", (self.dilation,)),
            has_drawn_steps=is_drawn,
            own_windows=windows,
            nearest=nearest,
            has_windows=bool(windows) or self.pad is not None or is_drawn,
            cameras=cameras,
            clip_functions=functions,
            draws_sizes=any(step.per_batch for camera in cameras for step in camera.steps),
            # A map-style dataset has none: each clip stands for itself.
            epoch_order=find_order(getattr(self, "order", "clips")),
        )

    @property
    def repeated_step(self) -> str | None:
        """The name of a function that changes the frames of clips, if `samples` has it twice."""
        names = [one.name for one in self.functions if isinstance(one, BuiltIn)]
        return next((name for name in _STEPS if names.count(name) > 1), None)

    def with_functions(self, *functions: SampleFunction) -> Self:
        """A copy with further functions of samples."""
        given = self.samples if isinstance(self.samples, list) else [self.samples]
        samples = [*(one for one in given if one is not None), *functions]
        return replace(self, samples=samples)

    def with_table(self, table: Any) -> Self:
        """A copy with another table of samples, and the same functions."""
        return replace(self, samples=[table, *self.functions])

    def with_episodes(self, numbers: Sequence[int]) -> Self:
        """A copy with episodes by their numbers."""
        return replace(self, episodes=numbers, split=None)

    @property
    def drawn_steps(self) -> str:
        """The arguments of drawn steps, for errors."""
        used = [n for n in _STEPS if n in self.built_ins] + [
            *self.table_columns.intersection(OF_CLIPS)
        ]
        return ", ".join([f"clip_len={self.clip_len}", *used])

    @property
    def taken_arguments(self) -> str:
        """The arguments for which the columns of a table leave no choice, for errors.

        Empty without such columns.
        """
        columns, lists, built_ins = self.table_columns, self.lists_frames, self.built_ins
        has_starts = not columns.isdisjoint(("start", "frames"))
        taken = {
            "stride": has_starts and self.stride not in (None, 1),
            **{name: lists and getattr(self, name) for name in _OF_FRAMES},
            **{step: step in built_ins and (lists or _STEPS[step] in columns) for step in _STEPS},
            "dilation": self.dilation != 1 and not columns.isdisjoint(("dilation", "frames")),
        }
        return ", ".join(name for name, is_taken in taken.items() if is_taken)

    @property
    def has_nested(self) -> bool:
        """Whether `ragged` asks for nested tensors."""
        forms = self.ragged.values() if isinstance(self.ragged, Mapping) else [self.ragged]
        return any(isinstance(form, str) and form == "nested" for form in forms)

    @property
    def pads_values(self) -> bool:
        """Whether `ragged` pads a feature to its largest frame."""
        forms = self.ragged.values() if isinstance(self.ragged, Mapping) else [self.ragged]
        return any(isinstance(form, str) and form == "pad" for form in forms)

    @property
    def dilates(self) -> bool:
        """Whether frames of a clip with `clip_len` frames are apart, or may be."""
        is_of_rows = self.table_columns & {"dilation", "frames"} == {"dilation"}
        return self.dilations != (1,) or is_of_rows


_FRAME_RULES: tuple[Rule[ClipOptions], ...] = (
    Rule(
        lambda options: options.output == "numpy" and options.has_nested,
        "NumPy has no nested arrays",
        'ragged="list" or "pad"; or output="torch"',
        lambda options: f"output='numpy' ragged={options.ragged!r}",
        arguments=("output",),
    ),
    Rule(
        lambda options: (
            options.clip_len is None and options.windows is None and not options.lists_frames
        ),
        "neither clip_len nor windows is given",
        "one, or both",
    ),
    Rule(
        lambda options: options.dilates and options.clip_len is None,
        "dilation is that of clip_len",
        "clip_len too",
        lambda options: options.dilation,
        arguments=("dilation", "samples"),
    ),
    Rule(
        lambda options: (
            options.squeeze_time and (options.clip_len not in (None, 1) or options.lists_frames)
        ),
        "squeeze_time is for clips with one frame of each feature without a window",
        "no lists of frames, and clip_len=1 or none",
        lambda options: f"clip_len={options.clip_len}",
        arguments=("squeeze_time",),
    ),
    Rule(
        lambda options: options.repeated_step,
        lambda options: f"samples has {options.repeated_step} twice",
        lambda options: f"one {options.repeated_step}(…)",
        arguments=("samples",),
    ),
    Rule(
        lambda options: options.dilation != 1 and "dilate" in options.built_ins,
        "dilation and dilate exclude each other",
        "dilate(…) alone",
        lambda options: options.dilation,
        arguments=("dilation",),
    ),
    Rule(
        lambda options: options.span and options.span < (options.most_frames or MAX_INT),
        "subset has fewer frames than a clip, or there is no clip_len",
        "at least the greatest clip_len",
        lambda options: f"subset(of={options.span}), clip_len={options.clip_len}",
        arguments=("samples",),
    ),
)
_START_RULES: tuple[Rule[ClipOptions], ...] = (
    Rule(
        lambda options: options.has_drawn_steps and options.own_windows,
        "dilate, reverse, subset, and a drawn clip_len are for clips of clip_len frames",
        "no windows, but for Latest() and Next()",
        lambda options: options.drawn_steps,
        arguments=("windows",),
    ),
    Rule(
        lambda options: options.taken_arguments,
        lambda options: (
            "segments have the dilation or the direction of each clip"
            if options.table_columns.isdisjoint(("start", "frames"))
            else f"samples has the {'frames' if options.lists_frames else 'starts'} of each clip"
        ),
        lambda options: (
            f"no {options.taken_arguments}"
            + (_FRAMES_BY_WINDOWS if options.lists_frames and options.windows else "")
        ),
        arguments=("samples",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class DatasetOptions(ClipOptions):
    """Arguments of `SeqRecordMapDataset`.

    Args:
        memory_limit: memory of each process for resident frames, as bytes or text such as "512MiB"
            (default). Small raw features, encoded features and the results of a deterministic
            `frame_transform` stay in memory once read, as long as the object lives, if all frames
            of the selected episodes fit; smaller features come first. Other features are read again
            in every call; on remote storage, the rest of the memory keeps their bytes. The memory
            of batches is extra. 0 keeps no frames.
    """

    memory_limit: int | str = _checked("512MiB", check_size)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_lens is not None or self.draws_sizes:
            raise ClipError(
                "draws per batch are for streams, and a map-style dataset has clips by number",
                expected="an integer clip_len, and no BatchResize; or a SeqRecordIterableDataset",
                got=f"clip_len={self.clip_len}, clip_transform={repr_of(self.clip_transform, 100)}",
            )


def _without_fixed_shards(kind: type[_Kind]) -> type[_Kind]:
    """A class of options whose former option is refused with the remedy."""
    init: Any = kind.__init__

    @wraps(init)
    def checked(self: _Kind, *args: Any, **given: Any) -> None:
        raise_if(
            "fixed_shards" in given,
            "engine.fixed_shards has been removed",
            "EngineOptions without it: shards keep their clips while all frames stay in memory, "
            "and a smaller memory_limit lets them change in every epoch",
            f"fixed_shards={given.get('fixed_shards')!r}",
        )
        init(self, *args, **given)

    kind.__init__ = checked  # type: ignore[assignment, method-assign]
    return kind


@_without_fixed_shards
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Tuning of an epoch's execution: the argument `engine` of loaders.

    Defaults suit most trainings; `seqrecord bench` measures a dataset. Errors name arguments as
    `engine.num_threads` and so on.

    Example:
        engine = seqrecord.EngineOptions(num_threads=4)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, engine=engine)

    Args:
        num_cursors: upper bound of the number of positions in the dataset from which clips are
            mixed, at least 1. Default: chosen from `memory_limit`. No effect with `shuffle=False`
            or `order="sequences"`, or if epochs are permuted.
        shuffle_buffer: greatest number of clips of a round, which are mixed with each other. The
            buffer stores no frames. Default: limited by `memory_limit` only. An epoch begins with
            two batches, and the number at most doubles in each round, for an early first batch. No
            effect with `shuffle=False` or `order="sequences"`, or if epochs are permuted.
        num_threads: threads for reading, decoding and copying, 1 to 1,024. Default: this process's
            share of the cores: the cores of its affinity and of the container's CPU quota, divided
            by the ranks on this machine (torchrun's `LOCAL_WORLD_SIZE`, or the variables of MPI and
            Slurm) and by the workers.
        video_decoder: "pyav" (default) decodes video on the host. "torchcodec" decodes on the
            `device`, directly into its memory: on GPUs by NVDEC. Unsupported videos fall back to
            PyAV, with one log line. Pixels may differ by a few units of 255, because YUV is
            converted by other code. Raises `ClipError` without a `device`, and with
            `frame_transform` or `resize`, which run on the host.
        trace: path for the spans of each iteration as Chrome trace event JSON, for
            https://ui.perfetto.dev. Each iteration replaces the file; a file that is no trace
            raises `DestinationError`. Ranks and workers write files beside it:
            `epoch.worker0.json`.
    """

    num_cursors: int | None = _checked(None, _integer_from(1))
    shuffle_buffer: int | None = _checked(None, _integer_from(1))
    num_threads: int | None = _checked(None, _integer_from(1, MOST_THREADS))
    video_decoder: str = _checked("pyav", one_of("pyav", "torchcodec"))
    trace: str | PathLike[str] | None = _checked(
        None, lambda name, value: (local_path(value, name), value)[1]
    )

    def __post_init__(self) -> None:
        """Raise `ClipError` for an invalid value."""
        _check_fields(self, "engine.")


_USUAL_ENGINE = EngineOptions()


class DerivedBatches:
    """What follows from the arguments of batches, computed once when they are checked.

    Attributes:
        budget: the budget of a batch.
        most_clips: the clips of the largest batch; `None` for single clips.
        frames_per_batch: the frames of the largest batch, if its number of clips varies.
        draws: the draws of each batch.
        tuning: `engine`, or its defaults.
    """

    budget: Budget | None
    most_clips: int | None
    frames_per_batch: int | None
    draws: BatchDraws | None
    tuning: EngineOptions


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(ClipOptions, DerivedBatches):
    """Arguments of `SeqRecordPipe`, `SeqRecordIterableDataset` and `SeqRecordNode`.

    Loaders take them as keyword arguments, or together by `from_options`; a loader's `options`
    returns them. `dataclasses.replace` changes a copy.

    Raises `ClipError` for an invalid value, with the argument's name.

    Args:
        order: "clips" (default): each clip by itself. "sequences": row b of every batch follows an
            episode clip by clip, then begins another episode, for models with a hidden state.
            Batches have the columns `is_first` and `is_last`, bool [batch], for the ends of
            sequences: ends of episodes, and gaps left by skipped clips. `stride` defaults to
            `clip_len * dilation`: clips do not overlap, and frames behind the last whole clip are
            skipped and counted. `shuffle` shuffles episodes. Requires `batch_size`, and excludes
            tables of `samples`. Each DataLoader worker has rows of its own: batch i continues batch
            i - num_workers. Parameters drawn by a `clip_transform` are the same for all clips of a
            sequence.
        shuffle: shuffled order (default); if false, episode by episode, front to back.
        batch_size: clips of a batch; `None` (default) for single clips. Or a `Budget`: as many
            clips as cost at most so much together, for example `Budget(48)` frames of lists that
            differ in length; see docs/budgets.md. With `clip_len=(2, 24)`, drawn for each batch,
            `Budget(48)` is 24 clips of 2 frames, 16 of 3, …, 2 of 24; the greatest length may not
            exceed the budget, unless its `too_large` is "alone". Workers of a rank may then differ
            in their numbers of batches; all ranks have the same.
        last_batch: clips that do not divide evenly among ranks, workers and batches. "repeat"
            (default): all ranks and workers get the same number of clips and batches; some repeat
            their first clip. "drop": batches are full and their number is the same on all ranks;
            the other clips are dropped. Without `batch_size`, the number of clips is the same.
            "keep": each clip comes exactly once, and a rank may get one batch more than others, or
            none: for evaluation. With `order="sequences"`, episodes are cut so that all rows have
            the same length; with "keep" they are whole, and the last batches have fewer rows.
        memory_limit: memory of each process for decoded frames, batches (in preparation, and two at
            the consumer) and chunks being read, as bytes or text such as "2GiB". Default: 2 GiB, or
            more if needed to mix batches well, up to 8 GiB for all workers of a rank together. The
            default depends on the clips, the batches and the number of workers, never on the
            machine; a warning names a limit that mixes better. An epoch raises `MemoryLimitError`
            above 80 % of the machine's memory for all its ranks.

            On remote storage, what the plan leaves of this memory keeps chunks as bytes, also for
            later epochs: see docs/order.md. It changes no order.

            If all frames of a process fit beside batches and chunks, they are kept in memory,
            decoded, as long as the object lives, and later epochs decode nothing. This applies to
            frames of fixed shape that are small (64 KiB) or have an encoded or video feature, and
            to the results of a deterministic `frame_transform`; large raw frames are read again.
            Workers keep frames while they live: use `persistent_workers=True`.

            With a `device`, frames and batches use the device's memory, and frames other than small
            ones are kept there under an explicit limit only. Pinned memory of the host is extra:
            decoded frames of the chunks being read and of two more, each rounded up to a power of
            two by torch. Batches that a DataLoader prefetches (`prefetch_factor` per worker, two by
            default) are extra.
        device: device of the tensors, such as "cuda:1". Default: the host. "cuda" is the current
            GPU of the thread that requests the first batch; in other threads, such as torchdata's
            nodes, this is GPU 0 for every rank, so pass "cuda:1". Each frame is copied to the
            device once, and batches are assembled there on a separate stream. The current stream in
            `next` waits for it, so no synchronization is needed. Unavailable in DataLoader workers.
            "cpu" returns the same tensors by the device's steps.
        rank: rank of this process and number of ranks, `(rank, world_size)`. With `(0, 1)` the
            process gets the whole epoch. Default: detected at the start of an epoch, from
            `torch.distributed` if initialized, else from `RANK` and `WORLD_SIZE` (torchrun) or
            `LOCAL_RANK`, `NODE_RANK` and `WORLD_SIZE` (Lightning). Workers inherit the rank of
            their parent process and share its clips. Give it under Accelerate and JAX with several
            processes; see docs/ranks.md.
        normalization: the numbers of `vectors` with `normalize` after a state is loaded that has
            others, because its dataset has grown since, for example. Default: an error. "state": as
            in the state, and so as in the training so far. "stored": by the arguments and the
            dataset's statistics now. No effect before a state is loaded.
        engine: tuning of the execution, an `EngineOptions`.
    """

    order: str = _checked("clips", _check_order)
    shuffle: bool = _checked(True, check_flag)
    batch_size: int | Budget | None = _checked(None, _check_batch_size)
    last_batch: str = _checked("repeat", one_of(*LAST_BATCH))
    memory_limit: int | str | None = _checked(None, check_size)
    device: str | torch.device | None = _checked(None, _passes(_check_device))
    rank: tuple[int, int] | None = _checked(None, _check_rank)
    normalization: str | None = _checked(None, one_of("stored", "state"))
    engine: EngineOptions | None = _checked(None, _is_a(EngineOptions, "…"))

    def __post_init__(self) -> None:
        super().__post_init__()
        budget = self.batch_size if isinstance(self.batch_size, Budget) else None
        clips, lengths = None if budget is not None else self.batch_size, self.clip_lens
        if budget is not None and lengths is None and budget.cost != "frames":
            clips = budget.max_rows or budget.size
        elif budget is not None:
            clips = budget.rows(lengths[0] if lengths is not None else self.most_frames or 1)
        frames = None if budget is None or lengths is None else budget.size
        vars(self).update(
            budget=budget,
            most_clips=clips,
            frames_per_batch=frames,
            draws=None if lengths is None else BatchDraws(*lengths, frames),
            tuning=self.engine or _USUAL_ENGINE,
        )
        _check_rules(self, (*_BATCH_RULES, *self.epoch_order.rules, *_DEVICE_RULES))


_BATCH_RULES: tuple[Rule[LoaderOptions], ...] = (
    Rule(
        lambda options: (
            options.budget is not None
            and options.clip_lens is not None
            and (options.budget.cost != "frames" or options.budget.max_rows is not None)
        ),
        "a drawn clip_len has batches by frames alone",
        "Budget(48), without cost and max_rows; or an integer clip_len",
        lambda options: f"clip_len={options.clip_len}, batch_size={options.budget}",
        arguments=("batch_size",),
    ),
    Rule(
        lambda options: (
            options.budget is not None
            and options.clip_lens is not None
            and options.clip_lens[1] > options.budget.size
            and options.budget.too_large != "alone"
        ),
        "the greatest clip_len costs more than the budget of a batch",
        "a smaller clip_len; too_large='alone', or a larger budget",
        lambda options: f"clip_len={options.clip_len}, batch_size={options.budget}",
        arguments=("batch_size",),
    ),
    Rule(
        lambda options: (
            options.budget is not None
            and options.budget.padded is False
            and options.ragged == "pad"
            and options.lists_frames
        ),
        'batches are padded by ragged="pad", and the budget does not count padding',
        'Budget(…) without padded=False; or ragged="list" or "nested"',
        lambda options: f"batch_size={options.budget}",
        arguments=("batch_size",),
    ),
)
_DEVICE_RULES: tuple[Rule[LoaderOptions], ...] = (
    Rule(
        lambda options: options.output == "numpy" and options.device is not None,
        "NumPy arrays are in host memory",
        "no device, and jax.device_put of the batches; or output='torch'",
        lambda options: f"output='numpy' device={options.device}",
        arguments=("output",),
    ),
    Rule(
        lambda options: options.tuning.video_decoder != "pyav" and options.device is None,
        lambda options: (
            f"engine.video_decoder={options.tuning.video_decoder!r} decodes on a device"
        ),
        "a device too, such as device='cuda'; or no video_decoder",
        lambda _: "no device",
        arguments=("engine",),
    ),
    Rule(
        lambda options: (
            options.tuning.video_decoder != "pyav"
            and (options.frame_transform is not None or options.resize is not None)
        ),
        lambda options: (
            f"engine.video_decoder={options.tuning.video_decoder!r}, but "
            "frame_transform and resize are for frames of the host"
        ),
        "no resize and no frame_transform; or no video_decoder",
        lambda options: f"device={options.device}, and both",
        arguments=("engine",),
    ),
)


def check_option(name: str, value: Any) -> Any:
    """Check one argument of a streaming loader, and return it as the options store it."""
    item = next(item for item in fields(LoaderOptions) if item.name == name)
    if "check" not in item.metadata or value is item.default:
        return value
    return item.metadata["check"](name, value)
