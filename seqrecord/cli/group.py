"""The command `seqrecord`. A command's module is imported when that command runs."""

from __future__ import annotations

import click

from seqrecord.cli.terminal import PROGRAM, Commands
from seqrecord.version import __version__

_MODULES = {
    "bench": "timing",
    "cache": "upkeep",
    "clean": "upkeep",
    "doctor": "doctor",
    "edit": "editing",
    "export": "exporting",
    "index": "packing",
    "info": "commands",
    "merge": "editing",
    "plan": "timing",
    "push": "exporting",
    "reindex": "packing",
    "split": "upkeep",
    "stats": "upkeep",
    "verify": "commands",
    "view": "pictures",
    "write": "packing",
}


@click.group(
    cls=Commands,
    modules=_MODULES,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def main(context: click.Context) -> None:
    """Store multi-modal recordings once and stream shuffled clips of them into PyTorch.

    Datasets are folders or URLs: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH,
    https://ACCOUNT.blob.core.windows.net/…, and any other URL that fsspec knows.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
