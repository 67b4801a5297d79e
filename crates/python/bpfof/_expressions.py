"""pyarrow's expressions as filters of stages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from bpfof import _bpfof


def _widened(schema: pa.Schema, integers: pa.DataType) -> pa.Schema:
    """The same columns, with one type for integers and one for floating point numbers."""

    def wide(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_integer(kind):
            return integers
        return pa.float64() if pa.types.is_floating(kind) else kind

    return pa.schema([(field.name, wide(field.type)) for field in schema])


class Condition:
    """An expression, as far as stages can apply it, and whether pyarrow must apply it once more."""

    def __init__(self, source: _bpfof.Source, schema: pa.Schema, expression: pc.Expression) -> None:
        if not isinstance(expression, pc.Expression):
            raise TypeError(f"a filter is a pyarrow expression, as pc.field('x') > 1, and not {expression!r}")
        self.expression = expression
        substrait, self._unwritten = _to_substrait(expression, schema)
        self.pushed = _bpfof.Filter.of_substrait(source, substrait)

    @property
    def residual(self) -> pc.Expression | None:
        """What pyarrow must apply to the rows that stages let pass: all of it, or nothing."""
        return self.expression if self.pushed.left else None

    @property
    def why(self) -> list[str]:
        """Why pyarrow must."""
        return [self._unwritten] if self._unwritten else self.pushed.left

    @property
    def columns(self) -> list[str]:
        """What it looks at."""
        return self.pushed.columns


#: What pyarrow writes doubles with each level that conditions are nested.
_DEPTH_MAX = 12


def _depth(expression: pc.Expression) -> int:
    """How deep it is nested at most; parentheses in texts count as well."""
    depth = deepest = 0
    for character in str(expression):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


def _to_substrait(expression: pc.Expression, schema: pa.Schema) -> tuple[bytes, str | None]:
    """The expression, or nothing and why not."""
    # Substrait refuses what Arrow's implicit casts make of a comparison of two types. Stages compare all numbers
    # with each other, exactly, so they may be given as columns of wider types. Bytes that nobody can read make
    # pyarrow apply the expression, and tell what is wrong with it.
    if _depth(expression) > _DEPTH_MAX:
        return b"", "it is nested too deep: give its conditions by several calls of filter()"
    why = None
    for known in (schema, _widened(schema, pa.int64()), _widened(schema, pa.float64())):
        try:
            return bytes(expression.to_substrait(known, allow_arrow_extensions=True)), None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
            why = str(error).split(".  ")[0]
    return b"", why
