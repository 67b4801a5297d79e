"""Datasets: pyarrow's interface for rows, and reductions with pyarrow's names."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from bpfof import _bpfof
from bpfof._expressions import ARROW_TEXTS_MAX, COLUMNS_MAX, Condition, texts_of
from bpfof._plan import Plan, Reach, finished, session_of, together
from bpfof.errors import DataError, QuestionError

#: Maximum number of names in a message.
_LISTED_MAX = 20
#: Maximum number of unreadable columns listed in a message.
_REASONS_MAX = 5
#: Aggregates that stages, or this package, compute.
_MEASURES = ("count", "count_all", "max", "mean", "min", "stddev", "sum", "variance")
#: Aggregates that are refused for dates and times, as in pyarrow.
_OF_NUMBERS = ("mean", "stddev", "sum", "variance")


def dataset(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    schema: str | pa.Schema | None = None,
    delimiter: str | None = None,
    header: bool = True,
    target: str | None = None,
    device: str | os.PathLike[str] | None = None,
    here: bool = False,
    fallback: bool = True,
    chains: int = 32,
) -> Dataset:
    """Files as a dataset: filtered and reduced where they are stored.

    ``paths`` are files and patterns (``*``, ``?``, ``[…]``, ``**``), all with the same columns; the rows of a file that
    is named twice occur twice. The dataset keeps absolute paths, also of ``device``. ``format`` is ``"csv"``,
    ``"npy"``, ``"arrow"`` (IPC, uncompressed) or ``"records"``; by default it follows from the names, and ``schema``
    without ``format`` means records. ``schema`` has the fields of records, as in
    ``"id u64, zone i32, name char(16), pad pad(4), fare f64"`` or as a :class:`pyarrow.Schema`; for CSV the kinds of
    columns whose kinds are not to be inferred.

    The target of each file is found from its mount: in ``BPFOF_TARGETS`` (``MOUNT=URL DEVICE; …``), or else by asking
    the kernel's NVMe/TCP host. ``target`` and ``device`` name it for all files: the address, and the device of its
    namespace on this machine. ``here=True`` uses no target. With ``fallback=False``, chains that cannot run at a
    target raise :class:`TargetError`; otherwise they run here, and :attr:`Dataset.last_stats` reports it. ``chains``
    is the maximum number of chains at a time, 1 to 256.
    """
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if isinstance(schema, pa.Schema):
        schema = _fields_of(schema)
    device = None if device is None else os.path.abspath(os.fspath(device))
    if not 1 <= chains <= 256:
        raise QuestionError("chains must be 1 to 256")
    source = _bpfof.Source([os.fspath(path) for path in paths], schema, format, delimiter, header)
    reach = Reach(target, device, here, fallback, chains)
    session_of(reach)  # Tells what is wrong with the arguments.
    return Dataset(source, reach)


_KINDS = {
    pa.int8(): "i8",
    pa.int16(): "i16",
    pa.int32(): "i32",
    pa.int64(): "i64",
    pa.uint8(): "u8",
    pa.uint16(): "u16",
    pa.uint32(): "u32",
    pa.uint64(): "u64",
    pa.float32(): "f32",
    pa.float64(): "f64",
    pa.string(): "utf8",
}


def _fields_of(schema: pa.Schema) -> str:
    fields = []
    for field in schema:
        kind = _KINDS.get(field.type)
        if pa.types.is_fixed_size_binary(field.type):
            kind = f"char({field.type.byte_width})"
        if kind is None:
            raise QuestionError(f"column {field.name} has the type {field.type}, which stages do not support")
        if field.name != field.name.strip().strip('"') or "," in field.name:
            raise QuestionError(f"column {field.name!r}: a name may have no comma, and no blank or quote at its ends")
        fields.append(f"{field.name} {kind}")
    return ", ".join(fields)


def _own_stages(stages: Mapping[str, str] | None) -> tuple[str | None, str | None]:
    given = dict(stages or {})
    own = given.pop("filter", None), given.pop("reduce", None)
    if given:
        raise QuestionError(f"{', '.join(given)}: stages of your own can only be 'filter' and 'reduce'")
    return own


@dataclass(frozen=True)
class Explanation:
    """Which steps would be done where, and why. Its text is meant for people."""

    #: Columns that stages use.
    looks_at: list[str]
    #: The places where stages run.
    places: list[str]
    #: Each step: its description, whether stages do it, and if not, why.
    steps: list[tuple[str, bool, str | None]]
    #: Total size of the files in bytes.
    bytes: int
    #: Number of files.
    files: int

    def __str__(self) -> str:
        lines = [f"{self.files} file{'' if self.files == 1 else 's'}, {self.bytes} bytes"]
        lines.append(f"looks at: {', '.join(self.looks_at) or 'none'}")
        lines += [f"stages run {place}" for place in self.places]
        for what, by_stages, why in self.steps:
            lines.append(f"  {'stages' if by_stages else 'here':<6}  {what}{f': {why}' if why else ''}")
        return "\n".join(lines)

    __repr__ = __str__


def _unreadable(schema: pa.Schema) -> ds.Dataset:
    """A stand-in for pyarrow's C++ code, which cannot read the rows itself: a file that does not exist, whose name in
    the error message says what to do."""
    name = "bpfof.dataset(): give pyarrow its to_table() or scanner().to_reader()"
    file_format, local = ds.IpcFileFormat(), fs.LocalFileSystem()
    return ds.FileSystemDataset([file_format.make_fragment(name, local)], schema, file_format, local)


# Not a union, but UnionDataset can be instantiated. A plain Dataset object has no C++ dataset behind it, and pyarrow
# functions that access that end the process.
class Dataset(ds.UnionDataset):
    """Files with rows. Made by :func:`bpfof.dataset`.

    It is a :class:`pyarrow.dataset.Dataset`: DuckDB, Polars, pandas, DataFusion and others push filters and columns
    into it. No engine passes aggregates on, so these are methods: :meth:`group_by`, :meth:`aggregate`,
    :meth:`top_k`, :meth:`histogram`, :meth:`sql`.
    """

    def __init__(
        self,
        source: _bpfof.Source,
        reach: Reach,
        conditions: tuple[Condition, ...] = (),
        told: list[dict] | None = None,
    ) -> None:
        self._source = source
        self._reach = reach
        self._conditions = conditions
        self._schema = pa.record_batch(source.empty()).schema
        super().__init__(self._schema, [_unreadable(self._schema)])
        # The cost of the last query over this dataset and those derived from it.
        self._told: list[dict] = [] if told is None else told

    def __reduce__(self):
        expressions = [condition.expression for condition in self._conditions]
        return _restore, (type(self), self._source.to_bytes(), self._reach, expressions)

    def __repr__(self) -> str:
        return f"<bpfof.Dataset of {len(self.files)} files: {', '.join(self.schema.names)}>"

    # The interface of pyarrow's datasets.

    @property
    def schema(self) -> pa.Schema:
        """Names and types of all columns."""
        return self._schema

    @property
    def files(self) -> list[str]:
        """Paths of the files, in the order of their rows."""
        return [os.fsdecode(path) for path, _ in self._source.files]

    @property
    def partition_expression(self) -> pc.Expression:
        """True for all rows: paths contain no information about them."""
        return pc.scalar(True)

    @property
    def physical_schema(self) -> pa.Schema:
        """The same as :attr:`schema`."""
        return self._schema

    def filter(self, expression: pc.Expression) -> Dataset:
        """The rows that also meet this condition. Pyarrow applies here the parts that stages cannot apply."""
        condition = Condition(self._source, self._schema, expression)
        return self._with((*self._conditions, condition))

    def _with(self, conditions: tuple[Condition, ...], spare: int = 0) -> Dataset:
        """The rows that meet these conditions. Stages apply as many of them as their limit of columns allows, with
        ``spare`` columns left over."""
        taken: list[str] = []
        fitting = []
        for condition in conditions:
            condition, taken = condition.within(taken, spare)
            fitting.append(condition)
        return Dataset(self._source, self._reach, tuple(fitting), self._told)

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[Fragment]:
        """Each file as a dataset."""
        rows = self if filter is None else self.filter(filter)
        for path, _ in self._source.files:
            yield Fragment(self._source.only([path]), self._reach, rows._conditions, self._told)

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = 131_072,
        **kwargs,
    ) -> Scanner:
        """A scan of these columns of the rows that meet ``filter``. Other options of pyarrow have no effect."""
        rows = self if filter is None else self.filter(filter)
        return Scanner(rows, columns, batch_size, self)

    def to_table(self, columns=None, filter: pc.Expression | None = None, **kwargs) -> pa.Table:
        """All rows, in the order of the files."""
        return self.scanner(columns=columns, filter=filter, **kwargs).to_table()

    def to_batches(self, columns=None, filter: pc.Expression | None = None, **kwargs) -> Iterator[pa.RecordBatch]:
        """The rows in batches, in the order of the files."""
        return self.scanner(columns=columns, filter=filter, **kwargs).to_batches()

    def head(self, num_rows: int, columns=None, filter: pc.Expression | None = None, **kwargs) -> pa.Table:
        """The first rows."""
        return self.scanner(columns=columns, filter=filter, **kwargs).head(num_rows)

    def take(self, indices, columns=None, filter: pc.Expression | None = None, **kwargs) -> pa.Table:
        """Rows by their numbers. All are read."""
        return self.scanner(columns=columns, filter=filter, **kwargs).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **kwargs) -> int:
        """The number of rows."""
        rows = self if filter is None else self.filter(filter)
        return rows._count()

    def sort_by(self, sorting, **kwargs) -> ds.InMemoryDataset:
        """All rows in an order, in memory."""
        return ds.dataset(self.to_table()).sort_by(sorting, **kwargs)

    def join(self, right_dataset, *args, **kwargs) -> ds.InMemoryDataset:
        """A join of all rows, in memory."""
        return ds.dataset(self.to_table()).join(_in_memory(right_dataset), *args, **kwargs)

    def join_asof(self, right_dataset, *args, **kwargs) -> ds.InMemoryDataset:
        """A join of all rows, in memory."""
        return ds.dataset(self.to_table()).join_asof(_in_memory(right_dataset), *args, **kwargs)

    def replace_schema(self, schema: pa.Schema) -> Dataset:
        """Refused: give ``schema`` to :func:`bpfof.dataset`."""
        raise QuestionError("the column types come from the files; give schema to bpfof.dataset()")

    # Methods that pyarrow's datasets do not have.

    def group_by(self, keys: str | Sequence[str], use_threads: bool = True) -> Grouped:
        """Groups of rows with the same values of ``keys``, for :meth:`Grouped.aggregate`, as in pyarrow's tables."""
        return Grouped(self, [keys] if isinstance(keys, str) else list(keys))

    def aggregate(self, aggregations: Sequence[tuple]) -> pa.Table:
        """Aggregates of all rows: ``[("fare", "sum"), ("fare", "mean"), ([], "count_all")]``. One row, with names as
        ``fare_sum``."""
        return self.group_by([]).aggregate(aggregations)

    def top_k(
        self, n: int, by: str, *, descending: bool = True, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The ``n`` rows with the greatest (or least) values, in this order; among equal ones those that come first
        in the files. Missing values and NaN come last."""
        names = self._names(columns)
        if n < 1 or n >= 2**32:
            raise QuestionError("top_k needs at least one row")
        self._names([by])
        plan = _bpfof.Plan.top(self._source, self._pushed(), by, descending, n, names)
        schema = pa.schema([self._schema.field(name) for name in names])
        return self._reduced(plan, schema, [*dict.fromkeys([*names, by])])

    def histogram(self, column: str, low: float, high: float, bins: int) -> pa.Table:
        """How many values lie in each of ``bins`` intervals of equal width from ``low`` to ``high``: columns low,
        high, count. Intervals are half-open except the last one, as in numpy; values outside, NaN and missing
        values are left out."""
        self._names([column])
        if not 1 <= bins < 2**32:
            raise QuestionError("a histogram needs at least 1 interval")
        plan = _bpfof.Plan.histogram(self._source, self._pushed(), column, float(low), float(high), bins)
        return self._reduced(plan, _HISTOGRAM, [column])

    def sql(self, statement: str, *, stages: Mapping[str, str] | None = None) -> pa.Table:
        """The answer of one SELECT over the rows, under any name: ``trips.sql("SELECT zone, sum(fare) FROM t GROUP BY
        zone")``. docs/query.md describes the supported SQL; for other SQL use DuckDB: ``duckdb.sql("… FROM trips")``.

        ``stages`` are your own, compiled from C: ``{"filter": "near.bpf.o(lat, lon)", "reduce":
        "powers.bpf.o(n) -> bits u64, rows u64"}``, either or both."""
        self._refuse_residual("sql")
        own = _own_stages(stages)
        batch, stats = session_of(self._reach).sql(self._source.now(), self._pushed(), statement, own)
        self._told[:] = [stats]
        return pa.Table.from_batches([pa.record_batch(batch)])

    def plan(self, columns: Sequence[str] | None = None) -> Plan:
        """Rows as a plan that other processes run; :meth:`Grouped.plan` is for aggregates."""
        self._refuse_residual("a plan")
        names = self._names(columns)
        plan = _bpfof.Plan.rows(self._source, self._pushed(), names)
        schema = pa.schema([self._schema.field(name) for name in names])
        return Plan(self._source, plan, self._reach, schema, [])

    def explain(
        self, statement: str | None = None, *, stages: Mapping[str, str] | None = None
    ) -> Explanation:
        """Which steps would be done where to scan the rows, or to answer an SQL statement, with stages of your own as
        in :meth:`sql`."""
        own = _own_stages(stages)
        if statement is not None:
            self._refuse_residual("sql")
            return self._explained(*_bpfof.Session.sql_steps(self._source, self._pushed(), statement, own))
        if any(own):
            raise QuestionError("stages of your own need an SQL statement")
        plan = _bpfof.Plan.rows(self._source, self._pushed(), self._one_of(self.schema.names))
        steps = [step for step in plan.steps() if not step[0].startswith("rows")]
        looked_at = [*dict.fromkeys(name for condition in self._conditions for name in condition.columns)]
        return self._explained([*steps, *self._steps_behind()], looked_at)

    @property
    def last_stats(self) -> dict | None:
        """The cost of the last query over this dataset, filtered or not: bytes and rows scanned, rows that passed,
        bytes sent to targets and received, chains, hops; ``places``, where stages ran; ``lost``, which lists the parts
        that did not run at their target as they should have, with the reason. None before the first query, and until
        all rows of the last query have been taken."""
        # Another thread may begin a query.
        return next(iter(self._told), None)

    # Internals.

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        known = self._schema.names
        if columns is None:
            if unread := self._unread():
                raise QuestionError(f"some columns cannot be read, so name the columns that you need ({unread})")
            return known
        names, there, refused = list(columns), set(known), dict(self._source.others)
        for name in names:
            if name in refused:
                raise QuestionError(f"column {name}: {refused[name]}")
            if name not in there:
                raise QuestionError(f"there is no column {name}; the columns are {_listed(known)}")
        return names

    def _unread(self) -> str:
        """Which columns cannot be read, and why; empty if all can."""
        others = self._source.others
        reasons = [f"{name}: {why}" for name, why in others[:_REASONS_MAX]]
        if len(others) > _REASONS_MAX:
            reasons.append(f"and {len(others) - _REASONS_MAX} more")
        return "; ".join(reasons)

    def _pushed(self) -> list[_bpfof.Filter]:
        return [condition.pushed for condition in self._conditions]

    def _residual(self) -> list[Condition]:
        return [condition for condition in self._conditions if condition.residual is not None]

    def _refuse_residual(self, what: str) -> None:
        for condition in self._residual():
            raise QuestionError(
                f"{what} needs a filter that stages can apply, but {condition.expression} is not "
                f"({condition.why[0]}); use to_table(), or an engine over the dataset"
            )

    def _steps_behind(self) -> list[tuple[str, bool, str | None]]:
        return [
            (f"filter by pyarrow: {one.expression}", False, "; ".join(dict.fromkeys(one.why)))
            for one in self._residual()
        ]

    def _explained(self, steps, looks_at: list[str]) -> Explanation:
        files = self._source.now().files
        places = session_of(self._reach).places(self._source)
        return Explanation(looks_at, places, steps, sum(size for _, size in files), len(files))

    def _run(self, plan: _bpfof.Plan, schema: pa.Schema, order: Sequence[str] = ()) -> pa.Table:
        batch, stats = session_of(self._reach).run(self._source.now(), plan)
        self._told[:] = [stats]
        return finished(pa.record_batch(batch), schema, list(order))

    def _why_rows(self, needed: Sequence[str]) -> str | None:
        """Why rows must be fetched to be reduced here, or None."""
        for condition in self._residual():
            return f"the filter is applied by pyarrow: {condition.why[0]}"
        return _too_many({*needed, *self._filtered()}, self._texts())

    def _reduced(
        self, plan: _bpfof.Plan, schema: pa.Schema, needed: list[str], order: Sequence[str] = ()
    ) -> pa.Table:
        """The answer of a plan, computed by stages, or here from the rows."""
        if self._why_rows(needed) is None:
            return self._run(plan, schema, order)
        whole = plan.merge([])
        # At least one column is needed to count the rows.
        for batch in self._rows(needed or self._schema.names[:1]):
            with pa.BufferOutputStream() as stream:
                with pa.ipc.new_stream(stream, batch.schema) as writer:
                    writer.write_batch(batch)
                whole = plan.merge([whole, plan.reduce(stream.getvalue().to_pybytes())])
        return finished(pa.record_batch(plan.finish(whole)), schema, list(order))

    def _fetched(self, names: list[str]) -> list[str]:
        """Columns that stages must answer for these columns of the rows."""
        residual = self._residual()
        wanted = {*names, *(name for condition in residual for name in condition.needed)}
        if residual and not wanted:
            # At least one column is needed to count the rows.
            wanted = {self._schema.names[0]}
        # In schema order, because positions refer to it.
        return [name for name in self._schema.names if name in wanted]

    def _with_room(self, names: list[str]) -> Dataset:
        """The same rows, with few enough filter columns in stages that each of these columns fits besides them."""
        filtered, texts = self._filtered(), self._texts()
        if all(_too_many({*filtered, name}, texts) is None for name in self._fetched(names)):
            return self
        return self._with(self._conditions, spare=1)

    def _rows(self, names: list[str], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """These columns of the rows, with all conditions applied."""
        rows = self._with_room(names)
        if rows is not self:
            yield from rows._rows(names, limit)
            return
        residual, fetched = self._residual(), self._fetched(names)
        if not fetched:
            yield _without_columns(self._count() if limit is None else min(limit, self._count()))
            return
        session, pushed, source = session_of(self._reach), self._pushed(), self._source.now()
        # A caller that stops early gets no cost, rather than that of an earlier query.
        self._told.clear()
        streams = []
        for some in _in_groups(fetched, self._filtered(), self._texts()):
            plan = _bpfof.Plan.rows(self._source, pushed, some, None if residual else limit)
            streams.append(session.rows(source, plan))
        for batches in zip_longest(*streams):
            batch = _beside([None if batch is None else pa.record_batch(batch) for batch in batches], self.files)
            table = pa.Table.from_batches([batch])
            for condition in residual:
                table = table.filter(condition.expression)
            yield from table.select(names).to_batches()
        self._told[:] = [together(stream.cost for stream in streams if stream.cost)]

    def _count(self) -> int:
        if self._residual():
            return sum(batch.num_rows for batch in self._rows([]))
        return self._run(self._counting(), _COUNT).column(0)[0].as_py()

    def _counting(self) -> _bpfof.Plan:
        return _bpfof.Plan.groups(self._source, self._pushed(), [], [("count_all", 0, None)], ["count"])

    def _filtered(self) -> set[str]:
        """Columns that the filters of stages use."""
        return set(self._counting().looks_at())

    def _one_of(self, names: list[str]) -> list[str]:
        """One column that stages can use besides those of their filter: one of these, or the first of the names."""
        return [*self._counting().looks_at(), *names][:1]

    def _texts(self) -> set[str]:
        """Columns of text, if they have a separate limit."""
        return set(texts_of(self._source, self._schema))


_COUNT = pa.schema([("count", pa.int64())])
_HISTOGRAM = pa.schema([("low", pa.float64()), ("high", pa.float64()), ("count", pa.int64())])


class Fragment(Dataset):
    """One file of a dataset, with the methods of :class:`pyarrow.dataset.Fragment`."""

    @property
    def path(self) -> str:
        """The file."""
        return self.files[0]

    def scanner(self, schema: pa.Schema | None = None, columns=None, filter=None, **kwargs) -> Scanner:
        """As :meth:`Dataset.scanner`; ``schema`` is that of the dataset."""
        return super().scanner(columns, filter, **kwargs)


def _restore(made: type[Dataset], source: bytes, reach: Reach, expressions: list[pc.Expression]) -> Dataset:
    rows = Dataset(_bpfof.Source.from_bytes(source), Reach(*reach))
    for expression in expressions:
        rows = rows.filter(expression)
    return made(rows._source, rows._reach, rows._conditions)


def _in_memory(dataset):
    return ds.dataset(dataset.to_table()) if isinstance(dataset, Dataset) else dataset


def _too_many(looked_at: set[str], texts: set[str]) -> str | None:
    """Why stages cannot use these columns in one query, or None."""
    if len(looked_at) > COLUMNS_MAX:
        return f"stages look at {COLUMNS_MAX} columns at most, not {len(looked_at)}"
    if (count := len(looked_at & texts)) > ARROW_TEXTS_MAX:
        return f"stages look at {ARROW_TEXTS_MAX} columns of text at most in Arrow files, not {count}"
    return None


def _in_groups(names: list[str], filtered: set[str], texts: set[str]) -> Iterator[list[str]]:
    """Groups of columns for one scan each: with the columns of the filter, at most as many as stages can use."""
    some: list[str] = []
    for name in names:
        if some and _too_many({*filtered, *some, name}, texts) is not None:
            yield some
            some = []
        some.append(name)
    yield some


def _listed(names: list[str]) -> str:
    """Names, the first of them if there are many."""
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


def _beside(batches: list[pa.RecordBatch | None], files: list[str]) -> pa.RecordBatch:
    """Columns of the same rows as one batch; a stream that has ended gives None."""
    if len(batches) == 1:
        return batches[0]
    if len({None if batch is None else batch.num_rows for batch in batches}) > 1:
        raise DataError(f"one of the files {', '.join(files[:3])} changed while it was read: create the dataset again")
    arrays = [array for batch in batches for array in batch.columns]
    names = [name for batch in batches for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _without_columns(rows: int) -> pa.RecordBatch:
    return pa.record_batch([pa.nulls(rows)], names=["x"]).select([])


class Scanner:
    """A scan, with the methods of :class:`pyarrow.dataset.Scanner`."""

    def __init__(self, rows: Dataset, columns, batch_size: int, dataset: Dataset) -> None:
        self._dataset = dataset
        self._batch_size = max(1, int(batch_size))
        self._computed = None
        if isinstance(columns, Mapping):
            self._computed = dict(columns)
            wanted = [Condition(rows._source, rows.schema, one) for one in columns.values()]
            needed = {name for one in wanted for name in one.needed}
            # In schema order, because positions refer to it.
            self._names = [name for name in rows.schema.names if name in needed]
            empty = pa.schema([rows.schema.field(name) for name in self._names]).empty_table()
            self._schema = ds.dataset(empty).to_table(columns=self._computed).schema
        else:
            if columns is None and (unread := rows._unread()):
                # Engines also request all columns in this way, so this is not an error.
                warnings.warn(f"some columns cannot be read and are left out: {unread}", stacklevel=4)
            self._names = rows._names(rows.schema.names if columns is None else columns)
            self._schema = pa.schema([rows.schema.field(name) for name in self._names])
        self._rows = rows._with_room(self._names)

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the dataset."""
        return self._rows.schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the rows that the scan returns."""
        return self._schema

    def _batches(self, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        for batch in self._rows._rows(self._names, limit):
            if self._computed is not None:
                table = ds.dataset(pa.Table.from_batches([batch])).to_table(columns=self._computed)
                yield from table.to_batches()
            else:
                yield batch

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches."""
        for batch in self._batches():
            for start in range(0, batch.num_rows, self._batch_size):
                yield batch.slice(start, self._batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        """The same as a reader."""
        return pa.RecordBatchReader.from_batches(self._schema, self.to_batches())

    def scan_batches(self) -> Iterator[ds.TaggedRecordBatch]:
        """The same, each with the dataset instead of a fragment."""
        for batch in self.to_batches():
            yield ds.TaggedRecordBatch(batch, self._dataset)

    def to_table(self) -> pa.Table:
        """All rows."""
        batches = list(self._batches())
        return pa.Table.from_batches(batches, schema=self._schema)

    def head(self, num_rows: int) -> pa.Table:
        """The first rows."""
        batches, left = [], num_rows
        if num_rows > 0:
            for batch in self._batches(num_rows):
                batches.append(batch.slice(0, left))
                left -= batches[-1].num_rows
                # Otherwise the rows end by themselves, and their cost is known.
                if left == 0 and self._rows._residual():
                    break
        return pa.Table.from_batches(batches, schema=self._schema)

    def take(self, indices) -> pa.Table:
        """Rows by their numbers."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """The number of rows."""
        return self._rows._count()


class Grouped:
    """Rows in groups, as :meth:`pyarrow.Table.group_by` gives them."""

    def __init__(self, rows: Dataset, keys: list[str]) -> None:
        self._rows = rows
        self._keys = rows._names(keys)

    def aggregate(self, aggregations: Sequence[tuple]) -> pa.Table:
        """A row for each group, ordered by its keys: first the keys, then the aggregates, each a tuple of column,
        function and, optionally, pyarrow's options.

        Stages compute ``count``, ``count_all``, ``max``, ``mean``, ``min``, ``stddev``, ``sum`` and ``variance``;
        sums are exact. If there are other functions among them, or pyarrow must apply a filter, the
        needed columns of the rows are fetched and aggregated here: other functions by pyarrow, with its sums.
        """
        rows, needed = self._rows, self._needed(aggregations)
        if self._unknown(aggregations) is None:
            plan, schema = self._planned(aggregations)
            return rows._reduced(plan, schema, needed, self._keys)
        table = rows.to_table(needed)
        for name in self._keys:
            at, kind = table.schema.get_field_index(name), table.schema.field(name).type
            if pa.types.is_floating(kind):
                # pyarrow groups by bits; -0.0 becomes 0.0.
                table = table.set_column(at, name, pc.add(table.column(at), pa.scalar(0.0, kind)))
        found = table.group_by(self._keys, use_threads=False).aggregate(aggregations)
        if not self._keys:
            return found
        keys = pa.table({str(at): found.column(name) for at, name in enumerate(self._keys)})
        order = [(name, "ascending") for name in keys.column_names]
        return found.take(pc.sort_indices(keys, sort_keys=order))

    def plan(self, aggregations: Sequence[tuple]) -> Plan:
        """The same as a plan that other processes run."""
        why = self._unknown(aggregations) or self._rows._why_rows(self._needed(aggregations))
        if why is not None:
            raise QuestionError(f"stages cannot compute this ({why}); use Dataset.plan(), and aggregate afterwards")
        plan, schema = self._planned(aggregations)
        return Plan(self._rows._source, plan, self._rows._reach, schema, self._keys)

    def explain(self, aggregations: Sequence[tuple]) -> Explanation:
        """Which steps would be done where."""
        rows, needed = self._rows, self._needed(aggregations)
        unknown, why = self._unknown(aggregations), rows._why_rows(needed)
        if unknown is None and why is None:
            plan, _ = self._planned(aggregations)
            return rows._explained(plan.steps(), plan.looks_at())
        plan = _bpfof.Plan.rows(rows._source, rows._pushed(), rows._one_of(needed or rows.schema.names))
        behind = ("aggregate by pyarrow", False, unknown) if unknown else ("aggregate", False, why)
        return rows._explained([*plan.steps(), *rows._steps_behind(), behind], needed)

    def _needed(self, aggregations: Sequence[tuple]) -> list[str]:
        of = (name for aggregation in aggregations for name in _columns_of(aggregation))
        return [*dict.fromkeys([*self._keys, *of])]

    def _unknown(self, aggregations: Sequence[tuple]) -> str | None:
        """Which aggregate is not ours, or None."""
        self._rows._names(self._needed(aggregations))
        for aggregation in aggregations:
            try:
                name, _ = _measure(aggregation)
            except QuestionError:
                raise
            except ValueError as why:
                return str(why)
            for of in _columns_of(aggregation):
                kind = self._rows.schema.field(of).type
                if name in _OF_NUMBERS and pa.types.is_temporal(kind):
                    raise QuestionError(f"{name} needs numbers, but column {of} is a {kind}")
        return None

    def _planned(self, aggregations: Sequence[tuple]) -> tuple[_bpfof.Plan, pa.Schema]:
        rows, wanted, fields = self._rows, [], []
        for aggregation in aggregations:
            (name, ddof), of = _measure(aggregation), _columns_of(aggregation)
            wanted.append((name, ddof, of[0] if of else None))
            fields.append(pa.field("_".join([*of, name]), _type_of(name, of, rows.schema)))
        schema = pa.schema([*(rows.schema.field(key) for key in self._keys), *fields])
        plan = _bpfof.Plan.groups(rows._source, rows._pushed(), self._keys, wanted, schema.names)
        return plan, schema


def _columns_of(aggregation: tuple) -> list[str]:
    of = aggregation[0]
    return [of] if isinstance(of, str) else list(of)


def _type_of(name: str, of: list[str], schema: pa.Schema) -> pa.DataType:
    if name in ("count", "count_all"):
        return pa.int64()
    kind = schema.field(of[0]).type
    if name in ("min", "max"):
        return kind
    if name == "sum" and (pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind)):
        return pa.uint64()
    if name == "sum" and pa.types.is_integer(kind):
        return pa.int64()
    return pa.float64()


def _measure(aggregation: tuple) -> tuple[str, int]:
    """The name of an aggregate and its degrees of freedom. Raises ValueError if it is not ours."""
    if len(aggregation) not in (2, 3):
        raise QuestionError(f"an aggregate must be a tuple of column and function, not {aggregation!r}")
    name, options = aggregation[1].removeprefix("hash_"), aggregation[2] if len(aggregation) == 3 else None
    if name not in _MEASURES or (name != "count_all") != (len(_columns_of(aggregation)) == 1):
        raise ValueError(f"stages do not support {name} of {len(_columns_of(aggregation))} columns")
    given = dict(re.findall(r"(\w+)=(-?\w+)", str(options))) if options is not None else {}
    ddof = int(given.pop("ddof", 0))
    usual = {
        "mode": ("NON_NULL", "only_valid"),
        "skip_nulls": ("true", "True"),
        "min_count": ("0",) if name in ("stddev", "variance") else ("1",),
    }
    for option, value in given.items():
        if value not in usual.get(option, ()):
            raise ValueError(f"stages do not support {name} with {option}={value}")
    if not 0 <= ddof <= 255:
        raise ValueError(f"stages do not support {name} with ddof={ddof}")
    return name, ddof
