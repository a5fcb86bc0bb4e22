import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from dyformer.evaluation.scored_pairs import NotTheSamePairs, ScoredPairs, from_table, to_table
from dyformer.evaluation.significance import new_pairs, paired_difference
from dyformer.experiments.settings import Experiment
from dyformer.scoring.metrics import auc
from flows.tasks import promote, train
from flows.tasks.evaluate import evaluate_baselines, evaluate_model
from flows.tasks.ingest import ingest_log
from flows.tasks.models import trained_until
from flows.tasks.promote import NotEvaluated, champion_of, promote_if_better
from flows.tasks.snapshots import StepOutOfRange, make_snapshots, newest_until, open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import lineage_of, read_table, write_artifact
from storage.artifacts.checkpoints import to_bytes
from storage.layout import Layout

pytestmark = pytest.mark.usefixtures("few_trees")


def scored(
    score_P: np.ndarray, positive_P: np.ndarray, source_P: np.ndarray | None = None, method: str = "one"
) -> ScoredPairs:
    source_P = np.arange(len(score_P)) if source_P is None else source_P
    return ScoredPairs(
        method=method,
        seed=0,
        step=4,
        family="random",
        source_P=source_P,
        target_P=np.arange(len(score_P)) + 1000,
        positive_P=positive_P,
        new_P=np.arange(len(score_P)) % 2 == 0,
        score_P=score_P.astype(np.float64),
    )


def two_methods(
    seed: int, num_pairs: int = 300, num_sources: int = 60, gap: float = 0.0
) -> tuple[ScoredPairs, ScoredPairs]:
    """Scores of two methods that separate positive pairs from negative ones, the second better by `gap`, with ties."""
    generator = np.random.default_rng(seed)
    positive_P = generator.random(num_pairs) < 0.5
    source_P = generator.integers(num_sources, size=num_pairs)
    shared_P = generator.normal(size=num_pairs)

    def scores(edge: float) -> ScoredPairs:
        score_P = np.round(shared_P + generator.normal(size=num_pairs) + (1 + edge) * positive_P, 1)
        return scored(score_P, positive_P, source_P)

    return scores(0.0), scores(gap)


def difference(challenger: ScoredPairs, champion: ScoredPairs, seed: int = 0, num_resamples: int = 300):
    return paired_difference(challenger, champion, num_resamples=num_resamples, generator=np.random.default_rng(seed))


def test_the_interval_is_that_of_resampling_both_ends_pair_by_pair():
    first, second = two_methods(1, num_pairs=80, num_sources=15)
    nodes = np.union1d(first.source_P, first.target_P).tolist()
    generator = np.random.default_rng(7)
    expected = []
    for _ in range(200):
        times = dict(zip(nodes, generator.poisson(size=len(nodes)).tolist(), strict=True))
        ends = zip(first.source_P.tolist(), first.target_P.tolist(), strict=True)
        pairs = np.repeat(np.arange(80), [times[source] * times[target] for source, target in ends])
        positive = first.positive_P[pairs]
        expected.append(roc_auc_score(positive, first.score_P[pairs]) - roc_auc_score(positive, second.score_P[pairs]))
    low, mean, high = difference(first, second, seed=7, num_resamples=200)
    assert mean == pytest.approx(np.mean(expected), abs=1e-12)
    assert (low, high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])), abs=1e-12)


