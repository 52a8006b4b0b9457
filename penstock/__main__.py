"""`penstock` and `python -m penstock`: the commands, and a quiet end on Ctrl-C at any moment.

Rule: while modules are imported, and after a command has ended, Ctrl-C ends the process as the system does: at once,
without a traceback, and the shell says 130. In between the command decides.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Entry point."""
    is_interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from penstock.cli.main import main as run

    if is_interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
