"""Tools: the command line, and functions for people who keep datasets.

Each command calls one public function and prints its report.

Read first, in this order:

- `cli.group`: `seqrecord`; `cli.commands`, `cli.packing`, `cli.editing`, …: the commands.
- `cli.arguments`: options of several commands; `cli.terminal`: progress and errors.
- `verify`: reads a whole dataset and reports its problems.
- `edit.changes`: changes of finished datasets, one commit each; `edit.cleaning`: unused bytes.
- `recorder`: `SeqRecordRecorder`, recording beside a control loop.
- `doctor.doctor`: checks of originals; `doctor.quality`: a table of episodes.
- `viewer.view`: pictures; `viewer.rerun_log`: the Rerun viewer.
- `profiler.bench`: timing of a loader, with advice.

Extend it: an option of a command is an argument of its function in `cli`; tests in `tests/tools`.

May import: every part. Tests: `make test-part PART=tools`.
"""