def test_the_interval_is_root_three_times_as_wide_as_delongs_where_every_pair_has_ends_of_its_own():
    """The product of two numbers of variance 1 has the variance 3: the price of allowing for both ends."""
    positive_P = np.arange(2000) % 2 == 0
    generator = np.random.default_rng(3)
    shared_P = generator.normal(size=2000) + positive_P
    scores = [shared_P + generator.normal(size=2000) for _ in range(2)]
    # DeLong, DeLong and Clarke-Pearson (1988): each pair's contribution to the difference in AUC.
    parts = [(score_P[positive_P][:, None] > score_P[~positive_P]).astype(float) for score_P in scores]
    part_LU = parts[0] - parts[1]
    deviation = np.sqrt(part_LU.mean(axis=1).var(ddof=1) / 1000 + part_LU.mean(axis=0).var(ddof=1) / 1000)
    first, second = (scored(score_P, positive_P) for score_P in scores)
    low, mean, high = difference(first, second, num_resamples=2000)
    assert mean == pytest.approx(part_LU.mean(), abs=deviation / 10)
    assert (high - low) / 2 == pytest.approx(3**0.5 * stats.norm.ppf(0.975) * deviation, rel=0.08)


def test_a_method_does_not_differ_from_itself():
    first, second = two_methods(2)
    assert difference(first, replace(first, method="other name")) == (0, 0, 0)
    assert difference(first, replace(first, score_P=np.exp(first.score_P))) == (0, 0, 0)  # has the same order
    assert difference(first, second) != (0, 0, 0)


def test_the_interval_of_an_oracle_over_chance_lies_above_0():
    positive_P = np.arange(200) % 2 == 0
    chance = scored(np.random.default_rng(0).random(200), positive_P)
    low, mean, high = difference(scored(positive_P, positive_P), chance)
    assert 0.3 < low < mean < high < 0.7
    assert mean == pytest.approx(1 - auc(positive_P, chance.score_P), abs=0.01)


def test_exchanging_the_methods_negates_the_interval():
    first, second = two_methods(3, gap=0.5)
    low, mean, high = difference(first, second)
    assert difference(second, first) == pytest.approx((-high, -mean, -low), abs=1e-12)


def test_a_seed_decides_the_interval_and_pairs_may_come_in_any_order():
    first, second = two_methods(4)
    assert difference(first, second, seed=5) == difference(first, second, seed=5) != difference(first, second, seed=6)
    order = np.random.default_rng(0).permutation(len(first.score_P))
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    mixed = [replace(pairs, **{name: getattr(pairs, name)[order] for name in names}) for pairs in (first, second)]
    assert difference(mixed[0], mixed[1], seed=5) == pytest.approx(difference(first, second, seed=5), abs=1e-12)


def test_the_interval_holds_the_true_difference_at_least_nineteen_times_in_twenty():
    inside = 0
    for seed in range(200):
        low, _, high = difference(*two_methods(seed), num_resamples=200)
        inside += low <= 0 <= high
    assert inside >= 186


def test_pairs_of_one_source_count_as_one_observation():
    """Ten copies of every pair under its own source do not narrow the interval."""
    first, second = two_methods(5, num_pairs=100, num_sources=30, gap=0.3)
    tenfold = [
        replace(pairs, **{
            name: np.tile(getattr(pairs, name), 10)
            for name in ("source_P", "target_P", "positive_P", "new_P", "score_P")
        })
        for pairs in (first, second)
    ]  # fmt: skip
    assert difference(tenfold[0], tenfold[1]) == pytest.approx(difference(first, second), abs=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 5},
        {"seed": 1},
        {"family": "historical"},
        {"source_P": np.arange(300) + 1},
        {"target_P": np.arange(300)},
        {"positive_P": np.arange(300) % 2 == 0},
        {"source_P": np.arange(299)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_scores_of_other_pairs_are_refused_by_name(change: dict[str, Any]):
    first, second = two_methods(6)
    with pytest.raises(NotTheSamePairs, match=next(iter(change))):
        difference(first, replace(second, **change))


def test_scores_that_are_no_numbers_are_refused():
    first, second = two_methods(6)
    with pytest.raises(ValueError, match="not finite"):
        difference(first, replace(second, score_P=np.full(300, np.nan)))


def test_pairs_of_one_kind_are_refused():
    one_kind = scored(np.arange(5), np.ones(5, dtype=bool))
    with pytest.raises(ValueError, match="no resample"):
        difference(one_kind, one_kind)


def test_new_pairs_are_those_that_no_earlier_step_linked():
    first, _ = two_methods(7)
    new = new_pairs(first)
    assert new is not None
    assert new.new_P.all()
    assert len(new.score_P) == 150
    assert new_pairs(replace(first, new_P=~first.positive_P)) is None


# The champion of a dataset, with scores given by a test.


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Snapshots of five steps of a small log, in a new store."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    generator = np.random.default_rng(0)
    rows = [f"{a},{b},{step}" for step in range(1, 6) for a, b in generator.integers(20, size=(40, 2)) if a != b]
    return grown(tmp_path, "first", rows)


def grown(folder: Path, name: str, rows: list[str]) -> str:
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["source,target,time", *rows, ""]))
    ingest_log("mylog", {"log": [str(path)], "time_unit": "step", "window": "1", "bipartite": False}, lambda text: None)
    return make_snapshots("mylog")


