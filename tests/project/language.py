"""Counts phrases that make text hard to read: `python -m tests.project.language [PAGE ...]`.

Figures are occurrences per 1,000 words; a word is a run of letters, digits and apostrophes. Fenced
code, doctests, tables, HTML comments, link targets and code spans are removed first. Case is
ignored. The phrases:

- `what`: the word `what`.
- `say`: any form of `say`, `tell` and `know`.
- `those`: "those", "one" or "all" before "that", "which" or "of".
- `lies`: any form of `lie` and `hold`.
- `of`: a chain: two "of" with one or two words between them.
- `stays`: any form of `stay`.
- `examples`: "for example" and "e.g.", and fenced blocks of Python, shell or doctest.

`LIMITS` has the limits. A short text may exceed its share by one phrase (`allowed`); all texts of a
kind together must keep the limit, and those of `MORE_LIMITS`.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from tests.project.source_code import parse, statements

ROOT = Path(__file__).parents[2]
LIMITS = {"what": 0.8, "say": 0.6, "those": 1.0, "lies": 0.5}
MORE_LIMITS = {
    "docs": {"of": 0.2, "stays": 0.1},
    "docstrings": {"of": 0.35, "stays": 0.3},
    "messages": {"of": 3.3, "stays": 0.6},
}
EXAMPLES = 1.5
"""Minimum number of examples per 1,000 words of docs."""

PHRASES = {
    "what": r"what",
    "say": r"say|says|said|saying|tell|tells|told|telling|know|knows|knew|known|knowing",
    "those": r"(?:those|one|all) (?:that|which|of)",
    "lies": r"lie|lies|lay|lain|lying|hold|holds|held|holding",
    "of": r"of (?:[\w'-]+ ){1,2}of",
    "stays": r"stay|stays|stayed|staying",
}
_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n.*?^\1```", re.M | re.S)
_DOCTEST = re.compile(r"^ *>>> (?:.+\n?)+", re.M)


def count(text: str) -> Counter[str]:
    """Words, phrases and examples of a text in Markdown."""
    found = Counter(words=0)
    blocks = [language for _, language in _BLOCK.findall(text)]
    text = _BLOCK.sub("", text)
    found["examples"] = sum(b in ("python", "bash", "sh", "yaml", "toml") for b in blocks)
    found["examples"] += len(_DOCTEST.findall(text))
    text = _DOCTEST.sub("", text)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r"^ *\|.*$", "", text, flags=re.M)
    text = re.sub(r"`[^`]+`", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"\s+", " ", text)
    found["examples"] += len(re.findall(r"\bfor example\b|\be\.g\.", text, re.I))
    found["words"] = len(re.findall(r"[\w']+", text))
    for name, phrase in PHRASES.items():
        found[name] = len(re.findall(rf"\b(?:{phrase})\b", text, re.I))
    return found


def rates(found: Counter[str]) -> dict[str, float]:
    """Occurrences per 1,000 words."""
    return {n: 1000 * found[n] / max(found["words"], 1) for n in (*PHRASES, "examples")}


def allowed(name: str, words: int) -> int:
    """Limit of a phrase for a single text of `words` words."""
    return int(LIMITS[name] * words / 1000) + 1


def pages() -> dict[str, str]:
    """Text of README and of each page in docs, by path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


@lru_cache
def _texts() -> tuple[dict[str, str], dict[str, str]]:
    """Docstrings of each subpackage, and its other strings."""
    stated, literals = dict[str, list[str]](), dict[str, list[str]]()
    for path in sorted((ROOT / "seqrecord").rglob("*.py")):
        first, *rest = path.relative_to(ROOT / "seqrecord").parts
        package, docs = first if rest else "(loose)", set[int]()
        for node in ast.walk(parse(path)):  # a statement precedes its parts
            match node:
                case ast.Expr(value=ast.Constant(value=str() as text) as constant):
                    stated.setdefault(package, []).append(text)
                    docs.add(id(constant))
                case ast.Constant(value=str() as text) if id(node) not in docs:
                    literals.setdefault(package, []).append(text)
    join = "\n\n".join
    return {package: join(texts) for package, texts in stated.items()}, {
        package: join(text for text in texts if re.search(r"[a-z]+ [a-z]+", text))
        for package, texts in literals.items()
    }


def docstrings() -> dict[str, str]:
    """Docstrings of each subpackage, attributes included."""
    return _texts()[0]


def literals() -> dict[str, str]:
    """String literals of each subpackage with two words or more, without docstrings."""
    return _texts()[1]


def code() -> dict[str, str]:
    """Docstrings, comments and function names of each file of tests and benchmarks."""
    found = {}
    for folder in ("tests", "benchmarks", "development"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts:
                found[str(path.relative_to(ROOT))] = _of_file(path)
    return found


def _of_file(path: Path) -> str:
    texts = re.findall(r"(?:^| )# (.*)$", path.read_text(), re.M)
    for node in statements(parse(path)):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                texts.append(text)
            case ast.FunctionDef(name=name):
                texts.append(name.replace("_", " "))
    return "\n\n".join(texts)


def table(texts: dict[str, str]) -> Iterable[str]:
    """A line of figures for each text, and the totals."""
    yield f"{'':28} {'words':>7}" + "".join(f"{n:>10}" for n in (*PHRASES, "examples"))
    total: Counter[str] = Counter()
    for name, text in texts.items():
        found = count(text)
        total += found
        yield _line(name, found)
    yield _line("all", total)


def _line(name: str, found: Counter[str]) -> str:
    figures = "".join(f"{rate:10.2f}" for rate in rates(found).values())
    return f"{name:28} {found['words']:7,}{figures}"


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, help="show the phrases of these pages")
    paths = parser.parse_args().pages
    for path in paths:
        _show(path)
    if not paths:
        kinds = {
            "docs": pages(),
            "docstrings": docstrings(),
            "messages": literals(),
            "code": code(),
        }
        for kind, texts in kinds.items():
            sys.stdout.write(f"\n{kind}\n" + "".join(f"{line}\n" for line in table(texts)))


def _show(path: Path) -> None:
    """Print the lines with a phrase; phrases across a line break are not found."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for phrase in PHRASES.values():
            text = line if path.suffix == ".md" else line.replace("_", " ")
            if re.search(rf"\b(?:{phrase})\b", text, re.I):
                sys.stdout.write(f"{path}:{number}: {line}\n")
                break


if __name__ == "__main__":
    _main()
