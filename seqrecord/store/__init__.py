"""Store: write and read datasets. No torch.

Frames of episodes are encoded into pages, pages make chunks, chunks make record files. An index and
a manifest, written last, make the files a dataset. docs/format.md is the text of the format.

Read first, in this order:

- `schema`: `FeatureSpec` and `Schema`, the features of a dataset.
- `format.page_kinds`: how frames become pages; `video` and `in_place` register theirs.
- `format.pages`, `format.footer`, `format.index`, `format.manifest`: bytes on disk.
- `codecs.chain`: frames to bytes and back, by filters and compressors.
- `storage.base`: `Storage`, the protocol of files; `storage.local` implements it.
- `writing.writer`: `SeqRecordWriter`; `writing.committing`: the commit.
- `reading.dataset`: `Dataset`, an open dataset; `reading.chunks`: chunks from storage.
- `originals.protocol`: `Source`, the protocol of datasets in other formats.

Extend it: a codec in `codecs.chain`, or a field of the format in `format` and docs/format.md. Other
parts register in `areas`, the only module with names of modules.

May import: itself. Tests: `make test-part PART=store`.
"""
