"""Companions: features that another dataset or a table has for the same frames, and texts' values.

A dataset joined with companions has its episodes, with the features of all. The pages of each stay
in their own files: an index in memory numbers them by the frames of the first dataset. An episode
of derived values stores the identity of its source, which is found again after edits. docs/join.md
and docs/derive.md have the rules.

Read first, in this order:

- `opening`: what `join=` of `seqrecord.open` loads; `joined_tables`: tables among companions.
- `joining`: the datasets of a join, and the contents made of them.
- `episode_identity`: what an episode consisted of when values were computed from it.
- `join_matching`: which episodes belong together; `join_relatives`: derived datasets of one source.
- `joined_index`, `joined_storage`: the index and the files of a joined dataset.
- `dictionaries`: values of texts, each stored once.

The store knows a join as a protocol, `store.reading.contents.JoinedDatasets`, and dictionaries as
`store.reading.text_dictionaries.TextDictionary`.

Extend it: another way to find partners goes into `join_matching`, with a case in
`tests/companions/test_join.py`.

May import: `store`. Tests: `make test-part PART=companions`.
"""
