"""Name of a dataset -> the record of its champion, what its champions have published, and what came of it.

One writer at a time replaces the record, of which there is a copy. The writers of one machine take a lock. Of the
writers of several machines that share an object store, one replaces a record that all have read, because the store
compares the record with the one that was read.
"""

import functools
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl
from filelock import FileLock
from pydantic import BaseModel

from dyformer import InvalidInput
from storage.artifacts.artifact import MANIFEST, open_artifact, read_table
from storage.bytes import files
from storage.bytes.checksums import (
    Count,
    Damaged,
    PathBelow,
    RecordDamaged,
    Whole,
    read_record,
    read_stamped_record,
    replace_record,
    write_record,
    wrong_kind,
)
from storage.bytes.files import Stamp
from storage.events.table import taken_back
from storage.layout import Layout
from storage.locks import alone

MISSING = "is missing"
PUBLICATIONS, OUTCOMES = "publications", "outcomes"
PUBLISHED_KINDS = ("forecasts", "vectors")
PUBLISHED_TABLES = {
    "forecasts": ("forecasts", "forecasts"),
    "forecasts_new": ("forecasts", "new"),
    "vectors": ("vectors", "vectors"),
}
"""Tables of a publication: the kind of artifact, and the name of the table in it."""

CHAMPION_SCHEMA = {
    "number": pl.Int64,
    "title": pl.String,
    "since": pl.Datetime("us"),  # in UTC
    "step": pl.Int64,
    "metric": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "difference": pl.Float64,
    "high": pl.Float64,
    "version": pl.Int64,
    "until": pl.Int64,
    "forecast_step": pl.Int64,
    "reason": pl.String,
}

PUBLICATION_SCHEMA = {
    "number": pl.Int64,  # counts the publications of a dataset
    "champion": pl.Int64,  # number of the champion
    "method": pl.String,
    "step": pl.Int64,  # that is forecast
    "start_time": pl.Int64,  # at which this step begins
    "forecasts": pl.String,  # addresses below the root of the store
    "vectors": pl.String,
    "space_id": pl.String,  # of the vectors
    "agreement_before": pl.Float64,  # mean cosine of a node with itself in the publication before
    "agreement": pl.Float64,  # the same of vectors that were rotated into one space
    "agreement_of_others": pl.Float64,  # mean cosine of these with the other nodes
    "published_at": pl.Datetime("us"),  # in UTC
    "valid_from": pl.Datetime("us"),  # the forecasts hold from this time
    "valid_to": pl.Datetime("us"),  # until this one; null where the windows have no end in time
    "late": pl.Boolean,  # whether the step was complete when they were published
}
OUTCOME_SCHEMA = {
    "number": pl.Int64,  # of the publication
    "slice": pl.String,  # all, new, repeat
    "num_pairs": pl.Int64,
    "num_came": pl.Int64,
    "precision_at_1": pl.Float64,
    "precision_at_2": pl.Float64,
    "precision_at_5": pl.Float64,
    "precision_at_10": pl.Float64,
    "precision_at_10_low": pl.Float64,
    "precision_at_10_high": pl.Float64,
    "probability": pl.Float64,  # mean of the forecast pairs
    "calibration_error": pl.Float64,
    "brier": pl.Float64,
    "table_version": pl.Int64,  # of the events that the forecast was compared with
}


class Published(BaseModel, strict=True):
    """The newest forecasts and vectors of a champion; `number` counts those of all champions."""

    number: Count
    step: Count
    forecasts: PathBelow
    vectors: PathBelow | None
    published_at: str
    late: bool


class OneChampion(BaseModel, strict=True):
    """A champion of a dataset, the outcomes of its tests by their keys, and what it published last."""

    title: str
    models: list[PathBelow]
    identity: str
    num_tests: Count
    tests: dict[str, dict[str, Any]]
    number: Count
    end_time: Whole | None = None
    published: Published | None = None


class Champion(OneChampion, strict=True):
    """The present champion of a dataset, and those before it."""

    earlier: list[OneChampion]


def champion_lock(layout: Layout, dataset: str) -> FileLock:
    """Lock the record of a dataset's champion against the other processes of this machine."""
    return alone(layout, f"champion-{dataset}")


