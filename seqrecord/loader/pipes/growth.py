"""Data that has grown: the first episodes of a dataset, or rows of a table, that a state has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.loader.clips.sample_tables import table_columns
from seqrecord.loader.clips.segments import Segments
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.planning import Planner, of_selected
from seqrecord.loader.pipes.states import SourceState
from seqrecord.store.clips.arrow_tables import TableLike


def planner_of_state(planner: Planner, source: SourceState) -> Planner:
    """The planner of the episodes and samples of a state: itself, unless the data have grown.

    Then it is one of the first episodes, or of the first rows of a table of samples. Whether these
    are the state's is checked as for other states, see `check_source`; here only if it is cheap.
    """
    view = planner.view
    if view.num_rows is not None:
        options = _with_first_rows(planner, source.rows)
    else:
        options = _with_first_episodes(planner, source)
    if options is None:
        return planner
    most = source.excerpt_frames
    try:
        view = make_view(view.dataset, of_selected(options), excerpt_frames=most)
    except ClipError:  # the first rows of another table may have no clip
        return planner
    fingerprint = source.episodes.get("dataset")
    if isinstance(fingerprint, str):  # a state of this view is one of the data before they grew
        view = replace(view, saved_fingerprint=fingerprint)
    earlier = Planner.of(view, options, planner.limit_in, planner.machine_part)
    return earlier.with_shuffle(planner.settings.shuffle)


def _with_first_episodes(planner: Planner, source: SourceState) -> LoaderOptions | None:
    """The options of a state's episodes, if they are the first of more, in a dataset that has
    grown. If it has not, another selection of its episodes is a mistake.
    """
    view, count = planner.view, source.episodes.get("count")
    if type(count) is not int or not 0 < count < len(view.episode_rows):
        return None
    episodes, contents = view.episode_rows[:count], view.dataset.contents
    if source.episodes.get("dataset") == contents.manifest.fingerprint:
        return None
    if source.episodes.get("digest") != contents.identity(episodes)["digest"]:
        return None
    return planner.options.with_episodes(episodes.tolist())


def _with_first_rows(planner: Planner, num_rows: int | None) -> LoaderOptions | None:
    """The options with the first rows of a table that has more."""
    options, rows = planner.options, planner.view.num_rows
    if num_rows is None or rows is None or not 0 < num_rows < rows:
        return None
    assert options.table is not None
    first: Any = _first_rows(options.table, num_rows)
    return options.with_table(first)


def _first_rows(table: TableLike | Segments, count: int) -> Any:
    if isinstance(table, Segments):
        return Segments(_first_rows(table.table, count))
    columns = table_columns(table, of_spans=True)
    return {name: column.slice(0, count) for name, column in columns.items()}
