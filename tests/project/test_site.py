"""The documentation site, built once: signatures, links, and examples in a browser."""

from __future__ import annotations

import ast
import builtins
import html
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import pytest

import seqrecord
from tests.kit.browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[2]
REFERENCE = "reference/*/index.html"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("mkdocs") is None, reason="no mkdocs: pip install -e '.[docs]'"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build("-d", folder)
    assert built.returncode == 0, built.stderr
    return folder


def build(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """mkdocs with the options of `make docs`, and some more."""
    [options] = re.findall(r"\$\(BIN\)/mkdocs (.*)", (ROOT / "Makefile").read_text())
    command = [sys.executable, "-m", "mkdocs", *options.split(), *map(str, arguments)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("link", ["budgets.md", "#at-the-end", "missing.md", "#missing"])
def test_a_broken_link_fails_the_build(tmp_path: Path, link: str) -> None:
    """With the configuration of the site, but for its pages and plugins."""
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text(f"# First\n\n[link]({link})\n\n## At the end\n")
    (pages / "budgets.md").write_text("# Second\n")
    config = {
        "INHERIT": str(ROOT / "mkdocs.yml"),
        "docs_dir": str(pages),
        "site_dir": str(tmp_path / "site"),
        "plugins": [],
        "nav": [{"Start": "index.md"}, {"Next": "budgets.md"}],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps(config))
    built = build("-f", tmp_path / "mkdocs.yml")
    assert built.returncode == ("missing" in link), built.stderr


def signatures(page: Path) -> list[str]:
    """Text of the signatures of a page."""
    blocks = re.findall(r'<div class="[^"]*doc-signature[^"]*">(.*?)</div>', page.read_text(), re.S)
    return [html.unescape(re.sub("<[^>]+>", "", block)).strip() for block in blocks]


def test_signatures_have_no_private_names(site: Path) -> None:
    """Nor do default values of tables and lists of base classes."""
    texts = [text for page in site.glob(REFERENCE) for text in signatures(page)]
    assert len(texts) > 200
    for page in site.glob(REFERENCE):
        shown = re.findall(
            r'doc-(?:param-default|class-bases)".*?</(?:span|p)>', page.read_text(), re.S
        )
        texts += [html.unescape(re.sub("<[^>]+>", "", text)) for text in shown]
    assert not [text for text in texts if re.search(r"(?<![\w\"'])_[A-Za-z]\w*", text)]


def default_names(code: ast.AST | None) -> set[str]:
    """Names in the code of a default value, but for those of builtins."""
    nodes = [] if code is None else ast.walk(code)
    return {node.id for node in nodes if isinstance(node, ast.Name)} - {*vars(builtins)}


def test_defaults_have_no_names_of_modules(site: Path) -> None:
    """Those that a user of the package does not have, such as a constant of its module."""
    named: list[tuple[str, set[str]]] = []
    for page in site.glob(REFERENCE):
        for text in signatures(page):
            [code] = ast.parse(f"def {text}: ..." if "(" in text.split(":")[0] else text).body
            if isinstance(code, ast.FunctionDef):
                values = [*code.args.defaults, *code.args.kw_defaults]
            else:
                values = [getattr(code, "value", None)]
            named += [(text, default_names(value) - {"np"}) for value in values]
        for shown in re.findall(r"default:\s*<code>(.*?)</code>\n", page.read_text(), re.S):
            value = html.unescape(re.sub("<[^>]+>", "", shown))
            named.append((value, default_names(ast.parse(value, mode="eval"))))
    assert len(named) > 1000
    assert not [(text, names) for text, names in named if names]


def test_signatures_have_values_as_defaults(site: Path) -> None:
    shown = {
        text.partition("(")[0]: text for text in signatures(site / "reference/tools/index.html")
    }
    assert "batch_size: int | Budget | None = 4," in shown["bench"]
    loaders = signatures(site / "reference/loaders/index.html")
    texts = [text for text in loaders if text.startswith(("SeqRecordPipe(", "LoaderOptions("))]
    assert len(texts) == 2
    for text in texts:
        assert "clip_len: int | Sequence[int] | None = None," in text
        assert 'last_batch: str = "repeat",' in text
        assert "seed: int = 0," in text


def test_methods_of_base_classes_come_once(site: Path) -> None:
    """The other classes have a link to the place."""
    places: dict[tuple[type, str], list[str]] = defaultdict(list)
    for page in site.glob(REFERENCE):
        text = page.read_text()
        for path in re.findall(r'<h\d id="seqrecord\.([\w.]+)"', text):
            *parents, name = path.split(".")
            owner = reduce(getattr, parents, cast(Any, seqrecord))
            if isinstance(owner, type):
                defining = next(
                    cls for cls in owner.__mro__ if name in {**vars(cls), **cls.__annotations__}
                )
                places[defining, name].append(path)
        for line in re.findall(r'class="doc doc-inherited">(.*?)</p>', text, re.S):
            assert line.count("<code>") == line.count('<code><a class="autorefs'), line
    assert len(places) > 100
    assert not {paths[0]: paths for paths in places.values() if len(paths) > 1}


class Links(HTMLParser):
    """Links, ids, and sources of pictures and scripts of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids |= {values[name] or "" for name in ("id", "name") if name in values}
        self.links += [values[name] or "" for name in ("href", "src") if name in values]


def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    count = 0
    for page, content in pages.items():
        for link in content.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{page}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids | {"__toc"}, f"{page}: {link}"
            count += 1
    assert count > 1000


def test_first_page(site: Path) -> None:
    text = (site / "index.html").read_text()
    readme = (ROOT / "README.md").read_text().partition("<!-- measured -->")[2]
    figures = re.findall(r"[\d.]+ \([\d,]+\)", readme)
    assert len(figures) > 20
    assert all(f"<td>{figure}</td>" in text for figure in figures)
    assert 'id="where-to-ask"' in text
    [picture] = re.findall(r'<img [^>]*src="([^"]+)"', text.partition('id="measured"')[0])
    assert (site / picture).exists()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


# Drawings and printed tables have no language, and scroll where they are wider.
EXAMPLES = """[...document.querySelectorAll('.md-content [class*="language-"] pre > code')]
    .filter(code => !code.closest('.language-text'))"""
WIDE = f"""{EXAMPLES}
    .filter(code => [code, code.parentElement].some(e => e.scrollWidth > e.clientWidth + 1))
    .map(code => code.innerText)"""
OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_examples_do_not_scroll_sideways(site: Path, browser: Browser, width: int) -> None:
    count = 0
    for path in sorted(site.rglob("index.html")):
        page = browser.open(path, width=width)
        assert not page.evaluate(OVERFLOWS), path
        assert page.evaluate(WIDE) == [], path
        count += page.evaluate(f"{EXAMPLES}.length")
        page.call("Page.close")
    assert count > 300
