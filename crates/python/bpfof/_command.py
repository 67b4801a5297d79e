"""`bpfof-query`, as the wheel installs it."""

import signal
import sys

from . import _bpfof


def main() -> None:
    # Python's own handler would raise KeyboardInterrupt once the command, which handles signals itself, has ended.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(_bpfof.query_command(sys.argv))
