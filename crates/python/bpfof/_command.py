"""`bpfof-query`, as the wheel installs it."""

import sys

from . import _bpfof


def main() -> None:
    sys.exit(_bpfof.query_command(sys.argv))
