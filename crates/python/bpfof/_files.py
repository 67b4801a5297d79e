"""Pushdown reads: chains of dependent reads, as the C library has them, and BPF-KV."""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bpfof import _bpfof
from bpfof._fork import Native
from bpfof.errors import Error, QuestionError

#: Default size of scratch in bytes.
SCRATCH_BYTES = 4096


@contextlib.contextmanager
def _in_range() -> Iterator[None]:
    """Turns an integer overflow in the native part into an error of the question."""
    try:
        yield
    except Error:
        raise
    except OverflowError as error:
        raise QuestionError(f"a number is negative or too large ({error})") from error


class Function:
    """A storage function, loaded at the target and on this machine. Made by :meth:`File.load`."""

    def __init__(self, native: _bpfof.Function) -> None:
        self._opened = Native(native)

    @property
    def _native(self) -> _bpfof.Function:
        return self._opened.get()


class Chain(NamedTuple):
    """Where a chain begins."""

    #: File offset of the first read in bytes.
    offset: int
    #: Size of the first read in bytes.
    size: int
    #: The function's argument: the first bytes of scratch.
    argument: bytes = b""
    #: Index of the file in the list that was opened.
    file: int = 0


class Answer(NamedTuple):
    """How a chain ended."""

    #: The function's answer.
    data: bytes
    #: Whether the chain ran at the target, and not on this machine.
    at_target: bool
    #: Rounds of reads and calls of the function.
    hops: int
    #: How often the chain was discarded because a file had changed or had no map.
    stale: int


class File:
    """One or more files on a namespace, for chains over them. Made by :func:`bpfof.open`. Threads may share it;
    their calls wait for each other."""

    def __init__(self, native: _bpfof.Files) -> None:
        self._opened: Native | None = Native(native)

    @property
    def _native(self) -> _bpfof.Files:
        if self._opened is None:
            raise ValueError("I/O operation on closed file")
        return self._opened.get()

    def read(self, offset: int, size: int, *, file: int = 0) -> bytes:
        """Reads as ``pread`` does: fewer bytes only at the end of the file."""
        with _in_range():
            return self._native.read(offset, size, file)

    def load(self, function: str | os.PathLike[str] | bytes, entry: str | None = None) -> Function:
        """Loads a storage function: an object as ``clang -target bpf`` writes it, or its path. ``entry`` is the name
        of its section after ``bpfof/``, if there are several."""
        if not isinstance(function, bytes):
            with builtins.open(function, "rb") as object:
                function = object.read()
        return Function(self._native.load(function, entry))

    def read_pushdown(
        self,
        function: Function,
        offset: int,
        size: int,
        argument: bytes = b"",
        *,
        file: int = 0,
        scratch: int = SCRATCH_BYTES,
    ) -> Answer:
        """Runs a chain: the read at ``offset`` is made, the function is called on its bytes and asks for the next
        reads, until it answers. ``scratch`` is room for argument and answer, in bytes, at most 16384."""
        return self.read_pushdown_many(function, [Chain(offset, size, argument, file)], scratch=scratch)[0]

    def read_pushdown_many(
        self, function: Function, chains: Sequence[Chain | tuple], *, scratch: int = SCRATCH_BYTES
    ) -> list[Answer]:
        """Runs many chains at a time, with few round trips for all of them. Raises the error of the first failure."""
        wanted = [tuple(Chain(*chain)) for chain in chains]
        with _in_range():
            ends = self._native.read_pushdown(function._native, wanted, scratch)
        return [Answer(*end) for end in ends]

    def wait_mapped(self, timeout: float = 5.0) -> bool:
        """Waits until the target has maps of the files, and returns whether it has; sooner if it cannot have one of
        them now. Calling this is optional. ``timeout`` is in seconds, and may be ``math.inf``."""
        with _in_range():
            return self._native.wait_mapped(timeout)

    @property
    def is_connected(self) -> bool:
        """Whether there is a target; without one chains run here."""
        return self._native.is_connected

    @property
    def place(self) -> str:
        """Where chains run."""
        return self._native.place

    @property
    def lost(self) -> str | None:
        """Why the target could not be reached, if one was requested."""
        return self._native.lost

    def close(self) -> None:
        """Closes the files. The connection ends with the functions that were loaded by it."""
        self._opened = None

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    target: str | None = None,
    device: str | os.PathLike[str] | None = None,
    here: bool = False,
    fallback: bool = True,
) -> File:
    """Opens a file, or up to 16 of one namespace, for chains of dependent reads over them.

    ``target``, ``device``, ``here`` and ``fallback`` are as in :func:`bpfof.dataset`.
    """
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    device = None if device is None else os.fspath(device)
    return File(_bpfof.Files([os.fspath(path) for path in paths], target, device, here, fallback))


class KeyValueStore:
    """A BPF-KV database. Made by :func:`bpfof.open_kv`."""

    def __init__(self, native: _bpfof.KeyValue) -> None:
        self._opened = Native(native)

    def get(self, key: int) -> bytes | None:
        """The 64 bytes of a key, or None. One round trip, however deep the tree is."""
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[int]) -> list[bytes | None]:
        """The values of keys, in their order; None for keys that do not exist."""
        with _in_range():
            return self._opened.get().get_many(list(keys))


def open_kv(place: str | os.PathLike[str], **how) -> KeyValueStore:
    """Opens a BPF-KV database: on the namespace of a target, by its address (``nvme-tcp://…``, ``nvme-rdma://…``), or
    in a file, with the options of :func:`bpfof.open`."""
    if isinstance(place, str) and "://" in place:
        if how:
            raise TypeError(f"{', '.join(how)}: these options are for files, but {place} is the address of a target")
        return KeyValueStore(_bpfof.KeyValue.on_target(place))
    return KeyValueStore(_bpfof.KeyValue.in_file(open(place, **how)._native))
