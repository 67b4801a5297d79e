"""Engines over our dataset answer what they answer over the file itself."""

import bpfof
import datafusion
import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

QUERIES = [
    "SELECT zone, count(*) AS n, sum(seconds) AS s FROM {t} WHERE fare > 20 GROUP BY zone ORDER BY zone",
    "SELECT count(*) AS n FROM {t} WHERE vendor IN ('CMT', 'VTS') AND zone BETWEEN 10 AND 20",
    "SELECT id, fare FROM {t} WHERE vendor = 'DDS' AND (zone = 132 OR fare < 0.5) ORDER BY id",
    "SELECT count(*) AS n FROM {t}",
    "SELECT max(fare) AS m, min(vendor) AS v FROM {t} WHERE vendor LIKE 'C%' AND seconds + 1 > 3000",
    "SELECT id FROM {t} WHERE fare IS NULL OR zone <> 5 ORDER BY fare DESC, id LIMIT 7",
]


@pytest.fixture(scope="module", params=["here", "target"])
def data(request, trips):
    if request.param == "here":
        yield bpfof.dataset(trips, here=True)
        return
    disk = request.getfixturevalue("disk")
    path = disk.mount / "engines.csv"
    path.write_bytes(trips.read_bytes())
    yield bpfof.dataset(path, fallback=False, **disk.how)
    path.unlink()


@pytest.mark.parametrize("query", QUERIES)
def test_duckdb(data, trips, query):
    found = duckdb.sql(query.format(t="data")).to_arrow_table()
    expected = duckdb.sql(query.format(t=f"'{trips}'")).to_arrow_table()
    assert found == expected
    assert found.num_rows > 0


def test_duckdb_pushes(data):
    duckdb.sql("SELECT sum(fare) FROM data WHERE zone = 132").fetchall()
    stats = data.last_stats
    assert stats["rows"] == 20_000 and 0 < stats["passed"] < 200


def test_polars(data, trips):
    lazy = lambda frame: (
        frame.filter((polars.col("zone") == 132) | (polars.col("fare") < 1))
        .group_by("vendor")
        .agg(polars.len(), polars.col("seconds").sum())
        .sort("vendor")
        .collect()
    )
    found = lazy(polars.scan_pyarrow_dataset(data))
    assert found.equals(lazy(polars.scan_csv(trips))) and len(found) == 3


def test_pandas(data, trips):
    found = data.to_table(filter=ds.field("zone") < 5).to_pandas()
    expected = pandas.read_csv(trips)
    pandas.testing.assert_frame_equal(found, expected[expected.zone < 5].reset_index(drop=True))


def test_datafusion(data, trips):
    context = datafusion.SessionContext()
    context.register_dataset("t", data)
    context.register_csv("file", str(trips))
    query = "SELECT zone, count(*) AS n, sum(seconds) AS s FROM {} WHERE fare > 90 GROUP BY zone ORDER BY zone"
    found = context.sql(query.format("t")).to_arrow_table()
    assert found.cast(pa.schema(found.schema)) == context.sql(query.format("file")).to_arrow_table().cast(found.schema)
    assert found.num_rows > 200


def test_it_is_a_dataset(data):
    assert isinstance(data, ds.Dataset)
    assert len(list(data.get_fragments())) == 1
    assert data.scanner(columns=["fare"]).projected_schema == pa.schema([("fare", pa.float64())])
    assert data.scanner(columns={"x": ds.field("fare") * 2, "zone": ds.field("zone")}).head(3).num_rows == 3
    assert data.scanner(columns=["id"], batch_size=100).to_reader().read_next_batch().num_rows == 100
    assert data.take([5, 1]).column("id").to_pylist() == [5, 1]
    assert data.to_table(columns=[]).num_rows == 20_000
    assert data.sort_by([("fare", "descending")]).to_table().num_rows == 20_000
    other = pa.table({"zone": [1, 2], "name": ["a", "b"]})
    joined = data.join(ds.dataset(other), "zone", join_type="inner").to_table()
    assert joined.num_rows == data.count_rows(filter=ds.field("zone").isin([1, 2]))
