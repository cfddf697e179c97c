"""In place: original files that a dataset refers to, outside its folder.

A reference is a page whose bytes are in an external file. An index of an original, made once, lets
every loader read the original without a copy; docs/in-place.md has the rules.

Read first, in this order:

- `files`: files of an original, local or remote, in one form; `remote`: files behind a URL.
- `references`: references to byte ranges, and checksums of the files.
- `externals`: external files of an open dataset, also moved to another place.
- `page_kind`: the kind of pages with the reference bit; `external_pages` reads and checks them.
- `original_checks`: compares files from which an index copied values.
- `reference_group`, `video_group`, `external_lists`: the writer's groups, and lists of files.
- `limits`: memory that a file's declared sizes may take.

The store knows external files as a protocol, `store.reading.external_files`.

Extend it: sources return references by `referring` and `external_files` of the protocol.

May import: `store`, `video`. Tests: `make test-part PART=in_place`.
"""
