"""User functions of clips, and random draws for clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.clips.transforms import ClipFunction, VaryingClipFunction
from seqrecord.loader.engine.tensors import user_array
from seqrecord.loader.frames.array_specs import (
    ArraySpec,
    add_place,
    arrays_by_name,
    check_arrays,
    unchanged_values,
)
from seqrecord.loader.frames.trials import check_signature, repeatable
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.bfloat16 import as_array
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.text import repr_of
from seqrecord.store.value_kinds import object_kind

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps


_NAME = "clip_transform"


@dataclass(frozen=True, eq=False)
class ClipFunctions:
    """A chain of functions from clips with the features `names` to features of batches.

    `made` has the dtypes and shapes of the results, [frames, …]. Lists of texts are allowed for
    text features, whose spec limits their size: the results `listed`. The results `single` are a
    text per clip, or an array of varying length: `made` has one frame of them. The `images` have
    columns of cameras, which describe frames of their size before the functions.
    """

    functions: tuple[ClipFunction, ...]
    dataset: Dataset
    names: tuple[str, ...]
    made: Mapping[str, ArraySpec]
    images: frozenset[str] = frozenset()
    single: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    unchanged: frozenset[str] = frozenset()  # features that the functions do not change

    @classmethod
    def of(
        cls,
        functions: tuple[ClipFunction, ...],
        dataset: Dataset,
        clip: Mapping[str, Any],
        columns: Mapping[str, Any],
        episode: int,
        start: int,
        arrays: Mapping[str, ArraySpec],
        images: frozenset[str] = frozenset(),
    ) -> ClipFunctions:
        """Call the functions with one clip to determine dtypes and shapes of the results.

        `columns` belong to a batch with this clip; `episode` and `start` are its episode row and
        first frame, `arrays` the specs of its features.

        Raises the functions' errors, and `ClipError` for results that do not fit into a batch, for
        functions without the arguments clip and generator, for results that do not depend on
        the seed alone, see `repeatable`, and for a function that changes the size or the number of
        frames of `images`.
        """
        unknown, row = cls(functions, dataset, tuple(clip), {}, images), _rows(columns)(0)
        arguments: list[dict[str, Any]] = []  # of each call

        def call() -> dict[str, Any]:
            arguments.append({name: _copied(value) for name, value in clip.items()})
            return unknown._call(arguments[-1], row, seed=0)

        try:
            for function in functions:
                check_signature(f"a function of {_NAME}", function, "clip", "generator")
            values = repeatable(
                f"a function of {_NAME}",
                call,
                expected="random numbers from the argument generator, such as factors for "
                "torchvision.transforms.v2.functional; or transforms of whole batches in the "
                "training loop",
            )
            largest = {
                name: _array(name, value)
                for function in functions
                if isinstance(function, VaryingClipFunction)
                for name, value in arrays_by_name("example", function.example).items()
            }
            specs = {
                name: _varying_spec(name, largest[name])
                if name in largest
                else _spec_of(name, value, arrays)
                for name, value in values.items()
            }
            texts = {name for name, value in values.items() if object_kind(value) is not None}
            single = frozenset(texts.union(largest).intersection(specs))
            listed = frozenset(name for name, value in values.items() if isinstance(value, list))
            unchanged = unchanged_values(arguments[0], clip, values)
            clip_functions = replace(
                unknown, made=specs, single=single, listed=listed, unchanged=unchanged
            )
            clip_functions._check(values)
        except Exception as error:
            unknown.add_place(error, episode, start)
            raise
        return clip_functions

    def calls_for(
        self, seed: int, epoch: int, clips: IntArray, episode: IntArray, start: IntArray
    ) -> Calls:
        """Calls for clips, given by episode rows and first frames; int64[n] each.

        `clips`, int64[n], identifies clips in all epochs.
        """
        return Calls(
            self, episode, start, hash64(key_of(Purpose.CLIP_FUNCTIONS, seed, epoch), clips)
        )

    def call(self, clip: dict[str, Any], row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Call the functions with a clip and its columns. Raises `ClipError` if dtypes or shapes
        differ from the first clip's.
        """
        arrays = self._call({name: clip[name] for name in self.names}, row, seed)
        self._check(arrays)
        return arrays

    def _check(self, arrays: Mapping[str, Any]) -> None:
        check_arrays(_NAME, "clip", arrays, self._result_specs, self.listed)

    @cached_property
    def _result_specs(self) -> dict[str, ArraySpec]:
        """Specs of what the functions return: values of `single` have no axis of frames."""
        return {
            name: replace(spec, shape=spec.shape[1:]) if name in self.single else spec
            for name, spec in self.made.items()
        }

    def add_place(self, error: Exception, episode: int, start: int) -> None:
        """Add the clip's place to an error."""
        key = self.dataset.contents.index.key(episode)
        add_place(error, _NAME, file=self.dataset.url, episode=key, frame=start)

    def _call(self, clip: Any, row: Mapping[str, Any], seed: int) -> dict[str, Any]:
        generator = np.random.default_rng(seed)
        frames = {name: _frame_shapes(clip[name]) for name in self.images.intersection(clip)}
        for function in self.functions:
            results = arrays_by_name(_NAME, function({**clip, **row}, generator))
            clip = {
                name: value
                for name, value in results.items()
                if value is not row.get(name, results)
            }
            if clashes := [name for name in clip if name in row]:
                raise ClipError(
                    f"{_NAME} returns a value under the name of a batch's extra column",
                    expected="another name",
                    got=", ".join(clashes),
                )
            for name in frames.keys() & clip.keys():
                _check_frames(name, clip[name], frames[name])
        return {name: _array(name, value) for name, value in arrays_by_name(_NAME, clip).items()}


