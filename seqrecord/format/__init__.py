"""Bytes of record files, both ways: pages, rows, header and footer. See docs/format.md."""

from seqrecord.format.footer import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAX_CHUNK_FRAMES,
    MAX_EPISODE_FRAMES,
    MAX_FOOTER_BYTES,
    MAX_ORDINAL,
    RECORDS,
    TAIL_BYTES,
    EpisodePart,
    Footer,
    encode_footer,
    encode_header,
    parse_footer,
    parse_header,
    parse_tail,
)

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAX_CHUNK_FRAMES",
    "MAX_EPISODE_FRAMES",
    "MAX_FOOTER_BYTES",
    "MAX_ORDINAL",
    "RECORDS",
    "TAIL_BYTES",
    "EpisodePart",
    "Footer",
    "encode_footer",
    "encode_header",
    "parse_footer",
    "parse_header",
    "parse_tail",
]
