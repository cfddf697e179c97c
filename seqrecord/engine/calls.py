"""Functions that are called for each clip, what they make of it, and what is drawn for clips."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.tables import IntArray
from seqrecord.clips.transforms import ClipFunction
from seqrecord.engine.crops import Crop
from seqrecord.errors import ClipError
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import (
    ArraySpec,
    add_place,
    arrays_by_name,
    check_arrays,
    check_text,
    unchanged_values,
)
from seqrecord.reading.trials import check_signature, repeatable
from seqrecord.sampling.random_order import hash64, key_of
from seqrecord.text import repr_of

_SALT = 0x63616C6C  # the draws are not those of crops

_WHAT = "clip_transform"


@dataclass(frozen=True, eq=False)
class ClipFunctions:
    """Functions, one after the other, from clips with the features `names` to those of batches.

    `made` has the dtypes and shapes of their results, [frames, …]. Lists of texts may be among
    them, under the names of features of texts, which tell how long these are at most.
    """

    functions: tuple[ClipFunction, ...]
    dataset: Dataset
    names: tuple[str, ...]
    made: Mapping[str, ArraySpec]
    unchanged: frozenset[str] = frozenset()  # features that they leave as they are

    @classmethod
    def of(
        cls,
        functions: tuple[ClipFunction, ...],
        dataset: Dataset,
        clip: Mapping[str, Any],
        episode: int,
        start: int,
        arrays: Mapping[str, ArraySpec],
    ) -> ClipFunctions:
        """For what they make of one clip, which is that of this episode's row and first frame.

        `arrays` are of the features of a frame before.

        Raises what they raise, and `ClipError` for what no batch can hold, for functions that do
        not take a clip and a generator, and for those whose results no seed decides; see
        `repeatable`.
        """
        unknown = cls(functions, dataset, tuple(clip), {})
        try:
            for function in functions:
                check_signature(f"a function of {_WHAT}", function, "clip", "generator")
            values = repeatable(
                f"a function of {_WHAT}",
                lambda: unknown._call(dict(clip), seed=0),
                expected="numbers of the generator that it is given, such as factors for "
                "torchvision.transforms.v2.functional; or such transforms of whole batches, in "
                "the training loop",
            )
            made = {name: _spec_of(name, value, arrays) for name, value in values.items()}
        except Exception as error:
            unknown.add_place(error, episode, start)
            raise
        return cls(functions, dataset, tuple(clip), made, unchanged_values(clip, clip, values))

    def calls(
        self, seed: int, epoch: int, clips: IntArray, episode: IntArray, start: IntArray
    ) -> Calls:
        """For clips by the rows of their episodes and first frames; int64[n] each.

        `clips`, int64[n], tells them apart, and is the same in every epoch.
        """
        return Calls(self, episode, start, hash64(key_of(_SALT, seed, epoch), clips))

    def call(self, clip: dict[str, Any], seed: int) -> dict[str, Any]:
        """What they make of a clip's arrays, like what they made of the first one."""
        arrays = self._call({name: clip[name] for name in self.names}, seed)
        check_arrays(_WHAT, "clip", arrays, self.made, _check_texts)
        return arrays

    def add_place(self, error: Exception, episode: int, start: int) -> None:
        """Add to an error that is being raised of which clip it is."""
        key = self.dataset.contents.index.key(episode)
        add_place(error, _WHAT, file=self.dataset.url, episode=key, frame=start)

    def _call(self, clip: Any, seed: int) -> dict[str, Any]:
        generator = np.random.default_rng(seed)
        for function in self.functions:
            clip = arrays_by_name(_WHAT, function(clip, generator))
        return {name: _array(name, value) for name, value in clip.items()}


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls for some clips: rows of their episodes, first frames, seeds of their generators."""

    functions: ClipFunctions
    episode: IntArray
    start: IntArray
    seeds: npt.NDArray[np.uint64]

    def make(
        self, number: int, clip: dict[str, Any], out: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, list[Any]]:
        """Write into `out`, [frames, …] by feature, what is made of clip `number`'s arrays.

        Returns the texts, which `out` does not have.
        """
        try:
            arrays = self.functions.call(clip, int(self.seeds[number]))
        except Exception as error:
            place = int(self.episode[number]), int(self.start[number])
            self.functions.add_place(error, *place)
            raise
        for name in arrays.keys() & out.keys():  # a batch of a mix may have others
            np.copyto(out[name], arrays[name])
        return {name: value for name, value in arrays.items() if name not in out}


def read_only(array: Any) -> Any:
    """A view of an array that nobody can write to; or a text."""
    if not isinstance(array, np.ndarray):
        return array
    view: npt.NDArray[Any] = array.view()
    view.flags.writeable = False
    return view


def as_arrays(clip: Any) -> Any:
    """A feature of a clip as functions get it: arrays that nobody can write to, or texts."""
    if isinstance(clip, torch.Tensor):
        return read_only(clip.numpy())
    return [as_arrays(frame) for frame in clip] if isinstance(clip, list) else clip


def _array(name: str, value: Any) -> Any:
    """A value as an array, or as a list of texts."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], (str, bytes)):
        return list(value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise ClipError(
            f"{_WHAT} gives what is no array",
            feature=name,
            expected="an array: frames of different shapes must be joined",
            got=repr_of(value, 100),
        ) from error


def _spec_of(name: str, value: Any, before: Mapping[str, ArraySpec]) -> ArraySpec:
    if not isinstance(value, list):
        if not value.ndim:
            raise ClipError(
                f"{_WHAT} gives a single number",
                feature=name,
                expected="an array with at least one axis",
                got=f"{value.dtype} []",
            )
        return ArraySpec(value.dtype, value.shape)
    return replace(text_spec(_WHAT, name, value[0], before), shape=(len(value), None))


def text_spec(
    what: str, name: str, text: str | bytes, before: Mapping[str, ArraySpec]
) -> ArraySpec:
    """What `what` gives of a feature whose frames are texts: as they were before it.

    Raises `ClipError` for texts where there were none.
    """
    kind = "text" if isinstance(text, str) else "bytes"
    if name not in before or before[name].value != kind:
        raise ClipError(
            f"{what} gives texts, whose memory is not known",
            feature=name,
            expected=f"arrays, and {kind} under the name of a feature of {kind}",
            got=repr_of(text, 50),
        )
    return before[name]


def _check_texts(what: str, name: str, values: Any, spec: ArraySpec) -> None:
    count = spec.shape[0]
    if not (isinstance(values, list) and len(values) == count):
        raise ClipError(
            f"{what} gives another number of texts than for the first clip",
            feature=name,
            expected=count,
            got=len(values) if isinstance(values, list) else repr_of(values, 50),
        )
    for value in values:
        check_text(what, name, value, spec)


@dataclass(frozen=True, eq=False)
class ClipDraws:
    """Of some clips: the windows, if there are crops, and the calls, if there are functions."""

    crop: Crop | None = None
    calls: Calls | None = None


DrawClips: TypeAlias = Callable[[IntArray, IntArray, Sequence[Any], IntArray], ClipDraws]
"""Draws for clips: rows of episodes and first frames, int64[n] each; their frames, `ClipRows`, of
which it may need the sizes; and their places in the epoch, int64[n]."""