def trained(snapshots: str, value: float, until: int | None = None) -> str:
    """Weights of one number, with settings that no other weights have."""
    import torch

    opened = open_snapshots(snapshots)
    until = newest_until(snapshots) if until is None else until
    lineage = opened.lineage("model", until=until, settings={"value": value})
    address = opened.layout.model("mylog", version=opened.version, until=until, settings=lineage.settings_hash, seed=0)
    return write_artifact(address, {"weights.safetensors": to_bytes({"weight": torch.tensor(value)}, {})}, lineage)


POSITIVE_P = np.arange(400) % 2 == 0
NOISE = {
    "DyFormer": np.random.default_rng(0).normal(size=400),
    "champion": np.random.default_rng(1).normal(size=400),
}


def pairs_of(quality: float, method: str, step: int = 5, new: float | None = None) -> ScoredPairs:
    """Scores whose means on positive and negative pairs differ by `quality`, on new pairs by `new`."""
    new_P = np.arange(400) % 4 < 2
    quality_P = np.where(new_P, quality if new is None else new, quality)
    made = scored(NOISE[method] + POSITIVE_P * quality_P, POSITIVE_P, method=method)
    return replace(made, step=step, new_P=new_P)


def evaluated(snapshots: str, model: str, pairs: ScoredPairs) -> str:
    opened = open_snapshots(snapshots)
    until = min(pairs.step, opened.num_steps)
    lineage = opened.lineage("scores", until=until, settings={"method": pairs.method, "model": model}, inputs=(model,))
    keys = {"version": opened.version, "until": pairs.step - 1, "settings": lineage.settings_hash, "seed": 0}
    address = opened.layout.scores("mylog", **keys)
    return write_artifact(address, {"pairs": to_table([pairs])}, lineage)


@pytest.fixture
def champion_scores(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScoredPairs], list[tuple[Any, ...]]]:
    """Replace the champion's scores by the test's; the returned list records the calls."""

    def plan(pairs: ScoredPairs) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []

        def evaluate(*call: Any) -> str:
            calls.append(call)
            return evaluated(call[0], call[1], pairs)

        monkeypatch.setattr(promote, "evaluate_model", evaluate)
        return calls

    return plan


def champion_record(snapshots: str) -> dict[str, Any]:
    record = champion_of(Layout.from_environment(), "mylog")
    assert record is not None
    return record


def test_without_a_champion_a_model_is_promoted(snapshots: str):
    model = trained(snapshots, 1.0)
    pairs = pairs_of(1.0, "DyFormer")
    outcome = promote_if_better(snapshots, model, [evaluated(snapshots, model, pairs)])
    assert outcome == {"promoted": True, "champion": model, "difference": None, "reason": "there was no champion"}
    record = champion_record(snapshots)
    assert Layout.from_environment().absolute(record["model"]) == model
    assert (record["version"], record["until"], record["step"], record["difference"]) == (1, 4, 5, None)
    assert record["metrics"]["auc"] == pytest.approx(roc_auc_score(pairs.positive_P, pairs.score_P))


