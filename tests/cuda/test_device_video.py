"""Video decoded on a device by torchcodec equals PyAV's frames, or PyAV decodes it instead."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import FeatureSpec, SeqRecordWriter
from seqrecord.cuda import video as device_video
from seqrecord.cuda.streams import DirectStream, streams_of
from seqrecord.cuda.video import DeviceVideo, Numbered
from seqrecord.errors import CodecError
from seqrecord.sources import Gop
from seqrecord.video.config import VideoConfig
from seqrecord.video.decoding import decode_gop
from seqrecord.video.page_tables import parse_video_page
from seqrecord.video.pages import VideoPageCodec, VideoReader
from tests.cuda.side_streams import NO_GPU, LateStream
from tests.kit.clip_data import effective_arguments
from tests.kit.video_data import HEIGHT, WIDTH, moving
from tests.video.gops import config_of, gops_of
from tests.video.test_video_datasets import kept_schema, state

Pixels = npt.NDArray[np.uint8]

NEEDS_TORCHCODEC = pytest.mark.usefixtures("torchcodec")

CPU = DirectStream(torch.device("cpu"))

MOST = 2
"""Largest difference of a value between FFmpeg versions, which convert YUV: 0 with 5.1."""

SIZE = 160, 176
"""A frame size that NVDEC decodes of each codec: HEVC needs at least 144 x 144."""


@pytest.fixture(autouse=True)
def _log_again() -> None:
    device_video.say_once.cache_clear()


def codec_of(name: str) -> VideoPageCodec:
    shape = (HEIGHT, WIDTH, 3)
    chain = (config_of(name).to_json(),)
    return VideoPageCodec(FeatureSpec("image", np.dtype("u1"), shape, codec=chain))


def readers(name: str, gops: list[Gop]) -> tuple[DeviceVideo, Any, VideoReader]:
    """Readers of a page by torchcodec and by PyAV."""
    codec = codec_of(name)
    page = memoryview(codec.join(gops))
    count = sum(gop.num_frames for gop in gops)
    video = DeviceVideo(codec.spec, CPU)
    return video, codec.reader(page, count, video.open), codec.reader(page, count)


def decoded(reader: Any, positions: list[int]) -> Pixels:
    out = np.empty((len(positions), HEIGHT, WIDTH, 3), np.uint8)
    reader.decode_into(positions, out)
    return out


def diff(first: Pixels, second: Pixels) -> int:
    return int(np.abs(first.astype(int) - second).max(initial=0))


def make_gop(shown: list[int], hidden: list[int]) -> Gop:
    order = list(shown)
    for place in sorted(hidden, reverse=True):
        order.insert(place, -1)
    return Gop((b"packet",) * len(order), tuple(order))


ORDER = st.integers(1, 5).flatmap(lambda count: st.permutations(list(range(count))))
GOPS = st.lists(st.builds(make_gop, ORDER, st.lists(st.integers(0, 5), max_size=3)), min_size=1)
"""GOPs with frames in any order and with hidden packets."""


@given(GOPS)
def test_timestamps_of_packets(groups: list[Gop]) -> None:
    page = memoryview(codec_of("h264").join(groups))
    count = sum(gop.num_frames for gop in groups)
    numbered = Numbered(page, parse_video_page(page, count, "image"))
    packets = list(numbered.packets())
    assert all(packet.pts >= packet.dts >= 0 for packet in packets)
    assert (np.diff([packet.dts for packet in packets]) > 0).all()
    times = sorted(packet.pts for packet in packets)
    assert len(set(times)) == len(packets) == len(numbered)
    first_packet = first_frame = 0
    for gop in groups:
        own = packets[first_packet : first_packet + len(gop.packets)]
        rest = packets[first_packet + len(gop.packets) :]
        assert [packet.is_key for packet in own] == [True] + [False] * (len(own) - 1)
        # A seek to any frame of the group finds the group's own keyframe.
        assert all(packet.dts < other.dts for packet in own for other in rest[:1])
        assert all(max(p.pts for p in own) < other.pts for other in rest)
        assert all(own[0].pts < other.dts for other in rest)
        for packet, shown in zip(own, gop.order, strict=True):
            if shown >= 0:
                frame = first_frame + shown
                assert times[numbered.index[frame]] == packet.pts
                assert numbered.ticks[frame] == packet.pts - times[0]
        first_packet, first_frame = first_packet + len(own), first_frame + gop.num_frames


ORDERS = [
    list(range(40)),
    [*range(3, 12), *range(12, 33), 39],
    list(range(1, 40, 7)),
    [39, 0, 20, 20, 5],
]


@NEEDS_TORCHCODEC
@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("h264", 16),
        ("hevc", 40),
        ("av1", 2),
        ("vp9", 16),
        *(pytest.param("h264", length, marks=pytest.mark.slow) for length in (40, 2)),
    ],
)
def test_frames_equal_the_frames_of_pyav(name: str, length: int) -> None:
    pages = gops_of(name, moving(40), length)
    for positions in ORDERS:
        video, ours, pyav = readers(name, pages)
        for piece in (positions[:10], positions[10:]):
            assert diff(decoded(ours, piece), decoded(pyav, piece)) <= MOST
        assert video.works
        assert ours.num_decoded == pyav.num_decoded


@NEEDS_TORCHCODEC
@pytest.mark.parametrize("name", ["h264", "av1"])
def test_hidden_frames_are_skipped(name: str) -> None:
    """Frames before an episode's first one, and between the rows of a slower table."""
    (whole,) = gops_of(name, moving(24), 24)
    frames = decode_gop(config_of(name), HEIGHT, WIDTH, whole)
    wanted = [number for number in range(5, 24) if number % 3]
    order = [wanted.index(n) if n in wanted else -1 for n in whole.order]
    video, ours, pyav = readers(name, [Gop(whole.packets, tuple(order)), whole])
    positions = list(range(len(wanted) + 24))
    found = decoded(ours, positions)
    assert video.works
    assert diff(found, np.concatenate([frames[wanted], frames])) <= MOST
    assert np.array_equal(decoded(pyav, positions), np.concatenate([frames[wanted], frames]))


