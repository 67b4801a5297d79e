"""Plans that other processes can run: parts, run, merge, finish."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from bpfof import _bpfof
from bpfof._fork import Native
from bpfof.errors import QuestionError

#: Default size of a part in bytes, see :meth:`Plan.parts`.
PART_BYTES = 256 << 20


class Reach(NamedTuple):
    """How files are reached: the parameters of a session."""

    target: str | None
    device: str | None
    here: bool
    fallback: bool
    chains: int


_sessions: dict[tuple[int, Reach], Native] = {}


def session_of(reach: Reach) -> _bpfof.Session:
    """The session of this process, which keeps its connections. After fork() a child makes its own."""
    key = (os.getpid(), reach)
    session = _sessions.get(key)
    if session is None:
        # Another thread may have been faster.
        session = _sessions.setdefault(key, Native(_bpfof.Session(*reach)))
    return session.get()


class Part(NamedTuple):
    """The rows that begin in a range of a file: the work of one call of :meth:`Plan.run`."""

    #: The file.
    path: str
    #: Its size in bytes when the part was made.
    file_bytes: int
    #: Start of the range in bytes.
    start_bytes: int
    #: End of the range in bytes.
    end_bytes: int
    #: The file's inode number when the part was made: another file at this path is refused.
    inode: int
    #: The hash of the file's header when the part was made: a file rewritten with another header is refused.
    header_hash: int
    #: The time of its last modification then, in nanoseconds: a file of the same size that was written since then is
    #: refused.
    modified_ns: int


@dataclass(frozen=True)
class Result:
    """The result of some parts. It can be pickled, and merged with others by :meth:`Plan.merge`."""

    #: For :meth:`Plan.merge` and :meth:`Plan.finish`.
    partial: bytes
    #: The cost: a dict for each part, as :attr:`Dataset.last_stats`, with its ``part``.
    costs: tuple[dict, ...] = field(default=())

    @property
    def stats(self) -> dict:
        """The sum of the costs."""
        return together(self.costs)

    @property
    def lost(self) -> list[str]:
        """Which parts did not run at their target as they should have, and why."""
        return self.stats["lost"]


def together(costs: Iterable[dict]) -> dict:
    """Costs of several runs as one."""
    total: dict = {}
    for cost in costs:
        for name, value in cost.items():
            if isinstance(value, int):
                total[name] = total.get(name, 0) + value
            elif isinstance(value, list):
                known = total.setdefault(name, [])
                known.extend(one for one in value if one not in known)
    return {**_NOTHING, "places": [], "lost": [], **total}


_NOTHING = dict.fromkeys(
    (
        "scanned_bytes",
        "rows",
        "passed",
        "sent_bytes",
        "received_bytes",
        "chains",
        "chains_at_target",
        "hops",
        "again",
    ),
    0,
)


class Plan:
    """A query over files that can be run in parts, in any processes: threads, executors, Dask, Ray, Spark.

    ::

        plan = trips.group_by("zone").plan([("fare", "sum")])
        results = list(executor.map(plan.run, plan.parts()))
        table = plan.finish(plan.merge(results))

    It can be pickled. Each process that calls :meth:`run` must have the file system of the part's file mounted, and
    reaches its target by itself.
    """

    def __init__(
        self, source: _bpfof.Source, plan: _bpfof.Plan, reach: Reach, schema: pa.Schema, order: list[str]
    ) -> None:
        self._source = source
        self._plan = plan
        self._reach = reach
        self._schema = schema
        self._order = order

    def __reduce__(self):
        return _restore, (self._source.to_bytes(), self._plan, self._reach, self._schema, self._order)

    def parts(self, part_bytes: int = PART_BYTES) -> list[Part]:
        """Cuts the files into parts of about ``part_bytes``, in order. A part should take at least a second."""
        if part_bytes < 1:
            raise QuestionError("a part must have at least 1 byte")
        parts = self._plan.parts(self._source.now(), part_bytes)
        return [Part(os.fsdecode(path), *rest) for path, *rest in parts]

    def run(self, part: Part) -> Result:
        """Runs a part: at the target of its file, or here.

        Raises :class:`Error`; the part may then be run again, in this process or another one.
        """
        partial, cost = session_of(self._reach).run_part(self._plan, tuple(part))
        cost["lost"] = [f"{part.path}, bytes {part.start_bytes} to {part.end_bytes}: {why}" for why in cost["lost"]]
        return Result(partial, ({**cost, "part": part},))

    def merge(self, results: Iterable[Result]) -> Result:
        """Merges several results, in the order of :meth:`parts`, into one. Merged results can be merged again."""
        results = list(results)
        partial = self._plan.merge([result.partial for result in results])
        return Result(partial, tuple(cost for result in results for cost in result.costs))

    def finish(self, result: Result) -> pa.Table:
        """The answer, from a result of all parts."""
        return finished(pa.record_batch(self._plan.finish(result.partial)), self._schema, self._order)

    def __repr__(self) -> str:
        return f"<bpfof.Plan over {len(self._source.files)} files: {', '.join(self._schema.names)}>"


def _restore(source: bytes, plan: _bpfof.Plan, reach: Reach, schema: pa.Schema, order: list[str]) -> Plan:
    return Plan(_bpfof.Source.from_bytes(source), plan, Reach(*reach), schema, order)


def finished(batch: pa.RecordBatch, schema: pa.Schema, order: list[str]) -> pa.Table:
    """An answer with pyarrow's types, ordered by these columns."""
    table = pa.Table.from_batches([batch])
    columns = []
    for column, wanted in zip(table.columns, schema, strict=True):
        try:
            columns.append(column.cast(wanted.type))
        except pa.ArrowInvalid:
            # A sum that does not fit into 64 bits is a decimal number.
            columns.append(column)
    names = schema.names
    table = pa.Table.from_arrays(columns, names=names)
    if not order:
        return table
    # Names may occur twice, as in group_by("a").aggregate([("a", "count"), ("a", "count")]).
    keys = pa.table({str(at): table.column(at) for at in range(len(order))})
    indices = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    return table.take(indices)
