"""The errors of this package. All are :class:`Error`; each message says what to do."""

from __future__ import annotations

import os


class Error(Exception):
    """An error of this package.

    ``path`` is the file concerned, or None; ``offset`` is the place in it, in bytes, or None.
    """

    path: str | None
    offset: int | None

    def __init__(self, message: str, path: str | os.PathLike[str] | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = None if path is None else os.fspath(path)
        self.offset = offset

    def __reduce__(self):
        details = self.__dict__.copy()
        if isinstance(self, OSError):
            # Not in the object's __dict__.
            details["errno"] = self.errno
        return _restore, (type(self), str(self), details)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def _restore(cls: type[Error], message: str, details: dict) -> Error:
    error = cls(message)
    for name, value in details.items():
        setattr(error, name, value)
    return error


class QuestionError(Error, ValueError):
    """The question is invalid: columns, SQL, schema, arguments."""


class FileError(Error, OSError):
    """A file cannot be found, opened or read."""

    def __init__(self, message: str, path=None, offset=None, errno: int | None = None) -> None:
        super().__init__(message, path, offset)
        self.errno = errno


class DataError(Error, ValueError):
    """The contents of a file do not match its schema: ``path`` and ``offset`` tell where the row begins."""


class TargetError(Error, ConnectionError):
    """A target cannot be reached, refuses or is lost, and ``fallback=False`` forbids running here."""


class FunctionError(Error, RuntimeError):
    """A storage function ended a chain. ``status`` is the status of the protocol (type << 8 | code), ``value``
    its additional value, such as the number that the function returned."""

    status: int | None
    value: int | None

    def __init__(
        self, message: str, path=None, offset=None, status: int | None = None, value: int | None = None
    ) -> None:
        super().__init__(message, path, offset)
        self.status = status
        self.value = value


class TooLargeError(Error, OverflowError):
    """A number does not fit its Arrow type. Sums are never truncated."""
