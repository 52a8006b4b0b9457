"""`penstock ...` with answers that may take as long as a busy machine needs; run as a module."""

import sys

from penstock.__main__ import main
from penstock.cli.main import root
from tests.support.cluster_commands import patience

if __name__ == "__main__":
    root.context_settings["default_map"] = patience(sys.argv[1:])
    main()
