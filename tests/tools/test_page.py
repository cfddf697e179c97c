"""`view -o page.html`: pages of datasets, looked at in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.edit import trim_episodes
from seqrecord.errors import ClipError, DestinationError
from seqrecord.viewer import view_page
from tests.formats.format_cases.scenes import write_nerfstudio
from tests.kit.browser import CHROMIUM, Browser, Page
from tests.kit.command_line import fail, run
from tests.kit.datasets import columns, damage, noise, write_dataset
from tests.kit.lerobot_language_data import annotate
from tests.kit.lerobot_video_data import unpack
from tests.kit.trees import make_frames, write_v1

ROOT = Path(__file__).parents[2]
HTML = ROOT / "seqrecord" / "tools" / "viewer" / "html"

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt install chromium")
HOSTILE = (
    "</script><script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "<!--<script>",
    "'`${document.title='owned'}`",
    "\u202eevil\u2066 \u200b{{ 7 * 7 }}",
    "&lt;b&gt; javascript:alert(1)",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def data_of(page: Path) -> Any:
    """The data of a page for its script."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text())
    assert found is not None
    return json.loads(found[1])


def check_quiet(page: Page) -> None:
    """The page loaded nothing but itself and its pictures, and its log is empty."""
    assert page.problems == []
    others = [url for url in page.requests if not url.startswith("data:image/")]
    assert len(others) == 1
    assert others[0].startswith("file:///")


