"""Snapshots, settings and a function that computes -> the address of an artifact, made unless a current one exists."""

from collections.abc import Callable, Sequence
from typing import Any

from flows.tasks.snapshots import Snapshots
from storage.artifacts.code import module_of
from storage.artifacts.made import Contents, Planned, planned

Code = str | Callable[..., Any]
"""A module of the project by its name, or a function or a class that stands in it."""


def made(
    snapshots: Snapshots,
    kind: str,
    *,
    until: int,
    settings: dict[str, Any],
    make: Callable[[], Contents],
    code: Sequence[Code] | None = None,
    inputs: tuple[str, ...] = (),
) -> str:
    """Return the address of an artifact; `make()` gives its tables and files unless a current one exists.

    An artifact is current if it was made of the same steps up to `until`, settings, inputs and code. The code is that
    of the modules of `code` and of all that these import in the project; comments and docstrings are no part of it.

    Args:
        snapshots: what it is made of.
        kind: one of `storage.layout.KINDS`.
        until: the last step that it may depend on.
        settings: plain values that it depends on; `seed` is a part of the address.
        make: computes it.
        code: modules, functions or classes that compute it; by default the module of `make`.
        inputs: addresses of other artifacts that are read.
    """
    code = (make,) if code is None else code
    return plan(snapshots, kind, until=until, settings=settings, code=code, inputs=inputs).made(make)


def plan(
    snapshots: Snapshots,
    kind: str,
    *,
    until: int,
    settings: dict[str, Any],
    code: Sequence[Code],
    inputs: tuple[str, ...] = (),
) -> Planned:
    """Return the address and the lineage of an artifact that may not exist yet; the arguments are those of `made`."""
    lineage = snapshots.lineage(kind, until=until, settings=settings, inputs=inputs, code=tuple(map(_module, code)))
    return planned(snapshots.layout, lineage)


def _module(code: Code) -> str:
    return code if isinstance(code, str) else module_of(code)
