"""Data that has grown: the first episodes of a dataset, or rows of a table, that a state has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.loader.clips.sample_tables import table_columns
from seqrecord.loader.clips.segments import Segments
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import SourceState
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_order import ViewOrder, of_selected
from seqrecord.store.tables.arrow_tables import TableLike


def order_of_state(order: ViewOrder, source: SourceState) -> ViewOrder:
    """The order of the episodes and samples of a state that has fewer: itself, unless the data
    have grown.
    """
    view, options = view_of_state(order.view, order.options, source)
    if view is order.view:
        return order
    earlier = ViewOrder.of(view, options, order.limit_in, order.machine_part)
    return earlier.with_shuffle(order.settings.shuffle)


def view_of_state(
    view: View, options: LoaderOptions, source: SourceState
) -> tuple[View, LoaderOptions]:
    """The view and options of the episodes and samples of a state that has fewer: unchanged, unless
    the data have grown.

    Then they have the first episodes only, or the first rows of a table of samples. Whether
    these are the state's is checked as for other states, see `check_source`; here only if it is
    cheap.
    """
    first: LoaderOptions | None
    if view.num_rows is not None:
        assert options.table is not None
        first = options.with_table(_first_rows(options.table, source.rows or 0))
    else:
        first = _with_first_episodes(view, options, source)
    if first is None:
        return view, options
    try:
        earlier = make_view(view.dataset, of_selected(first))
    except ClipError:  # the first rows of another table may have no clip
        return view, options
    earlier = earlier.with_seed(view.samples.seed).with_vectors(view.vectors)
    fingerprint = source.episodes.get("dataset")
    if isinstance(fingerprint, str):  # a state of this view is as before the growth
        earlier = replace(earlier, saved_fingerprint=fingerprint)
    return earlier, first


def _with_first_episodes(
    view: View, options: LoaderOptions, source: SourceState
) -> LoaderOptions | None:
    """The options of a state's episodes, if they are the first of a dataset that has grown. If it
    has not, another selection of its episodes is a mistake.
    """
    episodes, contents = view.episode_rows[: source.episodes["count"]], view.dataset.contents
    if source.episodes.get("dataset") == contents.manifest.fingerprint:
        return None
    if source.episodes.get("digest") != contents.identity(episodes)["digest"]:
        return None
    return options.with_episodes(contents.numbers_of(episodes).tolist())


def _first_rows(table: TableLike | Segments, count: int) -> Any:
    if isinstance(table, Segments):
        return Segments(_first_rows(table.table, count))
    columns = table_columns(table, of_spans=True)
    return {name: column.slice(0, count) for name, column in columns.items()}
