"""Loader: stream shuffled clips of a dataset into PyTorch.

An epoch is planned as integers: clips in their order, and runs of their frames. Threads of
the engine execute the plan. A batch is one gather per feature from decoded frames.

Read first, in this order:

- `pipes.loaders`: `SeqRecordPipe` and its siblings; `pipes.options`: their arguments.
- `pipes.make_view`: from options to clips; `clips.sample_tables`: tables of samples.
- `sampling.share_orders`, `sampling.epoch_plans`: the order and the plan of an epoch.
- `pipes.epochs`, `pipes.states`: positions, ranks, workers and resume.
- `engine.executor`: the loop over rounds; `engine.frame_store`: rows of decoded frames.
- `engine.chunk_loader`: loads of chunks; `engine.buffers`: gathers into batches.

`mixing` adds mixes of datasets. Other parts add columns of images (`pipes.registered_columns`),
values of texts (`pipes.text_columns`) and decoded frames (`engine.frame_readers`).

Extend it: a function of samples in `sampling.built_ins`; a step of `clip_transform` in
`loader.clips.transforms` and `engine.crops`; a device in `engine.devices`.

May import: `store`. Tests: `make test-part PART=loader`, which begins with the golden plan.
"""