def read_champion(layout: Layout, dataset: str) -> tuple[dict[str, Any], Stamp] | tuple[None, None]:
    """Record of the champion and the stamp that `replace_champion` expects; (None, None) where there is none.

    Raises:
        RecordDamaged: the record was changed, or is missing beside its copy.
    """
    address, remedy = layout.champion(dataset), _remedy(dataset)
    record, stamp = read_stamped_record(address, remedy, _wrong)
    if record is not None and stamp is not None:
        return record, stamp
    if files.size(layout.champion_copy(dataset)) is not None:
        raise RecordDamaged(address, MISSING, remedy)
    return None, None


def replace_champion(layout: Layout, dataset: str, record: dict[str, Any], expected: Stamp | None) -> bool:
    """Replace the record and its copy; False, without effect, if another machine has replaced it since it was read."""
    if not replace_record(layout.champion(dataset), record, expected):
        return False
    update_copy(layout, dataset)
    return True


def update_copy(layout: Layout, dataset: str) -> None:
    """Make the copy equal to the record, which must be sound; a writer that was killed may have left an older one."""
    address, copy = layout.champion(dataset), layout.champion_copy(dataset)
    record = read_record(address, _remedy(dataset), _wrong)
    while record is not None and _sound(copy) != record:
        write_record(copy, record)
        record = read_record(address, _remedy(dataset), _wrong)  # another machine may have replaced it meanwhile


def without_earlier(record: dict[str, Any]) -> dict[str, Any]:
    """Give the record of one champion alone, without the champions before it."""
    return {name: value for name, value in record.items() if name != "earlier"}


def numbered_after(before: dict[str, Any] | None) -> dict[str, Any]:
    """Give the number of the champion that follows, and the records of those before it."""
    if before is None:
        return {"number": 1, "earlier": []}
    return {"number": before["number"] + 1, "earlier": [*before["earlier"], without_earlier(before)]}


def champions(layout: Layout, dataset: str) -> pl.DataFrame:
    """List who was champion, the present one last, with the columns of CHAMPION_SCHEMA.

    number: counts the champions; step: on which it won; metric, value: on that step; low, difference, high: to the
    method that it replaced, or to the best other one; version, until: of the event table and the step that it was
    trained on; forecast_step: the newest that it has published; reason: why it became champion.
    """
    record, _ = read_champion(layout, dataset)
    held = [] if record is None else [*record["earlier"], record]
    return pl.DataFrame([_row(champion) for champion in held], schema=CHAMPION_SCHEMA)


def _row(record: dict[str, Any]) -> dict[str, Any]:
    [metric, value] = next(iter(record["metrics"].items()), (None, None))
    low, difference, high = record["difference"] or (None, None, None)
    published = record.get("published") or {}
    replaced = {name: record[name] for name in ("title", "step", "version", "until", "reason")}
    replaced |= {
        "since": datetime.fromisoformat(record["since"]).astimezone(UTC).replace(tzinfo=None),
        "number": record["number"],
        "metric": metric,
        "value": value,
        "forecast_step": published.get("step"),
    }
    return {**replaced, "low": low, "difference": difference, "high": high}


def next_publication(layout: Layout, dataset: str, record: dict[str, Any]) -> int:
    """Give the number of the forecasts that are published next, by whichever champion.

    Where a record names none, an earlier one may be lost: the publications themselves have their numbers.
    """
    published = [
        champion["published"]["number"] for champion in (*record["earlier"], record) if champion.get("published")
    ]
    return max(published or publications(layout, dataset)["number"].to_list(), default=0) + 1


def champion_problems(layout: Layout, dataset: str) -> tuple[str | None, str | None]:
    """Say what is wrong with the record and with its copy; None for a sound one, and twice None without a champion."""
    record, copy = (_problem(address) for address in (layout.champion(dataset), layout.champion_copy(dataset)))
    if record in (None, MISSING) and copy == MISSING:  # its writer was killed
        return None, None
    return record, copy


def repair_champion(layout: Layout, dataset: str) -> None:
    """Restore the record from its copy, or the copy from the record; remove both if both are damaged."""
    address, copy = layout.champion(dataset), layout.champion_copy(dataset)
    with champion_lock(layout, dataset):
        expected = None if files.size(address) is None else files.stamp(address)
        record_problem, copy_problem = champion_problems(layout, dataset)
        if record_problem is None:
            update_copy(layout, dataset)
        elif copy_problem is None:
            files.replace_bytes(address, files.read_bytes(copy), expected)
        else:
            files.remove(copy)
            files.remove(address)


def _problem(address: str) -> str | None:
    try:
        return None if read_record(address, "", _wrong) is not None else MISSING
    except Damaged as error:
        return error.problem


