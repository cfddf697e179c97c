"""The page kind of references: registered in `store.areas` for pages with the reference bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqrecord.in_place.external_pages import ExternalPages
from seqrecord.store.format.page_kinds import ReferenceKind, page_kind
from seqrecord.store.schema import Schema


class _Reference(ReferenceKind):
    name = "reference"

    def group(
        self,
        schema: Schema,
        number: int,
        externals: Mapping[str, tuple[str, int]],
        *,
        checksums: bool,
    ) -> Any:
        # Only the writer needs groups.
        [spec] = schema.group(number).values()
        if page_kind(spec).decodes_in_order:
            from seqrecord.in_place.video_group import ReferringVideoGroup

            return ReferringVideoGroup(schema, number, externals, checksums=checksums)
        # A source with video has no other references.
        if any(page_kind(sibling).decodes_in_order for sibling in schema.values()):
            return None
        from seqrecord.in_place.reference_group import ReferenceGroup

        return ReferenceGroup(schema, number, externals, checksums=checksums)

    def pages(self, *args: Any) -> ExternalPages:
        return ExternalPages(*args)


REFERENCE = _Reference()
