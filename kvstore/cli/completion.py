"""`hwm completion`: completes commands, options, choices and file names in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from kvstore.cli.output import show_bytes

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete the words of `hwm`: commands, options, choices and file names.

    \b
    bash (4.4 or newer), in ~/.bashrc:  eval "$(hwm completion bash)"
    zsh, in ~/.zshrc behind `compinit`: eval "$(hwm completion zsh)"
    fish:  hwm completion fish > ~/.config/fish/completions/hwm.fish

    The script asks `hwm` for the words, so it stays right after an upgrade. No member is asked.
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    program = ctx.find_root().command
    show_bytes(kind(program, {}, "hwm", "_HWM_COMPLETE").source().encode() + b"\n")
