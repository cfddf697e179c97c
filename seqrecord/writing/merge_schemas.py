"""Whether datasets have one schema; how they differ, and the command that packs them into one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from seqrecord.errors import SchemaError
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.writing.features import loses_data
from seqrecord.writing.stored_schema import is_passthrough

__all__ = ["check_schemas"]

_SHOWN = 500  # characters of what differs


def check_schemas(datasets: Sequence[tuple[str, Schema]], made: str) -> None:
    """`SchemaError` unless the datasets, by URL, have one schema; `made` is where they would go.

    It names the command that packs them into one dataset, where their features have the same
    dtypes, shapes, kinds and units, as far as these are said.
    """
    (first_url, first), *others = datasets
    unlike = [(url, schema) for url, schema in others if schema != first]
    if not unlike:
        return
    differences = []
    for url, schema in unlike:
        found = ", ".join(_differences(schema, first, url, first_url))
        differences.append(f"{url}: {found or 'another order of features, or dropped ones'}")
    common = [name for name in first.kept if all(name in schema for _, schema in unlike)]
    what = "datasets are merged if they have one schema"
    if not common:
        what = "datasets cannot be merged: no feature is in all of them"
    elif all(len(schema.kept) == len(common) for _, schema in datasets):
        what += f"; this packs them into one: {_command(datasets, common, made)}"
    else:
        what += (
            "; `seqrecord edit` adds and drops features, and this packs those that all have into "
            f"one: {_command(datasets, common, made)}"
        )
    raise SchemaError(
        what,
        file=unlike[0][0],
        expected=f"the schema of {first_url}",
        got="; ".join(differences)[:_SHOWN],
    )


def _command(datasets: Sequence[tuple[str, Schema]], common: Sequence[str], made: str) -> str:
    """Merges those that are as the first one, and appends the others to that."""

    def write(url: str, schema: Schema) -> list[str]:
        chosen = ["--features", ",".join(common)] if len(common) < len(schema.kept) else []
        return ["seqrecord", "write", "--src", url, "--dst", made, *chosen]

    (first_url, first), *others = datasets
    commands = [write(first_url, first)]
    if len(common) == len(first.kept):
        alike = [url for url, schema in datasets if schema == first]
        others = [(url, schema) for url, schema in others if schema != first]
        commands = [["seqrecord", "merge", *alike, "-o", made]]
    commands += [[*write(url, schema), "--append"] for url, schema in others]
    return " && ".join(map(shlex.join, commands))


def _differences(schema: Schema, wanted: Schema, url: str, wanted_url: str) -> Iterator[str]:
    """`SchemaError` for a feature that no command takes: of another dtype, shape or value, or of
    which both say another kind or unit."""
    ours, theirs = schema.kept, wanted.kept
    for name in dict.fromkeys((*theirs, *ours)):
        if name not in ours or name not in theirs:
            yield f"{name} is only {'there' if name in theirs else 'here'}"
            continue
        facts = _facts(ours[name]), _facts(theirs[name])
        why = [what for what in facts[0] if facts[0][what] != facts[1][what]]
        for what in why:
            got, want = (each[what] for each in facts)
            if what in ("values", "kind", "unit") and None not in (got, want):
                raise SchemaError(
                    f"datasets cannot be merged: they have a feature of other {what}",
                    file=url,
                    feature=name,
                    expected=f"{want}, as in {wanted_url}",
                    got=got,
                )
        if why:
            says = [f"{what} {facts[0][what]}, not {facts[1][what]}" for what in why]
            if loses_data(theirs[name]) and not is_passthrough(ours[name], theirs[name]):
                says.append("which loses data")
            yield f"{name} ({', '.join(says)})"


def _facts(spec: FeatureSpec) -> dict[str, object]:
    codecs = (dict(config) for config in spec.codec)
    chain = [f"{c.pop('id')}({','.join(f'{k}={v}' for k, v in c.items())})" for c in codecs]
    return {
        "values": str(spec).partition(": ")[2],
        "kind": spec.kind,
        "unit": spec.unit,
        "codec": "+".join(chain) or "raw",
        "group": spec.group,
        "added by": spec.added,
    }
