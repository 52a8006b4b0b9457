"""Where the options of the server commands come from: files, environment, flags, in rising order.

    penstock.toml           [broker] port = 10911          Penstock's own; an unknown name is an error
    broker.conf             listenPort = 10911             RocketMQ's; see `rocketmq_config`
    environment             PENSTOCK_BROKER_PORT=10911     an unknown name is a warning
    flags                   --port, --set broker.port=     an unknown name is an error

The options classes of the rooms are the only list of options there is; a section is the short name of one.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from penstock.cli.config_text import Line, read_properties, read_toml
from penstock.cli.settings import Setting, build, option_names
from penstock.errors import OptionError, did_you_mean

Options = TypeVar("Options")

# Section: module, class. The one without a name is the process's own.
SECTIONS = {
    "": ("penstock.cli.options", "ProcessOptions"),
    "nameserver": ("penstock.nameserver.options", "NameServerOptions"),
    "broker": ("penstock.broker.options", "BrokerOptions"),
    "store": ("penstock.store.options", "StoreOptions"),
    "coordinator": ("penstock.coordinator.options", "CoordinatorOptions"),
    "remoting": ("penstock.remoting.options", "RemotingOptions"),
    "tls": ("penstock.remoting.tls", "TlsOptions"),
    "access": ("penstock.security.options", "AccessOptions"),
}
PREFIX = "PENSTOCK_"
# What clients read; it only looks like an option of the section `access`.
OF_CLIENTS = frozenset(("PENSTOCK_ACCESS_KEY", "PENSTOCK_MIN_SIGNATURE"))
NAMESERVER_WORDS = ("namesrv", "nameserver", "name-server")


def options_class(section: str) -> type:
    module, name = SECTIONS[section]
    found = getattr(importlib.import_module(module), name)
    if not isinstance(found, type):
        raise TypeError(f"{module}.{name} is no class")
    return found


class Configuration:
    """The settings that one command uses. `sections` are its own; those of other commands are skipped."""

    def __init__(self, sections: Sequence[str]) -> None:
        self._names = {section: option_names(options_class(section)) for section in ("", *sections)}
        self._settings: dict[tuple[str, str], Setting] = {}
        self.warnings: list[str] = []

    def options(self, section: str, wanted: type[Options], **fixed: object) -> Options:
        """The options of a section; `fixed` overrides what was configured."""
        settings = [setting for setting in self._settings.values() if setting.section == section]
        settings += [Setting(section, name, value, "penstock") for name, value in fixed.items()]
        return build(wanted, settings)

    def given(self, section: str, name: str) -> Setting | None:
        """What a source said about an option, None if the default holds."""
        return self._settings.get((section, name))

    def add(self, setting: Setting) -> None:
        """Take a setting over what earlier sources said."""
        if setting.section not in SECTIONS:
            hint = (
                did_you_mean(setting.section, SECTIONS) or f"sections are {', '.join(filter(None, SECTIONS))}"
            )
            raise OptionError(f"{setting.origin}: there is no section {setting.section!r}", hint)
        if setting.section not in self._names:
            return
        if setting.name not in self._names[setting.section]:
            raise OptionError(f"{setting.origin}: {self._no_such(setting)}", self._advice(setting))
        self._settings[setting.section, setting.name] = setting

    @staticmethod
    def _no_such(setting: Setting) -> str:
        where = f"[{setting.section}]" if setting.section else "the part before any table"
        return f"{where} has no option {setting.name!r}"

    def _advice(self, setting: Setting) -> str:
        elsewhere = [section for section, names in self._names.items() if setting.name in names]
        if elsewhere:
            return f"it belongs to {' or '.join(f'[{s}]' if s else 'the part before any table' for s in elsewhere)}"
        return did_you_mean(setting.name, self._names[setting.section]) or "docs/configuration.md lists all"

    # -- sources -----------------------------------------------------------------------------------------------------

    def add_file(self, path: Path, *, role: str | None = None) -> None:
        """A `.toml` file is Penstock's, any other RocketMQ's; its keys are a name server's or a broker's (`role`),
        which the file's name tells where the command has both."""
        if path.suffix == ".toml":
            for line in read_toml(path):
                self.add(Setting(line.section, line.key, line.value, _place(path, line)))
            return
        from penstock.cli import rocketmq_config

        if role is None:
            role = "nameserver" if any(word in path.name.lower() for word in NAMESERVER_WORDS) else "broker"
        settings, warnings = rocketmq_config.translate(path, read_properties(path), role)
        for setting in settings:
            self.add(setting)
        self.warnings += warnings

    def add_environment(self, environment: Mapping[str, str]) -> None:
        """PENSTOCK_<SECTION>_<OPTION>. Empty is as good as unset."""
        expected = {
            PREFIX + "_".join(filter(None, (section, name))).upper(): (section, name)
            for section, names in self._names.items()
            for name in names
        }
        prefixes = tuple(f"{PREFIX}{section.upper()}_" for section in self._names if section)
        for variable, value in environment.items():
            if variable in expected and value:
                self.add(Setting(*expected[variable], value, variable))
            elif variable not in expected and variable.startswith(prefixes) and variable not in OF_CLIENTS:
                advice = did_you_mean(variable, expected)
                self.warnings.append(
                    f"{variable} is not known and has no effect{'; ' + advice if advice else ''}"
                )

    def add_flags(self, flags: Iterable[tuple[str, str, object]]) -> None:
        """(flag, `section.option`, value); None is a flag that was not used."""
        for flag, option, value in flags:
            if value is not None:
                section, _, name = option.rpartition(".")
                self.add(Setting(section, name, value, flag))

    def add_pairs(self, pairs: Iterable[str]) -> None:
        """What `--set section.option=value` says."""
        for pair in pairs:
            option, equals, value = pair.partition("=")
            if not equals:
                raise OptionError(f"--set {pair}: no value", "write it as in --set store.flush_mode=sync")
            section, _, name = option.strip().rpartition(".")
            self.add(Setting(section, name, value.strip(), f"--set {option.strip()}"))
            if "secret" in name and value.strip():
                variable = f"{PREFIX}{section}_{name}".upper()
                self.warnings.append(
                    f"--set {option.strip()}: `ps` shows this secret to every user of this machine; write it into the"
                    f" file of --config, or set {variable}"
                )


def _place(path: Path, line: Line) -> str:
    return f"{path}:{line.number}" if line.number else str(path)