@dataclass(frozen=True, eq=False)
class Calls:
    """Calls for clips: episode rows, first frames, and seeds of the generators; `row` returns the
    columns of a clip by its number.
    """

    functions: ClipFunctions
    episode: IntArray
    start: IntArray
    seeds: npt.NDArray[np.uint64]
    row: Callable[[int], Mapping[str, Any]] = lambda _: {}

    def with_columns(self, columns: Mapping[str, Any]) -> Calls:
        """The calls with the columns of these clips, each a list or a tensor."""
        return replace(self, row=_rows(columns))

    def make(
        self,
        number: int,
        clip: dict[str, Any],
        out: Mapping[str, npt.NDArray[Any]],
        vectors: VectorSteps,
    ) -> dict[str, list[Any]]:
        """Call the functions with clip `number`, and write the results, after the steps `vectors`,
        to `out`, [frames, …] by feature.

        Returns the texts and the arrays of varying length, with an axis of frames.
        """
        try:
            arrays = self.functions.call(clip, self.row(number), int(self.seeds[number]))
        except Exception as error:
            place = int(self.episode[number]), int(self.start[number])
            self.functions.add_place(error, *place)
            raise
        for name in arrays.keys() & out.keys():  # a mix has features of other sources
            if (step := vectors.get(name)) is not None:
                step.write(arrays[name], out[name])
            else:
                np.copyto(out[name], arrays[name])
        single = self.functions.single
        loose_values = {name: value for name, value in arrays.items() if name not in out}
        return {name: [one] if name in single else one for name, one in loose_values.items()}


def _frame_shapes(clip: Any) -> list[tuple[int, ...]]:
    """The shapes of an image's frames [height, width, …]; of an array or a list of frames."""
    return [np.shape(frame) for frame in clip]


