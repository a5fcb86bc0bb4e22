"""Claims about paths through LightGBM's trees: its outputs, divided among the features."""

import lightgbm
import numpy as np
import pytest

from dyformer.scoring.tree_paths import path_contributions, paths_of


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
