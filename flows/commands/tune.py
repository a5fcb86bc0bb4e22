"""The commands `settings` and `tune`: all settings; a dataset and methods -> the best of the tried settings."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from dyformer.logs.counts import counted
from flows.commands.runs import announced
from flows.console import print_frame, print_json, write_json
from flows.options import (
    AsJson,
    Changes,
    Epochs,
    JsonFile,
    Seed,
    check_titles,
    experiment_from,
    optional,
    with_cap,
    with_reading,
)


def settings(as_json: AsJson = False) -> None:
    """List every setting of --set: its default, the allowed values, the meaning."""
    import polars as pl

    from dyformer.experiments.settings import settings_table

    names = ("setting", "value", "allowed", "meaning")
    rows = [dict(zip(names, row, strict=True)) for row in settings_table()]
    print_json(rows) if as_json else print_frame(pl.DataFrame(rows))


@with_reading
def tune(  # noqa: PLR0913, because each option is an argument
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="a known name or one of the store")],
    reading: dict[str, Any],
    methods: Annotated[
        list[str] | None,
        optional("names, such as dysat,graphsage (by default the baselines that are trained)", "--methods", "--method"),
    ] = None,
    trials: Annotated[int, typer.Option(help="settings to try of each method, at most", min=1)] = 6,
    epochs: Epochs = None,
    seed: Seed = 0,
    changes: Changes = None,
    json_file: JsonFile = None,
) -> None:
    """Try settings of methods on steps before those that tables report; a killed search goes on where it was."""
    experiment = experiment_from(with_cap(changes, epochs))
    check_titles(methods)
    from dyformer.experiments.methods import METHODS, TRAINED_BASELINES, VARIATIONS
    from dyformer.experiments.titles import full_title, split_names
    from dyformer.experiments.tuning.grids import GRIDS, grid_of

    all_methods = {**METHODS, **VARIATIONS}
    named = [full_title(name, all_methods) for name in split_names(methods)]
    titles = list(dict.fromkeys(named)) or [title for title in GRIDS if title in TRAINED_BASELINES]
    for title in titles:
        grid_of(title)  # raises for a title without a grid, before anything is committed
    earlier = {} if json_file is None else _record(json_file)  # refused before anything is trained
    for title in earlier.keys() - set(titles):
        _check_budget(title, earlier[title], trials, experiment.max_epochs)
    with announced():
        from flows.tune import tune as flow

        searched = flow(dataset, titles, reading, trials, seed, experiment)
    for title, tried in searched.tried.items():
        print_frame(_table(tried), f"{title}: AUC in percent on {searched.steps} of {dataset}")
    if json_file is not None:
        write_json(json_file, {**earlier, **searched.record()})


def _record(file: Path) -> dict[str, Any]:
    """Read what earlier searches of other methods chose; nothing without a file."""
    try:
        search = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError:
        search = None
    if not isinstance(search, dict) or not all(
        isinstance(entry, dict) and "settings" in entry for entry in search.values()
    ):
        raise typer.BadParameter(f"{file} has no chosen settings by method: name another file")
    return search


def _check_budget(title: str, own: dict[str, Any], trials: int, max_epochs: int | None) -> None:
    """Refuse a search with another budget than an earlier one of the same file had."""
    from dyformer.experiments.tuning.grids import num_points

    num, epochs = own.get("trials", 0), own.get("max_epochs")
    if epochs != max_epochs or num > trials or num < min(trials, num_points(title)):
        cap = "no cap on epochs" if epochs is None else f"at most {counted(epochs, 'epoch')}"
        raise typer.BadParameter(
            f"the file has a search of {title} with {counted(num, 'trial')} and {cap}: the methods of a file "
            "need the same --trials and --epochs; name another file otherwise"
        )


def _auc(score: float) -> str:
    return "diverged" if math.isnan(score) else f"{100 * score:.2f}"


def _table(tried: list[Any]) -> Any:
    import polars as pl

    from dyformer.experiments.tuning.search import best

    winner = best(tried)
    rows = [
        {**{name: str(value) for name, value in point.settings.items()}, "AUC": _auc(point.score)}
        | {"chosen": "x" if point is winner else ""}
        for point in tried
    ]
    return pl.DataFrame(rows)
