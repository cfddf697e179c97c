"""`view_page`: a dataset as one HTML page that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.resources import files as files_of
from os import PathLike
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from seqrecord.errors import (
    ClipError,
    CodecError,
    FormatError,
    MissingPackageError,
    NotFoundError,
)
from seqrecord.store.reading.dataset import DatasetLike
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import counted, printable, shown_place
from seqrecord.store.units import Progress, format_size, parse_size
from seqrecord.tools.viewer.page_budget import MIN_EPISODE_BYTES, share_of
from seqrecord.tools.viewer.page_episodes import (
    EpisodePages,
    PageFeatures,
    Row,
    rows_of,
)
from seqrecord.tools.viewer.page_faults import add_outliers, add_quality, add_unlikeness
from seqrecord.tools.viewer.page_files import PageFiles, PageFolder, SingleFile
from seqrecord.tools.viewer.page_overview import overview
from seqrecord.tools.viewer.page_sources import page_sources
from seqrecord.tools.viewer.view import spread
from seqrecord.version import __version__

MAX_PAGE, MAX_FOLDER = "5MB", "200MB"

_SCRIPTS = ("uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")
_ROW_SHARE = 0.6  # of the page, at most, for the list of episodes
_RESERVE = 4096  # for notes
_ROW_RESERVE = 200  # for an episode's numbers
_MAX_INDEX = 20_000_000  # bytes of a folder's `index.html`
_VIDEO_SHARE = 0.5  # of a folder


def view_page(
    data: DatasetLike,
    path: str | PathLike[str],
    episodes: EpisodeFilter = None,
    *,
    features: Sequence[str] | None = None,
    quality: str | PathLike[str] | None = None,
    max_size: int | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset as a page for the browser: one file, which loads nothing else.

    The page has an overview (features, statistics, rates, splits, versions, and omissions of the
    original's reader), a list of the episodes, and each episode with pictures under a slider,
    curves and captions. `page.html#episode=KEY&frame=123` opens it there. Numbers of pictures and
    points fit `max_size`; the page lists its omissions.

    Args:
        data: path or URL of a dataset or an original, an open dataset, or a mix file.
        path: local file to write, such as `page.html`. A folder (it exists, or the text ends with
            `/`) gets the page as `index.html`, with more pictures, and with video as MP4 whose
            packets are copied, not encoded again.
        episodes: keys, numbers, a glob or a function, as for loaders. Default: all.
        features: names of features. Default: all.
        quality: file of `seqrecord doctor --quality`, whose numbers the list shows.
        max_size: bytes, or text such as "5MB", for the file, by default 5 MB, or for all files in
            the folder, by default 200 MB.
        progress: called from the calling thread, in episodes.
        storage_options: options of the filesystem, if `data` is a URL.

    Returns the page's path. Memory: the page, and about 32 MiB for each core. Raises `ClipError`
    for missing episodes or a small `max_size`, `DestinationError` if the page cannot be written,
    and the errors of `seqrecord.open`. Episodes that cannot be read are in the page with the error.

    Example:
        seqrecord.viewer.view_page("records/", "page.html", "demo/*")
    """
    target = local_path(path, "the page")
    is_folder = target.is_dir() or str(path).endswith("/")
    limit = parse_size(max_size or (MAX_FOLDER if is_folder else MAX_PAGE))
    with page_sources(data, episodes, features, storage_options) as sources:
        page_features = [PageFeatures.of(source) for source in sources.datasets]
        rows = [
            row
            for i, source_features in enumerate(sources.datasets)
            for row in rows_of(i, source_features)
        ]
        columns = [] if quality is None else add_quality(rows, Path(quality))
        for source_features in page_features:
            source_features.fit_scales()
        overviews = [overview(source_features) for source_features in page_features]
        opened: AbstractContextManager[SingleFile | PageFolder] = (
            PageFolder(target) if is_folder else nullcontext(SingleFile(target))
        )
        with opened as files:
            html = _Html(shown_place(sources.title), overviews, sources.mix, files.policy)
            html.data = {
                "sources": [_feature_json(source_features) for source_features in page_features],
                "quality": columns,
            }
            notes = _fill(html, rows, page_features, files, limit, progress)
            if isinstance(files, PageFolder):
                notes += _add_videos(rows, page_features, files, int(limit * _VIDEO_SHARE))
            return files.write(html.render(rows, notes))


