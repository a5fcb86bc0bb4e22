"""Arrays -> the same arrays without a count of references, which compiled code would change at each use.

A compiled function counts the references to each array that it takes out of a tuple, in an operation that no other
processor may interrupt. In a state with 30 arrays this took more than a third of the time of a query. Python holds the
arrays of a call until it returns, so that within it no count is needed.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _borrowed(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _without_counts(context, builder, signature.args[0], args[0])

    return value(value), generate


def _hold(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(value), generate


def _without_counts(context: Any, builder: Any, kind: Any, value: ir.Value) -> ir.Value:
    if isinstance(kind, types.Array):
        struct = context.make_array(kind)(context, builder, value=value)
        for owner in ("meminfo", "parent"):
            setattr(struct, owner, cgutils.get_null_value(getattr(struct, owner).type))
        return struct._getvalue()  # noqa: SLF001, numba has no other name for it
    if hasattr(kind, "types"):  # a tuple
        for index, part in enumerate(kind.types):
            own = _without_counts(context, builder, part, builder.extract_value(value, index))
            value = builder.insert_value(value, own, index)
    return value


# To a type checker, a function of compiled code has the parameters of what generates it.
borrowed: Any = intrinsic(_borrowed)
"""Give an array, or a tuple with arrays, without counts: of a caller, or of what `hold` gets after the last use."""

hold: Any = intrinsic(_hold)
"""Do nothing: what is given to it exists until then."""
