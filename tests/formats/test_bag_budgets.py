"""Small databases of rosbag2 that compute endless or huge rows are refused within a budget."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError

TOPICS = (
    "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT, "
    "offered_qos_profiles TEXT); "
    "INSERT INTO topics VALUES(1, '/a', 'std_msgs/msg/Float64', 'cdr', ''); "
)
COLUMNS = "id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER"
VALUE = "x'00010000000000000000f03f'"
MESSAGES = (
    f"CREATE TABLE messages({COLUMNS}, data BLOB); INSERT INTO messages VALUES(1, 1, 5, {VALUE});"
)
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
REFUSED = {
    "endless topics": f"CREATE VIEW topics AS {ENDLESS} SELECT x AS id, '/a' AS name, "
    f"'std_msgs/msg/Float64' AS type, 'cdr' AS serialization_format FROM c; {MESSAGES}",
    "endless messages": f"{TOPICS} CREATE VIEW messages AS {ENDLESS} SELECT x AS id, 1 AS "
    f"topic_id, x AS timestamp, {VALUE} AS data FROM c;",
    "a blob of 900 MB": f"{TOPICS} CREATE VIEW messages AS SELECT 1 AS id, 1 AS topic_id, "
    "5 AS timestamp, zeroblob(900000000) AS data;",
    "a generated blob": f"{TOPICS} CREATE TABLE messages({COLUMNS}, data BLOB GENERATED ALWAYS AS "
    "(zeroblob(900000000)) VIRTUAL); INSERT INTO messages VALUES(1, 1, 5);",
    "a virtual table": f"{TOPICS} CREATE VIRTUAL TABLE messages USING fts5(id, topic_id, "
    "timestamp, data);",
    "no messages": TOPICS,
    "a name of bytes": TOPICS.replace("'/a'", "x'ff00'") + MESSAGES,
    "no name": TOPICS.replace("'/a'", "NULL") + MESSAGES,
}


def write(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
        database.commit()


@pytest.mark.parametrize("case", REFUSED)
def test_a_database_that_computes_its_rows(tmp_path: Path, case: str) -> None:
    write(tmp_path / "a.db3", REFUSED[case])
    begin = time.process_time()
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path, clock="/a").schema()
    assert time.process_time() - begin < 5
    assert caught.value.file == str(tmp_path / "a.db3")
    assert caught.value.expected or caught.value.got


def test_views_and_other_tables_beside_the_messages(tmp_path: Path) -> None:
    beside = f"CREATE VIEW all_messages AS {ENDLESS} SELECT * FROM c; CREATE TABLE schema(v);"
    write(tmp_path / "a.db3", TOPICS + MESSAGES + beside)
    seqrecord.convert(open_source(tmp_path, clock="/a"), tmp_path / "r", workers=1)
    with seqrecord.open(tmp_path / "r") as dataset:
        assert dataset.num_frames == 1


def test_many_topics(tmp_path: Path) -> None:
    """The time of a list of topics is proportional to its length."""
    numbers = f"{ENDLESS[:-1]} WHERE x < 40000)"
    others = f"INSERT INTO topics {numbers} SELECT x + 1, '/t' || x, 'a/msg/B', 'cdr', '' FROM c;"
    write(tmp_path / "a.db3", TOPICS + MESSAGES + others)
    begin = time.process_time()
    assert list(open_source(tmp_path, clock="/a").schema()) == ["a", "log_time"]
    assert time.process_time() - begin < 5