def _fill(
    html: _Html,
    rows: list[Row],
    features: Sequence[PageFeatures],
    files: PageFiles,
    limit: int,
    progress: Callable[[Progress], None] | None,
) -> list[str]:
    """Add pictures, curves and captions to rows within `limit`; returns notes on omissions."""
    is_single = isinstance(files, SingleFile)
    page_limit = limit if is_single else min(limit // 4, _MAX_INDEX)
    room, notes = _list_rows(rows, page_limit - len(html.render([], [])) - _RESERVE)
    shown_rows = spread(len(rows), room // MIN_EPISODE_BYTES)
    if len(shown_rows) < len(rows):
        count = len(rows) - len(shown_rows)
        notes.append(f"{count:,} of {len(rows):,} episodes have no pictures and curves")
    num_done = 0
    for number, source_features in enumerate(features):
        numbered = [(i, rows[i]) for i in shown_rows if rows[i].get("source", 0) == number]
        count = max(1, len(shown_rows))
        share = share_of(
            room // count - _ROW_RESERVE,
            source_features.contents,
            picture_room=None if is_single else limit // 4 // count,
        )
        if numbered:
            notes += share.omissions(
                pictures=bool(source_features.pictures), curves=bool(source_features.curves)
            )
        for _ in EpisodePages(source_features, share, files.put, num_episodes=count).read(numbered):
            num_done += 1
            if progress is not None:
                progress(Progress(num_done, len(shown_rows)))
    add_unlikeness(rows)
    add_outliers(
        rows, {number: source_features.vectors for number, source_features in enumerate(features)}
    )
    return notes


def _add_videos(
    rows: list[Row], features: Sequence[PageFeatures], folder: PageFolder, room: int
) -> list[str]:
    """Write videos of episodes in order while `room` suffices; returns notes on omissions."""
    num_lacking, reasons = 0, set[str]()
    for place, row in enumerate(rows):
        source = features[row.get("source", 0)].source
        index = source.dataset.contents.index
        names = [name for name, spec in source.dataset.features.items() if spec.is_video]
        for number, name in enumerate(names):
            chunks = index.group_of(name).rows_of(index.positions[row["key"]])
            room -= int(index.lengths(name)[chunks].sum())
            if room < 0 or "error" in row:
                num_lacking += 1
                break
            try:
                address = folder.put_video(place, number, source.dataset, row["key"], name)
            except (CodecError, FormatError, NotFoundError, MissingPackageError) as error:
                num_lacking += 1
                reasons.add(error.message)
                break
            row.setdefault("videos", {})[name] = address
    reason = f": {'; '.join(sorted(reasons))}" if reasons else ""
    return [f"{counted(num_lacking, 'episode')} without videos{reason}"] if num_lacking else []


def _list_rows(rows: list[Row], room: int) -> tuple[int, list[str]]:
    """Keep as many rows as fit a part of `room`; returns the rest of it, and notes."""
    sizes = [len(_json(row)) + 1 for row in rows]
    total, notes = sum(sizes), []
    if total > room * _ROW_SHARE:
        listed_rows = spread(len(rows), math.floor(len(rows) * room * _ROW_SHARE / total))
        if not listed_rows or room < 0:
            raise ClipError(
                "max_size is too small for a page of this dataset",
                expected=f"{format_size(2 * max(sizes) - min(0, room))} more",
            )
        notes.append(f"{len(rows) - len(listed_rows):,} of {len(rows):,} episodes are not listed")
        rows[:], total = [rows[i] for i in listed_rows], sum(sizes[i] for i in listed_rows)
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

    def __init__(
        self, title: str, overviews: list[dict[str, Any]], mix: str | None, policy: str
    ) -> None:
        folder = files_of(__package__) / "html"
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["printable"] = _printable
        self.data: dict[str, Any] = {}
        """Entries of the script's data beside the episodes."""
        self._template = environment.from_string((folder / "page.html").read_text("utf-8"))
        scripts = [(folder / name).read_text("utf-8") for name in _SCRIPTS]
        styles = [(folder / name).read_text("utf-8") for name in _STYLES]
        self._values = {
            "title": title,
            "overviews": overviews,
            "mix": mix,
            "policy": policy,
            "version": __version__,
            # Files of the package, not data: they are not escaped.
            # tests/tools/test_page.py::test_the_policy_names_every_script_and_style
            "scripts": [Markup(script) for script in scripts],  # noqa: S704
            "styles": [Markup(style) for style in styles],  # noqa: S704
            "script_hashes": " ".join(map(_csp_hash, scripts)),
            "style_hashes": " ".join(map(_csp_hash, styles)),
        }

    def render(self, rows: Sequence[Row], notes: list[str]) -> bytes:
        """The page in UTF-8."""
        data = Markup(_json({**self.data, "episodes": rows}))  # noqa: S704
        text = self._template.render(**self._values, notes=notes, data=data)
        return text.encode("utf-8", "backslashreplace")


def _json(value: object) -> str:
    """JSON for a `script` element, without `<`, `>`, `&` and characters outside of ASCII."""
    # Escapes beyond JSON's: `</script>` in a text would end the element.
    # tests/tools/test_page.py::test_hostile_texts_are_shown_as_text
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
