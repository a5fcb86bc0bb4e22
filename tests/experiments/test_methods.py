"""The registry of methods, their names on a command line, and their titles, known before any is imported."""

import json
import math
import pickle
import sys
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from event_logs import random_log
from toy_graphs import random_graph

from dyformer.evaluation.forecasts.stored_forecast import BASELINES
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.experiments import methods
from dyformer.experiments.methods import (
    EVENT_METHODS,
    METHODS,
    TRAINED_BASELINES,
    VARIATIONS,
    MethodFailed,
    Variation,
    default_methods,
    own_errors,
)
from dyformer.experiments.settings import Experiment
from dyformer.experiments.titles import known_titles, split_names, written_titles
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.interfaces import Embedder, Ranker, Scorer
from dyformer.training.stages import DyFormerEmbedder
from flows.tasks.evaluation import audit
from flows.tasks.methods import (
    UnknownMethod,
    benchmark_methods,
    configured,
    fitted_once,
    own_method,
    record_of,
    resolved,
)

TINY = {"model.width": 8, "model.num_heads": 2, "model.num_layers": 1, "model.num_context": 16} | {
    f"{stage}.{name}": 1 for stage in ("pretrain", "finetune") for name in ("epochs", "batches_per_epoch")
}


def test_every_method_is_an_embedder_or_a_scorer_and_no_title_looks_like_an_address():
    for title, method in METHODS.items():
        assert isinstance(method, Embedder) != isinstance(method, Scorer), title
        assert ":" not in title
        assert "," not in title


def test_every_variation_fits_every_change():
    variations = [method for method in METHODS.values() if isinstance(method, Variation)]
    assert len(variations) == 3
    for variation in variations:
        assert Experiment().changed({**TINY, **variation.all_changes}).finetune.epochs == 1


@pytest.mark.parametrize("known", ["METHODS", "VARIATIONS", "STAGES", "NODE_METHODS", "EVENT_METHODS"])
def test_every_method_reaches_another_process_unchanged(known: str):
    by_title = getattr(methods, known)
    assert {title: pickle.loads(pickle.dumps(method)) for title, method in by_title.items()} == by_title


