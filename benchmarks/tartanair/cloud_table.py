"""The results of the benchmark of storages as Markdown: the figures, then all rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.tartanair.timing import Results, markdown, median

__all__ = ["Figure", "figures", "page", "tables"]

_GIB = 1 << 30
_NAMES = {"azurite": "Azurite", "moto": "moto (S3)", "local": "local disk"}


class Figure(NamedTuple):
    """A figure by place; `target` is what it is to be: at most, or at least where `least`."""

    what: str
    values: Mapping[str, float]
    target: float | None = None
    least: bool = False

    def is_reached(self, place: str) -> bool:
        value = self.values[place]
        if self.target is None:
            return True
        return value >= self.target if self.least else value <= self.target


def figures(results: Results) -> Iterator[Figure]:
    """Those whose rows were run, each of medians."""
    places = list(dict.fromkeys(name.split("/")[1] for name in results))

    def get(place: str, what: str, key: str, by: str = "seqrecord") -> float | None:
        return median(results.get(f"{by}/{place}/{what}", ()), key)

    def figure(what: str, value: Any, target: float | None = None, least: bool = False) -> Any:
        found = {place: each for place in places if (each := value(place)) is not None}
        if found:
            yield Figure(what, found, target, least)

    def quotient(one: float | None, other: float | None, unit: float = 1) -> float | None:
        return None if one is None or not other else one / other * unit

    def of_client(row: str, alone: str) -> Any:
        rate = "bytes_per_second"
        return lambda p: quotient(get(p, row, rate), get(p, alone, rate, by="client"))

    def of_local(row: str, other: str) -> Any:
        def value(place: str) -> float | None:
            if place == "local":
                return None
            return quotient(get(place, row, "seconds"), get("local", other, "seconds"))

        return value

    what = "behind 1 Gbit/s: bytes/s of the loader / of the client alone"
    yield from figure(what, of_client("narrow", "narrow"), 0.95, least=True)
    what = "at full speed: bytes/s of the loader / of the client alone"
    yield from figure(what, of_client("stream", "stream"))
    what = "at full speed: epoch / epoch from local disk"
    yield from figure(what, of_local("stream", "stream"))
    yield from figure("epoch / epoch from local disk", of_local("epoch", "epoch"), 1.10)
    yield from figure("60 ms away: epoch / epoch from local disk", of_local("far", "epoch"), 1.10)
    first = "first_batch_seconds"
    yield from figure("first batch, s", lambda p: get(p, "epoch", first), 1.0)
    yield from figure("60 ms away: first batch, s", lambda p: get(p, "far", first))
    yield from figure(
        "requests / GiB",
        lambda p: quotient(get(p, "count", "counted"), get(p, "count", "bytes"), _GIB),
        160,
    )
    yield from figure("large index opened, s", lambda p: get(p, "open", "seconds"), 2.0)
    memory = "peak_memory_bytes"
    yield from figure(
        "large index opened, peak MB",
        lambda p: quotient(get(p, "open", memory), 1e6),
        200,
    )
    for codecs in ("raw", "balanced"):
        row = f"write-{codecs}"
        yield from figure(
            f"written, {codecs}: MB/s of frames",
            lambda p, row=row: quotient(get(p, row, "bytes_per_second"), 1e6),
        )
        if codecs == "raw":
            what = "written, raw: rate / of the client alone"
            yield from figure(what, of_client(row, row))
        what = f"written, {codecs}: seconds / to local disk"
        yield from figure(what, of_local(row, row))


def tables(document: Mapping[str, Any]) -> str:
    """Both tables."""
    return f"{_figures(document['rows'])}\n\n{_all_rows(document['rows'])}"


def page(document: Mapping[str, Any]) -> str:
    """The published page."""
    settings, services = document["settings"], document["services"]
    cores, rows = document["cores"], document["rows"]
    others = max(run["others"] for runs in rows.values() for run in runs)
    return _PAGE.format(
        machine=document["machine"],
        commit=document["commit"],
        azurite=services["azurite"],
        moto=services["moto"],
        cores=cores["rows"],
        rest=cores["services"],
        frames=document["frames"],
        index_frames=document["index_frames"],
        clip_len=settings["clip_len"],
        batch_size=settings["batch_size"],
        memory=settings["memory_limit"],
        consumer=f"{settings['consumer_seconds'] * 1000:.0f}",
        write_frames=", ".join(f"{n} {codecs}" for codecs, n in document["write_frames"].items()),
        repeats=max(map(len, rows.values())),
        others=f"{others:.0%}",
        figures=_figures(document["rows"]),
        rows=_all_rows(document["rows"]),
    )


_PAGE = """\
# From object stores

