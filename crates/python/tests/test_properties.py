"""Answers are pyarrow's, bit by bit; sums of doubles are math.fsum's. Here, and at a target."""

import math
import os
import shutil
from fractions import Fraction
from random import Random

import bpfof
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from worlds import bits, condition, same, world

SEEDS = int(os.environ.get("SEEDS", "60"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "1"))


def taken(dice: Random, table: pa.Table) -> pc.Expression:
    """A condition that pyarrow can apply: some comparisons of two types it refuses, depending on the values."""
    while True:
        expression = condition(dice, table)
        try:
            table.filter(expression)
        except pa.ArrowInvalid:
            continue
        return expression


def check_rows(dice: Random, data: bpfof.Dataset, table: pa.Table) -> None:
    for _ in range(3):
        expression = taken(dice, table)
        expected = table.filter(expression)
        columns = dice.sample(table.column_names, dice.randint(1, table.num_columns))
        found = data.to_table(columns=columns, filter=expression)
        assert same(found, expected.select(columns)), f"{expression}\n{found}\n{expected}"
        assert data.count_rows(filter=expression) == expected.num_rows, str(expression)
        limit = dice.randint(0, 20)
        assert same(data.head(limit, columns=columns, filter=expression), expected.select(columns).slice(0, limit))
        twice = data.filter(expression).filter(pc.field(columns[0]).is_valid())
        assert twice.count_rows() == table.filter(expression & pc.field(columns[0]).is_valid()).num_rows


def one_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """0.0 and -0.0 are one key, and so are all NaN."""
    if not pa.types.is_floating(column.type):
        return column
    one = [None if number is None else math.nan if number != number else number + 0.0 for number in column.to_pylist()]
    return pa.chunked_array([pa.array(one, column.type)])