def write(
    path: Path,
    name: str,
    lengths: dict[str, int],
    gop: int,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> dict[str, Pixels]:
    """Write a dataset of kept video; returns the frames that PyAV decodes."""
    frames: dict[str, Pixels] = {}
    with SeqRecordWriter(path, schema=kept_schema(name, size)) as writer:
        for key, count in lengths.items():
            pages = gops_of(name, moving(count, seed=count, size=size), gop)
            config = config_of(name, size)
            frames[key] = np.concatenate([decode_gop(config, *size, one) for one in pages])
            with writer.episode(key) as episode:
                episode.append_video("image", pages)
                for row in state(count):
                    episode.append({"state": row})
    return frames


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Pixels]]:
    path = tmp_path_factory.mktemp("device") / "records"
    return path, write(path, "h264", {"a": 120, "b": 45}, 60)


def run(
    path: Path, frames: dict[str, Pixels], device: str, most: int, **options: Any
) -> dict[str, Any]:
    """Check every clip of an epoch; returns the statistics."""
    settings: dict[str, Any] = {"clip_len": 4, "batch_size": 8, "num_cursors": 3} | options
    settings |= {"device": device, "video_decoder": "torchcodec"}
    pipe = seqrecord.SeqRecordPipe(path, **effective_arguments(settings))
    batches = list(pipe)  # all stay alive: none may change later or lack queued work
    for batch in batches:
        for i, (key, start) in enumerate(zip(batch["episode"], batch["start"], strict=True)):
            clip = int(start) + settings.get("dilation", 1) * np.arange(4)
            assert diff(batch["image"][i].cpu().numpy(), frames[key][clip]) <= most, (key, start)
            assert np.array_equal(batch["state"][i].cpu().numpy(), state(200)[clip])
    assert len(batches) == len(pipe)
    return pipe.stats()


def fallbacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "decoding on the host" in r.getMessage()]


