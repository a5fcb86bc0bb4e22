"""Protocols: how methods are compared, one file and one line each; a log and methods -> rows of metrics and tables.

This module imports none of them, so that a command lists their names at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dyformer import InvalidInput

if TYPE_CHECKING:
    from dyformer.evaluation.protocols.protocol import Protocol

PROTOCOLS: dict[str, str] = {
    "paper": "dyformer.evaluation.protocols.paper",
    "prequential": "dyformer.evaluation.protocols.prequential",
    "forecasts": "dyformer.evaluation.protocols.forecasts",
    "live-update": "dyformer.evaluation.protocols.live_update",
    "tgb": "dyformer.evaluation.protocols.tgb",
    "labels": "dyformer.evaluation.protocols.labels",
    "labels-published": "dyformer.evaluation.protocols.labels_published",
    "cost": "dyformer.evaluation.protocols.cost",
}
"""Name of a protocol -> the module whose `PROTOCOL` it is; of a user's own, which a command adds, `module:OBJECT`."""


class UnknownProtocol(InvalidInput):
    """A name that no protocol has."""


def check_name(name: str) -> None:
    """Raise UnknownProtocol, with the known names, for another one."""
    if name not in PROTOCOLS:
        names = ", ".join(map(repr, PROTOCOLS))
        raise UnknownProtocol(f"{name!r} is not one of {names}, and none of your own, package.module:OBJECT")


def protocol_of(name: str) -> "Protocol":
    """Return the protocol of a name; raises as check_name does."""
    check_name(name)
    module, _, attribute = PROTOCOLS[name].partition(":")
    return getattr(import_module(module), attribute or "PROTOCOL")
