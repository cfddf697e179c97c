"""Video: packets, pages with groups of pictures, decoding.

A video page has the packets of whole GOPs (groups of pictures), without a container; docs/format.md
and docs/codecs.md have the bytes. PyAV, the extra `video`, encodes and decodes.

Read first, in this order:

- `config`: `VideoConfig`, the JSON configuration of a video codec, and named codecs.
- `gops`: `Gop`, one closed group of pictures as packets.
- `packets`: packets of H.264, HEVC, AV1, VP9 and FFV1: parameter sets, keyframes, hidden frames.
- `page_kind`: what the store asks of video; `pages`, `page_tables`: a page of GOPs, checked.
- `references`: pages whose packets are in original files.
- `decoding`: GOPs to frames, into rows; `encoding`: frames to GOPs.
- `depth`: codes of depth videos to metres.
- `group`: the writer's group of a video feature.
- `container`: packets in a container again, for export and torchcodec.

Extend it: a codec is a `VideoConfig`, its packets in `packets`, and a golden file.

May import: `store`. Tests: `make test-part PART=video`.
"""
