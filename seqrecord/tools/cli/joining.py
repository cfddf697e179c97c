"""Datasets with the companions of `--join`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.reading.opening import open as open_dataset


@contextmanager
def opened_joined(
    path: str,
    joining: Mapping[str, Any],
    storage_options: Mapping[str, Any] | None,
    *,
    features: Sequence[str] | None = None,
) -> Iterator[tuple[DatasetLike, dict[str, Any]]]:
    """Provide a dataset with its companions, or the path if `joining` is empty.

    Also the arguments for a function that takes either: `storage_options` for a path.
    """
    if not joining:
        yield path, {"storage_options": storage_options}
        return
    with open_dataset(
        path,
        features=features,
        storage_options=storage_options,
        skip_bad_episodes=True,
        **joining,
    ) as dataset:
        yield dataset, {}