def test_the_same_model_changes_nothing(snapshots: str):
    model = trained(snapshots, 1.0)
    scores = [evaluated(snapshots, model, pairs_of(1.0, "DyFormer"))]
    promote_if_better(snapshots, model, scores)
    before = Path(Layout.from_environment().champion("mylog")).read_bytes()
    outcome = promote_if_better(snapshots, model, scores)
    assert (outcome["promoted"], outcome["champion"]) == (False, model)
    assert Path(Layout.from_environment().champion("mylog")).read_bytes() == before


@pytest.mark.parametrize(
    ("quality", "new", "wins"),
    [(3.0, None, True), (1.0, None, False), (1.02, None, False), (0.2, None, False), (4.0, 0.2, False)],
    ids=["clearly better", "equal", "hardly better", "worse", "worse on new pairs"],
)
def test_only_a_significant_win_promotes(
    snapshots: str, champion_scores: Callable, quality: float, new: float | None, wins: bool
):
    champion, challenger = trained(snapshots, 1.0, until=3), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=4))])
    calls = champion_scores(pairs_of(1.0, "champion"))
    scores = [evaluated(snapshots, challenger, pairs_of(quality, "DyFormer", new=new))]
    outcome = promote_if_better(snapshots, challenger, scores)
    assert calls == [(snapshots, champion, 5, "champion", 0)]
    assert outcome["promoted"] is wins
    assert outcome["champion"] == (challenger if wins else champion)
    low, mean, high = outcome["difference"]
    assert low <= mean <= high
    assert Layout.from_environment().absolute(champion_record(snapshots)["model"]) == outcome["champion"]
    if wins:
        assert champion_record(snapshots)["difference"] == outcome["difference"]
        assert low > 0


def test_a_champion_that_was_trained_on_the_step_stays_without_a_comparison(snapshots: str):
    champion, challenger = trained(snapshots, 1.0, until=5), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=6))])
    scores = [evaluated(snapshots, challenger, pairs_of(5.0, "DyFormer"))]
    outcome = promote_if_better(snapshots, challenger, scores)
    assert (outcome["promoted"], outcome["champion"], outcome["difference"]) == (False, champion, None)
    assert "trained on step 5" in outcome["reason"]


def test_times_decide_what_a_champion_of_another_version_was_trained_on(
    snapshots: str, champion_scores: Callable, tmp_path: Path
):
    champion = trained(snapshots, 1.0, until=5)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=6))])
    later = grown(tmp_path, "second", [f"{a},{a + 1},6" for a in range(19)])
    challenger = trained(later, 2.0)
    calls = champion_scores(pairs_of(1.0, "champion", step=6))
    outcome = promote_if_better(later, challenger, [evaluated(later, challenger, pairs_of(3.0, "DyFormer", step=6))])
    assert calls == [(later, champion, 6, "champion", 0)]
    assert outcome["promoted"]


def test_steps_of_a_training_are_counted_in_the_snapshots_at_hand(snapshots: str, tmp_path: Path):
    lineage = lineage_of(trained(snapshots, 1.0, until=5))
    assert trained_until(lineage, open_snapshots(snapshots)) == 5
    later = open_snapshots(grown(tmp_path, "early", ["0,1,0"]))  # the former step 5 is now step 6
    assert trained_until(lineage, later) == 6


def test_a_step_that_moved_under_an_earlier_row_still_counts_as_trained_on(snapshots: str, tmp_path: Path):
    champion = trained(snapshots, 1.0, until=5)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=6))])
    later = grown(tmp_path, "early", ["0,1,0"])  # the former step 5 is now step 6
    challenger = trained(later, 2.0)
    outcome = promote_if_better(later, challenger, [evaluated(later, challenger, pairs_of(5.0, "DyFormer", step=6))])
    assert (outcome["promoted"], outcome["difference"]) == (False, None)


