"""Objects of the parent after fork(): the child can neither use nor close their connections."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any

from bpfof.errors import QuestionError


class Native:
    """A native object, usable only in the process that created it."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._process = os.getpid()
        _all.add(self)

    def get(self) -> Any:
        """The object."""
        if os.getpid() != self._process:
            raise QuestionError("this was opened before fork(): open it again in the child")
        return self._native


_all: weakref.WeakSet[Native] = weakref.WeakSet()


def _keep_all() -> None:
    """Keeps the parent's objects for as long as the child lives. Destroying them would end the parent's connections,
    and wait for threads that only the parent has."""
    for one in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(one._native))
    _all.clear()


os.register_at_fork(after_in_child=_keep_all)
