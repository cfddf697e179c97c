"""The command `seqrecord`. Modules of commands are imported on demand."""

from __future__ import annotations

import click

from seqrecord.tools.cli.terminal import PROGRAM, Commands
from seqrecord.version import __version__

# By name, since imports of all commands would delay each of them, and some import torch.
# tests/tools/test_cli.py::test_no_command_imports_torch
_COMMANDS = {
    "commands": ("info", "verify"),
    "deriving": ("derive",),
    "doctor": ("doctor",),
    "editing": ("edit", "merge"),
    "exporting": ("export", "push"),
    "maintenance": ("clean", "split", "stats"),
    "packing": ("index", "reindex", "write"),
    "pictures": ("view",),
    "timing": ("bench",),
}
_MODULES = {name: module for module, names in _COMMANDS.items() for name in names}


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
    """Store multi-modal recordings and stream shuffled clips into PyTorch.

    PATH is a folder or a URL: s3://BUCKET/PATH, gs://BUCKET/PATH, az://CONTAINER/PATH,
    https://ACCOUNT.blob.core.windows.net/…, or another URL that fsspec supports.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
