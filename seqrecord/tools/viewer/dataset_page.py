"""`view_page`: a dataset as one HTML page that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from seqrecord.errors import ClipError, DestinationError
from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import printable, shown_place
from seqrecord.store.units import Progress, format_size, parse_size
from seqrecord.tools.viewer.page_budget import MIN_EPISODE_BYTES, share_of
from seqrecord.tools.viewer.page_episodes import (
    EpisodePages,
    PageFeatures,
    Row,
    add_outliers,
    rows_of,
)
from seqrecord.tools.viewer.page_overview import overview
from seqrecord.tools.viewer.page_pictures import encoded_url
from seqrecord.tools.viewer.page_sources import page_sources
from seqrecord.tools.viewer.view import spread
from seqrecord.version import __version__

MAX_PAGE = "5MB"

_SCRIPTS = ("uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_ROW_SHARE = 0.6  # of the page, at most, for the list of episodes
_RESERVE = 4096  # for notes
_ROW_RESERVE = 200  # for an episode's numbers


def view_page(
    data: DatasetLike,
    path: str | PathLike[str],
    episodes: EpisodeFilter = None,
    *,
    features: Sequence[str] | None = None,
    max_size: int | str = MAX_PAGE,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset as a page for the browser: one file, which loads nothing else.

    The page has an overview (features, statistics, rates, splits, versions, and what the original's
    reader left out), a list of the episodes, and each episode with pictures under a slider, curves
    and captions. `path#episode=KEY&frame=123` opens it there. Numbers of pictures and points fit
    `max_size`; the page says what it leaves out.

    Args:
        data: path or URL of a dataset or an original, an open dataset, or a mix file.
        path: local file to write, `page.html`.
        episodes: keys, numbers, a glob or a function, as for loaders. Default: all.
        features: names of features. Default: all.
        max_size: of the page: bytes, or text such as "5MB".
        progress: called from the calling thread, in episodes.
        storage_options: options of the filesystem, if `data` is a URL.

    Returns the path. Memory: the page, and about 32 MiB for each core. Raises `ClipError` for
    missing episodes or a small `max_size`, `DestinationError` if the file cannot be written, and
    the errors of `seqrecord.open`. Episodes that cannot be read are in the page with the error.

    Example:
        seqrecord.viewer.view_page("records/", "page.html", "demo/*")
    """
    target = local_path(path, "the page")
    limit = parse_size(max_size)
    with page_sources(data, episodes, features, storage_options) as sources:
        all_features = [PageFeatures.of(source) for source in sources.datasets]
        for one in all_features:
            one.fit_scales()
        title = shown_place(sources.title)
        html = _Html(title, [overview(one) for one in all_features], sources.mix)
        rows = [row for i, one in enumerate(sources.datasets) for row in rows_of(i, one)]
        notes = _fill(html, rows, all_features, limit, progress)
        text = html.render(rows, [_feature_json(one) for one in all_features], notes)
    _write(target, text.encode("utf-8", "backslashreplace"))
    return target


def _fill(
    html: _Html,
    rows: list[Row],
    features: Sequence[PageFeatures],
    limit: int,
    progress: Callable[[Progress], None] | None,
) -> list[str]:
    """Add pictures, curves and captions to rows within `limit`; returns notes on omissions."""
    frame = len(html.render([], [_feature_json(one) for one in features], [])) + _RESERVE
    room, notes = _list_rows(rows, limit - frame)
    chosen = spread(len(rows), room // MIN_EPISODE_BYTES)
    if len(chosen) < len(rows):
        count = len(rows) - len(chosen)
        notes.append(f"{count:,} of {len(rows):,} episodes have no pictures and curves")
    done = 0
    for number, one in enumerate(features):
        own_rows = [rows[i] for i in chosen if rows[i].get("source", 0) == number]
        share = share_of(
            room // max(1, len(chosen)) - _ROW_RESERVE,
            pictures=len(one.pictures),
            curves=len(one.curves),
            channels=one.num_channels,
            texts=len(one.texts),
        )
        if own_rows:
            notes += share.omissions(pictures=bool(one.pictures), curves=bool(one.curves))
        for _ in EpisodePages(one, share, encoded_url).read(own_rows):
            done += 1
            if progress is not None:
                progress(Progress(done, len(chosen)))
    add_outliers(rows, {number: one.vectors for number, one in enumerate(features)})
    return notes


def _list_rows(rows: list[Row], room: int) -> tuple[int, list[str]]:
    """Keep as many rows as fit a part of `room`; returns the rest of it, and notes."""
    sizes = [len(_json(row)) + 1 for row in rows]
    total, notes = sum(sizes), []
    if total > room * _ROW_SHARE:
        kept = spread(len(rows), math.floor(len(rows) * room * _ROW_SHARE / total))
        if not kept or room < 0:
            raise ClipError(
                "max_size is too small for a page of this dataset",
                expected=f"{format_size(2 * max(sizes) - min(0, room))} more",
            )
        notes.append(f"{len(rows) - len(kept):,} of {len(rows):,} episodes are not listed")
        rows[:], total = [rows[i] for i in kept], sum(sizes[i] for i in kept)
    return room - total, notes


def _feature_json(features: PageFeatures) -> dict[str, Any]:
    """A source's features for the script."""
    specs, names = features.source.dataset.features, features.channel_names()
    return {
        "name": features.source.name,
        "pictures": [
            {"name": name, "legend": features.scales[name].legend()} for name in features.pictures
        ],
        "curves": [
            {
                "name": name,
                "kind": specs[name].kind or "",
                "unit": specs[name].unit or "",
                "channels": math.prod(n or 0 for n in specs[name].shape),
                "names": names.get(name, []),
            }
            for name in features.curves
        ],
        "texts": list(features.texts),
    }


class _Html:
    """The page's template with its overview. `render` adds episodes."""

    def __init__(self, title: str, overviews: list[dict[str, Any]], mix: str | None) -> None:
        folder = files(__package__) / "html"
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["printable"] = _printable
        self._template = environment.from_string((folder / "page.html").read_text("utf-8"))
        scripts = [(folder / name).read_text("utf-8") for name in _SCRIPTS]
        styles = [(folder / name).read_text("utf-8") for name in _STYLES]
        self._values = {
            "title": title,
            "overviews": overviews,
            "mix": mix,
            "more_sources": "",
            "version": __version__,
            # Files of the package, not data: they are not escaped.
            "scripts": [Markup(script) for script in scripts],  # noqa: S704
            "styles": [Markup(style) for style in styles],  # noqa: S704
            "script_hashes": " ".join(map(_csp_hash, scripts)),
            "style_hashes": " ".join(map(_csp_hash, styles)),
        }

    def render(self, rows: Sequence[Row], sources: list[Any], notes: list[str]) -> str:
        """The page as text."""
        data = {"sources": sources, "episodes": rows, "quality": []}
        return self._template.render(**self._values, notes=notes, data=Markup(_json(data)))  # noqa: S704


def _json(value: object) -> str:
    """JSON for a `script` element, without `<`, `>`, `&` and characters outside of ASCII."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _printable(value: object) -> str:
    """Text with its control characters and changes of direction escaped, except line breaks."""
    return "\n".join(map(printable, str(value).split("\n")))


def _csp_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _write(target: Path, data: bytes) -> None:
    """Replace the file at once, so that a reload never shows half of it."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DestinationError(
            f"cannot write the page: {error.strerror or error}", file=str(target)
        ) from error