def test_a_variation_is_dyformer_with_its_changed_settings():
    graph = random_graph(np.random.default_rng(0), num_nodes=30, num_steps=4, num_edges=60)
    trial = Trial(graph=graph, step=4, seed=0)
    variation = Variation(changes={"pretrain": None}, experiment=Experiment().changed(TINY))
    changed = Experiment().changed({**TINY, "pretrain": None})
    plain = DyFormerEmbedder(model=changed.model, pretrain=None, finetune=changed.finetune)
    scores = [evaluate_method("mine", method, trial)[0].score_P for method in (variation, plain)]
    np.testing.assert_array_equal(scores[0], scores[1])


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("DyFormer", "DyFormer"),
        ("dyformer", "DyFormer"),
        ("dyformer_without_pre_training", "DyFormer without pre-training"),
        ("dyformer_as_published", "DyFormer (as published)"),
        ("l3", "L3"),
        ("adamic-adar", "Adamic-Adar"),
        ("EDGEBANK (LAST)", "EdgeBank (last)"),
        ("edgebank_last", "EdgeBank (last)"),
        ("preferential_attachment", "Preferential attachment"),
        ("boosted", "Boosted trees on pair features"),
    ],
)
def test_a_title_may_be_written_in_any_case_and_shortened(name: str, title: str):
    assert resolved([name]) == {title: METHODS[title]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dyfromer", "no method 'dyfromer'. Did you mean DyFormer\\? Allowed: EdgeBank .ever.; .*DyFormer"),
        ("edgebank", "'edgebank' fits 3 methods. Allowed"),
        ("", "no method ''"),
        ("-", "no method '-'"),
        ("mine:", "'mine:' is not the address of a method: expected package.module:Class"),
        (":Mine", "expected package.module:Class"),
        ("nowhere_at_all.mine:Mine", "the module nowhere_at_all.mine cannot be imported: No module named"),
        (
            "dyformer.scoring.interfaces:Mine",
            "the module dyformer.scoring.interfaces has no 'Mine'; its classes: .*Embedder",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_allowed_ones(name: str, message: str):
    with pytest.raises(UnknownMethod, match=message):
        resolved([name])


def test_all_built_in_methods_stand_beside_a_class_of_the_users_own():
    own = "dyformer.experiments.methods:Variation"
    assert list(benchmark_methods(None, PAPER)) == list(default_methods())
    assert list(benchmark_methods([own], PAPER)) == ["Variation"]
    assert list(benchmark_methods(["l3, dyformer", own], PAPER)) == ["L3", "DyFormer", "Variation"]
    with pytest.raises(UnknownMethod, match="two methods have the title 'Variation'"):
        resolved([own, "flows.tasks.methods:Variation"])


MODULE = """
from dataclasses import dataclass, replace
import numpy as np

@dataclass(frozen=True)
class Mine:
    width: int = 3
    def fit(self, graph, *, seed):
        return lambda node_N: np.ones((len(node_N), self.width))

class NeedsArgument:
    def __init__(self, width): ...
    def fit(self, graph, *, seed): ...

class LikeScikitLearn:
    def fit(self, X, y): ...

class Pairs:
    def fit_pairs(self, graph): ...

class Nothing: ...

wide = Mine(width=9)
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the working directory, which is not on the path of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_methods", raising=False)
    path = tmp_path / "own_methods.py"
    path.write_text(MODULE)
    return path


def test_a_class_and_an_object_of_the_working_directory_are_found(own_module: Path):
    assert repr(own_method("own_methods:Mine")) == "Mine(width=3)"
    assert repr(own_method("own_methods:wide")) == "Mine(width=9)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NeedsArgument", "it is called without arguments, but missing a required argument: 'width'"),
        ("LikeScikitLearn", r"expected a class .* with fit\(graph, \*, seed\).*its arguments differ"),
        ("Pairs", r"fit_pairs\(graph, labelled\).*its arguments differ: too many positional arguments"),
        ("Nothing", "expected a class .*; found Nothing without either"),
        ("Absent", "no 'Absent'; its classes: Mine, NeedsArgument, LikeScikitLearn, Pairs, Nothing"),
    ],
)
def test_a_class_that_does_not_fit_is_refused_with_the_expected_signature(own_module: Path, name: str, message: str):
    with pytest.raises(UnknownMethod, match=rf"own_methods:{name}: .*{message}"):
        own_method(f"own_methods:{name}")


def test_a_module_that_does_not_compile_is_refused_by_name(own_module: Path):
    own_module.write_text("def fit(:\n")
    with pytest.raises(UnknownMethod, match="the module own_methods cannot be imported: invalid syntax"):
        own_method("own_methods:Mine")


def test_the_record_of_a_method_changes_with_its_hyper_parameters_and_its_source(own_module: Path):
    mine = own_method("own_methods:Mine")
    assert record_of(mine).startswith("Mine(width=3) ")
    assert record_of(mine) != record_of(own_method("own_methods:wide"))
    before = record_of(mine)
    own_module.write_text(MODULE + "\n# other\n")
    assert record_of(mine) != before
    assert record_of(METHODS["EdgeBank (last)"]) == "EdgeBank(memory='last')"


@pytest.mark.parametrize("value", [math.inf, math.nan, -1.0, "1"])
def test_a_number_that_is_none_of_its_setting_is_refused_by_name(value: Any):
    numbers = [
        (method, field.name)
        for method in (*METHODS.values(), *EVENT_METHODS.values())
        if is_dataclass(method)
        for field in fields(method)
        if isinstance(getattr(method, field.name), float)
    ]
    assert (METHODS["node2vec"], "return_parameter") in numbers
    for method, name in [*numbers, (EVENT_METHODS["Event forecaster"], "rank"), (METHODS["node2vec"], "width")]:
        with pytest.raises(ValueError, match=name):
            replace(method, **{name: value})  # pyright: ignore[reportArgumentType]


def test_a_baseline_is_equal_after_its_settings_were_in_json():
    titled = {title: method for title, method in (METHODS | EVENT_METHODS).items() if is_dataclass(method)}
    baselines = {title: method for title, method in titled.items() if type(method).__module__.startswith(BASELINES)}
    assert {"Boosted trees on pair features", "DynGEM", "GraphSAGE", "EdgeBank (last)"} <= baselines.keys()
    for title, method in (baselines | {"": EventForecaster()}).items():
        settings = json.loads(json.dumps({field.name: getattr(method, field.name) for field in fields(method)}))
        assert type(method)(**settings) == method, title


@pytest.mark.parametrize("name", ["return_parameter", "in_out_parameter", "learning_rate", "width", "num_walks"])
def test_node2vec_has_no_setting_of_zero(name: str):
    with pytest.raises(ValueError, match=f"{name}\n.*greater than 0"):
        replace(METHODS["node2vec"], **{name: 0})  # pyright: ignore[reportArgumentType]


def test_a_method_that_learns_from_labelled_steps_is_refused_without_one():
    graph = random_graph(np.random.default_rng(0), num_nodes=9, num_steps=3, num_edges=9)
    past = prepare_graph(graph, until=2, config=GraphConfig())
    learners = {"Logistic regression on pair features", "Boosted trees on pair features"}
    for title in learners | {"Forecaster without vectors", "Event forecaster by pair"}:
        with pytest.raises(ValueError, match="at least one labelled step"):
            METHODS[title].fit_pairs(past, ())  # pyright: ignore[reportAttributeAccessIssue]


BROKEN = """
class Broken:
    def fit(self, graph, *, seed):
        return self.vectors_of({})

    def vectors_of(self, table):
        return table["missing"]
"""


def test_an_error_of_a_users_method_is_one_message_with_its_step_and_line_and_has_its_cause(own_module: Path):
    own_module.write_text(BROKEN)
    method: Any = own_method("own_methods:Broken")
    with pytest.raises(MethodFailed) as failed, own_errors("Broken", method, "step 5"):
        method.fit(None, seed=0)
    assert str(failed.value) == f"Broken, step 5: KeyError: 'missing' ({own_module}, line 7)"
    assert isinstance(failed.value.__cause__, KeyError)


def test_an_error_from_what_a_users_method_gave_names_it_too(own_module: Path):
    mine = own_method("own_methods:Mine")
    message = r"Mine, step 5: TypeError: .*, from what the method gave \(.*, line \d+\)"
    with pytest.raises(MethodFailed, match=message), own_errors("Mine", mine, "step 5"):
        len(None)  # pyright: ignore[reportArgumentType]


def test_an_error_that_is_not_of_the_users_method_is_raised_unchanged(own_module: Path):
    mine = own_method("own_methods:Mine")
    for error in (ValueError("Mine: found vectors of shape (3,)"), OSError("the disk"), MemoryError()):
        with pytest.raises(type(error)) as unchanged, own_errors("Mine", mine, "step 5"):
            raise error
        assert unchanged.value is error
    with pytest.raises(KeyError), own_errors("Mine", mine, "step 5", is_alone=False):
        raise KeyError("of another method")
    with pytest.raises(ValueError, match=r"^ours$"), own_errors("L3", METHODS["L3"], "step 5"):
        raise ValueError("ours")


def test_a_class_that_cannot_be_made_and_a_module_that_fails_are_named_with_their_cause(own_module: Path):
    own_module.write_text("class Broken:\n    def __init__(self):\n        {}['width']\n")
    with pytest.raises(UnknownMethod, match=r"own_methods:Broken: called .*, it raises KeyError: 'width'") as failed:
        own_method("own_methods:Broken")
    assert isinstance(failed.value.__cause__, KeyError)
    sys.modules.pop("own_methods")
    own_module.write_text("missing\n")
    with pytest.raises(UnknownMethod, match="own_methods cannot be imported: NameError: name 'missing'"):
        own_method("own_methods:Broken")


def test_a_trained_baseline_is_fitted_once_as_of_a_step_and_again_for_other_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    fits = []

    @dataclass(frozen=True)
    class Counted:
        epochs: int = 7

        def fit(self, graph, *, seed):
            fits.append((graph.until, seed))
            return np.ones

    monkeypatch.setitem(METHODS, "node2vec", Counted())
    monkeypatch.setattr("flows.tasks.methods.digest", str)
    graph = random_graph(np.random.default_rng(0), num_nodes=9, num_steps=3, num_edges=9)
    pasts = [prepare_graph(graph, until=until, config=GraphConfig()) for until in (1, 2, 3)]
    for address, numbers in (("first", (0, 1, 1, 0, 2)), ("second", (1,))):
        for number in numbers:
            methods = fitted_once(resolved(["node2vec", "l3"]), address, GraphConfig())
            assert methods["L3"] is METHODS["L3"]
            assert isinstance(methods["node2vec"], Embedder)
            methods["node2vec"].fit(pasts[number], seed=0)
    assert fits == [(1, 0), (2, 0), (3, 0), (2, 0)]
    shorter = fitted_once(configured(resolved(["node2vec"]), 3), "second", GraphConfig())["node2vec"]
    assert isinstance(shorter, Embedder)
    shorter.fit(pasts[1], seed=0)
    assert fits[4:] == [(2, 0)]  # another method, because it has fewer epochs


def test_a_cap_on_epochs_is_the_same_for_every_trained_method_and_changes_none_that_has_fewer():
    names = list(METHODS)
    for title, method in configured(resolved(names), 2).items():
        if title in TRAINED_BASELINES:
            own = [getattr(method, name) for name in ("epochs", "first_epochs") if hasattr(method, name)]
            assert own, title
            assert max(own) <= 2, title
            assert title in ("node2vec", "GraphSAGE") or method != METHODS[title]  # these have one epoch
        else:
            assert method is METHODS[title]
    names = ["node2vec", "DynGEM"]
    assert configured(resolved(names), 20) == {title: METHODS[title] for title in names}
    capped = Experiment().changed({"max_epochs": 5})
    for method in [*METHODS.values(), *VARIATIONS.values()]:
        if isinstance(method, Variation):
            changed = method.changed(capped).capped
            assert changed.finetune.epochs == 5
            assert changed.pretrain is None or changed.pretrain.epochs == 5
            with patch("dyformer.training.stages.DyFormerEmbedder") as embedder:
                replace(method, experiment=capped).trained(Mock(until=3), seed=0)
            assert embedder.call_args.kwargs["pretrain"] == changed.pretrain
            assert embedder.call_args.kwargs["finetune"] == changed.finetune
    long = Experiment().changed({"max_epochs": 15})  # between those of the stages
    assert [long.capped.pretrain and long.capped.pretrain.epochs, long.capped.finetune.epochs] == [15, 12]


def test_the_titles_read_from_the_source_are_those_of_the_methods():
    assert written_titles() == [*METHODS, *VARIATIONS, *EVENT_METHODS]


def test_a_title_that_a_program_adds_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(METHODS, "Toy", METHODS["L3"])
    assert known_titles() == [*METHODS, *VARIATIONS, *EVENT_METHODS]
    assert "Toy" in known_titles()


def test_a_title_with_commas_stays_whole_in_a_list():
    given = ["Published DyFormer, 1 hop, 10 % noise,l3,published dyformer, 4 layers", "dysat,Published DyFormer, 1 hop"]
    assert split_names(given) == [
        "Published DyFormer, 1 hop, 10 % noise",
        "l3",
        "published dyformer, 4 layers",
        "dysat",
        "Published DyFormer, 1 hop",
    ]


def test_a_method_of_events_that_runs_only_where_it_is_named_is_in_no_benchmark_and_no_audit(
    monkeypatch: pytest.MonkeyPatch,
):
    assert set(default_methods((Ranker,))) == set(EVENT_METHODS)
    monkeypatch.setattr(methods, "ON_REQUEST", methods.ON_REQUEST | {"Event forecaster"})
    assert set(default_methods((Ranker,))) == set(EVENT_METHODS) - {"Event forecaster"}
    audited: list[str] = []
    monkeypatch.setattr(audit, "log_of", lambda log: log)
    monkeypatch.setattr(audit, "audit_events", lambda case: iter(audited.extend(case.methods) or ()))
    assert list(audit.event_checks(random_log())) == []  # pyright: ignore[reportArgumentType]
    assert set(audited) == set(EVENT_METHODS) - {"Event forecaster"}
