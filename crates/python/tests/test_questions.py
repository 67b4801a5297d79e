"""What there is besides rows and groups, and what is refused."""

import contextlib
import functools
import operator
import os
import pickle
import socket
import threading
import time
import warnings

import bpfof
import numpy
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.feather
import pytest
from bpfof import _plan
from bpfof._fork import Native
from conftest import REPOSITORY, Disk, cannot_mount, ctrl_c, run, skip, stopped
from worlds import same

F = pc.field


@pytest.fixture(scope="module")
def data(trips):
    return bpfof.dataset(trips, here=True)


def arrow(path, table: pa.Table) -> bpfof.Dataset:
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    return bpfof.dataset(path, here=True)


def test_top_k_histogram_sql(data):
    table = data.to_table()
    top = data.top_k(5, "fare", columns=["id", "fare"])
    assert top.column("fare").to_pylist() == sorted(table.column("fare").to_pylist(), reverse=True)[:5]
    counts, edges = numpy.histogram(table.column("fare").to_numpy(), bins=64, range=(0, 100))
    found = data.histogram("fare", 0, 100, 64)
    assert found.column("count").to_pylist() == counts.tolist()
    assert found.column("low").to_pylist() == edges[:-1].tolist()
    rows = data.filter(F("zone") < 5).sql("SELECT zone, count(*) AS n FROM trips WHERE fare > 1 GROUP BY zone ORDER BY 1")
    zones = table.filter((F("zone") < 5) & (F("fare") > 1)).group_by("zone").aggregate([([], "count_all")])
    assert rows.to_pydict() == {
        "zone": zones.sort_by("zone").column("zone").to_pylist(),
        "n": zones.sort_by("zone").column("count_all").to_pylist(),
    }
    assert data.sql("SELECT id FROM t LIMIT 3").num_rows == 3


def test_aggregates_have_pyarrows_names_and_types(data):
    asked = [("fare", "sum"), ("fare", "hash_mean"), ("seconds", "sum"), ("zone", "max"), ([], "count_all")]
    asked += [("seconds", "variance", pc.VarianceOptions(ddof=1)), ("seconds", "stddev"), ("vendor", "count")]
    mine, theirs = data.aggregate(asked), data.to_table().group_by([]).aggregate(asked)
    assert mine.schema == theirs.schema
    for one, other in zip(mine.columns, theirs.columns, strict=True):
        assert one[0].as_py() == pytest.approx(other[0].as_py(), rel=1e-12)
    grouped = data.group_by("vendor").aggregate(asked)
    assert grouped.schema == data.to_table().group_by("vendor").aggregate(asked).schema
    assert grouped.column("vendor").to_pylist() == ["CMT", "DDS", "VTS"]


def test_zeroes_are_one_group_whoever_groups(tmp_path):
    rows = pa.table({"x": [0.0, -0.0, 1.0], "y": [1, 2, 4]})
    data = arrow(tmp_path / "rows.arrow", rows)
    for more in ([], [("y", "count_distinct")]):
        found = data.group_by("x").aggregate([("y", "sum"), *more])
        assert (found.column("x").to_pylist(), found.column("y_sum").to_pylist()) == ([0.0, 1.0], [3, 4])


def test_other_degrees_of_freedom_are_pyarrows(data):
    asked = [("fare", "variance", pc.VarianceOptions(ddof=-1))]
    found, expected = data.aggregate(asked), data.to_table().group_by([]).aggregate(asked)
    assert found.column(0)[0].as_py() == pytest.approx(expected.column(0)[0].as_py(), rel=1e-12)


def test_arrow_files_that_are_rewritten_with_other_names(tmp_path):
    path = tmp_path / "rows.arrow"
    data = arrow(path, pa.table({"a": [1, 2], "b": [10, 20]}))
    assert data.to_table(["a"]).column("a").to_pylist() == [1, 2]
    # Another inode would be noticed by itself.
    arrow(path, pa.table({"b": [10, 20], "a": [1, 2]}))
    with pytest.raises(bpfof.DataError, match="columns have changed since"):
        data.to_table(["a"])
    with pytest.raises(bpfof.DataError, match="columns have changed since"):
        data.sql("SELECT sum(a) FROM t")


