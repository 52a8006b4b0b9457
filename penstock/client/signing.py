"""Whether and with what a client signs its requests: its options, then a file, then the environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from penstock.client.options import ClientOptions
from penstock.remoting import RpcHook
from penstock.runtime import Runtime
from penstock.security import Credentials, SigningHook
from penstock.security.credentials import from_environment, from_file, required_signature


def signing_hook(options: ClientOptions, runtime: Runtime, hook: RpcHook | None) -> RpcHook | None:
    """The program's own hook with the signature behind it; as it is where there is nothing to sign with."""
    credentials: Credentials | None
    minimum = max(options.min_signature, required_signature(os.environ))
    if options.access_key:
        credentials = Credentials(options.access_key, options.secret_key, options.security_token)
    elif options.credentials_file:
        credentials = from_file(Path(options.credentials_file), runtime.disk)
    else:
        credentials = from_environment(os.environ, runtime.disk)
    if credentials is None:
        return hook
    credentials = replace(credentials, min_signature=max(minimum, credentials.min_signature))
    return SigningHook(credentials, runtime, hook)
