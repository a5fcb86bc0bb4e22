"""Rows of texts (or integers, where a block is nothing but such) -> values, and the reason of each row refused."""

import polars as pl

from dyformer.logs.plan import ReadPlan
from dyformer.logs.times import read_times

TEXTS = {"weight", "label"}
QUARANTINE_SCHEMA = pl.Schema({"file": pl.String, "line": pl.Int64, "reason": pl.String, "raw": pl.String})


def validated(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Turn the texts of `raw_rows` into values, and give each row that cannot be used its `reason`."""
    times = read_times(rows["time"], plan.time_unit)
    if rows.schema["source"] == pl.Int64 and not TEXTS & set(rows.columns) and not times["time"].null_count():
        return rows.with_columns(times["time"])  # nothing but numbers, and all of use
    texts = {
        name: value for name, value in (("weight", _weight_value()), ("label", _label_value())) if name in rows.columns
    }
    rows = rows.with_columns(
        time=times["time"],
        time_reason=times["reason"],
        time_text=pl.col("time"),
        **{f"{name}_value": value for name, value in texts.items()},
    )
    reason = pl.coalesce("reason", *_reasons_of(rows))
    return (
        rows.with_columns(reason=reason)
        .rename({name: f"{name}_text" for name in texts})
        .rename({f"{name}_value": name for name in texts})
    )


def _reasons_of(rows: pl.DataFrame) -> list[pl.Expr]:
    """What may be wrong with a row's values, the most telling first."""
    reasons = []
    if rows.schema["source"] == pl.String:
        no_end = (pl.col("source").fill_null("") == "") | (pl.col("target").fill_null("") == "")
        reasons.append(pl.when(no_end).then(pl.lit("empty id")))
    reasons.append(pl.col("time_reason"))
    if "weight_value" in rows.columns:
        reasons.append(_weight_reason())
    if "label_value" in rows.columns:
        unread = pl.col("label_value").is_null() & (pl.col("label").fill_null("") != "")
        reasons.append(pl.when(unread).then(pl.lit("bad label")))
    return reasons


def _weight_value() -> pl.Expr:
    return pl.col("weight").cast(pl.Float64, strict=False)


def _label_value() -> pl.Expr:
    value = pl.col("label").cast(pl.Float64, strict=False)
    return pl.when(value == value.floor()).then(value.cast(pl.Int8, strict=False))


def _weight_reason() -> pl.Expr:
    value = pl.col("weight_value")
    return (
        pl.when(value.is_null())
        .then(pl.lit("unreadable weight"))
        .when(~value.is_finite())
        .then(pl.lit("weight is not finite"))
        .when(value < 0)
        .then(pl.lit("negative weight"))
    )


def quarantined(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Keep file, line, reason and the raw text; a Parquet row's text is its values as JSON."""
    fields = [name for name in rows.columns if name.startswith("field_")]
    if fields:
        texts = [pl.col(name).cast(pl.String).fill_null("") for name in fields]
        return rows.select("file", "line", "reason", raw=pl.concat_str(texts, separator=str(plan.separator)))
    texts = [name for name in ("source", "target", "time_text", "weight_text", "label_text") if name in rows.columns]
    values = pl.struct([pl.col(name).alias(name.removesuffix("_text")) for name in texts])
    return rows.select("file", "line", "reason", raw=pl.coalesce("raw", values.struct.json_encode()))