@NEEDS_TORCHCODEC
@pytest.mark.parametrize("options", [{}, {"stride": 5, "dilation": 3}, {"num_threads": 4}], ids=str)
def test_a_device_decodes_into_its_rows(
    kept: tuple[Path, dict[str, Pixels]], options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    is_late = "stride" not in options
    with streams_of("cpu", (lambda _: LateStream()) if is_late else DirectStream):
        stats = run(*kept, "cpu", MOST, **options)
    assert not fallbacks(caplog)
    assert 165 <= stats["video_frames_decoded"] <= 165 + 3 * 60  # where runs are cut
    assert stats["device_bytes"] < 165 * HEIGHT * WIDTH * 3 / 10, "no frame was copied"


@NO_GPU
@NEEDS_TORCHCODEC
@pytest.mark.parametrize("name", ["h264", "hevc", "av1", "vp9"])
def test_a_gpu_decodes_into_its_rows(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By NVDEC, whose colours differ slightly; AV1, which some GPUs lack, by the host with one
    warning."""
    frames = write(tmp_path / "r", name, {"a": 120, "b": 45}, 60, SIZE)
    run(tmp_path / "r", frames, "cuda", 255)
    assert name == "av1" or not fallbacks(caplog)
    most = 0 if fallbacks(caplog) else 40  # NVDEC interpolates chroma differently
    stats = run(tmp_path / "r", frames, "cuda", most)
    assert len(fallbacks(caplog)) <= 1
    assert (stats["device_bytes"] < 165 * SIZE[0] * SIZE[1] * 3 / 10) == (not fallbacks(caplog))


@NEEDS_TORCHCODEC
def test_ffmpeg_drives_nvdec(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchcodec's own backend returns wrong pictures, see `test_a_gpu_decodes_into_its_rows`."""
    chosen: list[str] = []

    @contextmanager
    def choose(backend: str) -> Iterator[None]:
        chosen.append(backend)
        yield
        chosen.pop()

    monkeypatch.setattr("torchcodec.decoders.set_cuda_backend", choose)
    monkeypatch.setattr("torchcodec.decoders.VideoDecoder", lambda *_, **__: [*chosen])
    make = DeviceVideo(codec_of("h264").spec, CPU).make
    assert make is not None
    assert make(b"", torch.device("cuda", 1)) == ["ffmpeg"]
    assert make(b"", torch.device("cpu")) == []


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NO_GPU)])
def test_without_torchcodec_pyav_decodes(
    kept: tuple[Path, dict[str, Pixels]],
    device: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    for _ in range(2):
        run(*kept, device, 0)
    (message,) = fallbacks(caplog)
    assert f"video feature 'image': decoding on the host instead of {device}" in message
    assert "torchcodec cannot be imported" in message


def wrong_from(decoder: Any, first: int, spoil: Any) -> Any:
    """A decoder whose frames from `first` on are changed by `spoil`."""

    def make(*args: Any, **kwargs: Any) -> Any:
        inner = decoder(*args, **kwargs)

        class Decoder:
            metadata = inner.metadata

            def __len__(self) -> int:
                return len(inner)

            def get_frames_at(self, indices: list[int]) -> Any:
                found = inner.get_frames_at(indices)
                return spoil(found) if indices[-1] >= first else found

        return Decoder()

    return make


def other_colours(found: Any) -> Any:
    found.data = found.data.flip(-1)
    return found


def later(found: Any) -> Any:
    found.pts_seconds = found.pts_seconds + 1 / 25
    return found


def fails(found: Any) -> Any:
    raise RuntimeError("out of surfaces\nat line 5")


@pytest.mark.parametrize(
    ("first", "spoil", "reason"),
    [
        (0, other_colours, "differ from PyAV's by"),
        (40, later, "returns wrong frames"),
        (0, fails, "out of surfaces"),
    ],
)
def test_wrong_frames_of_torchcodec_are_detected(
    torchcodec: Any,
    kept: tuple[Path, dict[str, Pixels]],
    first: int,
    spoil: Any,
    reason: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torchcodec.decoders.VideoDecoder", wrong_from(torchcodec, first, spoil))
    with streams_of("cpu", lambda _: LateStream()):
        run(*kept, "cpu", MOST if first else 0)
    (message,) = fallbacks(caplog)
    assert reason in message
    assert "\n" not in message


@NEEDS_TORCHCODEC
def test_unsupported_streams_are_decoded_on_the_host(caplog: pytest.LogCaptureFixture) -> None:
    h264 = {"codec": "h264", "pixel_format": "yuv420p"}
    for codec, reason in (
        ({"codec": "ffv1", "pixel_format": "bgr0"}, "no container"),
        ({"codec": "hevc", "pixel_format": "gray12le"}, "gray12le is not decoded"),
        ({**h264, "matrix": 1}, "color space"),
        ({**h264, "range": "full"}, "color space"),
    ):
        device_video.say_once.cache_clear()
        caplog.clear()
        config = VideoConfig.from_json({"id": "video", **codec})
        shape, chain = config.shape(HEIGHT, WIDTH), (config.to_json(),)
        spec = FeatureSpec("image", config.dtype, shape, codec=chain)
        assert not DeviceVideo(spec, CPU).works
        assert reason in fallbacks(caplog)[0]
    with pytest.raises(seqrecord.ClipError, match="video_decoder"):
        seqrecord.EngineOptions(video_decoder="nvdec")


@NEEDS_TORCHCODEC
@pytest.mark.parametrize("place", [3, 20])
def test_broken_packets_raise_the_same_errors_as_pyav(place: int) -> None:
    gop = gops_of("h264", moving(24), 24)[0]
    packets = list(gop.packets)
    packets[place] = bytes(len(packets[place]))
    _, *both = readers("h264", [Gop(tuple(packets), gop.order)])
    errors = []
    for reader in both:
        with pytest.raises(CodecError) as caught:
            decoded(reader, list(range(24)))
        errors.append((caught.value.message, caught.value.offset))
    assert errors[0] == errors[1]


@NEEDS_TORCHCODEC
def test_decoders_are_destroyed_by_end_decoders() -> None:
    """Not by the thread that drops a page, whose current device may be another."""
    video, reader, _ = readers("h264", gops_of("h264", moving(8), 8))
    decoded(reader, [0, 1])
    assert not video.ended_decoders
    del reader
    assert len(video.ended_decoders) == 1
    video.end_decoders()
    assert not video.ended_decoders


def test_decoders_are_destroyed_after_their_frames_are_converted() -> None:
    """Else the next decoder reuses NVDEC's surfaces before their conversion."""
    stream, found = LateStream(), list[float]()
    with stream.use():
        frame = torch.zeros(1)
        frame.add_(1)  # stands for the conversion, which is queued

    class Decoder:
        def __del__(self) -> None:
            found.append(float(frame))

    video = DeviceVideo(codec_of("h264").spec, stream)
    video.ended_decoders.append(Decoder())
    video.end_decoders()
    assert found == [1]


@NEEDS_TORCHCODEC
def test_rows_before_the_first_frame_are_zeros(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    codecs = {"image": "h264:gop=8"}
    with SeqRecordWriter(tmp_path, codecs=codecs) as writer, writer.episode("late") as episode:
        for number, image in enumerate(moving(30)):
            episode.append({"number": number, **({"image": image} if number > 9 else {})})
    options: dict[str, Any] = {"clip_len": 3, "batch_size": 4, "shuffle": False, "device": "cpu"}
    options |= {"windows": {"image": seqrecord.Latest(unknown="zeros")}}
    found = []
    for decoder in ("pyav", "torchcodec"):
        pipe = seqrecord.SeqRecordPipe(
            tmp_path, **effective_arguments({**options, "video_decoder": decoder})
        )
        found.append(np.concatenate([batch["image"].numpy() for batch in pipe]))
    assert diff(*found) <= MOST
    assert not found[1][0].any()
    assert found[1][10].any()
    assert not fallbacks(caplog)


@pytest.mark.parametrize("batches", [3, None])
def test_decoders_are_destroyed_by_engine_threads(
    torchcodec: Any,
    kept: tuple[Path, dict[str, Pixels]],
    batches: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    def make(*args: Any, **kwargs: Any) -> Any:
        begun.append(threading.current_thread().name)
        made = torchcodec(*args, **kwargs)
        made.__class__ = type("Recorded", (torchcodec,), {"__del__": record_end})
        return made

    def record_end(decoder: Any) -> None:
        del decoder
        ended.append(threading.current_thread().name)

    monkeypatch.setattr("torchcodec.decoders.VideoDecoder", make)
    options: dict[str, Any] = {"device": "cpu", "video_decoder": "torchcodec", "num_cursors": 3}
    pipe = seqrecord.SeqRecordPipe(
        kept[0], clip_len=4, batch_size=8, **effective_arguments(options)
    )
    iterator = iter(pipe)
    for _ in islice(iterator, batches):
        pass
    del iterator
    deadline = time.monotonic() + 30
    while len(ended) < len(begun) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(ended) == len(begun) > 0
    assert all(name.startswith("seqrecord") for name in ended)
