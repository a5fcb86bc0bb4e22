"""Rows of the protocol `tgb` -> the printed table, with the public leaderboard beside ours."""

from collections.abc import Mapping

import polars as pl

from dyformer.experiments.tables import PrintedTable

VISIBLE = {
    "strict": "all events before each one",
    "batch": "all events before its batch",
    "window": "all events before its window",
}
LEADERBOARDS: Mapping[str, tuple[str, Mapping[str, tuple[float | None, float]]]] = {
    "snap-wikipedia": (
        "tgbl-wiki-v2, 22 January 2026; visible: strict for DyGFormer and TPNet, batch:200 for EdgeBank and TGN",
        {
            "TPNet": (0.842, 0.827),
            "King's heuristic": (0.842, 0.821),
            "HyperEvent": (0.824, 0.810),
            "DyGFormer": (0.816, 0.798),
            "NAT": (0.773, 0.749),
            "Base3": (0.727, 0.743),
            "DyGMamba": (None, 0.739),
            "TNCN": (None, 0.718),
            "CAWN": (None, 0.711),
            "CTAN": (None, 0.668),
            "EdgeBank (time window)": (None, 0.571),
            "HTGN": (None, 0.464),
            "EGCNo": (None, 0.398),
            "TGN": (None, 0.396),
            "TGAT": (None, 0.141),
            "GraphMixer": (None, 0.118),
        },
    )
}
"""Public leaderboards of the Temporal Graph Benchmark by dataset: origin, and MRR of validation and test by method."""


def printed_events(rows: pl.DataFrame, dataset: str) -> PrintedTable:
    """Give rows of `event_rows` as a table, the best test MRR on top, with those of a leaderboard."""
    about = rows.row(0, named=True)
    origin, published = LEADERBOARDS.get(dataset, ("", {}))
    lines = [_line(rows.filter(method=method)) for method in rows["method"].unique(maintain_order=True)]
    lines += [_published_line(name, *values) for name, values in published.items()]
    columns = ("method", "test MRR", "difference", "test Hits@10", "validation MRR", "CPU s")
    ordered = [cells for _, cells in sorted(lines, key=lambda line: (-line[0], line[1]["method"]))]
    frame = pl.DataFrame([[cells.get(name, "") for name in columns] for cells in ordered], columns, orient="row")
    seeds = f"{about['num_seeds']} seed{'s' * (about['num_seeds'] > 1)}"
    meaning = VISIBLE[about["visible"].partition(":")[0]]
    num_test = rows.filter(split="test")["num_queries"][0]
    best = rows.filter(split="test", metric="mrr")["best_baseline"][0]
    title = (
        f"{dataset}, protocol tgb, visible: {about['visible']} ({meaning}); {num_test:,} test events, candidates:"
        f" {about['candidates']}, {seeds} [95 % interval]; difference to the best baseline, {best}"
    )
    return PrintedTable(title, frame, [f"(leaderboard): {origin}."] if published else [])


def _line(rows: pl.DataFrame) -> tuple[float, dict[str, str]]:
    """Give a method's test MRR and its cells."""
    cells = {(row["split"], row["metric"]): row for row in rows.iter_rows(named=True)}
    mrr = cells["test", "mrr"]
    deviation = "" if mrr["seed_deviation"] is None else f" ± {mrr['seed_deviation']:.4f}"
    difference = ""
    if mrr["difference"] is not None:
        difference = f"{mrr['difference']:+.3f} [{mrr['difference_low']:+.3f}, {mrr['difference_high']:+.3f}]"
    return mrr["value"], {
        "method": mrr["method"],
        "test MRR": f"{mrr['value']:.3f}{deviation} [{mrr['low']:.3f}, {mrr['high']:.3f}]",
        "difference": difference,
        "test Hits@10": f"{cells['test', 'hits@10']['value']:.3f}",
        "validation MRR": f"{cells['validation', 'mrr']['value']:.3f}",
        "CPU s": f"{mrr['cpu_seconds']:.0f}",
    }


def _published_line(name: str, validation: float | None, test: float) -> tuple[float, dict[str, str]]:
    cells = {"method": f"{name} (leaderboard)", "test MRR": f"{test:.3f}"}
    return test, cells | ({} if validation is None else {"validation MRR": f"{validation:.3f}"})