def test_pyarrow_does_what_stages_cannot(data):
    asked = [("vendor", "count_distinct"), ("fare", "sum")]
    found = data.group_by("zone").aggregate(asked)
    assert same(found, data.to_table().group_by("zone", use_threads=False).aggregate(asked).sort_by("zone"))
    assert "stages do not support count_distinct" in str(data.group_by("zone").explain(asked))
    like = (F("fare") > 99) & pc.match_like(F("vendor"), "%T%")
    length = (F("fare") > 99) & (pc.utf8_length(F("vendor")) == 3)
    for expression in (like, length):
        assert same(data.to_table(filter=expression), data.to_table().filter(expression))
        found = data.filter(expression).group_by("zone").aggregate([("id", "count")])
        table = data.to_table().filter(expression)
        assert same(found, table.group_by("zone").aggregate([("id", "count")]).sort_by("zone"))
    # A condition that stages cannot apply does not prevent the other one.
    assert data.to_table(filter=length).num_rows and data.last_stats["passed"] < 500
    text = str(data.filter(length).explain())
    assert "stages  filter: fare > 99" in text and "here    filter by pyarrow" in text


def test_expressions_that_look_like_others(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,c\n1,2.5,x\n2,,y\n3,1,Xy\n4,,or(\n")
    data = bpfof.dataset(tmp_path / "rows.csv", here=True)
    table, one, other = data.to_table(), F("a") == 2, F("b") > 1
    # pc.or_() of expressions calls a function that some versions of pyarrow do not have.
    call = pc.Expression._call
    not_kleene = [call("or", [one, other]), ~call("and", [one, other]), one | call("or", [one, other])]
    for expression in (*not_kleene, pc.starts_with(F("c"), "X", ignore_case=True), F("c") == "or("):
        assert same(data.to_table(filter=expression), table.filter(expression)), str(expression)
    assert "or_kleene" in str(data.filter(not_kleene[0]).explain())
    for expression in (one | other, one & other, pc.starts_with(F("c"), "X")):
        assert same(data.to_table(filter=expression), table.filter(expression)), str(expression)
        assert "by pyarrow" not in str(data.filter(expression).explain()), str(expression)


def test_columns_by_their_positions(data):
    table = data.to_table()
    for expression in (F(3) > 99, (F(1) < 5) & (pc.utf8_length(F(4)) == 3), pc.utf8_length(F(4)) == 3):
        expected = table.filter(expression)
        assert same(data.to_table(["vendor", "id"], filter=expression), expected.select(["vendor", "id"]))
        assert data.count_rows(filter=expression) == expected.num_rows
    columns = {"x": F(3) * 2, "is_far": F(2) > 600, "zone": F("zone")}
    assert same(data.to_table(columns), ds.dataset(table).to_table(columns))


def test_conditions_without_columns(data):
    always, never = (pc.scalar(True) == pc.scalar(one) for one in (True, False))
    assert (data.count_rows(filter=always), data.count_rows(filter=never)) == (20_000, 0)
    assert data.to_table(columns=[], filter=always).num_rows == 20_000
    assert data.filter(never).aggregate([([], "count_all")]).column(0)[0].as_py() == 0


def test_scans_by_pyarrow_itself(data, tmp_path):
    other = pa.table({"zone": [1, 2], "name": ["a", "b"]})
    scans = [lambda: other.join(data, "zone"), lambda: ds.dataset(other).join(data, "zone")]
    scans += [lambda: ds.Scanner.from_dataset(data).count_rows(), ds.UnionDataset(data.schema, [data]).to_table]
    for scan in scans:
        with pytest.raises(FileNotFoundError, match="give pyarrow its to_table"):
            scan()
    ds.write_dataset(data.scanner().to_reader(), tmp_path / "copy", format="feather")
    assert same(ds.dataset(tmp_path / "copy", format="feather").to_table(), data.to_table())


def test_explain(data):
    text = str(data.filter(F("fare") > 99).group_by("zone").explain([("fare", "sum")]))
    assert "looks at: zone, fare" in text and "stages run on this machine (as requested)" in text
    assert "stages  filter: fare > 99" in text
    assert "ORDER BY" in str(data.explain("SELECT zone, sum(fare) FROM t GROUP BY zone ORDER BY 2"))


def test_formats(tmp_path):
    numpy.save(tmp_path / "a.npy", numpy.arange(1000.0))
    assert bpfof.dataset(tmp_path / "a.npy").aggregate([("value", "sum")]).column(0)[0].as_py() == 499500
    records = numpy.zeros(10, dtype=[("id", "<u8"), ("x", "<f4")])
    records["id"] = range(10)
    records.tofile(tmp_path / "r.bin")
    schema = pa.schema([("id", pa.uint64()), ("x", pa.float32())])
    data = bpfof.dataset(tmp_path / "r.bin", schema=schema)
    assert data.schema == schema and data.aggregate([("id", "sum")]).schema.field(0).type == pa.uint64()
    for name in ["a i64, b", ' "a"', '"a"']:
        with pytest.raises(bpfof.QuestionError, match="a name may have no comma"):
            bpfof.dataset(tmp_path / "r.bin", schema=pa.schema([(name, pa.int32())]))
    (tmp_path / "t.txt").write_text("1;a\n2;b\n")
    data = bpfof.dataset(tmp_path / "t.txt", format="csv", delimiter=";", header=False)
    assert data.to_table().to_pydict() == {"f0": [1, 2], "f1": ["a", "b"]}


def test_arrow_files(tmp_path, data):
    times = pa.array([10**9 * at for at in range(1000)], pa.timestamp("ns"))
    table = data.to_table().slice(0, 1000).append_column("time", times)
    with pa.ipc.new_file(tmp_path / "trips.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    found = bpfof.dataset(tmp_path / "trips.arrow", here=True)
    assert found.schema == table.schema and same(found.to_table(), table)
    expression = (F("fare") > 50) & (F("time") < pa.scalar(10**9 * 500, pa.timestamp("ns")))
    assert same(found.to_table(filter=expression), table.filter(expression))
    assert found.filter(expression).group_by("vendor").aggregate([([], "count_all")]).num_rows == 3
    plan = found.group_by("vendor").plan([("fare", "sum")])
    results = [plan.run(part) for part in plan.parts(5000)]
    assert same(plan.finish(plan.merge(results)), found.group_by("vendor").aggregate([("fare", "sum")]))


def test_columns_that_cannot_be_read(tmp_path):
    table = pa.table({"n": [1, 2, 3], "kind": pa.array(["a", "b", "a"]).dictionary_encode()})
    data = arrow(tmp_path / "rows.arrow", table)
    asked = [lambda: data.to_table(["kind"]), lambda: data.to_table(filter=F("kind") == "a")]
    asked += [lambda: data.group_by("kind").aggregate([("n", "sum")]), lambda: data.histogram("kind", 0, 1, 2)]
    for ask in asked:
        with pytest.raises(bpfof.QuestionError, match="column kind: dictionaries"):
            ask()
    for ask in (data.plan, lambda: data.top_k(1, "n")):
        with pytest.raises(bpfof.QuestionError, match=r"name the columns that you need \(kind: dictionaries"):
            ask()
    with pytest.warns(UserWarning, match="are left out: kind: dictionaries") as warned:
        assert same(data.to_table(), table.select(["n"]))
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert data.count_rows() == 3 and data.aggregate([("n", "sum")]).column(0)[0].as_py() == 6
        assert same(data.to_table(["n"], filter=F("n") > 1), table.select(["n"]).slice(1))


def test_types_that_substrait_lacks(tmp_path):
    table = pa.table(
        {
            "n": range(100),
            "length": pa.array([None if n % 3 == 0 else n for n in range(100)], pa.duration("s")),
            "longer": pa.array(range(0, 100_000, 1000), pa.duration("ms")),
            "at": pa.array(range(100), pa.timestamp("ms", "Europe/Berlin")),
        }
    )
    data = arrow(tmp_path / "rows.arrow", table)
    for expression in ((F("n") > 50) & F("length").is_valid(), F("n") < 10.5):
        assert same(data.to_table(filter=expression), table.filter(expression))
        assert "by pyarrow" not in str(data.filter(expression).explain())
    for expression in (F("length") == F("longer"), F("length") > pa.scalar(50, pa.duration("s"))):
        assert same(data.to_table(filter=expression), table.filter(expression))


def test_aggregates_of_times_and_booleans(tmp_path):
    table = pa.table(
        {
            "ok": [True, False, True, None],
            "at": pa.array([1, 2, None, 4], pa.timestamp("ms")),
            "day": pa.array([1, 2, None, 4], pa.date32()),
            "length": pa.array([1, 2, None, 4], pa.duration("s")),
        }
    )
    data = arrow(tmp_path / "rows.arrow", table)
    asked = [("ok", "sum"), ("ok", "mean"), ("at", "max"), ("day", "min"), ("length", "count")]
    assert same(data.aggregate(asked), table.group_by([]).aggregate(asked))
    for name in ("at", "day", "length"):
        for function in ("sum", "mean", "variance", "stddev"):
            for ask in (data.aggregate, data.group_by("ok").plan, data.group_by("ok").explain):
                with pytest.raises(bpfof.QuestionError, match=f"{function} needs numbers, but column {name}"):
                    ask([(name, function)])


def test_many_texts(tmp_path):
    table = pa.table({f"t{at}": [f"{at} {row}" for row in range(100)] for at in range(20)})
    data = arrow(tmp_path / "rows.arrow", table)
    assert same(data.to_table(), table)
    for expression in (F("t19") > "19 5", pc.utf8_length(F("t19")) == 4):
        assert same(data.to_table(filter=expression), table.filter(expression))
        counts = [(name, "count") for name in table.column_names]
        assert same(data.filter(expression).aggregate(counts), table.filter(expression).group_by([]).aggregate(counts))


def test_many_columns(tmp_path):
    names = [f"c{at}" for at in range(50)]
    rows = [[at * row for at in range(50)] for row in range(100)]
    text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows), ""])
    (tmp_path / "wide.csv").write_text(text)
    data = bpfof.dataset(tmp_path / "wide.csv")
    expected = pa.table([list(column) for column in zip(*rows)], names=names)
    assert same(data.to_table(), expected)
    expression = (F("c49") > 1000) & (F("c1") != 50)
    assert same(data.to_table(filter=expression), expected.filter(expression))
    assert data.aggregate([(name, "sum") for name in names]).num_columns == 50
    # Columns that only pyarrow's filter uses are not needed in every scan: there are four scans.
    expression = (F("c49") > 1000) & (pc.max_element_wise(*map(F, names)) > 1500)
    assert same(data.to_table(filter=expression), expected.filter(expression))
    assert data.last_stats["rows"] == 4 * 100


