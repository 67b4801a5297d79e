"""pyarrow's expressions as filters of stages."""

from __future__ import annotations

import copy
import functools
import re

import pyarrow as pa
import pyarrow.compute as pc

from bpfof import _bpfof
from bpfof.errors import QuestionError

#: Maximum number of columns that one query can use in stages.
COLUMNS_MAX = 16
#: Maximum number of text columns among them in Arrow files.
ARROW_TEXTS_MAX = 7

#: A type that Substrait can represent, and that pyarrow cannot compare with anything.
_NOT_COMPARED = pa.list_(pa.bool_())


@functools.cache
def _can_be_written(kind: pa.DataType) -> bool:
    """Whether Substrait has this type."""
    try:
        pc.field("x").is_valid().to_substrait(pa.schema([("x", kind)]), allow_arrow_extensions=True)
    except pa.ArrowException:
        return False
    return True


def _writable(schema: pa.Schema) -> pa.Schema:
    """The same columns, with stand-ins for types that Substrait lacks, such as durations, so that the others can be
    written."""
    kinds = [field.type if _can_be_written(field.type) else _NOT_COMPARED for field in schema]
    return pa.schema(list(zip(schema.names, kinds, strict=True)))


def _widened(schema: pa.Schema, integers: pa.DataType) -> pa.Schema:
    """The same columns, with one type for integers and one for floating point numbers."""

    def wide(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_integer(kind):
            return integers
        return pa.float64() if pa.types.is_floating(kind) else kind

    return pa.schema([(field.name, wide(field.type)) for field in schema])


def texts_of(source: _bpfof.Source, schema: pa.Schema) -> list[str]:
    """Columns of text, if they have a separate limit."""
    texts = (field.name for field in schema if field.type in (pa.string(), pa.large_string()))
    return list(texts) if source.is_arrow else []


class Condition:
    """An expression, as far as stages can apply it, and whether pyarrow must apply it once more."""

    def __init__(self, source: _bpfof.Source, schema: pa.Schema, expression: pc.Expression) -> None:
        if not isinstance(expression, pc.Expression):
            raise TypeError(f"a filter must be a pyarrow expression such as pc.field('x') > 1, not {expression!r}")
        self.expression = expression
        substrait, self._unwritten = _to_substrait(expression, schema)
        for name, why in source.others:
            if f"FieldRef.Name({name})" in (self._unwritten or ""):
                raise QuestionError(f"column {name}: {why}")
        self.pushed = _bpfof.Filter.of_substrait(source, substrait)
        self._source = source
        self._all = schema.names
        self._texts = texts_of(source, schema)

    def within(self, taken: list[str], spare: int = 0) -> tuple[Condition, list[str]]:
        """The same condition, of which stages apply the parts that fit their limit of columns together with the columns
        already taken and ``spare`` more; and the columns that are then taken."""
        most = COLUMNS_MAX - spare, ARROW_TEXTS_MAX - spare
        condition = copy.copy(self)
        condition.pushed, taken = self.pushed.within(self._source, taken, self._texts, most)
        return condition, taken

    @property
    def residual(self) -> pc.Expression | None:
        """The expression that pyarrow must apply to the rows that stages let pass, or None."""
        return self.expression if self.pushed.left else None

    @property
    def why(self) -> list[str]:
        """Why pyarrow must apply it."""
        return [self._unwritten] if self._unwritten else self.pushed.left

    @property
    def columns(self) -> list[str]:
        """The columns that its pushed part uses."""
        return self.pushed.columns

    @property
    def needed(self) -> list[str]:
        """The columns that pyarrow needs to apply it. Positions, as in pc.field(0), count all columns."""
        return self._all if "FieldPath(" in str(self.expression) else self.pushed.columns


#: Maximum nesting of conditions: the size of pyarrow's Substrait doubles with each level.
_DEPTH_MAX = 12


def _depth(expression: pc.Expression) -> int:
    """The maximum nesting; parentheses in texts count as well."""
    depth = deepest = 0
    for character in str(expression):
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    return deepest


#: pyarrow's notation of `and` and `or` without Kleene logic; the Kleene ones stand between their operands.
_NOT_KLEENE = re.compile(r"(?<![A-Za-z0-9_])(and|or)\(")


def _unlike(expression: pc.Expression) -> str | None:
    """Why stages would mistake it for another expression with the same name in Substrait, or None. Texts and names in
    it may look alike, too; then pyarrow applies the expression."""
    text = str(expression)
    if found := _NOT_KLEENE.search(text):
        return f"stages support {found[1]}_kleene, but not {found[1]}"
    if "starts_with(" in text and "ignore_case=true" in text:
        return "stages cannot ignore case"
    return None


def _to_substrait(expression: pc.Expression, schema: pa.Schema) -> tuple[bytes, str | None]:
    """The expression in Substrait, or nothing and the reason."""
    # Substrait cannot represent Arrow's implicit casts in a comparison of two types. Stages compare all numbers with
    # each other exactly, so columns may be declared with wider types. If the bytes cannot be parsed, pyarrow applies
    # the expression, and reports its errors.
    if _depth(expression) > _DEPTH_MAX:
        return b"", "it is nested too deeply: pass its conditions in several calls of filter()"
    if why := _unlike(expression):
        return b"", why
    schema = _writable(schema)
    for known in (schema, _widened(schema, pa.int64()), _widened(schema, pa.float64())):
        try:
            return bytes(expression.to_substrait(known, allow_arrow_extensions=True)), None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
            why = str(error).split(".  ")[0]
    return b"", why
