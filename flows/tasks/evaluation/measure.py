"""Stored results of methods in a protocol -> their metrics, made once, and read again without any method."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from dyformer.evaluation.protocols.prequential import QUERY_TABLES
from dyformer.evaluation.protocols.protocol import Protocol, Result
from dyformer.sampling.ranking_queries import RankingQueries, queries_from_tables
from flows.tasks.made import made
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import open_artifact, read_table
from storage.artifacts.code import project_modules, source_digest

METRICS = "metrics"


def measure(snapshots: str, protocol: Protocol, scores: Sequence[str], baselines: Collection[str] | None = None) -> str:
    """Make the metrics of results, unless they exist; return the address of the rows and the tables beside them.

    All methods are compared with the best of `baselines`, by default the known ones of the protocol, which import
    torch; a mapping gives the method with which each is compared.
    """
    opened = open_snapshots(snapshots)
    compared = _known_baselines(protocol) if baselines is None else baselines
    results = [result_of(opened, address) for address in scores]
    units = [unit for result in results for unit in result.units]
    return made(
        opened,
        METRICS,
        until=opened.num_steps if protocol.whole_log else max(units),
        settings={
            "protocol": protocol.name,
            "baselines": dict(compared) if isinstance(compared, Mapping) else sorted(compared),
            **protocol_record(protocol),
            "scores": list(map(opened.layout.relative, scores)),
        },
        make=partial(protocol.rows, results, opened, compared),
        code=project_modules(protocol.rows),
        inputs=tuple(scores),
    )


def result_of(opened: Snapshots, address: str) -> Result:
    """Open the stored results of one task."""
    scores = open_artifact(address)
    settings = scores.lineage.settings
    drawn = [partial(read_table, opened.layout.absolute(relative)) for relative in settings["drawn"]]
    return Result(
        units=tuple(settings["units"]), seed=settings["seed"], table=scores.table, drawn=(*drawn, scores.table)[0]
    )


def read_queries(address: str) -> RankingQueries:
    """Read the ranking queries of an artifact of `draw`."""
    queries = open_artifact(address)
    return queries_from_tables({name: queries.table(name) for name in QUERY_TABLES})


def read_metrics(address: str) -> pl.DataFrame:
    """Read the rows of METRICS_SCHEMA of an artifact of `measure`."""
    return read_table(address, METRICS)


def read_written(address: str, protocol: Protocol) -> pl.DataFrame:
    """Read the table of an artifact of `measure` that a protocol writes as JSON."""
    return read_table(address, protocol.written)


def read_beside(address: str) -> dict[str, pl.DataFrame]:
    """Read the tables beside the rows."""
    return {name: table for name, table in open_artifact(address).tables().items() if name != METRICS}


def _known_baselines(protocol: Protocol) -> frozenset[str]:
    from dyformer.experiments.methods import baselines_of  # late, because torch takes seconds to import

    return baselines_of(protocol.compared_with or protocol.methods)


def protocol_record(protocol: Protocol) -> dict[str, Any]:
    """Give the settings of a protocol, and the digest of its module where this is not the project's."""
    code = {} if project_modules(protocol.rows) else {"protocol_code": source_digest(protocol.rows)}
    return {"protocol_settings": protocol.chosen, **code}
