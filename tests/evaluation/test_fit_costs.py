"""The order of cost has every method without vectors, each once."""

from dyformer.evaluation.promotion import FORECASTER_WITHOUT, ORDER, cost, has_vectors, is_simple
from dyformer.experiments.methods import METHODS
from dyformer.scoring.interfaces import Embedder, Scorer


def test_every_scorer_has_its_class_once():
    titles = [title for titles in ORDER for title in titles]
    assert sorted(titles) == sorted(title for title, method in METHODS.items() if isinstance(method, Scorer))


def test_vectors_cost_more_than_anything_without():
    embedders = [title for title, method in METHODS.items() if isinstance(method, Embedder)]
    assert all(cost(title) > cost(FORECASTER_WITHOUT) for title in (*embedders, "Forecaster with DyFormer", "mine"))
    assert cost("EdgeBank (ever)") < cost("L3") < cost("Boosted trees on pair features") < cost(FORECASTER_WITHOUT)


def test_simple_methods_are_those_that_cost_less_than_a_forecaster():
    assert is_simple("Boosted trees on pair features")
    assert not any(map(is_simple, (FORECASTER_WITHOUT, "Forecaster with DyFormer", "champion", "mine")))
    assert has_vectors("Forecaster with GraphSAGE")
    assert not has_vectors(FORECASTER_WITHOUT)
