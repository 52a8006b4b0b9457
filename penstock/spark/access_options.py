"""The options of reads and writes about access: who asks, and over TLS or not. The same for both.

    accessKey, secretKey, securityToken      keys as values; they travel with the job, and no plan shows them
    credentialsFile                          a file with them, read on every machine
    tls, tlsTrusted, tlsCertificate, tlsKey  TLS, and files for it, read on every machine

Rules: the names are such that Spark hides the values of the secret ones wherever it prints options (its setting
`spark.redaction.regex`). No error quotes a value of these. No Spark, no network; docs/spark/access.md is for users.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from penstock.client.access import Access
from penstock.errors import OptionError

# How an option is written: the field that it becomes.
NAMES = {
    "accessKey": "access_key",
    "secretKey": "secret_key",
    "securityToken": "security_token",
    "credentialsFile": "credentials_file",
    "tls": "tls",
    "tlsTrusted": "tls_trusted",
    "tlsCertificate": "tls_certificate",
    "tlsKey": "tls_key",
}
_FILES = frozenset(("credentialsFile", "tlsTrusted", "tlsCertificate", "tlsKey"))
_BY_LOWER = {name.lower(): name for name in NAMES}


def take_access(options: Mapping[str, str]) -> tuple[Access, dict[str, str]]:
    """What the options say about access, and the other options."""
    given: dict[str, Any] = {}
    left: dict[str, str] = {}
    refused_tls = False
    for written, value in options.items():
        name = _BY_LOWER.get(written.lower())
        if name is None:
            left[written] = value
            continue
        text = str(value).strip()
        if not text:
            raise OptionError(f"{name} is empty", "leave it out, or give it a value")
        if name == "tls":
            if text.lower() not in ("true", "false"):
                raise OptionError("tls is neither true nor false", "use one of them")
            given["tls"] = text.lower() == "true"
            refused_tls = not given["tls"]
        else:
            # Absolute where it is read first: executors have other working directories.
            given[NAMES[name]] = os.path.abspath(text) if name in _FILES else text
    made = Access(**given)
    if refused_tls and made.with_tls:
        raise OptionError("tls is false, and files for TLS are named", "leave out one or the other")
    return made, left


def names_access(options: Mapping[str, str]) -> bool:
    """Whether the options say anything about access."""
    return any(name.lower() in _BY_LOWER for name in options)


def is_file(name: str) -> bool:
    """Whether an option names a file of every machine."""
    return _BY_LOWER.get(name.lower()) in _FILES


def access_options(access: Access) -> dict[str, str]:
    """The options of a read or a write that say the same; files are absolute from here on."""
    made = {"tls": "true"} if access.tls else {}
    for name, field in NAMES.items():
        text = getattr(access, field)
        if name != "tls" and text:
            made[name] = os.path.abspath(text) if name in _FILES else text
    return made
