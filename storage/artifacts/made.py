"""The record of what an artifact depends on -> its address, and the artifact, made unless a current one exists."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from storage.artifacts.artifact import Lineage, is_current, settings_hash, write_artifact
from storage.bytes.files import check_writable
from storage.layout import KINDS, Layout

Contents = Mapping[str, pl.DataFrame | bytes]
"""Tables and files of an artifact by their names."""

HISTORY = "history"  # the input of an artifact that is made of the steps up to one: the digest of these
OF_TRAINING = ("model", "times", "pretrain", "finetune")
PUBLISHED = ("forecasts", "vectors")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """An artifact that may not exist yet: where it lies, and all that it depends on."""

    address: str
    lineage: Lineage

    @property
    def is_current(self) -> bool:
        """Whether it exists, made from exactly this."""
        return is_current(self.address, self.lineage)

    def made(self, make: Callable[[], Contents]) -> str:
        """Return its address; `make()` gives its contents unless it is current. Raises WriteFailed before it does."""
        if self.is_current:
            return self.address
        check_writable(self.address)
        return write_artifact(self.address, make(), self.lineage)


def planned(layout: Layout, lineage: Lineage) -> Planned:
    """Plan an artifact of one of KINDS."""
    return Planned(address=address_of(layout, lineage), lineage=lineage)


def address_of(layout: Layout, lineage: Lineage) -> str:
    """Give the address of an artifact. Its seed is the setting `seed`.

    The code and the history are a part of the address of weights, so that other code trains a challenger and leaves
    the champion's weights, and the same history has the same address, whatever rows come later. The code and all
    inputs are a part of that of forecasts and vectors, so that what was published stays as it was. An artifact of
    another kind is replaced when its code changes.
    """
    settings = lineage.settings_hash
    if lineage.kind in OF_TRAINING:
        history = lineage.inputs.get(HISTORY)
        settings = settings_hash({"settings": settings, "code": lineage.code_version, HISTORY: history})
    if lineage.kind in PUBLISHED:
        settings = settings_hash({"settings": settings, "code": lineage.code_version, "inputs": lineage.inputs})
    keys = {"version": lineage.table_version, "until": lineage.until, "settings": settings}
    keys["seed"] = lineage.settings.get("seed")
    _, names = KINDS[lineage.kind]
    return layout.artifact(lineage.kind, lineage.dataset, **{name: keys[name] for name in names})
