"""Random files with the table that they hold, and random questions."""

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

F = pc.field

KINDS = {
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "u8": pa.uint8(),
    "u16": pa.uint16(),
    "u32": pa.uint32(),
    "u64": pa.uint64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "utf8": pa.string(),
}
CODES = dict(i8="b", i16="h", i32="i", i64="q", u8="B", u16="H", u32="I", u64="Q", f32="f", f64="d")
TEXTS = ["", "a", "ab", "abc", "b", "ä", "äö", "漢字", "😀", "a b", "NaN", "null", "-1"]
DOUBLES = [0.0, -0.0, 1.0, -1.5, 0.1, math.nan, math.inf, -math.inf, 5e-324, -2.2e-308, 1e308, -1e308, 2.0**53, 7.0]


def integer(dice: Random, kind: pa.DataType) -> int:
    bits = kind.bit_width
    least, greatest = (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    edges = [least, greatest, 0, 1, least + 1, greatest - 1]
    return dice.choice(edges) if dice.random() < 0.15 else dice.randint(max(least, -20), min(greatest, 20))


def value(dice: Random, kind: pa.DataType):
    if pa.types.is_integer(kind):
        return integer(dice, kind)
    if pa.types.is_string(kind):
        return dice.choice(TEXTS)
    number = dice.choice(DOUBLES) if dice.random() < 0.5 else dice.uniform(-100, 100)
    if kind == pa.float32():
        number = struct.unpack("f", struct.pack("f", number if abs(number) < 3e38 or not math.isfinite(number) else 1.0))[0]
    return number


@dataclass
class World:
    """Files and what is in them."""

    paths: list[Path]
    table: pa.Table
    schema: str | None
    format: str


def world(dice: Random, folder: Path, name: str) -> World:
    """One to three files of records or CSV."""
    is_csv = dice.random() < 0.5
    kinds = [dice.choice(["i64", "f64", "utf8"] if is_csv else [*KINDS]) for _ in range(dice.randint(1, 6))]
    names = [f"c{at}" for at in range(len(kinds))]
    # At least one row, from which the types of CSV columns are inferred.
    counts = [dice.choice([0, 1, dice.randint(2, 300)]) for _ in range(dice.randint(1, 3))]
    counts[0] = max(counts[0], 1)
    columns: list[list] = [[] for _ in kinds]
    paths = []
    end = dice.choice(["\n", "\r\n"])
    for number, rows in enumerate(counts):
        lines, records = [",".join(names)], b""
        for _ in range(rows):
            fields = []
            for column, kind in zip(columns, kinds, strict=True):
                one = value(dice, KINDS[kind])
                if is_csv and kind != "utf8" and (dice.random() < 0.1 or one != one):
                    column.append(None)
                    # An empty line is not a row.
                    fields.append(dice.choice(["", "NA", "null", "NaN"] if len(kinds) > 1 else ["NA"]))
                    continue
                column.append(one)
                if is_csv:
                    fields.append(quoted(dice, one) if kind == "utf8" else repr(one))
                else:
                    records += one.encode().ljust(12, b"\0") if kind == "utf8" else struct.pack("<" + CODES[kind], one)
            lines.append(",".join(fields))
        path = folder / f"{name}-{number}.{'csv' if is_csv else 'bin'}"
        path.write_bytes(end.join([*lines, ""]).encode() if is_csv else records)
        paths.append(path)
    spelled = [f"{name} {'char(12)' if kind == 'utf8' and not is_csv else kind}" for name, kind in zip(names, kinds)]
    arrays = [pa.array(column, KINDS[kind]) for column, kind in zip(columns, kinds, strict=True)]
    return World(paths, pa.table(arrays, names=names), ", ".join(spelled), "csv" if is_csv else "records")


def quoted(dice: Random, text: str) -> str:
    return f'"{text}"' if dice.random() < 0.3 or text == "" else text


def condition(dice: Random, table: pa.Table, depth: int = 0) -> pc.Expression:
    """A condition of any kind, among them those that stages cannot apply."""
    roll = dice.random()
    if depth < 3 and roll < 0.35:
        left, right = condition(dice, table, depth + 1), condition(dice, table, depth + 1)
        return left & right if dice.random() < 0.6 else left | right
    if depth < 3 and roll < 0.45:
        return ~condition(dice, table, depth + 1)
    field = dice.choice(table.schema)
    name, kind = field.name, field.type
    roll = dice.random()
    if roll < 0.1:
        return F(name).is_null()
    if pa.types.is_string(kind):
        if roll < 0.3:
            return pc.starts_with(F(name), dice.choice(TEXTS))
        if roll < 0.5:
            return F(name).isin(dice.sample(TEXTS, 3))
        if roll < 0.6:
            return pc.utf8_length(F(name)) > dice.randint(0, 3)
        return compared(dice, F(name), dice.choice(TEXTS))
    if roll < 0.2:
        values = [value(dice, kind) for _ in range(3)]
        return F(name).isin(pa.array(values, kind))
    if roll < 0.3 and pa.types.is_floating(kind):
        return F(name).is_nan()
    if roll < 0.4 and pa.types.is_integer(kind) and kind.bit_width <= 32:
        # A comparison with another type.
        return compared(dice, F(name), dice.choice([1.5, 0, -3, 0.1, 7]))
    return compared(dice, F(name), pa.scalar(value(dice, kind), kind))


def compared(dice: Random, one, other) -> pc.Expression:
    operations = [
        lambda: one < other,
        lambda: one <= other,
        lambda: one > other,
        lambda: one >= other,
        lambda: one == other,
        lambda: one != other,
    ]
    return dice.choice(operations)()


def same(one: pa.Table, other: pa.Table) -> bool:
    """Equal bit by bit, all NaN being one."""
    if one.schema != other.schema or one.num_rows != other.num_rows:
        return False
    return all(bits(a) == bits(b) for a, b in zip(one.columns, other.columns, strict=True))


def bits(column: pa.ChunkedArray) -> list:
    values = column.to_pylist()
    if not pa.types.is_floating(column.type):
        return values
    as_bytes = lambda number: "nan" if number != number else struct.pack("<d", number)
    return [None if number is None else as_bytes(number) for number in values]