def write_robot(path: Path, num_episodes: int = 3, num_frames: int = 20) -> None:
    """Episodes of a robot: two cameras, state, action, a caption and a timestamp."""
    rng = np.random.default_rng(0)
    episodes, metadata = {}, {}
    for number in range(num_episodes):
        times = np.arange(num_frames) / 10
        state = np.sin(times[:, None] * [1, 2, 3]) + number / 10
        ramps = np.linspace(60, 200, num_frames).astype(np.uint8)
        episodes[f"kitchen/{number:03}"] = columns(
            front=[np.full((24, 32, 3), level, np.uint8) for level in ramps],
            wrist=rng.integers(0, 256, (num_frames, 24, 32, 3), np.uint8),
            state=state,
            action=state + 0.1,
            subtask=["reach"] * (num_frames // 2) + ["grasp"] * (num_frames - num_frames // 2),
            timestamp=times,
        )
        metadata[f"kitchen/{number:03}"] = {"task": ("fold", "pour")[number % 2], "site": "lab"}
    features = {name: {"kind": name} for name in ("state", "action")}
    features["timestamp"] = {"kind": "timestamp", "unit": "s"}
    write_dataset(path, episodes, metadata=metadata, fps=10, features=features)


@needs_chromium
@pytest.mark.slow
def test_a_page_in_the_browser(tmp_path: Path, browser: Browser) -> None:
    """Overview, list and one episode, from the command line."""
    write_robot(tmp_path / "records")
    result = run("view", tmp_path / "records", "-o", tmp_path / "page.html", "--quiet")
    assert result.stdout == f"{tmp_path / 'page.html'}\n"
    page = browser.open(tmp_path / "page.html")
    overview = page.text("#at-overview")
    for text in ("subtask", "24 x 32 x 3", "fingerprint", "histogram", "10\n3 episodes"):
        assert text in overview
    page.press("e")
    page.wait("!document.getElementById('at-episodes').hidden")
    assert page.evaluate("document.querySelectorAll('#list tbody tr').length") == 3
    assert "kitchen/001" in page.text("#list")
    assert "pour" in page.text("#list")
    page.press("/")
    page.wait("document.activeElement.id === 'search'")
    for key in "POUR":
        page.press(key)
    page.wait("document.querySelectorAll('#list tbody tr').length === 1")
    page.press("Enter")
    page.press("Enter")
    page.wait("!document.getElementById('at-episode').hidden")
    assert page.text("#key") == "kitchen/001"
    page.wait("document.querySelectorAll('.uplot').length === 4")
    assert page.text("#charts").count("action") == 3
    assert "grasp" in page.text("#tracks")
    page.press("ArrowRight", shift=True)
    assert page.evaluate("location.hash") == "#episode=kitchen%2F001&frame=1"
    assert page.text("#place") == "frame 1 of 20 · 0.10 s"
    check_quiet(page)


@needs_chromium
@pytest.mark.slow
def test_an_address_opens_a_frame(tmp_path: Path, browser: Browser) -> None:
    """The pictures there have the frame's pixels; unknown episodes are named."""
    write_robot(tmp_path / "records")
    view_page(tmp_path / "records", tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", "#episode=kitchen/002&frame=19")
    assert page.text("#place").startswith("frame 19 of 20")
    assert page.text("figcaption") == "front frame 19"
    middle = "document.querySelector('figure canvas').getContext('2d').getImageData(16, 12, 1, 1)"
    page.wait(f"{middle}.data[3] === 255")
    assert page.evaluate(f"{middle}.data[0]") == pytest.approx(200, abs=4)
    page = browser.open(tmp_path / "page.html", "#episode=nowhere")
    assert page.text("#problem") == "This page has no episode nowhere."
    check_quiet(page)


@needs_chromium
@pytest.mark.slow
def test_hostile_texts_are_shown_as_text(tmp_path: Path, browser: Browser) -> None:
    """In keys, metadata, captions and the path of the dataset."""
    names = [re.sub(r"[\x00-\x1f]", "", text) for text in HOSTILE]
    episodes = {f"{n}{i}": columns(x=range(4), note=[n] * 4) for i, n in enumerate(names)}
    metadata = {key: {name: name for name in names} for key in episodes}
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    write_dataset(folder, episodes, metadata=metadata)
    view_page(folder, tmp_path / "page.html")
    for fragment in ("#overview", "#episodes", *(f"#episode={key}" for key in episodes)):
        page = browser.open(tmp_path / "page.html", fragment)
        assert page.evaluate("document.title").endswith("<img src=x onerror=alert(1)>")
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.scripts.length") == 3
        assert "onerror=alert(1)" in page.text("h1")
        check_quiet(page)
    page = browser.open(tmp_path / "page.html", "#episodes")
    shown = page.text("#list")
    assert "</script><script>document.title='owned'</script>" in shown
    assert "\\u{202e}evil\\u{2066}" in shown
    assert not set("\u202e\u2066\u200b") & set(page.evaluate("document.body.innerText"))


def test_the_policy_names_every_script_and_style(tmp_path: Path) -> None:
    """Elements with other content are refused by the browser; handlers in attributes too."""
    write_robot(tmp_path / "records", 1, 2)
    view_page(tmp_path / "records", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = found[1].replace("&#39;", "'")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [hashlib.sha256(content.encode()).digest() for content in contents]
        hashes = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert len(hashes) == 2
        assert rules[rule].split() == hashes
    assert not re.findall(
        r"<[^>]* (?:on\w+|style)=", re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    )


def test_included_files_are_those_of_the_licences_page() -> None:
    rows = re.findall(
        r"`(seqrecord/[\w./]+)` .*`([0-9a-f]{64})`", (ROOT / "docs/licences.md").read_text()
    )
    assert len(rows) == 2
    for path, digest in rows:
        assert hashlib.sha256((ROOT / path).read_bytes()).hexdigest() == digest
    assert (HTML / "uPlot.LICENSE").read_text().startswith("The MIT License")


@pytest.mark.parametrize("max_size", [150_000, 250_000])
def test_pages_fit_their_size_and_say_what_is_left_out(tmp_path: Path, max_size: int) -> None:
    frames = columns(image=noise(4, 24, 32, 3), state=noise(4, 6, dtype=np.float32))
    write_dataset(tmp_path / "records", {f"e{i:03}": frames for i in range(60)})
    path = view_page(tmp_path / "records", tmp_path / "page.html", max_size=max_size)
    assert path.stat().st_size <= max_size
    assert path.stat().st_size > max_size / 2
    data = data_of(path)
    having = sum("pictures" in row for row in data["episodes"])
    assert 0 < having <= 60
    note = f"{60 - having:,} of 60 episodes have no pictures and curves"
    assert (note in path.read_text()) == (having < 60)


def make_tartanair(folder: Path) -> Any:
    for number in range(2):
        frames = make_frames(number, 5, size=(24, 32))
        write_v1(folder / "tree" / "env" / "Easy" / f"P00{number}", frames)
    run("write", "--src", folder / "tree", "--dst", folder / "records", "--workers", 1, "--quiet")
    return folder / "records"


def make_lerobot(folder: Path) -> Any:
    root = unpack(folder, "lerobot_video_v3")
    annotate(root)
    return seqrecord.open(root, language={"subtask": "active_at(t, style=subtask)"})


def make_scene(folder: Path) -> Any:
    write_nerfstudio(folder / "scene")
    run("write", "--src", folder / "scene", "--dst", folder / "records", "--workers", 1, "--quiet")
    return folder / "records"


def make_depth_and_flow(folder: Path) -> Any:
    depth = np.linspace(0.5, 20, 5 * 24 * 32).reshape(5, 24, 32).astype(np.float32)
    depth[:, :4] = np.nan
    flow = noise(5, 24, 32, 2, dtype=np.float32)
    features = {"depth": {"kind": "depth", "unit": "m"}, "flow": {"kind": "flow", "unit": "px"}}
    frames = columns(depth=depth, flow=[*flow[:4], None], disparity=noise(5, 24, 32, dtype="f4"))
    write_dataset(folder / "records", {"a": frames}, features=features)
    return folder / "records"


def make_missing(folder: Path) -> Any:
    images = [None, *noise(3, 24, 32, 3), None, None, *noise(2, 24, 32, 3)]
    state = [np.full(2, n) if n != 3 else None for n in range(8)]
    write_dataset(folder / "records", {"a": columns(image=images, state=state, x=range(8))})
    return folder / "records"


def make_mix(folder: Path) -> Any:
    write_robot(folder / "one", 2, 6)
    write_robot(folder / "two", 1, 6)
    (folder / "mix.yaml").write_text(
        "sources: {left: {location: one}, right: {location: two}}\nbatch_size: 2\nclip_len: 2\n"
    )
    return folder / "mix.yaml"


MADE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "tartanair": (make_tartanair, ["pose_left[6]", "flow: 1 missing", "full color"]),
    "lerobot": (make_lerobot, ["observation.images.wrist", "observation.state[y]", "subtask"]),
    "scene": (make_scene, ["image", "pose[0]"]),
    "depth and flow": (make_depth_and_flow, ["1.31 m", "20 m", " px a frame", "flow: 1 missing"]),
    "missing frames": (
        make_missing,
        ["image: 3 missing", "missing at frame 0", "state: 1 missing"],
    ),
    "mix": (make_mix, ["kitchen/000 left", "front", "grasp"]),
}


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_pages_of_all_kinds_of_data(tmp_path: Path, browser: Browser, name: str) -> None:
    """At two widths, light and dark: no error in the log, no scrolling sideways."""
    make, texts = MADE[name]
    view_page(make(tmp_path), tmp_path / "page.html")
    first = data_of(tmp_path / "page.html")["episodes"][0]["key"]
    for width, dark in ((1280, False), (390, True)):
        for fragment in ("#overview", "#episodes", f"#episode={first}"):
            page = browser.open(tmp_path / "page.html", fragment, width=width, dark=dark)
            check_quiet(page)
            assert page.evaluate("document.documentElement.scrollWidth") == width
            back = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert back == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")
        page = browser.open(tmp_path / "page.html", f"#episode={first}", width=width, dark=dark)
        charts = "document.querySelectorAll('.{}').length".format
        page.wait(f"{charts('chart')} === {charts('uplot')}")
        shown = page.text("#at-episode")
        assert [text for text in texts if text not in shown] == []


@needs_chromium
@pytest.mark.slow
def test_two_sources_may_have_an_episode_of_one_name(tmp_path: Path, browser: Browser) -> None:
    view_page(make_mix(tmp_path), tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", "#episode=kitchen/000&source=right&frame=5")
    assert page.text("#key") == "kitchen/000 right"
    page = browser.open(tmp_path / "page.html")
    assert "Source left" in page.text("#at-overview")
    assert "Source right" in page.text("#at-overview")


@needs_chromium
@pytest.mark.slow
def test_unreadable_episodes_are_listed_with_their_error(tmp_path: Path, browser: Browser) -> None:
    frames = columns(image=noise(4, 24, 32, 3))
    write_dataset(tmp_path / "records", {"a": frames, "b": frames}, codecs="raw")
    damage(tmp_path / "records", "image", 1, 0)
    view_page(tmp_path / "records", tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", "#episodes")
    assert page.text("#list").count("cannot be read") == 2
    page = browser.open(tmp_path / "page.html", "#episode=b")
    assert "This episode cannot be read" in page.text("#problem")
    assert "checksum" in page.text("#problem")
    check_quiet(page)


@needs_chromium
@pytest.mark.slow
def test_a_thousand_episodes_fit_a_page(tmp_path: Path, browser: Browser) -> None:
    """All are in the list, with pictures and curves; sorting and filtering reach each."""
    write_robot(tmp_path / "records", 1000, 8)
    path = view_page(tmp_path / "records", tmp_path / "page.html")
    assert path.stat().st_size <= 5_000_000
    assert all(row["pictures"] and row["curves"] for row in data_of(path)["episodes"])
    page = browser.open(path, "#episodes")
    count = "document.querySelectorAll('#list tbody tr').length"
    assert page.evaluate(count) == 200
    page.evaluate("document.getElementById('more').click()")
    assert page.evaluate(count) == 400
    for key in "/777":
        page.press(key)
        page.wait("document.activeElement.id === 'search'")
    page.wait(f"{count} === 1")
    assert page.text("#count") == "1 of 1,000 episodes"
    check_quiet(page)


@needs_chromium
@pytest.mark.slow
def test_columns_point_at_planted_faults(tmp_path: Path, browser: Browser) -> None:
    """The sorted list begins with the episode of each kind of fault."""
    rng = np.random.default_rng(0)
    episodes, metadata = {}, {}
    for number in range(12):
        level = 12 if number == 7 else 120
        images = rng.integers(level - 10, level + 10, (12, 24, 32, 3), np.uint8)
        images[2:] = images[2] if number == 2 else images[2:]
        is_right = number % 2 == 1  # where the task has an object
        images[6:, :8, 16 * is_right : 16 * is_right + 8] += 60
        task = "right" if is_right != (number == 10) else "left"
        metadata[f"e{number:02}"] = {"task": task}
        state = np.sin(np.arange(12)[:, None] + [0, 1]) * (57.3 if number == 4 else 1)
        times = np.arange(12) / 10 + (np.arange(12) > 5) * (0.8 if number == 9 else 0)
        episodes[f"e{number:02}"] = columns(camera=images, state=state, timestamp=times)
    features = {"state": {"kind": "state"}, "timestamp": {"kind": "timestamp", "unit": "s"}}
    write_dataset(tmp_path / "records", episodes, metadata=metadata, fps=10, features=features)
    view_page(tmp_path / "records", tmp_path / "page.html")
    page = browser.open(tmp_path / "page.html", "#episodes")
    faults = {"still": "e02", "longest": "e09", "outlier": "e04", "light": "e07", "unlike": "e10"}
    for label, key in faults.items():
        buttons = "[...document.querySelectorAll('thead button')]"
        click = f"{buttons}.find((b) => b.innerText.startsWith('{label}')).click()"
        page.evaluate(click)
        assert page.text("#list tbody a") == key


@needs_chromium
@pytest.mark.slow
def test_a_folder_has_playable_video(tmp_path: Path, browser: Browser) -> None:
    """The packets of the original, remuxed: as many frames, at their times."""
    import av

    root = unpack(tmp_path, "lerobot_video_v3")
    result = run("view", root, "-o", f"{tmp_path}/page/", "--quiet")
    assert result.stdout == f"{tmp_path / 'page' / 'index.html'}\n"
    files = sorted((tmp_path / "page" / "videos").iterdir())
    assert len(files) == 6
    for file, count in zip(files[::2], (5, 4, 7), strict=True):
        with av.open(str(file)) as video:
            times = [frame.time for frame in video.decode(video=0)]
        assert times == pytest.approx(np.arange(count) / 10)
    page = browser.open(tmp_path / "page" / "index.html", "#episode=episode_000002&frame=3")
    page.wait("document.querySelector('video').readyState >= 2")
    assert page.evaluate("document.querySelectorAll('video').length") == 2
    assert page.evaluate("document.querySelector('video').duration") == pytest.approx(0.7)
    page.wait("Math.abs(document.querySelector('video').currentTime - 0.35) < 0.01")
    assert page.problems == []
    assert all(url.startswith(("file:///", "data:image/")) for url in page.requests)
    page = browser.open(tmp_path / "page" / "index.html", "#episodes")
    loaded = "new Promise((done) => { const image = new Image(); image.onload = () => done(true);"
    loaded += " image.onerror = () => done(false); image.src = 'pictures/000000-0.webp'; })"
    assert page.evaluate(loaded)
    assert page.problems == []
    run("view", root, "-o", tmp_path / "page", "--quiet")  # an earlier page is replaced
    (tmp_path / "page" / "notes.txt").write_text("mine")
    assert "other files" in fail("view", root, "-o", tmp_path / "page", "--quiet")
    assert (tmp_path / "page" / "notes.txt").read_text() == "mine"


@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("codec", ["h264", "hevc", "av1", "vp9"])
def test_trimmed_video_is_playable(tmp_path: Path, browser: Browser, codec: str) -> None:
    """Frames outside of the trim are decoded with the others, and not shown."""
    import av

    images = np.zeros((40, 96, 128, 3), np.uint8)
    for number, image in enumerate(images):
        image[2 * number :] = 250
    codecs = {"camera": f"{codec}:gop=10"}
    write_dataset(tmp_path / "records", {"a": columns(camera=images)}, codecs=codecs, fps=10)
    trim_episodes(tmp_path / "records", "a", slice(13, 27))
    view_page(tmp_path / "records", f"{tmp_path}/page/")
    [file] = (tmp_path / "page" / "videos").iterdir()
    with av.open(str(file)) as video:
        frames = [(frame.time, frame.to_ndarray(format="gray")) for frame in video.decode(video=0)]
    assert [time for time, _ in frames] == pytest.approx(np.arange(14) / 10)
    edges = [int((picture[:, 64] > 128).argmax()) for _, picture in frames]
    np.testing.assert_allclose(edges, 2 * np.arange(13, 27), atol=1)
    if codec == "hevc":  # Debian's Chromium has no decoder for it
        return
    page = browser.open(tmp_path / "page" / "index.html", "#episode=a&frame=3")
    page.wait("document.querySelector('video').readyState >= 2")
    assert page.evaluate("document.querySelector('video').duration") == pytest.approx(1.4)
    page.wait("Math.abs(document.querySelector('video').currentTime - 0.35) < 0.01")
    assert page.problems == []


@pytest.mark.parametrize("shape", [(16, 4096), (4096, 16), (64, 2048)])
def test_wide_and_tall_pictures_fit_a_sprite(tmp_path: Path, shape: tuple[int, int]) -> None:
    """WebP has at most 16,383 pixels a side, and a sprite has eight pictures in a row."""
    values = noise(70, *shape, dtype=np.float32)
    write_dataset(tmp_path / "records", {"a": columns(embedding=values)}, codecs="raw")
    view_page(tmp_path / "records", f"{tmp_path / 'page'}/", max_size="100MB")
    assert [*(tmp_path / "page" / "pictures").iterdir()]


def test_a_damaged_video_is_left_out_of_a_folder(tmp_path: Path) -> None:
    """Also where no picture shows the damage."""
    pictures = noise(200, 16, 32, 3)
    path = tmp_path / "records"
    episodes = {key: columns(image=pictures) for key in "ab"}
    write_dataset(path, episodes, codecs="h264:gop=2", chunk_frames=2, fps=10)
    for chunk in (1, 2):
        damage(path, "image", 1, chunk)
    page = view_page(path, f"{tmp_path / 'page'}/", max_size="3MB")
    rows = {row["key"]: row for row in data_of(page)["episodes"]}
    assert "image" in rows["a"]["videos"]
    assert "videos" not in rows["b"]
    assert "1 episode without videos" in page.read_text()


def test_a_folder_whose_page_fails_can_be_written_again(tmp_path: Path) -> None:
    """An earlier page stays as it was until another one is complete."""
    write_robot(tmp_path / "records")
    folder = tmp_path / "page"
    for _ in range(2):  # of a new folder, and over an earlier page
        with pytest.raises(ClipError, match="max_size is too small"):
            view_page(tmp_path / "records", f"{folder}/", max_size=1000)
        pictures = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
        (folder / ".unfinished" / "pictures").mkdir(parents=True)  # of a process that was killed
        page = view_page(tmp_path / "records", f"{folder}/")
        shown = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
        assert shown.items() >= pictures.items()
        assert sorted(path.name for path in folder.iterdir()) == [
            "index.html",
            "pictures",
            "videos",
        ]
        assert all(
            (folder / picture["src"]).exists()
            for row in data_of(page)["episodes"]
            for picture in row["pictures"].values()
        )


def test_a_quality_table_of_one_source_is_not_of_another(tmp_path: Path) -> None:
    mix, table = make_mix(tmp_path), tmp_path / "quality.parquet"
    run("doctor", tmp_path / "one", "--quality", table, "--quiet")
    with pytest.raises(ClipError, match="of which source an episode is"):
        view_page(mix, tmp_path / "page.html", quality=table)
    view_page(tmp_path / "one", tmp_path / "page.html", quality=table)


def test_outliers_of_values_with_a_large_offset(tmp_path: Path) -> None:
    """Times since 1970 and constants that float64 rounds; a damaged picture loses one episode."""
    episodes, states, times = {}, [], 1.7e9 + np.arange(30.0)[:, None]
    for number in range(4):
        constant = np.full((30, 1), 0.1)
        state = np.concatenate([times, constant], axis=1)
        state[7, 0] += 200 * (number == 2)
        states.append(state)
        pictures = np.full((30, 8, 8, 3), 100, np.uint8)
        episodes[f"e{number}"] = columns(image=pictures, state=state)
    features = {"state": {"kind": "state"}}
    metadata = {key: {"task": "ab"[key > "e1"]} for key in episodes}
    write_dataset(
        tmp_path / "records", episodes, codecs={"image": "raw"}, features=features,
        metadata=metadata,
    )  # fmt: skip
    damage(tmp_path / "records", "image", 1, 0)
    page = tmp_path / "page.html"
    view_page(tmp_path / "records", page)
    rows = {row["key"]: row for row in data_of(page)["episodes"]}
    all_times = np.concatenate(states)[:, 0]
    deviations = abs(all_times - all_times.mean()).reshape(4, 30) / all_times.std()
    for number, row in enumerate(rows.values()):
        assert row["numbers"]["outlier"] == pytest.approx(deviations[number].max(), rel=0.01)
    assert ["error" in row for row in rows.values()] == [False, True, False, False]


def test_pictures_that_are_all_the_same_point_at_no_task(tmp_path: Path) -> None:
    episodes, metadata = {}, {}
    for number in range(8):
        key = f"e{number}"
        episodes[key] = columns(image=np.full((4, 24, 32, 3), 77, np.uint8))
        metadata[key] = {"task": "left" if number % 2 else "right"}
    write_dataset(tmp_path / "records", episodes, codecs="png", metadata=metadata)
    view_page(tmp_path / "records", tmp_path / "page.html")
    rows = data_of(tmp_path / "page.html")["episodes"]
    assert not any("unlike" in row["numbers"] for row in rows)


def test_numbers_of_a_quality_table_are_columns(tmp_path: Path) -> None:
    write_robot(tmp_path / "records")
    run("doctor", tmp_path / "records", "--quality", tmp_path / "quality.parquet", "--quiet")
    page = tmp_path / "page.html"
    table = ["--quality-table", tmp_path / "quality.parquet"]
    run("view", tmp_path / "records", "-o", page, *table, "--quiet")
    data = data_of(page)
    assert {"rank", "jerk", "final_pose"} <= {*data["quality"]}
    assert sorted(row["quality"]["rank"] for row in data["episodes"]) == [1, 2, 3]
    (tmp_path / "other.parquet").write_bytes(b"")
    with pytest.raises(ClipError):
        view_page(tmp_path / "records", page, quality=tmp_path / "other.parquet")


def test_pages_that_cannot_be_written(tmp_path: Path) -> None:
    write_robot(tmp_path / "records", 1, 2)
    with pytest.raises(ClipError, match="max_size is too small"):
        view_page(tmp_path / "records", tmp_path / "page.html", max_size=1000)
    with pytest.raises(DestinationError, match="cannot write the page"):
        view_page(tmp_path / "records", tmp_path / "none" / "page.html")
    assert not (tmp_path / "page.html").exists()
    page = str(tmp_path / "page.html")
    assert "selection has no episode" in fail(
        "view", tmp_path / "records", "-o", page, "--episodes", "no*"
    )
    for options in (["KEY"], ["--start", "1"], ["--save", "x.rrd"]):
        assert "page" in fail("view", tmp_path / "records", *options, "-o", page, code=2)
    assert "requires a page" in fail("view", tmp_path / "records", "--episodes", "a", code=2)