By `python -m benchmarks.tartanair.cloud FOLDER --to benchmarks/tartanair`, which writes this
page; raw results are in [cloud.json](cloud.json).

- Machine: {machine}. Commit: `{commit}`. Medians of {repeats}, all rows in turn, each in a process
  of its own. Of an epoch's row the second epoch counts; its first batch is the first epoch's, from
  making the pipe, with its clients.
- Azurite {azurite} (Azure Blob) and moto {moto} (S3) run on the same machine. They, the line and
  the proxy before them have {rest} of the cores, and the process that is measured has {cores}, also
  where it reads from local disk: its share of the machine is the same. All else that ran on the
  machine took at most {others} of it beside any row.
- A rendered tree of {frames} frames of 480x640 in four episodes, five modalities, codecs
  `balanced`; clips of {clip_len}, stride 1, shuffled, batches of {batch_size}, `memory_limit`
  {memory}. moto copies the whole object for each range, so it serves record files of 64 MiB, and
  Azurite those of the default size.

{figures}

**Bold** is what is not reached.

- `epoch`: a consumer that is away for {consumer} ms with each batch; `far`: that as if 60 ms away
  with 80 MB/s a connection. `stream`: a consumer that only looks. `narrow`: that behind a line of
  1 Gbit/s for all connections together. `count`: through a proxy that counts.
- `client/…`: obstore alone fetches the same record files in requests of 12 MiB, at the best of
  several numbers of threads, and stores one object as large as what is written.
- `open`: an index of {index_frames:,} frames. `write-…`: frames that are in memory, in those
  codecs ({write_frames}); MB/s are of the frames' own bytes.
- CPU: seconds of the measured process in that epoch; of the services over the whole row.

{rows}
"""


def _figures(results: Results) -> str:
    found = list(figures(results))
    places = list(dict.fromkeys(place for figure in found for place in figure.values))
    columns = ["figure", "to reach", *(_NAMES[place] for place in places)]
    lines = []
    for figure in found:
        sign = ">=" if figure.least else "<="
        line = [figure.what, "" if figure.target is None else f"{sign} {figure.target:g}"]
        for place in places:
            value = figure.values.get(place)
            shown = "" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
            is_short = value is not None and not figure.is_reached(place)
            line.append(f"**{shown}**" if is_short else shown)
        lines.append(line)
    return markdown(columns, lines)


_COLUMNS = (
    ("s", "seconds", ".2f", 1.0),
    ("clips/s", "clips_per_second", ".1f", 1.0),
    ("MB/s", "bytes_per_second", ".0f", 1e6),
    ("threads", "threads", ".0f", 1.0),
    ("requests", "counted", ".0f", 1.0),
    ("retries", "retries", ".0f", 1.0),
    ("first batch s", "first_batch_seconds", ".2f", 1.0),
    ("CPU s", "cpu_seconds", ".1f", 1.0),
    ("services' CPU s", "service_cpu_seconds", ".1f", 1.0),
    ("peak MB", "peak_memory_bytes", ".0f", 1e6),
)


def _all_rows(results: Results) -> str:
    lines = []
    for name, runs in results.items():
        if not runs:  # the benchmark goes on
            continue
        values = [(median(runs, key), form, unit) for _, key, form, unit in _COLUMNS]
        cells = [
            "" if value is None else format(value / unit, form) for value, form, unit in values
        ]
        lines.append([name, *cells, str(runs[-1].get("bottleneck", ""))])
    return markdown(["row", *(column for column, *_ in _COLUMNS), "bottleneck"], lines)
