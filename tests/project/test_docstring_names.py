"""Parameters, attributes and names in the docstrings of the package exist in its code."""

from __future__ import annotations

import ast

from tests.project.docstring_names import COMPOSED, FOREIGN, Package, package


def test_names_in_docstrings_exist() -> None:
    stale = {*package().stale_names()}
    exempt = FOREIGN | COMPOSED
    assert sorted(place for place in stale if place[-1] not in exempt) == []
    assert {name for *_, name in stale} == exempt, "remove the others from FOREIGN and COMPOSED"


CODE = """
from room.table import Table, open_table

LIMIT = 3

class Reader(Table):
    \"\"\"DOCSTRING\"\"\"
    block_rows: int = 8

    def __init__(self, path: str) -> None:
        self.num_rows = len(open_table(path, mode="append"))

class Plan(NamedTuple):
    first_row: int

def read(path: str, *, columns: list[str] | None = None) -> None:
    \"\"\"DOCSTRING\"\"\"
    batch = {"is_last": True}
"""
TABLE = """
class Table:
    height: int

    def rows(self) -> None: ...

def open_table(path: str, mode: str) -> Table:
    other_name = 0
"""


def stale_names(docstring: str) -> list[str]:
    """Of a class, or of a function if it documents the parameter `columns`."""
    before, middle, after = CODE.split("DOCSTRING")
    texts = ("", docstring) if "columns" in docstring else (docstring, "")
    code = before + texts[0] + middle + texts[1] + after
    trees = {"room": ast.parse(""), "room.reader": ast.parse(code), "room.table": ast.parse(TABLE)}
    return [name for _, _, name in Package(trees).stale_names()]


PRESENT = (
    *("`path`", "`block_rows`", "`num_rows`", "`LIMIT`", "`height`", "`rows()`", "`is_last`"),
    *(
        "`mode=`",
        '`mode="append"`',
        "`open_table(path, mode=…)`",
        "`Table.rows`",
        "`Reader.height`",
    ),
    *("`room.table`", "`table.Table`", "`room.table.Table.rows`", "`Plan.first_row`", "`None`"),
    *(
        "`data.json`",
        "`camera.image`",
        "`a < b`",
        "`[N, 3]`",
        "`i`",
        "`frame_2`",
        "`X_mask`",
        "`--all`",
    ),
    "Attributes:\n    block_rows: rows.\n    height, num_rows: of it.",
    "Args:\n    path: a file.\n    block_rows: rows.\n\nOther: no entry.",
    "Args:\n    path: a file\n        with: two lines.\n    columns: all.",
    ">>> `old_name`\n\n```\n`old_name`\n```",
)
STALE = {
    "`old_name`": "old_name",
    "`other_name` is local elsewhere": "other_name",
    "`OldName`": "OldName",
    "`old` with `columns`": "old",
    "`old=`": "old=",
    '`old="append"`': "old=",
    "`old()`": "old",
    "`open_table(path, old=3)`": "old=",
    "`Table.old`": "Table.old",
    "`OldTable.rows`": "OldTable.rows",
    "`table.old`": "table.old",
    "`room.old`": "room.old",
    "Attributes:\n    old: rows.": "old",
    "Args:\n    old: a file.": "old",
    "Args:\n    columns: all.\n    old, path: a file.": "old",
    "Args:\n    columns: all.\n    block_rows: of the class.": "block_rows",
}


def test_examples_of_names() -> None:
    for docstring in PRESENT:
        assert stale_names(docstring) == [], docstring
    for docstring, name in STALE.items():
        assert stale_names(docstring) == [name], docstring