def _sound(address: str) -> dict[str, Any] | None:
    return read_record(address, "") if _problem(address) is None else None


def _wrong(record: dict[str, Any]) -> str | None:
    return wrong_kind(Champion, record)


def _remedy(dataset: str) -> str:
    return f"`dyformer verify {dataset} --repair` restores it, or removes it where its copy is damaged, too"


class MixedSpaces(InvalidInput):
    """Vectors of several spaces, whose products and cosines mean nothing."""


def check_one_space(vectors: pl.DataFrame, origin: str) -> str:
    """Return the id of the space of a table of vectors; raises MixedSpaces if they are of several, or of none."""
    ids = vectors["space_id"].unique().to_list() if "space_id" in vectors.columns else []
    if len(ids) != 1 or ids[0] is None:
        listed = ", ".join(sorted(map(str, ids))) or "none"
        raise MixedSpaces(
            f"{origin}: expected vectors of one space, found {listed}: compare those of one space_id alone"
        )
    return ids[0]


def publications(layout: Layout, dataset: str) -> pl.DataFrame:
    """All publications of a dataset in their order, with the columns of PUBLICATION_SCHEMA."""
    return _read(layout.artifacts("publications", dataset), PUBLICATIONS, PUBLICATION_SCHEMA)


def outcomes(layout: Layout, dataset: str) -> pl.DataFrame:
    """All outcomes of a dataset, at most one row a publication and slice, with the columns of OUTCOME_SCHEMA.

    Those that read rows of a commit that was taken back since are none. Of two that machines made at the same time, of
    different versions of the events, that of the older one counts.
    """
    rows = _read(layout.artifacts("outcomes", dataset), OUTCOMES, OUTCOME_SCHEMA)
    read = rows["table_version"].drop_nulls().unique().to_list()
    sound = rows.filter(~pl.col("table_version").is_in(taken_back(layout, dataset, read)).fill_null(value=False))
    return sound.sort("number", "table_version", maintain_order=True).unique(
        ["number", "slice"], keep="first", maintain_order=True
    )


def ledger(layout: Layout, dataset: str) -> pl.DataFrame:
    """Every publication with its outcome over all pairs, which is null where its step is not complete."""
    results = outcomes(layout, dataset).filter(slice="all").drop("slice")
    return publications(layout, dataset).join(results, on="number", how="left", maintain_order="left")


def complete_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a ledger whose step is complete: of each step the newest publication, in the order of the steps.

    One that was published once its step was complete, as a rollback does, is no forecast of it and has no row.
    """
    in_time = rows.filter(pl.col("num_pairs").is_not_null(), ~pl.col("late"))
    return in_time.unique("start_time", keep="last").sort("start_time")


def latest_tables(layout: Layout, dataset: str) -> dict[str, tuple[str, pl.LazyFrame]]:
    """Address and rows of each of PUBLISHED_TABLES of the newest publication, with `published_at`.

    A table that the publication lacks is left out.
    """
    tables = {}
    for row in publications(layout, dataset).tail(1).iter_rows(named=True):
        at = pl.lit(row["published_at"], pl.Datetime("us")).alias("published_at")
        for name, (kind, table) in PUBLISHED_TABLES.items():
            artifact = None if row[kind] is None else open_artifact(layout.absolute(row[kind]))
            if artifact is not None and f"{table}.parquet" in artifact.entries:
                tables[name] = artifact.address, artifact.scan(table).with_columns(at)
    return tables


def _read(folder: str, name: str, schema: Mapping[str, type[pl.DataType] | pl.DataType]) -> pl.DataFrame:
    """Read the table of each artifact in a folder, those once in a process whose files have the same stamps."""
    stamps = {location.rpartition("/")[::2]: stamp for location, stamp in files.stamps(folder).items()}
    of_address: dict[str, dict[str, Stamp]] = {}
    for (address, file), stamp in stamps.items():
        of_address.setdefault(address, {})[file] = stamp
    addresses = [address for address, stamp_of in of_address.items() if MANIFEST in stamp_of]
    tables = files.read_each(lambda address: _table(address, name, tuple(of_address[address].items())), addresses)
    return pl.concat([pl.DataFrame(schema=schema), *tables]).sort("number", maintain_order=True)


@functools.lru_cache(maxsize=1 << 12)
def _table(address: str, name: str, stamps: tuple[tuple[str, Stamp], ...]) -> pl.DataFrame:
    return read_table(address, name)