def _check_frames(name: str, value: Any, frames: Sequence[tuple[int, ...]]) -> None:
    """Raise `ClipError` if an image with frames of these shapes has others after a function.

    Its camera describes the frames before: their size and number. Axes may have moved: channels
    first, no axis of frames.
    """
    is_list = isinstance(value, list)
    shapes = _frame_shapes(value) if is_list else [np.shape(value)] * len(frames)
    sizes = [(height, width) for height, width, *_ in frames]
    for shape, size in zip(shapes, sizes, strict=False):
        if size not in pairwise(shape):
            raise ClipError(
                f"camera: a function of {_NAME} changes the size of an image",
                feature=name,
                expected=f"frames of {size[0]} x {size[1]} pixels, as their camera describes them; "
                "or resize=, or Resize and crops before the function, which move the camera, too; "
                "or another name for the result",
                got=f"an array {[*shape]}",
            )
    if is_list:
        is_complete = len(shapes) == len(frames)
    else:
        leading = shapes[0][: [*pairwise(shapes[0])].index(sizes[0])]
        is_complete = len(frames) in leading or len(shapes[0]) <= len(frames[0])
    if not is_complete:
        raise ClipError(
            f"camera: a function of {_NAME} changes the number of an image's frames",
            feature=name,
            expected=f"{len(frames)} frames, as their camera describes them; or windows=, "
            "dilation= or samples=, which choose frames of both; or another name for the result",
            got=f"{len(shapes)} frames" if is_list else f"an array {[*shapes[0]]}",
        )


def read_only(array: Any) -> Any:
    """A read-only view of an array; texts are returned unchanged."""
    if not isinstance(array, np.ndarray):
        return array
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view


def _copied(value: Any) -> Any:
    """A copy of a clip's feature."""
    if isinstance(value, list):
        return [_copied(frame) for frame in value]
    return value.copy() if isinstance(value, np.ndarray) else value


def as_arrays(clip: Any) -> Any:
    """Convert a feature of a clip to arrays or texts."""
    if isinstance(clip, torch.Tensor):
        return user_array(clip)
    return [as_arrays(frame) for frame in clip] if isinstance(clip, list) else clip


def _rows(columns: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """A function from the number of a clip to its columns, from the columns of a batch."""
    values = {
        name: read_only(column.numpy()) if isinstance(column, torch.Tensor) else column
        for name, column in columns.items()
    }
    return lambda number: {name: column[number] for name, column in values.items()}


def _array(name: str, value: Any) -> Any:
    """Convert a result to an array, a text or a list of texts."""
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, bytes)):
        return list(value)
    try:
        return as_array(value)
    except (TypeError, ValueError) as error:
        raise ClipError(
            f"{_NAME} returns a value that is not an array",
            feature=name,
            expected="an array; pad or resize frames of different shapes",
            got=repr_of(value, 100),
        ) from error


def _spec_of(name: str, value: Any, input_specs: Mapping[str, ArraySpec]) -> ArraySpec:
    if not isinstance(value, (list, str, bytes)):
        if not value.ndim:
            raise ClipError(
                f"{_NAME} returns a scalar",
                feature=name,
                expected="an array with at least one axis",
                got=f"{value.dtype} []",
            )
        return ArraySpec(value.dtype, value.shape)
    texts = value if isinstance(value, list) else [value]
    return replace(text_spec(_NAME, name, texts[0], input_specs), shape=(len(texts), None))


def _varying_spec(name: str, largest: Any) -> ArraySpec:
    """Spec of results, each one frame, from the largest one."""
    if (kind := object_kind(largest)) is not None:
        return ArraySpec(np.dtype(np.uint8), (1, None), kind.nbytes_of(largest), kind.value)
    if not isinstance(largest, np.ndarray) or not largest.nbytes:
        raise ClipError(
            f"the example in a function of {_NAME} is not valid",
            feature=name,
            expected="the largest result: an array with values, or a text",
            got=repr_of(largest, 50),
        )
    return ArraySpec(largest.dtype, (1, None, *largest.shape[1:]), largest.nbytes)


def text_spec(
    caller: str, name: str, text: str | bytes, input_specs: Mapping[str, ArraySpec]
) -> ArraySpec:
    """Spec of a text feature that a function returns: equal to the function's input.

    Raises `ClipError` if the feature had no texts before. `caller` names the function in messages.
    """
    kind = object_kind(text)
    assert kind is not None, "neither str nor bytes"
    if name not in input_specs or input_specs[name].value_kind is not kind:
        raise ClipError(
            f"{caller} returns texts of unknown size",
            feature=name,
            expected=f"arrays; {kind.value} under the name of a {kind.value} feature, or in the "
            "attribute `example` of a function of clips, see seqrecord.types.VaryingClipFunction",
            got=repr_of(text, 50),
        )
    return input_specs[name]
