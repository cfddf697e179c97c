"""Inventories: a source's report on its original, packed and not packed.

::

    class MySource:
        def schema(self): …
        def episodes(self): …
        def frames(self, info): …
        def account(self):  # optional
            left_out = unread_files(self.root, lambda path: path.suffix == ".png")
            return Account("folders with *.png", {"image": "*/image/*.png"}, tuple(left_out))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from seqrecord.errors import SourceError
from seqrecord.store.areas import FORMATS
from seqrecord.store.format.inventory import Inventory, LeftOut, PackedFeature
from seqrecord.store.originals.protocol import Source

NOT_SELECTED = "not selected by features="
"""Reason for data excluded by the caller."""


@dataclass(frozen=True)
class Account:
    """A source's report on its original, returned by its optional method `account()`.

    Args:
        reason: evidence for the format: "2 folders with image_left/ and pose_left.txt".
        places: path or pattern of each feature in the original.
        left_out: data that is not packed, grouped by pattern.
        notes: assumptions and irregularities.

    Example:
        from seqrecord.sources import Account, LeftOut

        left_out = (LeftOut("lidar/*.pcd", 120, "no reader"),)
        account = Account("3 folders with rgb/", {"rgb": "*/rgb/*.png"}, left_out)
    """

    reason: str
    places: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def inventory_of(source: Source) -> Inventory:
    """Return the inventory of any source. Without `account()` it lists the features only.

    Errors of the source's methods propagate.

    Example:
        import seqrecord as sr
        from seqrecord.sources import inventory_of

        inventory = inventory_of(sr.open_source("records/"))
        print(inventory.format, [feature.name for feature in inventory.features])
    """
    account = account_of(source)
    unreadable: Mapping[str, SourceError] = getattr(source, "unreadable", {})
    left_out = [LeftOut(f"feature {n}", 1, str(e), "features") for n, e in unreadable.items()]
    left_out += [row for row in account.left_out if not _is_one_of(row, unreadable)]
    schema = source.schema()
    palettes: Mapping[str, bool] = getattr(source, "palettes", {})
    notes = [palette_note(name, are_indices=palettes[name]) for name in schema if name in palettes]
    return Inventory(
        format_of(source),
        account.reason,
        tuple(
            PackedFeature(
                spec.name,
                spec.value_kind.dtype_text(spec),
                spec.value_kind.value_shape(spec.shape),
                spec.kind,
                spec.unit,
                account.places.get(spec.name, ""),
            )
            for spec in schema.values()
        ),
        tuple(left_out),
        (*account.notes, *notes),
    )


def palette_note(name: str, *, are_indices: bool) -> str:
    """Return the note of the inventory about a feature."""
    if are_indices:
        return (
            f"feature {name}: images with a palette, read as indices; without `gt`, `objects`, "
            "`ids`, `mask`, `labels` and similar words in its name they are read as colours"
        )
    return (
        f"feature {name}: images with a palette, read as colours; with `mask` or `labels` in its "
        "name they are read as indices"
    )


def account_of(source: Source) -> Account:
    """Return the result of a source's `account()`, or an account of nothing without the method."""
    method = getattr(source, "account", None)
    account: Account = Account("custom source without account()") if not method else method()
    return account


def _is_one_of(row: LeftOut, unreadable: Iterable[str]) -> bool:
    """Whether a row lists an unreadable feature as not selected."""
    name = "." + row.pattern.replace("/", ".").replace(" ", ".").removesuffix(".*")
    return row.reason.startswith(NOT_SELECTED) and name.endswith(tuple(f".{n}" for n in unreadable))


def not_selected(name: str, count: int = 1, unit: str = "features", *, also: str = "") -> LeftOut:
    """Report a feature or field excluded by `features=`, or by the argument `also`."""
    return LeftOut(name, count, NOT_SELECTED + also, unit, is_data=False)


def format_of(source: Source) -> str:
    """Return the format name of a source, or its class name for other packages' sources."""
    if (name := getattr(source, "format_name", None)) is not None:
        return str(name)
    module = type(source).__module__
    names = {f"seqrecord.formats.sources.{place}": name for name, place in FORMATS.items()}
    return names.get(module, type(source).__name__)