def balanced(connected, conditions: list[pc.Expression]) -> pc.Expression:
    """All of them, nested as little as possible."""
    if len(conditions) == 1:
        return conditions[0]
    middle = len(conditions) // 2
    return connected(balanced(connected, conditions[:middle]), balanced(connected, conditions[middle:]))


def test_filters_of_many_columns(tmp_path):
    names = [f"c{at}" for at in range(20)]
    expected = pa.table({name: [(at * 7 + row) % 11 for row in range(500)] for at, name in enumerate(names)})
    pyarrow.csv.write_csv(expected, tmp_path / "wide.csv")
    data = bpfof.dataset(tmp_path / "wide.csv", here=True)

    def of(count: int) -> pc.Expression:
        return balanced(operator.and_, [F(name) < 10 for name in names[:count]])

    for count in (15, 16, 17, 20):
        rows, wanted = data.filter(of(count)), expected.filter(of(count))
        for columns in (names, ["c19"], ["c0"], []):
            assert same(rows.to_table(columns), wanted.select(columns)), (count, columns)
        assert same(rows.head(3), wanted.slice(0, 3)) and rows.count_rows() == wanted.num_rows
        for column in ("c0", "c19"):
            asked = [(column, "sum"), ([], "count_all")]
            assert same(rows.aggregate(asked), wanted.group_by([]).aggregate(asked)), (count, column)
            rows.group_by(column).explain(asked)
        one_by_one = functools.reduce(lambda some, name: some.filter(F(name) < 10), names[:count], data)
        assert same(one_by_one.to_table(["c19"]), wanted.select(["c19"]))
        text = str(rows.explain())
        assert "stages  filter: c0 < 10" in text
        assert ("stages look at 16 columns at most to filter" in text) == (count > 16), text
    assert data.filter(of(16)).sql("SELECT count(*) FROM t").num_rows == 1
    with pytest.raises(bpfof.QuestionError, match="stages look at 16 columns at most"):
        data.filter(of(17)).sql("SELECT count(*) FROM t")
    either = balanced(operator.or_, [F(name) == 1 for name in names])
    assert same(data.to_table(["c3"], filter=either), expected.filter(either).select(["c3"]))