def test_a_win_in_all_pairs_does_not_make_up_for_new_pairs_lost(snapshots: str, champion_scores: Callable):
    champion, challenger = trained(snapshots, 1.0, until=3), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=4))])
    champion_scores(pairs_of(-1.0, "champion", new=1.5))
    scores = [evaluated(snapshots, challenger, pairs_of(9.0, "DyFormer", new=0.3))]
    outcome = promote_if_better(snapshots, challenger, scores)
    assert outcome["difference"][0] > 0
    assert (outcome["promoted"], outcome["champion"]) == (False, champion)


@pytest.mark.parametrize("new", ["equal", "slightly worse"])
def test_new_pairs_that_are_not_significantly_worse_do_not_stop_a_promotion(
    snapshots: str, champion_scores: Callable, new: str
):
    champion, challenger = trained(snapshots, 1.0, until=3), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=4))])
    theirs = pairs_of(0.2, "champion", new=1.0)
    ours = pairs_of(9.0, "DyFormer", new=0.95)
    if new == "equal":
        ours = replace(ours, score_P=np.where(ours.new_P, theirs.score_P, ours.score_P))
    one, other = (new_pairs(pairs) for pairs in (ours, theirs))
    assert one is not None
    assert other is not None
    low, mean, high = paired_difference(one, other, generator=np.random.default_rng([0, 5]))
    assert (low == mean == high == 0) if new == "equal" else (low < mean < 0 < high)
    champion_scores(theirs)
    outcome = promote_if_better(snapshots, challenger, [evaluated(snapshots, challenger, ours)])
    assert (outcome["promoted"], outcome["champion"]) == (True, challenger)


def test_a_record_of_an_earlier_version_without_metrics_is_read(snapshots: str):
    address = Path(Layout.from_environment().champion("mylog"))
    address.parent.mkdir(parents=True)
    address.write_text(json.dumps({"model": "5_checkpoints/model/gone", "space": "0", "step": 4}))
    model = trained(snapshots, 1.0)
    outcome = promote_if_better(snapshots, model, [evaluated(snapshots, model, pairs_of(1.0, "DyFormer"))])
    assert (outcome["promoted"], outcome["reason"]) == (True, "the champion's weights are missing")


def test_a_champion_with_settings_of_an_earlier_version_is_replaced(snapshots: str):
    opened = open_snapshots(snapshots)
    settings = {"graph": {}, "model": {}, "pretrain": {"own_weight": 1.0}, "finetune": {}, "seed": 0}
    lineage = opened.lineage("model", until=3, settings=settings)
    address = opened.layout.model("mylog", version=1, until=3, settings=lineage.settings_hash, seed=0)
    write_artifact(address, {"weights.safetensors": to_bytes({}, {})}, lineage)
    promote_if_better(snapshots, address, [evaluated(snapshots, address, pairs_of(1.0, "DyFormer", step=4))])
    model = trained(snapshots, 2.0)
    outcome = promote_if_better(snapshots, model, [evaluated(snapshots, model, pairs_of(1.0, "DyFormer"))])
    assert (outcome["promoted"], outcome["difference"]) == (True, None)
    assert "do not fit" in outcome["reason"]


def test_a_champion_whose_weights_are_gone_is_replaced(snapshots: str):
    champion, challenger = trained(snapshots, 1.0, until=3), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=4))])
    Path(champion, "manifest.json").unlink()
    outcome = promote_if_better(snapshots, challenger, [evaluated(snapshots, challenger, pairs_of(0.1, "DyFormer"))])
    assert (outcome["promoted"], outcome["reason"]) == (True, "the champion's weights are missing")