def fsum(values: list) -> float | None:
    if not values:
        return None
    if any(value != value for value in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    infinite = [value for value in values if math.isinf(value)]
    if infinite:
        return infinite[0]
    try:
        return math.fsum(values) + 0.0
    except OverflowError:
        # Either only intermediate sums overflow, or the sum does.
        total = sum(map(Fraction, values))
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


def check_groups(dice: Random, data: bpfof.Dataset, table: pa.Table) -> None:
    expression = taken(dice, table) if dice.random() < 0.6 else pc.scalar(True)
    rows = table.filter(expression)
    keys = dice.sample(table.column_names, dice.randint(0, min(2, table.num_columns)))
    numbers = [field.name for field in table.schema if not pa.types.is_string(field.type)]
    asked = [([], "count_all"), (dice.choice(table.column_names), "count")]
    for name in dice.sample(numbers, min(2, len(numbers))):
        asked += [(name, "sum"), (name, "min"), (name, "max"), (name, "mean")]
    # One more key, so that there is at least one: pyarrow computes lists only for groups.
    keyed, by = rows.append_column("all", pa.nulls(rows.num_rows, pa.int8())), ["all"]
    for key in keys:
        keyed = keyed.append_column(f"key {key}", one_key(keyed.column(key)))
        by.append(f"key {key}")
    lists = [(of, "list") for of in {of for of, _ in asked if of}]
    found = data.filter(expression).group_by(keys).aggregate(asked)
    expected = keyed.group_by(by, use_threads=False).aggregate([([], "count_all"), *lists])
    assert found.num_rows == max(expected.num_rows, 0 if keys else 1), f"{expression} {keys}\n{found}\n{expected}"
    if not keys and expected.num_rows == 0:
        return
    group = lambda columns: [tuple(one) for one in zip(*(bits(column) for column in columns), strict=True)]
    places = group([expected.column(name) for name in by[1:]]) if keys else [()]
    mine = group([found.column(at) for at in range(len(keys))]) if keys else [()]
    assert sorted(map(repr, places)) == sorted(map(repr, mine))
    for at, key in enumerate(mine):
        there = places.index(key)
        assert found.column(len(keys))[at].as_py() == expected.column("count_all")[there].as_py()
        for number, (of, function) in enumerate(asked[1:], len(keys) + 1):
            values = [one for one in expected.column(f"{of}_list")[there].as_py() if one is not None]
            check_measure(function, values, table.schema.field(of).type, found.column(number)[at].as_py())


def check_measure(function: str, values: list, kind: pa.DataType, found) -> None:
    where = f"{function} of {values[:50]} is not {found}"
    is_float = pa.types.is_floating(kind)
    if function == "count":
        assert found == len(values), where
    elif not values:
        assert found is None, where
    elif function in ("sum", "mean"):
        total = fsum(values) if is_float else sum(values)
        # pyarrow computes the mean of integers from their sum as a double.
        wanted = total if function == "sum" else float(total) / len(values)
        if function == "mean" and math.isinf(wanted) and all(map(math.isfinite, values)):
            # Only the sum overflows.
            wanted = float(sum(map(Fraction, values)) / 2**128) / len(values) * 2.0**128
        assert found == wanted or (found != found and wanted != wanted), f"{where} but {wanted}"
    else:
        plain = [value for value in values if value == value]
        if not plain:
            assert found != found, where
        else:
            assert found == (min(plain) if function == "min" else max(plain)), where


def check_top(dice: Random, data: bpfof.Dataset, table: pa.Table) -> None:
    numbers = [field.name for field in table.schema if not pa.types.is_string(field.type)]
    if not numbers:
        return
    by, n, descending = dice.choice(numbers), dice.randint(1, 30), dice.random() < 0.5
    found = data.top_k(n, by, descending=descending)
    last = lambda value: 2 if value is None else 1 if value != value else 0
    rank = lambda pair: (last(pair[1]), 0 if last(pair[1]) else -pair[1] if descending else pair[1], pair[0])
    order = [at for at, _ in sorted(enumerate(table.column(by).to_pylist()), key=rank)][:n]
    # Stages distinguish -0.0 from 0.0 in their order.
    assert [one if one != 0 else 0.0 for one in nan_as_text(found.column(by))] == [
        one if one != 0 else 0.0 for one in nan_as_text(table.take(order).column(by))
    ]
    assert found.num_rows == min(n, table.num_rows)


def nan_as_text(column: pa.ChunkedArray) -> list:
    return ["nan" if one is not None and one != one else one for one in column.to_pylist()]


def check_all(seed: int, folder, **how) -> dict:
    dice = Random(seed)
    made = world(dice, folder, f"w{seed}")
    paths = [str(path) for path in made.paths]
    data = bpfof.dataset(paths, schema=made.schema, format=made.format, chains=dice.choice([1, 3, 32]), **how)
    assert data.schema == made.table.schema
    assert same(data.to_table(), made.table)
    check_rows(dice, data, made.table)
    for _ in range(2):
        check_groups(dice, data, made.table)
    check_top(dice, data, made.table)
    assert data.last_stats["lost"] == []
    for path in made.paths:
        path.unlink()
    return data.last_stats


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_answers_here(seed, tmp_path):
    check_all(seed, tmp_path, here=True)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS // 3))
def test_answers_at_a_target(seed, disk):
    folder = disk.mount / f"seed-{seed}"
    folder.mkdir()
    stats = check_all(seed, folder, fallback=False, **disk.how)
    assert stats["chains"] == stats["chains_at_target"]
    shutil.rmtree(folder)


def test_parts_at_every_byte(tmp_path):
    """Wherever a file is cut, each row is in one part."""
    path = tmp_path / "t.csv"
    path.write_text('n,t\n1,"a,b"\n-20,c\n,""\n300,"d""e"\n')
    data = bpfof.dataset(path, here=True)
    plan = data.group_by("t").plan([("n", "sum"), ([], "count_all")])
    expected = data.group_by("t").aggregate([("n", "sum"), ([], "count_all")])
    for size in range(1, path.stat().st_size + 1):
        results = [plan.run(part) for part in plan.parts(size)]
        assert same(plan.finish(plan.merge(results)), expected), size