def test_filters_of_many_texts(tmp_path):
    table = pa.table({f"t{at}": [f"{(at + row) % 9}" for row in range(100)] for at in range(12)})
    data = arrow(tmp_path / "rows.arrow", table)
    for count in (6, 7, 8, 12):
        every = balanced(operator.and_, [F(f"t{at}") != "3" for at in range(count)])
        for columns in (["t0"], ["t11"], table.column_names):
            assert same(data.to_table(columns, filter=every), table.filter(every).select(columns)), (count, columns)
        assert data.count_rows(filter=every) == table.filter(every).num_rows


def test_files_that_grow(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a\n1\n12")
    data = bpfof.dataset(path, here=True)
    plan = data.plan()
    assert data.to_table().column("a").to_pylist() == [1, 12]
    with path.open("a") as file:
        file.write("345\n7\n")
    for rows in (data, pickle.loads(pickle.dumps(data)), data.filter(F("a") > 0), next(data.get_fragments())):
        assert rows.to_table().column("a").to_pylist() == [1, 12345, 7]
        assert rows.count_rows() == 3 and rows.sql("SELECT max(a) FROM t").column(0)[0].as_py() == 12345
    assert plan.finish(plan.merge(map(plan.run, plan.parts()))).num_rows == 3
    path.write_text("b\n1\n12345\n7\n")
    with pytest.raises(bpfof.DataError, match="rewritten with another header since"):
        data.to_table()
    path.write_text("a\n1\n")
    with pytest.raises(bpfof.DataError, match="made shorter since"):
        data.to_table()
    (tmp_path / "other.csv").write_text("b\n" + "1\n" * 100)
    os.replace(tmp_path / "other.csv", path)
    with pytest.raises(bpfof.DataError, match="replaced by another file since") as raised:
        data.count_rows()
    assert raised.value.path == str(path)
    path.unlink()
    with pytest.raises(bpfof.FileError) as raised:
        data.count_rows()
    assert raised.value.errno == 2


def test_files_that_are_written_between_parts(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("1\n2\n")
    plan = bpfof.dataset(path, header=False, here=True).plan()
    [part] = plan.parts()
    path.write_text("3\n4\n")
    # Both writes may be within one tick of the kernel's clock.
    os.utime(path, (1, 1))
    with pytest.raises(bpfof.DataError, match="has been written since"):
        plan.run(part)
    assert plan.finish(plan.merge(map(plan.run, plan.parts()))).column(0).to_pylist() == [3, 4]


def test_a_limit_ends_the_reading(tmp_path):
    paths = [tmp_path / "good.csv", tmp_path / "bad.csv"]
    paths[0].write_text("n\n" + "1\n" * 10)
    paths[1].write_text("n\n" + "2\n" * 1_000_000 + "x\n")
    data = bpfof.dataset(paths, here=True)
    assert data.sql("SELECT n FROM t LIMIT 10").column("n").to_pylist() == [1] * 10
    with pytest.raises(bpfof.DataError, match=r"bad\.csv"):
        data.sql("SELECT n FROM t LIMIT 2000000")


def test_a_slow_target_delays_only_its_own_queries(tmp_path, monkeypatch):
    (tmp_path / "image").write_bytes(bytes(4096))
    paths = [tmp_path / name / "rows.csv" for name in ("slow", "fast")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("a\n1\n")
    slow, fast = (bpfof.dataset(path) for path in paths)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(10)
        url = f"nvme-tcp://127.0.0.1:{silent.getsockname()[1]}/nqn.2024-01.test:silent"
        monkeypatch.setenv("BPFOF_TARGETS", f"{paths[0].parent}={url} {tmp_path / 'image'}")
        thread = threading.Thread(target=slow.count_rows)
        thread.start()
        connection, _ = silent.accept()
        begun = time.monotonic()
        # Less than the timeout of a connection.
        assert fast.count_rows() == 1 and time.monotonic() - begun < 3
        connection.close()
    thread.join()


def test_threads_share_a_session(monkeypatch):
    made, sessions = threading.Barrier(2), []

    def native(session):
        # Both threads have found that there is none.
        made.wait(10)
        return Native(session)

    monkeypatch.setattr(_plan, "Native", native)
    reach = _plan.Reach(None, None, here=True, fallback=True, chains=201)
    threads = [threading.Thread(target=lambda: sessions.append(_plan.session_of(reach))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sessions) == 2 and sessions[0] is sessions[1]


def test_sums_beyond_64_bits(tmp_path):
    numpy.full(4, 2**63 - 1, dtype="<i8").tofile(tmp_path / "large.bin")
    data = bpfof.dataset(tmp_path / "large.bin", schema="n i64")
    total = data.aggregate([("n", "sum")]).column("n_sum")
    assert pa.types.is_decimal(total.type) and int(total[0].as_py()) == 4 * (2**63 - 1)


def test_files_that_are_named_twice(trips):
    data = bpfof.dataset([trips, trips], here=True)
    assert data.count_rows() == data.to_table().num_rows == 40_000
    assert [fragment.count_rows() for fragment in data.get_fragments()] == [20_000, 20_000]


def test_relative_paths(trips, tmp_path, monkeypatch):
    monkeypatch.chdir(trips.parent)
    paths = (trips.name, "trips.c?v", f"../{trips.parent.name}/{trips.name}")
    found = [bpfof.dataset(path, here=True) for path in paths]
    monkeypatch.chdir(tmp_path)
    assert found[0].files == found[1].files == [str(trips)]
    assert [data.count_rows() for data in found] == [20_000] * 3


def test_errors(data, tmp_path):
    with pytest.raises(bpfof.FileError, match="there is no file") as raised:
        bpfof.dataset(tmp_path / "none.csv")
    assert isinstance(raised.value, OSError) and isinstance(raised.value, bpfof.Error)
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (type(copy), str(copy), copy.errno) == (bpfof.FileError, str(raised.value), 2)
    with pytest.raises(bpfof.QuestionError, match="there is no column fee; the columns are id, zone"):
        data.to_table(columns=["fee"])
    with pytest.raises(bpfof.QuestionError, match="there is no column"):
        data.group_by("zone").aggregate([("fee", "sum")])
    with pytest.raises(bpfof.QuestionError, match="JOIN"):
        data.sql("SELECT * FROM t JOIN u ON 1 = 1")
    with pytest.raises(bpfof.QuestionError, match="target and device together"):
        bpfof.dataset(data.files, target="nvme-tcp://127.0.0.1/nqn.x")
    with pytest.raises(bpfof.QuestionError, match="needs a filter that stages can apply"):
        data.filter(pc.utf8_length(F("vendor")) > 1).sql("SELECT * FROM t")
    for paths in ("***", [], tmp_path / "rows.parquet"):
        (tmp_path / "rows.parquet").touch()
        with pytest.raises(bpfof.QuestionError):
            bpfof.dataset(paths)
    asks = [lambda: data.aggregate([]), lambda: data.plan([]), lambda: data.top_k(1, "fare", columns=[])]
    for ask in asks:
        with pytest.raises(bpfof.QuestionError, match="the query is empty"):
            ask()
    with pytest.raises(pa.ArrowInvalid):
        data.to_table(filter=F("nothing") > 1)
    with pytest.raises(TypeError):
        data.filter("zone > 1")
    for chains in (-1, 0, 257):
        with pytest.raises(bpfof.QuestionError, match="chains must be 1 to 256"):
            bpfof.dataset(data.files, chains=chains)
    for bins in (-1, 0, 2**32):
        with pytest.raises(bpfof.QuestionError, match="interval"):
            data.histogram("fare", 0, 1, bins)
    (tmp_path / "bad.csv").write_text("n\n1\n" + "2\n" * 1_000_000 + "x\n")
    with pytest.raises(bpfof.DataError) as raised:
        bpfof.dataset(tmp_path / "bad.csv").aggregate([("n", "sum")])
    assert raised.value.path == str(tmp_path / "bad.csv") and raised.value.offset == 2_000_004
    with pytest.raises(bpfof.DataError):
        bpfof.dataset(tmp_path / "bad.csv").to_table()


def test_expressions_that_are_damaged(data, trips, little_memory):
    """Any bytes are a filter, if only one that leaves everything to pyarrow."""
    source = bpfof._bpfof.Source([str(trips)])
    whole = bytes(((F("zone") > 5) & F("vendor").isin(["a", "b"]) & (F("fare") <= 1.5)).to_substrait(data.schema))
    good = bpfof._bpfof.Filter.of_substrait(source, whole)
    assert good.left == [] and good.columns == ["zone", "fare", "vendor"]
    for at in range(len(whole)):
        bpfof._bpfof.Filter.of_substrait(source, whole[:at])
        for changed in (0, 1, 127, 128, 255):
            bpfof._bpfof.Filter.of_substrait(source, whole[:at] + bytes([changed]) + whole[at + 1 :])
    expression = F("zone") > 0
    for number in range(60):
        expression = expression & (F("zone") != number)
    assert data.count_rows(filter=expression) == data.to_table().filter(expression).num_rows
    assert "nested too deep" in str(data.filter(expression).explain())


def test_pickle(data):
    copy = pickle.loads(pickle.dumps(data.filter(F("zone") == 3)))
    assert same(copy.to_table(), data.to_table(filter=F("zone") == 3))
    [fragment] = data.get_fragments(F("zone") == 3)
    copy = pickle.loads(pickle.dumps(fragment))
    assert copy.path == fragment.path and same(copy.to_table(), fragment.to_table())


def test_ctrl_c(tmp_path):
    path = tmp_path / "many.bin"
    numpy.zeros(20_000_000, dtype="<i8").tofile(path)
    data = bpfof.dataset(path, schema="n i64", chains=1)
    begun = time.monotonic()
    with ctrl_c(0.2):
        while time.monotonic() - begun < 10:
            data.group_by("n").aggregate([("n", "sum")])
    begun = time.monotonic()
    with ctrl_c(0.1):
        while time.monotonic() - begun < 10:
            batches = data.to_batches()
            next(batches)
            batches.close()


def stage(folder, name):
    source = REPOSITORY / "docs" / "examples" / f"{name}.bpf.c"
    command = ["clang", "-O2", "-g", "-target", "bpf", "-mcpu=v3", f"-I{REPOSITORY}/functions/include", "-c"]
    run(*command, str(source), "-o", str(folder / f"{name}.bpf.o"))
    return folder / f"{name}.bpf.o"


def test_own_stages(tmp_path):
    path = tmp_path / "seconds.bin"
    seconds = numpy.arange(-5_000, 100_000, dtype="<i8")
    seconds.tofile(path)
    data = bpfof.dataset(path, schema="n i64").filter(F("n") > -900)
    stages = {"filter": f"{stage(tmp_path, 'whole_minutes')}(n)"}
    passing = seconds[(seconds > -900) & (seconds % 60 == 0)]
    answer = data.sql("SELECT count(*), sum(n) FROM t", stages=stages)
    assert answer.to_pylist() == [{"count(*)": len(passing), "sum(n)": passing.sum()}]
    stages["reduce"] = f"{stage(tmp_path, 'powers')}(n) -> bits u64, rows u64"
    statement = "SELECT bits, sum(rows) AS rows FROM t GROUP BY bits HAVING sum(rows) > 0"
    answer = {row["bits"]: row["rows"] for row in data.sql(statement, stages=stages).to_pylist()}
    bits = [0 if n < 0 else int(n).bit_length() for n in passing]
    assert answer == {each: bits.count(each) for each in set(bits)}
    assert "reduction of your own: powers.bpf.o(n)" in str(data.explain(statement, stages=stages))
    with pytest.raises(bpfof.QuestionError, match="it is a reduction and not a filter"):
        data.sql("SELECT count(*) FROM t", stages={"filter": f"{tmp_path}/powers.bpf.o(n)"})
    with pytest.raises(bpfof.QuestionError, match="map: stages of your own"):
        data.sql("SELECT count(*) FROM t", stages={"map": "x.o(n)"})


def test_casts_arithmetic_and_parts_are_pyarrows(tmp_path):
    random = numpy.random.default_rng(22)
    millis = random.integers(-(10**13), 10**13, 5000)
    table = pa.table(
        {
            "t": pa.array([None if n % 11 == 0 else int(n) for n in millis], pa.timestamp("ms")),
            "n": pa.array(random.integers(-(2**62), 2**62, 5000)),
            "x": pa.array(random.normal(size=5000) * 1e9),
            "w": pa.array(numpy.trunc(random.normal(size=5000) * 1e9)),
        }
    )
    path = tmp_path / "rows.arrow"
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    data = bpfof.dataset(path)
    t, n, x, w = (table[name] for name in "tnxw")
    parts = ("year", "quarter", "month", "day", "hour", "minute", "second")
    asked = [(f"extract({part} FROM t)", getattr(pc, part)(t)) for part in parts]
    asked += [
        (f"date_trunc('{part}', t)", pc.floor_temporal(t, unit=part)) for part in (*parts, "week")
    ]
    asked += [
        ("CAST(n AS DOUBLE)", pc.cast(n, pa.float64(), safe=False)),
        ("CAST(w AS BIGINT)", pc.cast(w, pa.int64())),
        ("CAST(n AS DOUBLE) * x", pc.multiply(pc.cast(n, pa.float64(), safe=False), x)),
        ("x + w", pc.add(x, w)),
        ("x - w", pc.subtract(x, w)),
        ("x * w", pc.multiply(x, w)),
        ("x / w", pc.divide(x, w)),
    ]
    for expression, expected in asked:
        answer = data.sql(f"SELECT {expression} AS it FROM t").column("it")
        assert answer.to_pylist() == expected.to_pylist(), expression
        if pa.types.is_floating(expected.type):
            bound = float(numpy.median(expected.to_numpy()))
        elif pa.types.is_timestamp(expected.type):
            bound = expected.drop_null().sort()[1000]
        else:
            bound = expected.drop_null()[7].as_py()
        text = f"'{bound.as_py()}'" if pa.types.is_timestamp(expected.type) else repr(bound)
        for sign, compare in (("<", pc.less), ("<=", pc.less_equal), (">", pc.greater), ("=", pc.equal)):
            passing = data.sql(f"SELECT count(*) AS rows FROM t WHERE {expression} {sign} {text}")
            count = pc.sum(compare(expected, bound)).as_py()
            assert passing["rows"][0].as_py() == count, (expression, sign, text)


def test_rows_that_pyarrow_filters_have_all_types(tmp_path):
    table = pa.table(
        {
            "name": pa.array(["ab", "c", None, "de", "c"] * 20, pa.large_string()),
            "ok": pa.array([True, False, None, None, True] * 20),
            "day": pa.array(range(100), pa.date32()),
            "at": pa.array(range(100), pa.timestamp("ms", "Europe/Berlin")),
        }
    )
    path = tmp_path / "rows.arrow"
    pyarrow.feather.write_feather(table, path, compression="uncompressed")
    data = bpfof.dataset(path, here=True)
    # pyarrow converts the values to booleans, and refuses numbers for days.
    assert same(data.to_table(filter=F("ok").isin([2])), table.filter(F("ok").isin([2])))
    with pytest.raises(pa.ArrowTypeError):
        data.to_table(filter=F("day").isin([3]))
    expression = pc.utf8_length(F("name")) > 0
    for key, of in (("name", "at"), ("name", "day"), ("day", "at"), ("name", "ok")):
        asked = [(of, "count")] if of == "ok" else [(of, "max"), (of, "count")]
        found = data.filter(expression).group_by(key).aggregate(asked)
        assert same(found, table.filter(expression).group_by(key).aggregate(asked).sort_by(key)), (key, of)


def test_ctrl_c_at_a_target_that_hangs(tmp_path):
    if why := cannot_mount():
        skip(why)
    with contextlib.closing(Disk()) as disk:
        path = disk.mount / "n.bin"
        numpy.arange(1_000_000, dtype="<i8").tofile(path)
        os.sync()
        data = bpfof.dataset(path, schema="n i64", target=disk.url, device=disk.image)
        assert data.count_rows() == 1_000_000
        with stopped(disk.process):
            begun = time.monotonic()
            with ctrl_c(0.5):
                data.aggregate([("n", "sum")])
            assert time.monotonic() - begun < 5


def test_rows_may_be_left(data):
    assert data.count_rows() == 20_000 and data.last_stats["rows"] == 20_000
    batches = data.to_batches(columns=["id"])
    assert next(batches).num_rows > 0
    del batches
    # The earlier value belonged to another query.
    assert data.last_stats is None
    assert data.head(10, columns=["id"]).num_rows == 10 and data.last_stats["chains"] > 0
    assert data.count_rows() == 20_000