@pytest.mark.parametrize("error", [promote.WeightsDoNotFit, promote.OldSettings])
def test_a_champion_that_no_longer_fits_is_replaced(
    error: type[ValueError], snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    champion, challenger = trained(snapshots, 1.0, until=3), trained(snapshots, 2.0)
    promote_if_better(snapshots, champion, [evaluated(snapshots, champion, pairs_of(1.0, "DyFormer", step=4))])

    def evaluate(*call: Any) -> str:
        raise error("of another version")

    monkeypatch.setattr(promote, "evaluate_model", evaluate)
    outcome = promote_if_better(snapshots, challenger, [evaluated(snapshots, challenger, pairs_of(0.1, "DyFormer"))])
    assert (outcome["promoted"], outcome["difference"]) == (True, None)


def test_a_model_is_not_promoted_by_the_scores_of_another(snapshots: str):
    one, other = trained(snapshots, 1.0), trained(snapshots, 2.0)
    with pytest.raises(NotEvaluated, match="evaluate it first"):
        promote_if_better(snapshots, one, [evaluated(snapshots, other, pairs_of(1.0, "DyFormer"))])
    with pytest.raises(NotEvaluated, match="seed 1"):
        promote_if_better(snapshots, one, [evaluated(snapshots, one, pairs_of(1.0, "DyFormer"))], seed=1)
    assert champion_of(Layout.from_environment(), "mylog") is None


def test_the_champion_record_is_complete_or_absent(snapshots: str):
    model = trained(snapshots, 1.0)
    promote_if_better(snapshots, model, [evaluated(snapshots, model, pairs_of(1.0, "DyFormer"))])
    path = Path(Layout.from_environment().champion("mylog"))
    assert json.loads(path.read_text())["space"]
    assert [child.name for child in path.parent.iterdir()] == ["champion.json"]


TINY = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 32, "pretrain": None} | {
    f"finetune.{name}": value
    for name, value in {"epochs": 1, "batches_per_epoch": 1, "num_targets": 32, "num_positives": 16}.items()
}


def test_weights_of_an_earlier_step_are_evaluated_on_the_challengers_own_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    ingest_log("generated", None, lambda text: None)
    snapshots = make_snapshots("generated")
    earlier, later = (train_model(snapshots, until, Experiment().changed(TINY)) for until in (4, 6))
    first = promote_if_better(
        snapshots, earlier, [evaluate_model(snapshots, earlier, 5), evaluate_baselines(snapshots, 5)]
    )
    assert (first["promoted"], first["champion"]) == (True, earlier)
    scores = [evaluate_model(snapshots, later, 7), evaluate_baselines(snapshots, 7)]
    outcome = promote_if_better(snapshots, later, scores)
    low, mean, high = outcome["difference"]
    assert low < mean < high
    assert outcome["promoted"] is (low > 0)
    (own,) = [pairs for pairs in from_table(read_table(scores[0], "pairs")) if pairs.method == "DyFormer"]
    again = evaluate_model(snapshots, earlier, 7, "champion")
    (baseline,) = [pairs for pairs in from_table(read_table(again, "pairs")) if pairs.method == "champion"]
    assert mean == pytest.approx(
        auc(own.positive_P, own.score_P) - auc(baseline.positive_P, baseline.score_P), abs=(high - low) / 4
    )
    with pytest.raises(StepOutOfRange, match="trained on that step"):
        evaluate_model(snapshots, later, 6)


def test_a_real_champion_of_another_shape_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    ingest_log("generated", None, lambda text: None)
    snapshots = make_snapshots("generated")
    # An earlier version stored a window of None, which meant as many lags as the graph had steps.
    monkeypatch.setattr(train, "_with_lags", lambda experiment, until: experiment)
    whole = Experiment().changed(TINY | {"graph.history_window": None})
    earlier, later = (train_model(snapshots, until, whole) for until in (3, 4))
    promote_if_better(snapshots, earlier, [evaluate_model(snapshots, earlier, 4)])
    outcome = promote_if_better(snapshots, later, [evaluate_model(snapshots, later, 5)])
    assert (outcome["promoted"], outcome["difference"]) == (True, None)
    assert "do not fit" in outcome["reason"]
