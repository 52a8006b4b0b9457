"""What a client signs with. Masked in every text; where it comes from is decided here and nowhere else.

    options        access_key, secret_key, security_token
    environment    PENSTOCK_ACCESS_KEY, PENSTOCK_SECRET_KEY, PENSTOCK_SECURITY_TOKEN
    file           PENSTOCK_CREDENTIALS, or the option credentials_file: TOML with those three names, or RocketMQ's
                   tools.yml with accessKey, secretKey, securityToken

The first that names a key wins. The minimum signature is an option, PENSTOCK_MIN_SIGNATURE, or min_signature in the
file; the highest of them counts. Plain values; the file is read when asked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import OptionError
from penstock.runtime import Disk

_FILE_BYTES_MAX = 64 * 1024
_NAMES = {
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "securityToken": "security_token",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret, and a token for those who were given one with it."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    # The lowest signature that requests may have (`signing_hook`).
    min_signature: int = 1

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise OptionError("an access key and a secret key belong together", "set both, or neither")
        check_min_signature(self.min_signature)
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if len(value) > 4096 or not value.isprintable():
                raise OptionError(f"{name} is no line of text", "use at most 4096 printable characters")

    def __str__(self) -> str:
        return f"the user {self.access_key}"


def check_min_signature(value: object) -> None:
    """OptionError unless it is a signature that there is."""
    if value not in (1, 2) or isinstance(value, bool):
        raise OptionError(
            f"min_signature is {value!r}", "use 1 (RocketMQ's signature) or 2 (Penstock's only)"
        )


def required_signature(environment: Mapping[str, str]) -> int:
    """What the environment says about the lowest signature."""
    text = environment.get("PENSTOCK_MIN_SIGNATURE") or "1"
    if text not in ("1", "2"):
        raise OptionError(f"PENSTOCK_MIN_SIGNATURE is {text[:40]!r}", "use 1 or 2")
    return int(text)


def from_environment(environment: Mapping[str, str], disk: Disk) -> Credentials | None:
    """What the environment says, in names and secrets or in a file; None where it says nothing."""
    if environment.get("PENSTOCK_ACCESS_KEY") or environment.get("PENSTOCK_SECRET_KEY"):
        return Credentials(
            environment.get("PENSTOCK_ACCESS_KEY", ""),
            environment.get("PENSTOCK_SECRET_KEY", ""),
            environment.get("PENSTOCK_SECURITY_TOKEN", ""),
        )
    path = environment.get("PENSTOCK_CREDENTIALS")
    return from_file(Path(path), disk) if path else None


def from_file(path: Path, disk: Disk) -> Credentials:
    """See the module's text. No error quotes the file."""
    text = _text_of(path, disk)
    document = _yaml_lines(text) if path.suffix in (".yml", ".yaml") else _toml(text, path)
    values = {name: value for name, value in document.items() if isinstance(value, str)}
    minimum = document.get("min_signature", 1)
    check_min_signature(minimum)
    return Credentials(
        values.get("access_key", ""),
        values.get("secret_key", ""),
        values.get("security_token", ""),
        2 if minimum == 2 else 1,
    )


def _text_of(path: Path, disk: Disk) -> str:
    try:
        if disk.size(path) > _FILE_BYTES_MAX:
            raise OptionError(f"{path} is too large for credentials")
        return disk.read(path).decode()
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror or error}", "name a file that can be read") from None
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not UTF-8") from None


def secret_from_file(path: Path, disk: Disk) -> str:
    """A secret alone in a file, on its first line. No error quotes the file."""
    lines = _text_of(path, disk).splitlines()
    if not lines or not lines[0].strip():
        raise OptionError(f"{path}: its first line is empty", "write the secret there, and nothing else")
    return lines[0].strip()


def _toml(text: str, path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise OptionError(f"{path}: no TOML", 'write access_key = "..." and secret_key = "..."') from None


def _yaml_lines(text: str) -> dict[str, object]:
    """tools.yml has three plain lines and no more; that much is read without a YAML parser."""
    found: dict[str, object] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() in _NAMES:
            found[_NAMES[name.strip()]] = value.partition(" #")[0].strip().strip("'\"")
    return found
