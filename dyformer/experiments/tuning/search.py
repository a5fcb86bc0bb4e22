"""A grid and the score of a point -> the points that a search tries, each with its score."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

from dyformer.experiments.tuning.grids import Settings


class Tried(NamedTuple):
    """A point of a grid, and its score: a higher one is better."""

    settings: dict[str, Any]
    score: float


class OptunaMissing(ValueError):
    """The package that chooses the points is not installed."""


def points_of(grid: Mapping[str, tuple[Any, ...]], usual: Settings, num_trials: int) -> list[dict[str, Any]] | None:
    """List the points of a grid, `usual` first; None for more points than trials, which Optuna chooses.

    Raises OptunaMissing where Optuna would choose and is not installed.
    """
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    listed = [dict(usual), *(point for point in points if point != usual)]
    if len(listed) <= num_trials:
        return listed
    if find_spec("optuna") is None:
        raise OptunaMissing(
            "a search of more points than trials needs Optuna: `pip install dyformer[tuning]`, or give more trials"
        )
    return None


def search(
    grid: Mapping[str, tuple[Any, ...]],
    usual: Settings,
    score: Callable[[dict[str, Any]], float],
    *,
    num_trials: int,
    seed: int,
) -> Iterator[Tried]:
    """Score points of a grid and yield each: all of them, or `num_trials` where there are more.

    The first is `usual`. Of a grid with more points the others are those of the tree-structured Parzen estimator
    (Bergstra et al., 2011; Optuna's), whose first ten draws are random and whose choices depend on the seed and the
    scores alone: a search that starts again with known scores tries the same points. No point is tried twice. Raises as
    points_of does.
    """
    listed = points_of(grid, usual, num_trials)
    if listed is not None:
        yield from (Tried(point, score(point)) for point in listed)
        return
    yield (first := Tried(dict(usual), score(dict(usual))))
    study, draws = _study(grid, seed)
    tried = {tuple(usual.values()): first}
    if all(usual[name] in values for name, values in grid.items()):  # a changed experiment may have other values
        study.enqueue_trial(dict(usual))

    def objective(trial: Any) -> float:
        point = {name: draw(trial) for name, draw in draws.items()}
        key = tuple(point.values())
        if key not in tried:
            tried[key] = Tried(point, score(point))
        return tried[key].score

    while len(tried) < num_trials:
        num_before = len(tried)
        study.optimize(objective, n_trials=1)
        yield from list(tried.values())[num_before:]


def best(tried: list[Tried]) -> Tried:
    """Return the point with the best score, of equal ones the first: usual settings stay where none are better."""
    return max(tried, key=lambda each: each.score)


def _study(grid: Mapping[str, tuple[Any, ...]], seed: int) -> tuple[Any, dict[str, Callable[[Any], Any]]]:
    """Give a study of Optuna, and for each setting the function that draws its value in a trial."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    return study, {name: partial(_drawn, name, values) for name, values in grid.items()}


def _drawn(name: str, values: tuple[Any, ...], trial: Any) -> Any:
    return trial.suggest_categorical(name, values)
