"""Task numbers over all sources of a mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.pipes.view import View
from seqrecord.store.reading.dataset import Dataset

TASK = "task"  # the text feature, and the metadata entry
TASK_INDEX = "task_index"
_TASKS = "tasks"  # the metadata entry of LeRobot: a list


@dataclass(frozen=True, eq=False)
class TaskNumbers:
    """Numbers of task texts: places among the sorted distinct texts of all sources. Picklable.

    A clip's task is the text feature `task` of its first frame, else the metadata `task` or the
    first of `tasks` of its episode.

    Attributes:
        numbers: number of each text.
        of_episodes: by source without the feature, the number of each episode, int64[E].
    """

    numbers: Mapping[str, int]
    of_episodes: Mapping[str, IntArray]

    @classmethod
    def of(cls, sources: Mapping[str, View], features: Sequence[str]) -> TaskNumbers:
        """Number the tasks of all selected episodes.

        Texts of the feature come from the metadata `tasks`, or else from all frames. Raises
        `ClipError` for a source without tasks.
        """
        texts = {
            source: _texts(source, source_view, features) for source, source_view in sources.items()
        }
        distinct_texts = sorted(
            {
                text
                for by_row in texts.values()
                for episode_texts in by_row.values()
                for text in episode_texts
            }
        )
        numbers = {text: number for number, text in enumerate(distinct_texts)}
        of_episodes = {}
        for source, view in sources.items():
            if not _has_feature(view, features):
                rows = np.full(len(view.dataset.contents.index.num_frames), -1, np.int64)
                for row, episode_texts in texts[source].items():
                    rows[row] = numbers[episode_texts[0]]
                of_episodes[source] = rows
        return cls(numbers, of_episodes)

    def column(self, source: str, view: View, episode: IntArray, texts: Sequence[Any]) -> IntArray:
        """The task numbers of n clips from a source, by episode rows and the feature's texts.

        Raises `ClipError` for a text that is not among the tasks.
        """
        if (rows := self.of_episodes.get(source)) is not None:
            return rows[view.clip_episodes.rows(episode)]
        first_texts = [text if isinstance(text, str) else text[0] for text in texts]
        for text in first_texts:
            if text not in self.numbers:
                raise ClipError(
                    f"source {source!r} of a mix: a task that the metadata lacks",
                    file=view.dataset.url,
                    feature=TASK,
                    expected=f"a text in the episode's metadata `{_TASKS}`",
                    got=text,
                )
        return np.array([self.numbers[text] for text in first_texts], np.int64)


def episode_tasks(dataset: Dataset, row: int, *, has_feature: bool) -> list[str]:
    """The distinct tasks of an episode: its metadata `tasks`, or else the texts of all its frames.

    `has_feature` means that `dataset` has the text feature `task`.
    """
    index = dataset.contents.index
    texts = index.episode_metadata(row).get(_TASKS)
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return [*dict.fromkeys(texts)]
    if not has_feature:
        return []
    episode = dataset.episodes[index.key(row)]
    present = np.flatnonzero(episode.present(TASK)).tolist()
    return [*dict.fromkeys(episode.read(present, features=[TASK])[TASK])]


def _has_feature(view: View, features: Sequence[str]) -> bool:
    """Whether batches have the task texts of a source."""
    spec = view.batch_arrays.get(TASK)
    return TASK in features and spec is not None and spec.value == "text"


def _texts(source: str, view: View, features: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """The tasks of each selected episode, by row."""
    dataset, has_feature = view.dataset, _has_feature(view, features)
    index, texts_of_rows = dataset.contents.index, dict[int, tuple[str, ...]]()
    for row in view.episode_rows.tolist():
        metadata = index.episode_metadata(row)
        texts = episode_tasks(dataset, row, has_feature=has_feature)
        if not (texts or has_feature) and isinstance(metadata.get(TASK), str):
            texts = [metadata[TASK]]
        if not texts:
            raise ClipError(
                f"source {source!r} of a mix: number_tasks finds no task of an episode",
                file=dataset.url,
                episode=index.key(row),
                expected=f"a text feature `{TASK}`, or the metadata `{TASK}` or `{_TASKS}`",
            )
        texts_of_rows[row] = tuple(texts)
    return texts_of_rows
