import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_info, threadpool_limits

import dyformer.scoring.decoder
from dyformer.scoring.decoder import STRENGTHS, LinkDecoder, fit_decoder, hadamard, logit, score
from dyformer.scoring.metrics import auc


def examples(seed: int, num_pairs: int, width: int, signal: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    positive_P = np.arange(num_pairs) % 2 == 0
    inputs_PF = generator.normal(size=(num_pairs, width)) * 3 + 5
    inputs_PF[:, 0] += signal * positive_P
    return inputs_PF, positive_P


def plain(inputs_PF, positive_P, test_PF, strength: float) -> np.ndarray:
    scaler = StandardScaler().fit(inputs_PF)
    regression = LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(scaler.transform(inputs_PF), positive_P)
    return regression.predict_proba(scaler.transform(test_PF))[:, 1]


def test_hadamard_multiplies_the_two_ends():
    vectors = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 4.0]], dtype=np.float32)
    product = hadamard(vectors, np.array([0, 2]), np.array([1, 1]))
    np.testing.assert_array_equal(product, [[3.0, -2.0], [1.5, -4.0]])
    assert product.dtype == np.float64


def test_scores_are_the_logistic_regression_on_inputs_standardised_with_train_statistics():
    inputs_PF, positive_P = examples(0, 80, 6)
    test_PF, _ = examples(1, 30, 6)
    decoder = fit_decoder(inputs_PF, positive_P)
    np.testing.assert_allclose(decoder.mean_F, inputs_PF.mean(axis=0))
    np.testing.assert_allclose(decoder.scale_F, inputs_PF.std(axis=0))
    np.testing.assert_allclose(score(decoder, test_PF), plain(inputs_PF, positive_P, test_PF, 1.0), atol=1e-6)


def test_regularisation_is_the_one_with_the_best_validation_auc_and_the_last_fit_is_on_all_pairs():
    inputs_PF, positive_P = examples(0, 60, 40, signal=2.0)
    validation = examples(1, 60, 40, signal=2.0)
    decoder = fit_decoder(inputs_PF, positive_P, validation)
    scores = {s: auc(validation[1], plain(inputs_PF, positive_P, validation[0], s)) for s in STRENGTHS}
    best = max(STRENGTHS, key=lambda s: scores[s])
    assert len(set(scores.values())) > 1
    test_PF, _ = examples(2, 30, 40)
    every = np.concatenate([inputs_PF, validation[0]]), np.concatenate([positive_P, validation[1]])
    np.testing.assert_allclose(score(decoder, test_PF), plain(*every, test_PF, best), atol=1e-6)


def test_a_pair_of_weight_two_counts_as_two():
    inputs_PF, positive_P = examples(0, 80, 6)
    weight_P = np.random.default_rng(0).integers(1, 4, size=80)
    weighted = fit_decoder(inputs_PF, positive_P, weight_P=weight_P.astype(float), strength=0.1)
    repeated = fit_decoder(np.repeat(inputs_PF, weight_P, axis=0), np.repeat(positive_P, weight_P), strength=0.1)
    for name in ("mean_F", "scale_F", "coefficient_F", "intercept"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), atol=1e-6)
    validation = examples(1, 60, 6)
    chosen = fit_decoder(inputs_PF, positive_P, validation, weight_P=2 * np.ones(80))
    doubled = np.repeat(inputs_PF, 2, axis=0), np.repeat(positive_P, 2)
    np.testing.assert_allclose(chosen.mean_F, np.concatenate([doubled[0], validation[0]]).mean(axis=0))


def test_fits_are_at_their_optimum_also_for_correlated_inputs():
    inputs_PF, positive_P = examples(0, 400, 6, signal=3.0)
    inputs_PF[:, 5] = inputs_PF[:, :5].sum(axis=1) + 0.01 * inputs_PF[:, 5]
    for strength, decoder in zip(
        STRENGTHS,
        dyformer.scoring.decoder._fits((inputs_PF, positive_P), None, STRENGTHS),
        strict=True,
    ):
        standard_PF = (inputs_PF - decoder.mean_F) / decoder.scale_F
        gradient_F = standard_PF.T @ (score(decoder, inputs_PF) - positive_P) + decoder.coefficient_F / strength
        assert np.abs(gradient_F).max() / len(positive_P) < 1e-6


