"""The champion of a dataset: who becomes it on the ranking queries of the newest step, and what is recorded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from posed import rank_methods, rank_model, write_queries

from dyformer.evaluation.config import PromotionConfig
from dyformer.evaluation.scored_queries import ScoredQueries, from_table, ranks_of, to_table
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import run_tables
from dyformer.sampling.ranking_queries import RankingQueries
from flows import retrain
from flows.cli import main
from flows.tasks import train
from flows.tasks.evaluation import promote
from flows.tasks.evaluation.evaluate import Group, Posed
from flows.tasks.evaluation.measure import read_queries
from flows.tasks.evaluation.promote import (
    NotEvaluated,
    champion_contender,
    champion_of,
    identity,
    promote_if_better,
    unranked,
)
from flows.tasks.ingest import ingest_log, undo_ingest
from flows.tasks.models import Contender, space_of, trained_until
from flows.tasks.predict import write_forecasts
from flows.tasks.report import run_metrics
from flows.tasks.snapshots import StepOutOfRange, make_snapshots, newest_until, open_snapshots
from flows.tasks.train import train_model
from storage import champions
from storage.artifacts.artifact import lineage_of, read_table, write_artifact
from storage.artifacts.checkpoints import to_bytes
from storage.bytes.checksums import write_record
from storage.champions import read_champion, replace_champion
from storage.layout import Layout

pytestmark = pytest.mark.usefixtures("few_trees", "short_generated_log")

TITLE = "Forecaster with DyFormer"
Outcome = dict[str, Any]


@pytest.fixture
def snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Snapshots of five steps of a small log, in a new store."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return grown(tmp_path, "first", [row for step in range(1, 6) for row in rows_of(step)])


def rows_of(step: int, num: int = 120) -> list[str]:
    pairs = np.random.default_rng(step).integers(40, size=(num, 2)).tolist()
    return [f"{a},{b},{10 * step + index % 5}" for index, (a, b) in enumerate(pairs) if a != b]


def grown(folder: Path, name: str, rows: list[str]) -> str:
    """Commit rows to a log with windows of ten integer steps: step k lasts from time 10 k to 10 k + 9."""
    path = folder / f"{name}.csv"
    path.write_text("\n".join(["source,target,time", *rows, ""]))
    reading = {"log": [str(path)], "time_unit": "step", "window": "10", "bipartite": False}
    ingest_log("mylog", reading, lambda text: None)
    return make_snapshots("mylog")


def trained(snapshots: str, value: float, until: int | None = None) -> str:
    """Weights of one number, with settings that no other weights have."""
    import torch

    opened = open_snapshots(snapshots)
    until = newest_until(snapshots) if until is None else until
    lineage = opened.lineage("model", until=until, settings={"value": value})
    keys = {"version": opened.version, "until": until, "settings": lineage.settings_hash, "seed": 0}
    weights = {"weights.safetensors": to_bytes({"weight": torch.tensor(value)}, {})}
    return write_artifact(opened.layout.artifact("model", "mylog", **keys), weights, lineage)


def contender_of(snapshots: str, value: float, until: int | None = None) -> Contender:
    """Two models; the older one is trained until one step before."""
    until = newest_until(snapshots) if until is None else until
    return Contender(title=TITLE, models=(trained(snapshots, value + 0.5, until - 1), trained(snapshots, value, until)))


def scored(queries: RankingQueries, title: str, skill_Q: float | np.ndarray) -> ScoredQueries:
    score_S = np.random.default_rng([*map(ord, title)]).normal(size=len(queries.pairs.source_S))
    score_S[queries.pairs.position_Q] += skill_Q
    return ScoredQueries(method=title, seed=0, queries=queries, score_S=score_S)


def ranked(
    snapshots: str, skills: dict[str, float | np.ndarray], models: tuple[str, ...] = (), step: int | None = None
) -> str:
    """Write scores of the newest step's queries, in which true pairs are above candidates by a method's skill."""
    opened = open_snapshots(snapshots)
    step = opened.num_steps if step is None else step
    queries = write_queries(snapshots, step)
    settings = {"queries": opened.layout.relative(queries), "skills": str(skills), "models": models}
    lineage = opened.lineage("rankings", until=step, settings=settings, inputs=(queries, *models))
    keys = {"version": opened.version, "until": step - 1, "settings": lineage.settings_hash, "seed": 0}
    table = to_table([scored(read_queries(queries), title, skill) for title, skill in skills.items()])
    return write_artifact(opened.layout.artifact("rankings", "mylog", **keys), {"rankings": table}, lineage)


def promoted(
    snapshots: str,
    contender: Contender,
    skill: float | np.ndarray,
    baselines: dict[str, float | np.ndarray] | None = None,
    step: int | None = None,
    **changes: Any,
) -> Outcome:
    """The outcome for a contender of this skill, beside baselines."""
    rankings = [ranked(snapshots, {contender.title: skill}, contender.models, step)]
    rankings += [ranked(snapshots, {"DyFormer": 9.0, **(baselines or {"L3": 0.0})}, (), step)]
    step = open_snapshots(snapshots).num_steps if step is None else step
    return promote_if_better(snapshots, write_queries(snapshots, step), rankings, contender, **changes)


@pytest.fixture
def champion_skill(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """Give the champion scores of this skill where it is evaluated; the returned list records the calls."""

    def plan(skill: float | np.ndarray) -> list[tuple[Any, ...]]:
        calls: list[tuple[Any, ...]] = []

        def rank(posed: Posed, group: Group) -> str:
            calls.append((posed.snapshots, posed.protocol.name, posed.units, str(group), posed.seed, group.models))
            skills = {"Forecaster with champion": skill, "champion": -9.0}
            return ranked(posed.snapshots, skills, group.models[-1:])

        monkeypatch.setattr(promote, "evaluate", rank)
        return calls

    return plan


def record_of() -> dict[str, Any]:
    record = champion_of(Layout.from_environment(), "mylog")
    assert record is not None
    return record


def champion_file() -> Path:
    return Path(Layout.from_environment().champion("mylog"))


def named(contender: Contender) -> dict[str, Any]:
    return {"title": contender.title, "models": list(contender.models)}


def test_without_a_champion_the_contender_becomes_it_and_is_recorded(snapshots: str):
    contender = contender_of(snapshots, 1.0)
    outcome = promoted(snapshots, contender, 1.0)
    assert (outcome["promoted"], outcome["champion"], outcome["previous"]) == (True, named(contender), None)
    assert "no champion" in outcome["reason"]
    record, layout = record_of(), Layout.from_environment()
    assert [layout.absolute(model) for model in record["models"]] == list(contender.models)
    assert (record["title"], record["version"], record["until"], record["step"]) == (TITLE, 1, 4, 5)
    assert (record["end_time"], record["seed"], record["num_tests"]) == (60, 0, 1)
    assert record["space"] == space_of(contender.models[-1])
    queries = read_queries(write_queries(snapshots, 5))
    rank_Q = ranks_of(scored(queries, TITLE, 1.0), "mixed")
    assert record["metrics"] == {"mrr": pytest.approx(np.nanmean(1 / rank_Q))}
    assert next(iter(record["tests"].values()))["reason"] == outcome["reason"]
    assert {child.name for child in champion_file().parent.iterdir()} == {"champion.json", "champion-copy.json"}
    json.loads(champion_file().read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    ("skill", "wins"), [(4.0, True), (1.0, False), (0.0, False)], ids=["better", "as good", "worse"]
)
def test_only_a_significant_win_over_the_champion_promotes(
    snapshots: str, champion_skill: Callable, skill: float, wins: bool
):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    promoted(snapshots, champion, 1.0, step=4)
    calls = champion_skill(1.0)
    outcome = promoted(snapshots, challenger, skill)
    assert calls == [(snapshots, "prequential", (5,), "champion", 0, champion.models)]
    assert (outcome["promoted"], outcome["champion"]) == (wins, named(challenger if wins else champion))
    assert outcome["previous"] == named(champion)
    assert outcome["compared"] == [TITLE, "champion"]
    low, mean, high = outcome["difference"]
    assert low < mean < high
    assert (low > 0) is wins
    assert outcome["level"] == pytest.approx(1 - 0.05 / 6)  # the second test, after that of the baselines
    assert outcome["num_queries"] == len(read_queries(write_queries(snapshots, 5)).source_Q)
    assert record_of()["num_tests"] == (1 if wins else 2)
    if wins:
        assert record_of()["difference"] == outcome["difference"]


def test_a_champion_with_scores_among_the_given_ones_is_not_evaluated_again(snapshots: str, champion_skill: Callable):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    promoted(snapshots, champion, 1.0, step=4)
    calls = champion_skill(0.0)
    given = [ranked(snapshots, {TITLE: skill}, who.models) for who, skill in ((champion, 5.0), (challenger, 1.0))]
    outcome = promote_if_better(snapshots, write_queries(snapshots, 5), given, challenger)
    assert calls == []
    assert (outcome["promoted"], outcome["champion"]) == (False, named(champion))
    assert outcome["difference"][2] < 0


def test_a_baseline_becomes_champion_and_is_beaten_later(snapshots: str, tmp_path: Path):
    outcome = promoted(snapshots, contender_of(snapshots, 1.0), 1.0, {"L3": 5.0, "Contact recency": 0.5})
    assert (outcome["promoted"], outcome["champion"]) == (False, {"title": "L3", "models": []})
    assert outcome["compared"] == ["L3", TITLE]
    assert outcome["difference"][0] > 0
    assert outcome["reason"].startswith("L3 is better")
    record = record_of()
    assert (record["title"], record["models"], record["space"], record["num_tests"]) == ("L3", [], None, 0)
    later = grown(tmp_path, "second", rows_of(6))
    again = promoted(later, contender_of(later, 2.0), 1.0, {"L3": 1.1, "Contact recency": 0.5})
    assert (again["promoted"], again["champion"]["title"], record_of()["num_tests"]) == (False, "L3", 1)
    latest = grown(tmp_path, "third", rows_of(7))
    challenger = contender_of(latest, 3.0)
    won = promoted(latest, challenger, 5.0, {"L3": 1.0, "Contact recency": 0.5})
    assert (won["promoted"], won["champion"], won["previous"]) == (True, named(challenger), again["champion"])


def test_a_baseline_that_was_not_given_is_fitted_on_the_queries(snapshots: str, tmp_path: Path):
    promoted(snapshots, contender_of(snapshots, 1.0), 0.0, {"L3": 5.0})
    later = grown(tmp_path, "second", rows_of(6))
    outcome = promoted(later, contender_of(later, 2.0), 9.0, {"Contact recency": 0.0})
    assert outcome["compared"] == [TITLE, "L3"]
    own = ranked(later, {TITLE: 9.0}, contender_of(later, 2.0).models)
    queries = write_queries(later, 6)
    rows = [
        next(
            each
            for each in from_table(read_table(address, "rankings"), read_queries(queries))
            if each.method in (TITLE, "L3")
        )
        for address in (own, rank_methods(later, queries, ["L3"]))
    ]
    mine, theirs = (np.nanmean(1 / ranks_of(each, "mixed")) for each in rows)
    assert outcome["difference"][1] == pytest.approx(mine - theirs, abs=1e-12)


def test_a_champion_with_a_title_that_no_longer_exists_is_replaced(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "Of before", METHODS["L3"])
        promoted(snapshots, contender_of(snapshots, 1.0, until=3), 0.0, {"Of before": 5.0}, step=4)
    outcome = promoted(snapshots, contender_of(snapshots, 2.0), 1.0, {"Contact recency": 0.0})
    assert outcome["promoted"]
    assert outcome["reason"].startswith("this version has no method Of before; ")


# One test of a model on a step.


def test_the_same_model_is_tested_once_on_a_step_whatever_rows_come(
    snapshots: str, champion_skill: Callable, tmp_path: Path
):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    promoted(snapshots, champion, 1.0, step=4)
    calls = champion_skill(1.0)
    first = promoted(snapshots, challenger, 1.0)
    assert not first["promoted"]
    before = champion_file().read_bytes()
    assert promoted(snapshots, challenger, 9.0) == first  # a rerun, even with other scores
    assert promoted(snapshots, challenger, 9.0, rule=PromotionConfig(level=0.5))["difference"] == first["difference"]
    longer = grown(tmp_path, "more", [f"{a},{(7 * a + 3) % 40},59" for a in range(40)])  # the window of step 5 grows
    assert open_snapshots(longer).version > open_snapshots(snapshots).version
    same = contender_of(longer, 2.0)  # equal weights at other addresses
    assert same.models != challenger.models
    assert promoted(longer, same, 9.0) == first
    assert (len(calls), champion_file().read_bytes()) == (1, before)
    assert promoted(longer, contender_of(longer, 3.0), 9.0)["promoted"]  # other weights are another test


def test_a_step_is_known_by_its_end_and_not_by_its_number(snapshots: str, champion_skill: Callable, tmp_path: Path):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    promoted(snapshots, champion, 1.0, step=4)
    champion_skill(1.0)
    first = promoted(snapshots, challenger, 1.0)
    earlier = grown(tmp_path, "early", ["0,1,0"])  # the former step 5 is now step 6
    assert open_snapshots(earlier).time("end_time", 6) == open_snapshots(snapshots).time("end_time", 5)
    assert promoted(earlier, contender_of(earlier, 2.0, until=5), 9.0) == first
    newer = grown(tmp_path, "late", rows_of(6))
    second = promoted(newer, contender_of(newer, 2.0, until=5), 9.0)
    assert second["promoted"]
    assert second["level"] == pytest.approx(1 - 0.05 / 12)  # the third test of the champion


def test_every_test_of_a_champion_is_stricter_than_the_one_before(
    snapshots: str, champion_skill: Callable, tmp_path: Path
):
    promoted(snapshots, contender_of(snapshots, 1.0, until=3), 1.0, step=4)
    champion_skill(1.0)
    levels = [promoted(snapshots, contender_of(snapshots, value), 1.0)["level"] for value in (2.0, 3.0, 4.0)]
    assert levels == pytest.approx([1 - 0.05 / (k * (k + 1)) for k in (2, 3, 4)])
    assert (record_of()["num_tests"], len(record_of()["tests"])) == (4, 4)


def test_a_rerun_after_a_promotion_returns_the_same_outcome(snapshots: str, champion_skill: Callable):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    first = promoted(snapshots, champion, 1.0, step=4)
    assert promoted(snapshots, champion, 1.0, step=4) == first
    champion_skill(0.0)
    second = promoted(snapshots, challenger, 4.0)
    assert second["promoted"]
    assert promoted(snapshots, challenger, 4.0) == second
    own = promoted(snapshots, challenger, 4.0, step=4)  # the champion itself is no challenger
    assert (own["promoted"], own["champion"], own["difference"]) == (False, named(challenger), None)


def test_a_recorded_outcome_names_the_rule_that_it_was_tested_by_where_another_one_is_set(snapshots: str):
    contender = contender_of(snapshots, 1.0)
    first = promoted(snapshots, contender, 1.0, rule=PromotionConfig(tie=0.02))
    assert promoted(snapshots, contender, 1.0, rule=PromotionConfig(tie=0.02)) == first
    again = promoted(snapshots, contender, 1.0, rule=PromotionConfig(tie=0.5))
    assert {**again, "reason": first["reason"]} == first
    assert again["reason"].startswith(f"{first['reason']}; tested with promotion.tie=0.02, and a model is tested once")


def test_a_model_that_lost_is_tested_again_against_the_next_champion(snapshots: str, champion_skill: Callable):
    champion, first, second = (contender_of(snapshots, float(k), until=k + 2 if k == 1 else None) for k in (1, 2, 3))
    promoted(snapshots, champion, 1.0, step=4)
    champion_skill(1.0)
    assert not promoted(snapshots, first, 1.0)["promoted"]
    assert promoted(snapshots, second, 5.0)["promoted"]
    outcome = promoted(snapshots, first, 9.0)
    assert (outcome["previous"], record_of()["title"]) == (named(second), TITLE)
    assert outcome["promoted"]


def test_an_interval_without_ends_is_recorded_as_none(snapshots: str, champion_skill: Callable, tmp_path: Path):
    promoted(snapshots, contender_of(snapshots, 1.0, until=3), 1.0, step=4)
    champion_skill(-5.0)
    later = grown(tmp_path, "star", [f"0,{target},60" for target in range(1, 31)])  # one source has all queries
    outcome = promoted(later, contender_of(later, 2.0), 9.0)
    assert (outcome["promoted"], outcome["difference"]) == (False, None)
    assert outcome["num_queries"] >= 20
    json.loads(champion_file().read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_champion_is_not_tested_against_itself_on_a_later_step(snapshots: str, tmp_path: Path):
    champion = contender_of(snapshots, 1.0)
    promoted(snapshots, champion, 1.0)
    before, later = champion_file().read_bytes(), grown(tmp_path, "second", rows_of(6))
    outcome = promoted(later, contender_of(later, 1.0, until=4), 1.0, {"L3": 9.0})
    assert outcome["reason"] == "the challenger is the champion already"
    assert (outcome["champion"], champion_file().read_bytes()) == (named(champion), before)


def test_too_few_queries_are_no_test_and_more_of_them_are_the_first(
    snapshots: str, champion_skill: Callable, tmp_path: Path
):
    promoted(snapshots, contender_of(snapshots, 1.0, until=3), 1.0, step=4)
    champion_skill(0.0)
    short = grown(tmp_path, "short", [f"{a},{a + 5},60" for a in range(10)])
    outcome = promoted(short, contender_of(short, 2.0), 9.0)
    assert (outcome["promoted"], outcome["difference"], record_of()["num_tests"]) == (False, None, 1)
    assert "fewer than 20 queries" in outcome["reason"]
    longer = grown(tmp_path, "longer", rows_of(6))
    assert promoted(longer, contender_of(longer, 2.0), 9.0)["promoted"]


# Another machine with the same store.


def recorded_elsewhere(monkeypatch: pytest.MonkeyPatch, times: int) -> list[str]:
    """Let another machine record a test of its own during each of the first comparisons."""
    real, titles = promote.decide, []

    def decide(*arguments: Any) -> Any:
        if len(titles) < times:
            layout = Layout.from_environment()
            record, stamp = read_champion(layout, "mylog")
            tests = {**(record or {}).get("tests", {}), f"another {len(titles)}": {"reason": "another"}}
            titles.append("Contact recency" if len(titles) % 2 else "L3")
            own = {"title": titles[-1], "models": [], "identity": titles[-1], "num_tests": 1, "tests": tests}
            own |= {"number": 1, "earlier": []}
            assert replace_champion(layout, "mylog", own, stamp)
        return real(*arguments)

    monkeypatch.setattr(promote, "decide", decide)
    return titles


def test_a_test_that_another_machine_recorded_meanwhile_is_not_lost(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    recorded_elsewhere(monkeypatch, 1)
    contender = contender_of(snapshots, 1.0)
    outcome = promoted(snapshots, contender, 1.0, {"L3": 5.0})
    assert (outcome["promoted"], outcome["champion"]) == (False, {"title": "L3", "models": []})
    assert outcome["reason"].startswith("another machine recorded a test of its own meanwhile")
    assert outcome["previous"] == outcome["champion"]  # the champion of the other machine, which has none of ours
    assert record_of()["num_tests"] == 2
    assert {test["reason"] for test in record_of()["tests"].values()} == {"another", outcome["reason"]}
    assert promoted(snapshots, contender, 9.0, {"L3": 5.0}) == outcome


def test_machines_that_are_always_quicker_are_a_named_error(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    titles = recorded_elsewhere(monkeypatch, 99)
    with pytest.raises(ValueError, match="other machines recorded their tests first 5 times; run it again later"):
        promoted(snapshots, contender_of(snapshots, 1.0), 1.0)
    assert (len(titles), record_of()["title"]) == (5, "L3")


def test_a_killed_promotion_leaves_a_champion_with_a_copy(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    contender, layout = contender_of(snapshots, 1.0), Layout.from_environment()
    with monkeypatch.context() as patch:
        patch.setattr(champions, "update_copy", killed)
        with pytest.raises(KeyboardInterrupt):
            promoted(snapshots, contender, 1.0)
    assert record_of()["identity"] == identity(contender)
    promoted(snapshots, contender, 1.0)
    assert Path(layout.champion_copy("mylog")).read_bytes() == champion_file().read_bytes()


def test_a_step_of_other_windows_that_ends_at_the_same_time_is_another_test(snapshots: str):
    champion = Contender(title="L3")
    promoted(snapshots, champion, 1.0, {"Adamic-Adar": 0.0})
    assert promoted(snapshots, champion, 0.0, {"Adamic-Adar": 9.0})["champion"]["title"] == "L3"  # as recorded
    ingest_log("mylog", {"window": "25"}, lambda text: None)
    longer = make_snapshots("mylog")
    ends = [opened.time("end_time", opened.num_steps) for opened in map(open_snapshots, (snapshots, longer))]
    assert ends == [60, 60]
    outcome = promoted(longer, champion, 0.0, {"Adamic-Adar": 9.0})
    assert (outcome["promoted"], outcome["champion"]["title"]) == (False, "Adamic-Adar")


# A champion that cannot be compared.


def test_a_champion_that_was_trained_on_the_step_stays_without_a_test(snapshots: str, tmp_path: Path):
    later = grown(tmp_path, "second", rows_of(6))
    champion = contender_of(later, 1.0)
    promoted(later, champion, 1.0)
    outcome = promoted(later, contender_of(later, 2.0, until=4), 9.0, step=5)
    assert (outcome["promoted"], outcome["champion"], outcome["difference"]) == (False, named(champion), None)
    assert "trained on step 5" in outcome["reason"]
    assert record_of()["num_tests"] == 1


def test_times_decide_what_a_champion_of_another_version_was_trained_on(
    snapshots: str, champion_skill: Callable, tmp_path: Path
):
    champion = contender_of(snapshots, 1.0)
    promoted(snapshots, champion, 1.0)
    calls = champion_skill(0.0)
    later = grown(tmp_path, "early", ["0,1,1", *rows_of(6)])  # the champion was trained until the present step 5
    assert open_snapshots(later).num_steps == 7
    assert "trained on step 5" in promoted(later, contender_of(later, 2.0, until=4), 9.0, step=5)["reason"]
    assert promoted(later, contender_of(later, 2.0), 9.0)["promoted"]
    assert len(calls) == 1


def test_steps_of_a_training_are_counted_in_the_snapshots_at_hand(snapshots: str, tmp_path: Path):
    lineage = lineage_of(trained(snapshots, 1.0, until=5))
    assert trained_until(lineage, open_snapshots(snapshots)) == 5
    later = open_snapshots(grown(tmp_path, "early", ["0,1,1"]))  # the former step 5 is now step 6
    assert trained_until(lineage, later) == 6


@pytest.mark.parametrize("index", [0, 1])
def test_a_champion_without_one_of_its_models_is_replaced(snapshots: str, index: int):
    champion = contender_of(snapshots, 1.0, until=3)
    promoted(snapshots, champion, 9.0, step=4)
    Path(champion.models[index], "manifest.json").unlink()
    assert unranked(snapshots, "no link")["champion"] is None
    outcome = promoted(snapshots, contender_of(snapshots, 2.0), 0.5)
    assert outcome["promoted"]
    assert outcome["reason"].startswith("the champion's weights are missing; ")


def test_an_outcome_whose_champion_is_gone_is_not_repeated(snapshots: str, champion_skill: Callable):
    champion, challenger = contender_of(snapshots, 1.0, until=3), contender_of(snapshots, 2.0)
    promoted(snapshots, champion, 1.0, step=4)
    champion_skill(1.0)
    assert not promoted(snapshots, challenger, 1.0)["promoted"]
    Path(champion.models[1], "manifest.json").unlink()
    assert promoted(snapshots, challenger, 1.0)["promoted"]


@pytest.mark.parametrize("error", [promote.WeightsDoNotFit, promote.OldSettings])
def test_a_champion_that_no_longer_fits_is_replaced(
    error: type[ValueError], snapshots: str, monkeypatch: pytest.MonkeyPatch
):
    promoted(snapshots, contender_of(snapshots, 1.0, until=3), 9.0, step=4)

    def rank(*call: Any) -> str:
        raise error("of another version")

    monkeypatch.setattr(promote, "evaluate", rank)
    outcome = promoted(snapshots, contender_of(snapshots, 2.0), 0.5)
    assert outcome["promoted"]
    assert "do not fit" in outcome["reason"]


def test_a_contender_is_not_promoted_by_the_scores_of_another(snapshots: str):
    one, other = contender_of(snapshots, 1.0), contender_of(snapshots, 2.0)
    queries, rankings = write_queries(snapshots, 5), [ranked(snapshots, {TITLE: 1.0}, other.models)]
    with pytest.raises(NotEvaluated, match="rank it first"):
        promote_if_better(snapshots, queries, rankings, one)
    with pytest.raises(NotEvaluated, match="seed 1"):
        promote_if_better(snapshots, queries, rankings, other, seed=1)
    with pytest.raises(NotEvaluated):
        promote_if_better(snapshots, queries, [ranked(snapshots, {TITLE: 1.0}, other.models, step=4)], other)
    assert champion_of(Layout.from_environment(), "mylog") is None


def test_nobody_is_promoted_on_a_step_without_queries(snapshots: str):
    assert unranked(snapshots, "no link")["champion"] is None
    contender = contender_of(snapshots, 1.0)
    promoted(snapshots, contender, 1.0)
    before = champion_file().read_bytes()
    outcome = unranked(snapshots, "no link")
    assert (outcome["promoted"], outcome["champion"], outcome["reason"]) == (False, named(contender), "no link")
    assert champion_file().read_bytes() == before


def test_a_newest_step_without_links_between_known_nodes_is_not_evaluated_and_promotes_nobody(
    snapshots: str, tmp_path: Path
):
    from flows import retrain

    champion = contender_of(snapshots, 1.0)
    promoted(snapshots, champion, 1.0)
    before, thin = champion_file().read_bytes(), grown(tmp_path, "thin", ["100,101,60"])
    rankings, outcome = retrain._promoted(thin, contender_of(thin, 2.0), Experiment(), 0)
    assert (rankings, outcome["promoted"], outcome["champion"]) == ([], False, named(champion))
    assert outcome["reason"].startswith("step 6 cannot be ranked")
    assert champion_file().read_bytes() == before
    assert retrain._evaluated(thin, contender_of(thin, 2.0), 0) == ([], [])
    assert run_tables(run_metrics(thin, [], []), "mylog") == []


def test_a_newest_step_without_links_between_known_nodes_has_forecasts_all_the_same(snapshots: str, tmp_path: Path):
    thin = grown(tmp_path, "thin", ["100,101,60"])
    forecasts = read_table(write_forecasts(thin, Contender(title="Contact recency")), "forecasts")
    assert forecasts["step"].unique().to_list() == [7]
    assert forecasts["probability"].to_numpy().max() > 0


def test_predict_forecasts_by_the_champion_unless_settings_are_changed(
    snapshots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def trained_for(*args: Any) -> Contender:
        pytest.fail("trained")

    monkeypatch.setattr(train, "train_contender", trained_for)
    champion = Contender(title="Contact recency")
    with pytest.raises(SystemExit) as refused:
        main(["predict", "mylog"])
    assert refused.value.code == 1
    assert "mylog has no champion whose forecasts could be written: `dyformer run mylog`" in capsys.readouterr().err
    record = {"title": champion.title, "models": [], "identity": champion.title, "num_tests": 0, "tests": {}}
    write_record(Layout.from_environment().champion("mylog"), {**record, "number": 1, "earlier": []})
    assert champion_contender(snapshots) == champion
    with pytest.raises(SystemExit) as ended:
        main(["predict", "mylog", "--top", "3"])
    assert ended.value.code == 0
    printed = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert printed["method"] == "Contact recency"
    assert printed["vectors"].startswith("none")
    assert read_table(printed["forecasts"], "forecasts")["rank"].max() == 3
    with pytest.raises(SystemExit):
        main(["predict", "mylog", "--set", "finetune.epochs=1"])
    assert "Failed: trained" in capsys.readouterr().err


def test_slices_that_may_not_be_lost_are_a_setting(snapshots: str, champion_skill: Callable):
    new_Q = read_queries(write_queries(snapshots, 5)).new_Q
    promoted(snapshots, contender_of(snapshots, 1.0, until=3), 1.0, step=4)
    champion_skill(np.where(new_Q, -4.0, 1.0))
    skill_Q, rule = np.where(new_Q, 9.0, -0.7), PromotionConfig(level=0.8)
    lost = promoted(snapshots, contender_of(snapshots, 2.0), skill_Q, rule=rule)
    assert (lost["promoted"], lost["difference"][0] > 0) == (False, True)
    assert "slice repeat" in lost["reason"]
    won = promoted(snapshots, contender_of(snapshots, 3.0), skill_Q, rule=PromotionConfig(level=0.8, slices="new"))
    assert won["promoted"]


TINY = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 32, "pretrain": None} | {
    f"finetune.{name}": value
    for name, value in {"epochs": 1, "batches_per_epoch": 1, "num_targets": 32, "num_positives": 16}.items()
}


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    ingest_log("generated", None, lambda text: None)
    return make_snapshots("generated")


def test_weights_of_an_earlier_step_are_ranked_on_the_challengers_queries(generated: str):
    earlier, later = (train_model(generated, until, Experiment().changed(TINY)) for until in (4, 6))
    champion, challenger = (Contender(title=TITLE, models=(model,)) for model in (earlier, later))
    first = write_queries(generated, 5)
    promote_if_better(generated, first, [rank_model(generated, first, earlier)], champion)
    queries = write_queries(generated, 7)
    own = rank_model(generated, queries, later)
    outcome = promote_if_better(generated, queries, [own], challenger)
    again = rank_model(generated, queries, earlier, "champion")
    values = {
        each.method: np.nanmean(1 / ranks_of(each, "mixed"))
        for address in (own, again)
        for each in from_table(read_table(address, "rankings"), read_queries(queries))
    }
    assert len(values) == 4
    assert outcome["difference"][1] == pytest.approx(values[TITLE] - values["Forecaster with champion"], abs=1e-12)
    assert outcome["promoted"] is (outcome["difference"][0] > 0)
    with pytest.raises(StepOutOfRange, match="trained on that step"):
        rank_model(generated, write_queries(generated, 6), later)


def test_a_real_champion_of_another_shape_is_replaced(generated: str, monkeypatch: pytest.MonkeyPatch):
    # An earlier version stored a window of None, which meant as many lags as the graph had steps.
    monkeypatch.setattr(train, "_with_lags", lambda experiment, until: experiment)
    whole = Experiment().changed(TINY | {"graph.history_window": None})
    outcome: Outcome = {}
    for until in (3, 4):
        model, queries = train_model(generated, until, whole), write_queries(generated, until + 1)
        contender = Contender(title=TITLE, models=(model,))
        outcome = promote_if_better(generated, queries, [rank_model(generated, queries, model)], contender)
    assert outcome["promoted"]
    assert "do not fit" in outcome["reason"]


def test_the_event_forecaster_by_pair_is_compared_only_where_a_setting_wants_it(monkeypatch: pytest.MonkeyPatch):
    compared: list[set[str]] = []

    def recorded(posed: Posed, group: Group) -> str:
        compared.append(set(group.methods))
        return "rankings"

    monkeypatch.setattr(retrain, "newest_until", lambda snapshots: 4)
    monkeypatch.setattr(retrain, "open_snapshots", lambda snapshots: None)
    monkeypatch.setattr(retrain, "rankable_steps", lambda log: [5])
    monkeypatch.setattr(retrain, "draw_task", lambda posed: "queries")
    monkeypatch.setattr(retrain, "evaluate_task", recorded)
    monkeypatch.setattr(retrain, "promote_task", lambda *given: {})
    for changes in ({}, {"promotion.events": True}):
        contender = Contender(title="DyFormer", models=())
        retrain._promoted("snapshots", contender, Experiment().changed(changes), 0)
    usual, with_events = compared
    assert with_events - usual == {"Event forecaster by pair"}
    assert {"Forecaster without vectors", "L3"} < usual


@pytest.mark.parametrize("is_ranked", [True, False])
def test_a_champion_of_rows_that_were_taken_back_is_replaced(snapshots: str, tmp_path: Path, is_ranked: bool):
    later = grown(tmp_path, "later", [*rows_of(6), *rows_of(7), "1,2,80"])
    promoted(later, contender_of(later, 1.0), 9.0, {"L3": 1.0})
    undo_ingest("mylog")
    shorter = make_snapshots("mylog")
    assert open_snapshots(shorter).num_steps == 5
    if is_ranked:
        contender = contender_of(shorter, 5.0)
        outcome = promoted(shorter, contender, 5.0, {"L3": 1.0})
        assert outcome["champion"] == named(contender)
    else:
        outcome = unranked(shorter, "no link")
        assert outcome["champion"] is None
    assert "rows after the newest step, which were taken back" in outcome["reason"]
