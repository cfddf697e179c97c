"""The timestamps of episodes, as windows in time need them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import TimedWindow
from seqrecord.errors import ClipError
from seqrecord.forks import PerProcess
from seqrecord.grids import IntArray
from seqrecord.lags import has_lags, with_lags
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.seconds import Seconds

__all__ = ["Timeline"]

_UNITS = {None: 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_MOST_BYTES = 16 << 20  # of timestamps in memory


class Timeline:
    """The timestamps of one feature of a dataset, in seconds. Picklable.

    Those of an episode are read when it is first asked for; the last ones stay in memory.

    Raises `ClipError` for a feature that is no timestamp, and for one that a frame of a selected
    episode does not have, or that does not ascend.

    Args:
        selected: rows of the selected episodes.
    """

    def __init__(self, dataset: SeqRecordReader, feature: str, selected: IntArray) -> None:
        schema = dataset.index.schema
        if feature not in schema:
            raise ClipError(
                "Seconds are by a feature that is not there",
                file=dataset.url,
                expected=", ".join(schema),
                got=feature,
            )
        spec = schema[feature]
        if not has_lags(spec) or spec.unit not in _UNITS:
            raise ClipError(
                "Seconds are by a feature that is not a timestamp",
                file=dataset.url,
                feature=feature,
                expected="kind timestamp, unit s, ms, us or ns, one number a frame",
                got=f"kind {spec.kind}, unit {spec.unit}, {spec.dtype} {list(spec.shape)}",
            )
        self._dataset = dataset.select([feature])
        self._lock = PerProcess(threading.Lock)
        self._feature = feature
        self._unit = _UNITS[spec.unit]
        self._place = with_lags(schema).index(feature)
        self._selected = selected[dataset.index.num_frames[selected] > 1]
        lags = dataset.index.lags
        assert lags is not None, "an index without the lags of its timestamps"
        if len(unknown := lags.unknown(self._selected, self._place)):
            raise ClipError(
                "timestamps do not ascend, or a frame has none",
                **self.name(int(unknown[0])),  # type: ignore[arg-type]
                expected="one for each frame of every episode, later than that before",
            )
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        kept = {k: v for k, v in self.__dict__.items() if k != "_read"}
        return {**kept, "_selected": self._selected[:0]}  # windows have been made

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._read: OrderedDict[int, npt.NDArray[np.float64]] = OrderedDict()

    def window(self, seconds: Seconds) -> TimedWindow:
        """The window of these times."""
        first, _ = self._bounds(min(seconds.asked))
        _, last = self._bounds(max(seconds.asked))
        pads = seconds.beyond == "pad"
        return TimedWindow(seconds.asked, seconds.tolerance, pads, first, last, self)

    def seconds(self, episode: int) -> npt.NDArray[np.float64]:
        """See `Clock`."""
        with self._lock.get():
            found = self._read.get(episode)
            if found is not None:
                self._read.move_to_end(episode)
                return found
        name, row = self._feature, self._dataset.episodes[self.name(episode)["episode"]]
        stamps = row.read(range(len(row)), features=[name])[name].reshape(-1)
        whole = stamps.astype(np.int64 if stamps.dtype.kind in "iu" else np.float64)
        found = np.asarray((whole - whole[:1]) * self._unit, np.float64)
        if not (np.diff(found) > 0).all():
            raise ClipError("timestamps do not ascend", **self.name(episode))  # type: ignore[arg-type]
        with self._lock.get():
            self._read[episode] = found
            while len(self._read) > 1 and sum(a.nbytes for a in self._read.values()) > _MOST_BYTES:
                self._read.popitem(last=False)
        return found

    def name(self, episode: int) -> dict[str, str]:
        """See `Clock`."""
        key = self._dataset.index.key(episode)
        return {"file": self._dataset.url, "episode": key, "feature": self._feature}

    def _bounds(self, time: float) -> tuple[int, int]:
        """The least and the greatest offset at which the nearest frame to a time can be."""
        lags = self._dataset.index.lags
        if not time or lags is None:
            return 0, 0
        near, far = 0, 1  # of episodes of one frame, which have none at any other time
        if len(self._selected):
            least, most = lags.frames_within(self._selected, self._place, abs(time) / self._unit)
            near, far = int(least.min()), int(most.max()) + 1
        return (near, far) if time > 0 else (-far, -near)
