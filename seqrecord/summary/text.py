"""Text that the summaries share: tables, codecs, shapes."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.schema import CodecConfig, FeatureSpec

__all__ = ["codec_text", "shape_text", "table_lines"]


def codec_text(codec: Sequence[CodecConfig]) -> str:
    """A chain for people: `delta(-1) + zigzag + blosc(zstd, 2)`."""
    return " + ".join(map(_step_text, codec)) or "raw"


def _step_text(config: CodecConfig) -> str:
    hidden = ("id", "width", "shuffle", "blocksize")  # of little meaning beside the others
    values = [str(value) for key, value in config.items() if key not in hidden]
    name = config["id"].removeprefix("seqrecord.")
    return f"{name}({', '.join(values)})" if values else name


def shape_text(spec: FeatureSpec) -> str:
    """`480 x 640 x 3`; a dimension that varies is `?`."""
    return " x ".join("?" if n is None else str(n) for n in spec.shape) or "scalar"


def table_lines(rows: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Aligned columns: the first `left` to the left, the others, numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
