"""The results of mutants as a page, comparable with another commit's page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["report"]

Result = Mapping[str, Any]

SURVIVED = ("survived", "not covered")


def report(
    results: Sequence[Result],
    settings: Mapping[str, object],
    excluded: Sequence[str],
    against: Sequence[Result] = (),
) -> str:
    """Format the page: shares by room and by kind of change, excluded tests, survivors.

    `against` are the results of another commit, whose shares are shown in a last column.
    """
    rooms = list(dict.fromkeys(result["room"] for result in results))
    kinds = sorted({result["kind"] for result in results})
    lines = [
        "# Mutants",
        "",
        "Small changes of the package, drawn by a seed. A mutant is noticed if a fast test that",
        "runs its line fails. docs/contributing.md describes the command. Not every survivor is",
        "a gap: some changes make no difference, or only to speed and memory.",
        "",
        *(f"- {name}: {value}" for name, value in settings.items()),
        "",
        *_table("room", rooms, lambda result: result["room"], results, against),
        "",
        *_table("change", kinds, lambda result: result["kind"], results, against),
        "",
        "## Tests left out",
        "",
        *([f"- `{name}`" for name in excluded] or ["None: all passed without a change."]),
    ]
    for room in rooms:
        for outcome in SURVIVED:
            of = [each for each in results if (each["room"], each["outcome"]) == (room, outcome)]
            if of:
                lines += ["", f"## {room}: {outcome} ({len(of)})", "", *_list(of)]
    return "\n".join(lines) + "\n"


def _table(
    title: str,
    names: Iterable[str],
    key: Callable[[Result], str],
    results: Sequence[Result],
    against: Sequence[Result],
) -> list[str]:
    heads = [title, "drawn", "noticed", "by a time-out", "survived", "not covered", "share noticed"]
    heads += ["before"] if against else []
    lines = [f"| {' | '.join(heads)} |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in [*names, "all"]:
        of = [result for result in results if name in (key(result), "all")]
        row = [name, len(of), len(of) - _count(of, *SURVIVED), _count(of, "time-out")]
        row += [_count(of, *SURVIVED), _count(of, "not covered"), _share(of)]
        if against:
            row.append(_share([result for result in against if name in (key(result), "all")]))
        lines.append(f"| {' | '.join(map(str, row))} |")
    return lines


def _count(results: Sequence[Result], *outcomes: str) -> int:
    return sum(result["outcome"] in outcomes for result in results)


def _share(results: Sequence[Result]) -> str:
    """Share in percent, with its standard error."""
    if not results:
        return "-"
    share = 1 - _count(results, *SURVIVED) / len(results)
    return f"{100 * share:.1f} ± {100 * (share * (1 - share) / len(results)) ** 0.5:.1f}"


def _list(results: Sequence[Result]) -> Iterable[str]:
    for result in sorted(results, key=lambda result: (result["file"], result["line"])):
        tried = f", {result['tried']} of {result['covering']} tests" if result["covering"] else ""
        yield f"`{result['file']}:{result['line']}` {result['kind']}{tried}"
        yield ""
        yield "```diff"
        yield from (f"-{line}" for line in result["before"].split("\n"))
        yield from (f"+{line}" for line in result["after"].split("\n"))
        yield "```"
        yield ""
