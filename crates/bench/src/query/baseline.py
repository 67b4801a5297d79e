# SPDX-License-Identifier: Apache-2.0 OR MIT
"""DuckDB and pyarrow over the bytes of a file that come by a pipe: the plain path's engines.

Lines of JSON in and out. The time runs from before the pipe is opened until the answer is there; its writer
waits for that, and reads ahead only then.
"""
import fcntl
import json
import os
import signal
import sys
import time

# The parent is told to stop, and then closes this program's input.
signal.signal(signal.SIGINT, signal.SIG_IGN)


# Output that engines print themselves is no answer.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def say(value):
    print(json.dumps(value), file=answers, flush=True)


try:
    import duckdb
    import numpy
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.csv
except ImportError as error:
    say({"failed": f"{error}"})
    sys.exit()

RECORD = numpy.dtype([("id", "<u8"), ("zone", "<i4"), ("amount", "<i4"), ("fare", "<f8"), ("kind", "<i4"), ("customer", "<i4")])
# The columns of the query.
COLUMNS = {"zone": pyarrow.int32(), "amount": pyarrow.int32()}
KINDS = {"id": "UBIGINT", "zone": "INTEGER", "amount": "INTEGER", "fare": "DOUBLE", "kind": "INTEGER", "customer": "INTEGER", "note": "VARCHAR"}
PIECE = 4 << 20
PIPE = 1 << 20
# Rows of a batch of the Arrow file.
BATCH = 1 << 20


def open_pipe(path):
    pipe = open(path, "rb", buffering=0)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)
    return pipe


def record_batches(pipe):
    """Columns of records, PIECE bytes at a time."""
    schema = pyarrow.schema(COLUMNS)
    buffer = bytearray(PIECE)
    while True:
        filled = 0
        view = memoryview(buffer)
        while filled < PIECE and (count := pipe.readinto(view[filled:])):
            filled += count
        if not filled:
            return
        rows = numpy.frombuffer(buffer, RECORD, filled // RECORD.itemsize)
        columns = [pyarrow.array(numpy.ascontiguousarray(rows[name])) for name in COLUMNS]
        yield pyarrow.record_batch(columns, schema)


def csv_batches(pipe):
    convert = pyarrow.csv.ConvertOptions(column_types=COLUMNS, include_columns=list(COLUMNS))
    read = pyarrow.csv.ReadOptions(block_size=PIECE)
    return pyarrow.csv.open_csv(pipe, read_options=read, convert_options=convert)


def by_duckdb(ask):
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    if ask["format"] == "csv":
        kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in KINDS.items())
        rows = f"read_csv('{ask['pipe']}', header = true, delim = ',', quote = '\"', columns = {{{kinds}}})"
        return connection.execute(ask["sql"].replace("FROM rows", f"FROM {rows}")).fetchall()
    with open_pipe(ask["pipe"]) as pipe:
        batches = record_batches(pipe)
        rows = pyarrow.RecordBatchReader.from_batches(pyarrow.schema(COLUMNS), batches)
        connection.register("rows", rows)
        return connection.execute(ask["sql"]).fetchall()


def by_pyarrow(ask):
    count, total, least, greatest = 0, 0, None, None
    with open_pipe(ask["pipe"]) as pipe:
        for batch in (csv_batches if ask["format"] == "csv" else record_batches)(pipe):
            amount = batch.column("amount")
            mask = compute.and_(
                compute.greater_equal(batch.column("zone"), 10), compute.less(amount, ask["below"])
            )
            amount = amount.filter(mask)
            if not len(amount):
                continue
            count += len(amount)
            total += compute.sum(amount).as_py()
            ends = compute.min_max(amount).as_py()
            least = ends["min"] if least is None else min(least, ends["min"])
            greatest = ends["max"] if greatest is None else max(greatest, ends["max"])
    return [(count, total, least, greatest)]


def write_arrow(ask):
    """The records of a file as an Arrow file, uncompressed."""
    rows = numpy.memmap(ask["records"], RECORD, "r")
    schema = pyarrow.schema([(name, pyarrow.from_numpy_dtype(RECORD[name])) for name in RECORD.names])
    with pyarrow.ipc.new_file(ask["arrow"], schema) as file:
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            columns = [pyarrow.array(numpy.ascontiguousarray(batch[name])) for name in RECORD.names]
            file.write_batch(pyarrow.record_batch(columns, schema))
    return [(len(rows),)]


ENGINES = {"duckdb": by_duckdb, "pyarrow": by_pyarrow, "write": write_arrow}

say({"versions": f"DuckDB {duckdb.__version__}, pyarrow {pyarrow.__version__}"})
for line in sys.stdin:
    ask = json.loads(line)
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        rows = ENGINES[ask["engine"]](ask)
        took = {"wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu}
        say({**took, "answer": [float(value) for value in rows[0]]})
    except Exception as error:
        # The pipe's writer must not keep waiting for a reader.
        if "pipe" in ask:
            os.close(os.open(ask["pipe"], os.O_RDONLY | os.O_NONBLOCK))
        say({"failed": f"{type(error).__name__}: {error}"})
