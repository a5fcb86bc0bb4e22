"""The paper's grids: their names and values are settings of the methods."""

import math
import os
import re
from pathlib import Path

import pytest

from dyformer.experiments.methods import METHODS, TRAINED_BASELINES, Variation
from dyformer.experiments.settings import Experiment, UnknownSetting
from dyformer.experiments.tuning.grids import GRIDS, NoGrid, grid_of, usual_point, with_settings


@pytest.mark.parametrize("title", GRIDS)
def test_every_value_of_a_grid_is_a_setting_of_the_method(title: str):
    usual = usual_point(title, Experiment())
    for name, values in GRIDS[title].items():
        assert len(set(values)) == len(values) > 1
        for value in values:
            method = with_settings(METHODS[title], {name: value})
            assert type(method) is type(METHODS[title])
            if isinstance(method, Variation):
                part, _, inner = name.partition(".")
                assert getattr(getattr(method.changed(Experiment()), part), inner) == value
            else:
                assert getattr(method, name) == value
                assert type(value) is type(usual[name])


def test_every_trained_baseline_has_a_grid_with_its_usual_settings():
    assert set(GRIDS) >= TRAINED_BASELINES
    for title in GRIDS:
        if title != "DyFormer":  # its own weight of negatives is none of the paper's
            assert all(value in GRIDS[title][name] for name, value in usual_point(title, Experiment()).items()), title


def test_an_unknown_title_or_setting_is_refused():
    with pytest.raises(NoGrid, match="'L3' has no settings to search: expected one of node2vec"):
        grid_of("L3")
    with pytest.raises(TypeError, match="no_such"):
        with_settings(METHODS["DySAT"], {"no_such": 1})
    with pytest.raises(UnknownSetting, match="no_such"):
        with_settings(METHODS["DyFormer"], {"no_such": 1})


def test_the_values_are_those_of_the_paper():
    data = Path(os.environ.get("DYFORMER_SHARED_DATA", Path(__file__).resolve().parents[3].parent / "shared" / "data"))
    source = data.parent / "paper" / "dyformer.tex"
    if not source.exists():
        reason = f"the source of the paper is not at {source}; set DYFORMER_SHARED_DATA to the folder beside it"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    text = source.read_text().partition("paragraph{Model setups.}")[2].partition("Pre-training can reduce")[0]

    def numbers(sentence: str) -> list[tuple[float, ...]]:
        part = text[text.index(sentence) :].partition("\n\n")[0]
        sets = re.findall(r"\\\{([^}]*(?:\{[^}]*\}[^}]*)*?)\\\}", part)
        return [
            tuple(eval(value.replace("^{", "**(").replace("}", ")")) for value in found.split(",")) for found in sets
        ]

    assert numbers(r"\textsc{Node2Vec}") == [GRIDS["node2vec"]["return_parameter"]]
    alpha, beta, nu = numbers(r"\textsc{DynGEM}")
    assert [tuple(map(pytest.approx, alpha)), beta, nu] == [
        GRIDS["DynGEM"][key] for key in ("first_order", "edge_factor", "l1")
    ]
    assert GRIDS["DynAERNN"]["edge_factor"] == beta
    assert numbers(r"\textsc{DySAT}") == [GRIDS["DySAT"][key] for key in ("negative_weight", "temporal_heads", "width")]
    assert numbers("The hyper-parameters") == list(GRIDS["DyFormer (as published)"].values())
    assert math.prod(map(len, GRIDS["DySAT"].values())) == 24
