"""The bytes of a dataset: pages, rows, header and footer, index, manifest; see docs/format.md."""
