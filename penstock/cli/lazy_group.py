"""Groups of commands. Their help has the whole first sentence of each; a lazy group imports a command when it is
called, and suggests the nearest one for an unknown name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import ClassVar

import click

from penstock.errors import did_you_mean


class CommandGroup(click.Group):
    """A group whose help cuts off no sentence."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(ctx, name)) for name in self.list_commands(ctx)])

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        whole = command.help or "" if command is not None else ""
        return " ".join(whole.partition("\n\n")[0].split())


class LazyGroup(CommandGroup):
    """`lazy` has for each name: module, attribute, what the help of the group says."""

    lazy: ClassVar[Mapping[str, tuple[str, str, str]]]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return None
        module, attribute, _ = self.lazy[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def _summary(self, ctx: click.Context, name: str) -> str:
        return self.lazy[name][2]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.lazy and not name.startswith("-") and not ctx.resilient_parsing:
            near = did_you_mean(name, self.lazy)
            ctx.fail(f"No such command {name!r}.{near and f' {near.capitalize()}'}")
        return super().resolve_command(ctx, args)
