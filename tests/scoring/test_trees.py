"""Trees read from a text: LightGBM's own outputs bit by bit, whatever is missing, and paths by feature."""

import lightgbm
import numpy as np
import pytest

from dyformer.scoring.event_reasons import path_contributions, paths_of
from dyformer.scoring.trees import MAX_LEAVES, trees_of

MISSING = 0.2


def inputs(num_pairs=700, dtype=np.float32, *, with_missing=False, seed=0):
    generator = np.random.default_rng(seed)
    inputs_PF = generator.standard_normal((num_pairs, 6)).astype(dtype)
    inputs_PF[:, 1] = generator.integers(3, size=num_pairs)  # many equal values, on thresholds
    inputs_PF[generator.random(num_pairs) < MISSING, 2] = 0
    if with_missing:
        inputs_PF[generator.random(inputs_PF.shape) < MISSING] = np.nan
    return inputs_PF


def fitted(inputs_PF, num_rounds=40, **settings):
    known_PF = np.nan_to_num(inputs_PF, nan=2.0)
    label_P = known_PF[:, 0] * known_PF[:, 1] + known_PF[:, 2] - known_PF[:, 3] > 0
    given = {"objective": "binary", "num_leaves": 16, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1}
    return lightgbm.train({**given, **settings}, lightgbm.Dataset(inputs_PF, label=label_P), num_rounds)


def same_as_lightgbm(booster, inputs_PF):
    text = booster.model_to_string()
    expected_P = np.asarray(lightgbm.Booster(model_str=text).predict(inputs_PF, raw_score=True))
    return np.array_equal(trees_of(text).logits(inputs_PF), expected_P)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fit_missing", [False, True])
@pytest.mark.parametrize("with_missing", [False, True])
def test_outputs_are_those_of_lightgbm_bit_by_bit(dtype, fit_missing, with_missing):
    booster = fitted(inputs(with_missing=fit_missing))
    assert same_as_lightgbm(booster, inputs(999, dtype, with_missing=with_missing, seed=1))


def test_gains_are_those_of_lightgbm():
    text = fitted(inputs()).model_to_string()
    gain_F = lightgbm.Booster(model_str=text).feature_importance("gain")
    assert (gain_F > 0).sum() >= 4
    assert np.array_equal(trees_of(text).gain_F, gain_F)


@pytest.mark.parametrize("num_leaves", [2, 7, MAX_LEAVES])
def test_every_number_of_leaves(num_leaves):
    assert same_as_lightgbm(fitted(inputs(), num_leaves=num_leaves), inputs(seed=1))


@pytest.mark.parametrize("with_missing", [False, True])
def test_a_32_bit_input_beside_a_threshold_falls_on_its_side(with_missing):
    # The thresholds are 64-bit numbers between 32-bit ones.
    booster = fitted(inputs(with_missing=with_missing))
    text = booster.model_to_string()
    trees = trees_of(text)
    near_X = trees.threshold_TS[np.isfinite(trees.threshold_TS)].astype(np.float32)
    near_PF = np.repeat(near_X[:, None], 6, axis=1)
    for input_PF in (near_PF, np.nextafter(near_PF, np.float32(-np.inf)), np.nextafter(near_PF, np.float32(np.inf))):
        assert same_as_lightgbm(booster, input_PF)


@pytest.mark.parametrize("value", [1e-35, -1e-35, 2e-35, -2e-35, 1e-36, np.inf, -np.inf])
def test_the_least_and_the_largest_inputs(value):
    inputs_PF = inputs()
    inputs_PF[:, 2] = np.where(inputs_PF[:, 2] == 0, 0, np.abs(inputs_PF[:, 2]))  # a threshold beside 0
    booster = fitted(inputs_PF)
    assert same_as_lightgbm(booster, np.full((3, 6), value, dtype=np.float32))
    assert same_as_lightgbm(booster, np.full((3, 6), value))


@pytest.mark.parametrize("num_pairs", [0, 1, 255, 256, 257])
def test_blocks_of_pairs(num_pairs):
    assert same_as_lightgbm(fitted(inputs()), inputs(num_pairs + 1, seed=1)[1:])


def test_a_tree_without_a_split():
    constant_PF = np.ones((50, 6), dtype=np.float32)
    assert same_as_lightgbm(
        lightgbm.train({"verbosity": -1}, lightgbm.Dataset(constant_PF, label=np.arange(50)), 2), constant_PF
    )


def test_other_trees_are_refused():
    with pytest.raises(ValueError, match="a tree of 40 leaves: expected at most 32"):
        trees_of(fitted(inputs(3_000), num_leaves=40).model_to_string())
    with pytest.raises(ValueError, match="zeros for missing"):
        trees_of(fitted(inputs(), zero_as_missing=True).model_to_string())


def test_another_number_of_inputs_is_refused():
    with pytest.raises(ValueError, match="expected 6 inputs"):
        trees_of(fitted(inputs()).model_to_string()).logits(np.zeros((2, 5), dtype=np.float32))


def rows(count, seed=0):
    generator = np.random.default_rng(seed)
    row_RF = generator.normal(size=(count, 6)).astype(np.float32)
    row_RF[:, 1] = generator.integers(3, size=count)
    row_RF[generator.random((count, 6)) < 0.2] = np.nan
    row_RF[:, 5] = generator.normal(size=count)  # without a missing value
    row_RF[generator.random(count) < 0.3, 4] = 0.0
    return row_RF


def model(*, zero_as_missing=False, num_rounds=40):
    row_RF = rows(600)
    label_R = (np.nan_to_num(row_RF[:, 0]) + np.isnan(row_RF[:, 2]) + row_RF[:, 5] > 0.5).astype(float)
    parameters = {"objective": "binary", "num_leaves": 15, "verbosity": -1, "num_threads": 1, "seed": 1}
    parameters |= {"min_data_in_leaf": 5, "zero_as_missing": zero_as_missing}
    return lightgbm.train(parameters, lightgbm.Dataset(row_RF, label=label_R, params=parameters), num_rounds)


def test_trees_without_splits_have_their_constant():
    row_RF = rows(50)
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 1_000}
    label_R = np.arange(50) % 3 == 0
    booster = lightgbm.train(parameters, lightgbm.Dataset(row_RF, label=label_R, params=parameters), 3)
    assert not path_contributions(paths_of(booster.model_to_string()), row_RF).any()


@pytest.mark.parametrize("zero_as_missing", [False, True])
def test_contributions_add_up_to_the_output_less_the_mean_of_the_roots(zero_as_missing):
    booster, row_RF = model(zero_as_missing=zero_as_missing), rows(300, seed=2)
    row_RF[:50, 5] = np.nan  # missing where no fitted row had none
    paths = paths_of(booster.model_to_string())
    divided_RF = path_contributions(paths, row_RF)
    roots = paths.value_N[paths.first_node_T].sum()
    output_R = np.asarray(booster.predict(row_RF, raw_score=True))
    assert np.allclose(divided_RF.sum(axis=1) + roots, output_R, atol=1e-5)
    assert np.abs(divided_RF[:, 0]).sum() > 10 * np.abs(divided_RF[:, 3]).sum()  # the label does not depend on 3


def test_categorical_splits_are_refused():
    row_RF, label_R = rows(600), np.nan_to_num(rows(600)[:, 1]) == 1
    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "max_cat_to_onehot": 1}
    data = lightgbm.Dataset(row_RF, label=label_R, params=parameters, categorical_feature=[1])
    with pytest.raises(ValueError, match="splits by thresholds"):
        paths_of(lightgbm.train(parameters, data, 2).model_to_string())
