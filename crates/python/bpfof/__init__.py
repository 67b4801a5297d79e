"""Filters and reductions over large files, run at the storage target.

::

    import bpfof, duckdb, pyarrow.compute as pc

    trips = bpfof.dataset("/mnt/d/trips-*.csv")       # a pyarrow.dataset.Dataset
    duckdb.sql("SELECT * FROM trips WHERE zone = 132")
    trips.filter(pc.field("fare") > 20).group_by("zone").aggregate([("fare", "sum")])
    trips.sql("SELECT zone, avg(fare) FROM t GROUP BY zone")

Files on a namespace that a bpf-of target serves are filtered there, and only rows or totals are sent. Without a
target the same functions run on this machine, and the answers are the same. docs/python.md describes everything.
"""

from bpfof import errors
from bpfof._dataset import Dataset, Grouped, Scanner, dataset
from bpfof._files import File, Function, KeyValueStore, open, open_kv
from bpfof._plan import Part, Plan, Result
from bpfof.errors import (
    DataError,
    Error,
    FileError,
    FunctionError,
    QuestionError,
    TargetError,
    TooLargeError,
)

__all__ = [
    "DataError",
    "Dataset",
    "Error",
    "File",
    "FileError",
    "Function",
    "FunctionError",
    "Grouped",
    "KeyValueStore",
    "Part",
    "Plan",
    "QuestionError",
    "Result",
    "Scanner",
    "TargetError",
    "TooLargeError",
    "dataset",
    "errors",
    "open",
    "open_kv",
]
