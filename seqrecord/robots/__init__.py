"""Robots: LeRobot's dataset class, sampler and mixes, on this package's loader.

`seqrecord.lerobot` has the public names, docs/from-lerobot.md the use with lerobot-train;
`integrations/lerobot` is the plug-in.

Read first, in this order:

- `lerobot.dataset`: `LeRobotDataset`, items equal to lerobot's.
- `lerobot.items`: an item from a clip; `lerobot.form`: batches in LeRobot's form.
- `lerobot.sampler`, `lerobot.planned`: `PlannedSampler`, the order of an epoch.
- `lerobot.mix`: `LeRobotMixDataset`, several datasets; `lerobot.mix_statistics`: their statistics.
- `lerobot.meta_folder`: the metadata that lerobot asks for.
- `lerobot.marking`: datasets that lerobot's registry of readers recognises.

Extend it: an option of lerobot-train that changes items goes into `lerobot.items`, with a case in
`tests/robots/equal.py`.

May import: `store`, `loader`, `recipes`, `formats`, `video`, `in_place`. Tests:
`make test-part PART=robots`, and `make test-lerobot`, which compares with lerobot.
"""
