"""New files and the rows that a dataset has -> an error that names each file which does not continue them."""

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import polars as pl

from dyformer.logs.contract import (
    SAMPLED_ROWS,
    ForeignLog,
    TimeRange,
    form_differences,
    form_from,
    form_of,
    form_record,
    id_difference,
    sampled_ids,
    time_difference,
    unit_difference,
)
from dyformer.logs.events import ReadResult
from dyformer.logs.plan import ReadPlan
from storage.events.declarations import declaration
from storage.events.disk_rows import SpilledRows
from storage.events.table import history, ingested_datasets, node_dictionary
from storage.layout import Layout

MAX_NAMED = 5  # files in a message


def check_contract(
    layout: Layout,
    dataset: str,
    plan: ReadPlan,
    results: Mapping[str, ReadResult | SpilledRows],
    reading: Mapping[str, Any],
) -> None:
    """Raise ForeignLog for new files whose form, times or ids do not fit those of the dataset's rows.

    A property of the form that the call names may differ. If the dataset has no rows, the times of the files are
    compared with those of the first. Ids are not compared in a log that is declared to have new ones. With `force` in
    `reading`, nothing is compared.
    """
    if reading.get("force"):
        return
    names = [_name(result) for result in results.values()]
    times = _stored_times(layout, dataset)
    # A declaration without rows is of a first ingest that failed: its form binds nobody.
    forms = [form_from(_without_batch(record)) for record in _forms(layout, dataset)] if times else []
    _check(dataset, {names[0]: form_differences(form_of(plan), forms, stated=reading.keys())})
    if times is None and len(results) < 2:
        return
    samples = [_sample(result) for result in results.values()]
    medians = [int(sample["time"].median() or 0) for sample in samples]  # pyright: ignore[reportArgumentType]
    of_times = [
        time_difference(median, times, plan.time_unit) if times else unit_difference(median, medians[0], plan.time_unit)
        for median in medians
    ]
    has_new = reading.get("new_ids", (declaration(layout, dataset) or {}).get("new_ids"))
    of_ids = _id_differences(layout, dataset, samples) if times and not has_new else []
    differences = [[sentence for sentence in pair if sentence] for pair in zip_longest(of_times, of_ids)]
    _check(dataset, dict(zip(names, differences, strict=True)))


def _check(dataset: str, differences: Mapping[str, Sequence[str]]) -> None:
    wrong = {file: sentences for file, sentences in differences.items() if sentences}
    if not wrong:
        return
    found = "; ".join(f"{file}: {', '.join(sentences)}" for file, sentences in list(wrong.items())[:MAX_NAMED])
    more = f"; and {len(wrong) - MAX_NAMED} more files" if len(wrong) > MAX_NAMED else ""
    raise ForeignLog(
        f"this log does not continue dataset {dataset!r}: {found}{more}. Nothing was committed; ingest it under another"
        " name, or insist with `force` (with `new_ids` where ids alone are other ones, such as those of sessions)"
    )


def with_form(layout: Layout, dataset: str, plan: ReadPlan, batch: str) -> list[dict[str, Any]]:
    """Give the forms of a dataset's files, with that of new ones, the first of which is `batch`."""
    stored, new = _forms(layout, dataset), form_record(form_of(plan))
    return stored if new in map(_without_batch, stored) else [*stored, new | {"batch": batch}]


def without_forms(record: Mapping[str, Any], batches: Collection[str]) -> dict[str, Any]:
    """Give a declaration without the forms that came with one of the sources `batches`."""
    forms = [form for form in record.get("forms") or [] if form.get("batch", "") not in batches]
    return {**record, "forms": forms}


def _forms(layout: Layout, dataset: str) -> list[dict[str, Any]]:
    return (declaration(layout, dataset) or {}).get("forms") or []


def _without_batch(form: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in form.items() if name != "batch"}


def _stored_times(layout: Layout, dataset: str) -> TimeRange | None:
    if dataset not in ingested_datasets(layout):
        return None
    first, last = history(layout, dataset).select(pl.min("first_time"), pl.max("last_time")).row(0)
    return None if first is None else TimeRange(first=first, last=last)


def _sample(result: ReadResult | SpilledRows) -> pl.DataFrame:
    """Take rows at equal distances."""
    if isinstance(result, SpilledRows):
        return result.sampled(SAMPLED_ROWS)
    rows = result.events.select("source", "target", "time")
    return rows.gather_every(max(1, rows.height // SAMPLED_ROWS))


def _name(result: ReadResult | SpilledRows) -> str:
    return result.file if isinstance(result, SpilledRows) else result.events["file"][0]


def _id_differences(layout: Layout, dataset: str, samples: Sequence[pl.DataFrame]) -> list[str | None]:
    stored = node_dictionary(layout, dataset)["id"].unique()
    ids = [sampled_ids(sample).to_frame("id").with_columns(file=index) for index, sample in enumerate(samples)]
    known = pl.concat(ids).join(stored.to_frame("id"), on="id", how="semi")["file"]
    counts = dict(known.value_counts().iter_rows())
    return [id_difference(len(stored), len(of_file), counts.get(index, 0)) for index, of_file in enumerate(ids)]
