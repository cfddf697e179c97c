"""Random configurations of loaders, drawn by number, for comparisons of two commits.

A configuration is a kind of loader, its arguments (of `clip_model.cases` or
`table_model.table_cases`), and a history: ranks, epochs and a resume. A seed and a number determine
it, as long as the strategies make the same choices. So an argument that the package withdraws is
drawn as before and left out afterwards, here or in the strategy, and other configurations stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import hypothesis
from hypothesis import assume
from hypothesis import strategies as st

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMix
from seqrecord.samples import BuiltIn
from tests.kit.clip_data import minimum_memory
from tests.loader.clip_model import cases
from tests.loader.resume_contract import Direct
from tests.loader.table_model import table_cases

__all__ = ["OF_STREAMS", "PROCESSES", "STREAMS", "drawn", "make_mix", "maker", "text_of"]

PROCESSES = ("workers", "stateful workers")
STREAMS: dict[str, Any] = {
    "pipe": seqrecord.SeqRecordPipe,
    "stream": SeqRecordIterableDataset,
    "node": Direct,
}
SIZES = (1, 3, 7)
KINDS = (*STREAMS, "pipe", "loader", "map style", "mix", "mix", *PROCESSES)

LEFT_OUT = ("frame_transform",)
"""Arguments that are drawn and left out. `frame_transform` only records frames for its model."""

OF_STREAMS = (
    *("shuffle", "batch_size", "engine", "order", "device", "memory_limit", "last_batch"),
)
"""Arguments that a map-style dataset lacks."""

MIXED = (
    *("clip_len", "dilation", "windows", "pad", "features", "metadata", "samples", "stride"),
    "ragged",
)
"""Arguments of the sources of a mix."""


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """A kind of loader, its arguments, and a history."""
    rated = st.booleans().flatmap(lambda rated: cases(rated=rated, has_copies=True))
    case = draw(st.one_of(rated, table_cases()))
    assume(case.clips and case.smallest)
    options = {n: value for n, value in case.options.items() if n not in LEFT_OUT}
    if options["last_batch"] == "drop" and case.smallest < 3 * max(SIZES):
        options["last_batch"] = "keep"  # or there may be no batch
    is_plain = "device" not in options and "nested" not in repr(options.get("ragged"))
    options["output"] = draw(st.sampled_from(["torch", "numpy"])) if is_plain else "torch"
    kind = draw(st.sampled_from(KINDS))
    if kind in PROCESSES and draw(st.integers(0, 9)):  # a start of processes is slow
        kind = "loader"
    if kind == "map style" and case.draws_lengths:
        kind = "pipe"
    sizes = [None, None, *SIZES] if isinstance(options["batch_size"], int) else [None]
    return {
        "kind": kind,
        "options": options,
        "ranks": draw(st.integers(1, 3)),
        "epoch": draw(st.integers(0, 3)),
        "taken": draw(st.integers(0, 6)),
        "later ranks": draw(st.integers(1, 3)),
        "later size": draw(st.sampled_from(sizes)),
        "weights": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "end": draw(st.sampled_from(["first_exhausted", "all_exhausted", 5])),
    }


def maker(records: Any, configuration: Mapping[str, Any]) -> Callable[..., Any]:
    """Make a loader of a rank, with changed arguments."""
    options, kind = dict(configuration["options"]), configuration["kind"]
    if kind == "mix":
        return lambda rank, **more: make_mix(records, configuration, rank, more)
    kind = "stream" if kind == "loader" else kind
    if options.get("memory_limit") == "least":
        least = minimum_memory(lambda **given: STREAMS[kind](records, **{**options, **given}))
        options["memory_limit"] = 3 * least
    return lambda rank, **more: STREAMS[kind](records, **{**options, **more}, rank=rank)


def make_mix(
    records: Any,
    configuration: Mapping[str, Any],
    rank: tuple[int, int],
    more: Mapping[str, Any],
) -> SeqRecordMix:
    options = configuration["options"]
    sources = sources_of_mix(records, options)
    return SeqRecordMix(
        sources,
        weights=dict(zip(sources, configuration["weights"], strict=True)),
        batch_size=more.get("batch_size") or options["batch_size"] or 4,
        stopping_strategy=configuration["end"],
        seed=options["seed"],
        output=options["output"],
        rank=rank,
    )


def sources_of_mix(
    records: Any, options: Mapping[str, Any], **more: Any
) -> dict[str, SeqRecordIterableDataset]:
    """The sources of a mix by name, which have different episodes."""
    common = {name: options[name] for name in MIXED if name in options}
    if any(isinstance(one, dict) and "frames" in one for one in options.get("samples", ())):
        common["ragged"] = "pad"
    return {
        name: SeqRecordIterableDataset(records, **{**common, **more}, episodes=f"{name}/*")
        for name in ("lab", "kitchen")
    }


def drawn(seed: int, numbers: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Configurations of a seed by number; each number has a seed of its own."""
    for number in numbers:
        examples: list[dict[str, Any]] = []
        draw_two(seed * 1_000_003 + number, examples)
        yield examples[-1]  # the first one is the simplest


def draw_two(seed: int, examples: list[dict[str, Any]]) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=2,
        phases=[hypothesis.Phase.generate],
        database=None,
        derandomize=False,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(configurations())
    def collect(configuration: dict[str, Any]) -> None:
        examples.append(configuration)

    collect()


def text_of(value: Any) -> str:
    """A configuration as text, without fields that have their default values.

    So it stays the same if a class gets another field, or loses one that is not used.
    """
    if is_dataclass(value) and not isinstance(value, (type, BuiltIn)):
        changed = [
            f"{field.name}={text_of(getattr(value, field.name))}"
            for field in fields(value)
            if field.default is MISSING or getattr(value, field.name) != field.default
        ]
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {text_of(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(text_of, value))}]"
    return repr(value)