def test_a_fit_runs_on_one_blas_thread_and_restores_the_limit(monkeypatch):
    def threads_of_blas() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    during = []
    monkeypatch.setattr(dyformer.scoring.decoder, "auc", lambda *_: during.append(threads_of_blas()) or 0.5)
    with threadpool_limits(2, user_api="blas"):
        fit_decoder(*examples(0, 60, 4), examples(1, 60, 4))
        assert threads_of_blas() == {2}
    assert during == [{1}] * len(STRENGTHS)


@pytest.mark.parametrize("seed", range(5))
def test_forty_separable_examples_of_128_inputs_converge_without_a_warning(seed: int):
    train, validation = examples(seed, 40, 128), examples(seed + 100, 40, 128)
    for inputs_PF, positive_P in (train, validation):
        inputs_PF += positive_P[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoder = fit_decoder(*train, validation)
    assert np.isfinite(decoder.coefficient_F).all()
    assert auc(validation[1], score(decoder, validation[0])) > 0.9


def test_extreme_scales_and_equal_columns_converge_without_a_warning():
    inputs_PF, positive_P = examples(0, 50, 10)
    inputs_PF = np.concatenate([inputs_PF, inputs_PF * 1e9, inputs_PF * 1e-9], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(score(fit_decoder(inputs_PF, positive_P, (inputs_PF, positive_P)), inputs_PF)).all()


def test_a_constant_input_has_no_weight():
    inputs_PF, positive_P = examples(0, 50, 4)
    inputs_PF[:, 2] = 0.1
    decoder = fit_decoder(inputs_PF, positive_P)
    test_PF = inputs_PF.copy()
    test_PF[:, 2] = 1e6
    np.testing.assert_array_equal(score(decoder, test_PF), score(decoder, inputs_PF))
    np.testing.assert_allclose(
        score(decoder, inputs_PF), plain(inputs_PF[:, [0, 1, 3]], positive_P, inputs_PF[:, [0, 1, 3]], 1.0), atol=1e-6
    )


def test_collapsed_vectors_score_chance_and_do_not_fail():
    inputs_PF, positive_P = np.zeros((20, 8)), np.arange(20) % 2 == 0
    decoder = fit_decoder(inputs_PF, positive_P, (inputs_PF, positive_P))
    np.testing.assert_allclose(score(decoder, inputs_PF), 0.5, atol=1e-12)


def test_a_decoder_is_plain_arrays():
    decoder = fit_decoder(*examples(0, 20, 3))
    copied = LinkDecoder(
        mean_F=np.array(decoder.mean_F.tolist()),
        scale_F=np.array(decoder.scale_F.tolist()),
        coefficient_F=np.array(decoder.coefficient_F.tolist()),
        intercept=decoder.intercept,
    )
    test_PF = examples(1, 10, 3)[0]
    np.testing.assert_array_equal(logit(copied, test_PF), logit(decoder, test_PF))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_has_the_same_log_odds_alone_and_beside_others(dtype):
    inputs_PF = examples(1, 401, 37)[0].astype(dtype)
    inputs_PF[200] = inputs_PF[7]
    decoder = fit_decoder(*examples(0, 400, 37))
    logit_P = logit(decoder, inputs_PF)
    assert logit_P[200] == logit_P[7]
    np.testing.assert_array_equal(logit(decoder, inputs_PF[::-1]), logit_P[::-1])
    np.testing.assert_array_equal(logit(decoder, np.asfortranarray(inputs_PF)), logit_P)
    np.testing.assert_array_equal(np.concatenate([logit(decoder, row_F[None]) for row_F in inputs_PF]), logit_P)


def test_unusable_examples_are_refused():
    inputs_PF, positive_P = examples(0, 20, 3)
    with pytest.raises(ValueError, match="all 20 are of one kind"):
        fit_decoder(inputs_PF, np.ones(20, dtype=bool))
    broken_PF = inputs_PF.copy()
    broken_PF[3, 1] = np.nan
    with pytest.raises(ValueError, match="finite decoder inputs"):
        fit_decoder(broken_PF, positive_P)
    with pytest.raises(ValueError, match="reads 3 inputs of a pair, found 2"):
        score(fit_decoder(inputs_PF, positive_P), inputs_PF[:, :2])
