"""The paper's protocol (section 5.1): AUC of the next step's links against as many random pairs.

N nodes known one step before    D width of a vector    P pairs    T metrics of steps and seeds
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.fitting import (
    FORECASTER_WITH,
    NUM_OLDER_STEPS,
    OLDER_STEP_WEIGHT,
    checked_scores,
    fitted_vectors,
    model_steps,
    older_vectors,
)
from dyformer.evaluation.protocols.protocol import Cell, Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.scored_pairs import ScoredPairs, from_table, log_metrics, metrics_of, to_table
from dyformer.evaluation.seasons import alike_steps, period_before
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, earlier_graph, prepare_graph
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP, DynamicGraph
from dyformer.sampling.pairs import LinkSplit, evaluated_steps, first_of_each_kind, joined, paper_examples
from dyformer.scoring.decoder import fit_decoder, hadamard, score
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.interfaces import Embedder, LabelledStep, Scorer

PAPER_METRICS: dict[str, dict[str, tuple[float, float, float, float]]] = {
    "rds": {
        "node2vec": (81.10, 82.85, 75.62, 76.25),
        "GraphSAGE": (85.49, 86.64, 80.21, 79.99),
        "DynAERNN": (80.56, 80.16, 68.43, 68.18),
        "DynGEM": (79.29, 81.94, 72.43, 74.49),
        "DySAT": (83.89, 83.60, 76.28, 76.87),
        "EvolveGCN": (85.35, 86.53, 78.36, 79.18),
        "DyFormer": (88.77, 89.77, 82.78, 82.89),
    },
    "uci": {
        "node2vec": (81.41, 81.39, 75.31, 75.82),
        "GraphSAGE": (79.85, 78.45, 76.56, 75.94),
        "DynAERNN": (79.29, 83.81, 77.39, 81.82),
        "DynGEM": (76.36, 78.22, 74.72, 76.34),
        "DySAT": (83.10, 86.32, 81.18, 83.43),
        "EvolveGCN": (85.81, 84.18, 81.99, 82.18),
        "DyFormer": (87.91, 88.49, 85.78, 86.21),
    },
    "yelp": {
        "node2vec": (68.93, 67.38, 68.83, 68.00),
        "GraphSAGE": (62.36, 58.36, 61.97, 58.49),
        "DynAERNN": (71.54, 72.29, 70.82, 71.56),
        "DynGEM": (69.43, 69.93, 69.23, 70.67),
        "DySAT": (69.00, 69.42, 69.12, 69.20),
        "EvolveGCN": (68.99, 69.41, 68.73, 68.63),
        "DyFormer": (73.39, 74.31, 73.32, 73.88),
    },
    "ml-10m": {
        "node2vec": (90.50, 89.48, 88.92, 88.01),
        "GraphSAGE": (86.31, 90.23, 85.18, 89.31),
        "DynAERNN": (87.01, 89.04, 86.89, 89.45),
        "DynGEM": (79.80, 84.86, 77.18, 82.62),
        "DySAT": (88.91, 90.63, 88.21, 88.98),
        "EvolveGCN": (92.79, 93.45, 90.91, 91.45),
        "DyFormer": (95.30, 96.16, 93.01, 93.56),
    },
}
"""AUC in percent: micro, macro, and both over new edges only (paper, tables of section 5.2), per dataset and method."""

OLDER_LINKS = 5_000
"""Links of an older labelled step at most, so that a fit on a large log takes seconds."""
SIGNIFICANT = 0.05
MIN_DIFFERENCES = 6  # of a test
TESTS_TITLE = f"Signed-rank tests over steps and seeds, p < {SIGNIFICANT} after Holm's correction:"

TESTS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "baseline": pl.String(),
        "num_differences": pl.Int64(),  # steps x seeds
        "num_above": pl.Int64(),  # of them, those in which the method is above the baseline, and below it
        "num_below": pl.Int64(),
        "is_above": pl.Boolean(),  # whether the ranks of the former have the greater sum, by which the test decides
        "p": pl.Float64(),
        "p_holm": pl.Float64(),
    }
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One step to forecast, with the split of one seed: all methods are evaluated on the same pairs.

    A method gets `past`, which holds no later step, and the labelled pairs in `labelled`.
    """

    graph: DynamicGraph
    step: int
    seed: int
    config: GraphConfig = field(default_factory=GraphConfig)

    @cached_property
    def split(self) -> LinkSplit:
        """The pairs of the step. Raises TooFewLinks for a step without enough of them."""
        return paper_examples(self.graph, self.step, seed=self.seed)

    @cached_property
    def past(self) -> PreparedGraph:
        """The steps before the forecast one."""
        return prepare_graph(self.graph, until=self.step - 1, config=self.config)

    @cached_property
    def labelled(self) -> tuple[LabelledStep, ...]:
        """The labelled pairs that every method may be fitted on, the forecast step's first.

        Of the forecast step the 40 % in `split.train` and `split.validation`, with weight 1; of up to four older steps
        the pairs, OLDER_LINKS positive and as many negative ones at most, with weights 0.5, 0.25, and so on. They lie
        as far apart as those of the other protocols; one without enough pairs is left out.
        """
        history = self.past.history
        older = alike_steps(self.step, _period(history, self.step), NUM_OLDER_STEPS)
        possible = evaluated_steps(history, first_step=2)
        return (
            LabelledStep(before=self.past, examples=joined(self.split.train, self.split.validation), weight=1.0),
            *(
                LabelledStep(
                    before=earlier_graph(self.past, step - 1),
                    examples=first_of_each_kind(
                        joined(*vars(paper_examples(history, step, seed=self.seed)).values()), OLDER_LINKS
                    ),
                    weight=OLDER_STEP_WEIGHT ** (1 + age),
                )
                for age, step in enumerate(older)
                if step in possible
            ),
        )


def evaluate_method(name: str, method: Embedder | Scorer, trial: Trial) -> list[ScoredPairs]:
    """Fit a method on the past and score the 60 % of the step's pairs that are left for the test.

    A Scorer gets the labelled pairs and gives one row. Vectors give two rows: one with the paper's decoder, and one,
    named with FORECASTER_WITH, of the forecaster that reads them. The paper's decoder is fitted on 20 % of the pairs,
    another 20 % chooses its regularisation, and it is fitted again on both: the labels that a Scorer gets of this step.
    With noise there is no row of the forecaster, because it reads interactions, which a noisy history does not have.
    Raises TooFewLinks for a step without enough pairs, and ValueError for vectors of another shape or that are not
    finite.
    """
    split = trial.split  # first, because a step with too few pairs needs no training
    if isinstance(method, Scorer):
        score_pairs = method.fit_pairs(trial.past, trial.labelled)
        return [_scored(name, trial, score_pairs(split.test.source_P, split.test.target_P))]
    vectors_ND = fitted_vectors(name, method, trial.past, trial.seed)
    decoded = _scored(name, trial, decoded_scores(vectors_ND, trial))
    if trial.config.noise > 0:
        return [decoded]
    vectors_of = {trial.past: vectors_ND, **older_vectors(name, method, trial.labelled[1:], trial.seed)}
    score_pairs = Forecaster(vectors_of=vectors_of.get, seed=trial.seed).fit_pairs(trial.past, trial.labelled)
    return [
        decoded,
        _scored(FORECASTER_WITH + name, trial, score_pairs(split.test.source_P, split.test.target_P)),
    ]


def decoded_scores(vectors_ND: NDArray[np.floating], trial: Trial) -> NDArray[np.float64]:
    """Fit the paper's decoder on the labelled pairs and score the test pairs [P]."""
    train, validation, test = (
        hadamard(vectors_ND, part.source_P, part.target_P)
        for part in (trial.split.train, trial.split.validation, trial.split.test)
    )
    labels = trial.split.train.positive_P, trial.split.validation.positive_P
    return score(fit_decoder(train, labels[0], (validation, labels[1])), test)


def _scored(name: str, trial: Trial, score_P: NDArray[np.float64]) -> ScoredPairs:
    test = trial.split.test
    score_P = checked_scores(name, score_P, len(test.source_P), trial.step)
    return ScoredPairs(method=name, seed=trial.seed, step=trial.step, family="random", **vars(test), score_P=score_P)


def wilcoxon_tests(metrics: pl.DataFrame, *, slice_name: str = "all") -> pl.DataFrame:
    """Test each method against each baseline over all steps and seeds; columns as in TESTS_SCHEMA.

    The two-sided signed-rank test (Wilcoxon, 1945) of the differences in AUC, for at least 6 of them: fewer can
    never reach p < 0.05. The tests of one method are one family, corrected by Holm (1979), as Demsar (2006) advises
    for the comparison of one method with several others. Seeds of one step share its links, so that with many seeds
    the p-values are too small: the interval of the difference is stricter there. `metrics` has the columns of
    METRICS_SCHEMA.
    """
    is_compared = (pl.col("metric") == "auc") & (pl.col("slice") == slice_name) & pl.col("seed").is_not_null()
    rows = metrics.filter(is_compared & ~pl.col("step").is_in(["micro", "macro"])).select(
        "method", "seed", "step", "value", "is_baseline"
    )
    compared = rows.filter(~pl.col("is_baseline")).join(
        rows.filter("is_baseline"), on=["seed", "step"], suffix="_baseline", maintain_order="left_right"
    )
    tests = []
    for (method,), of_method in compared.group_by("method", maintain_order=True):
        differences = {
            name: (group["value"] - group["value_baseline"]).to_numpy()
            for (name,), group in of_method.group_by("method_baseline", maintain_order=True)
            if len(group) >= MIN_DIFFERENCES
        }
        p_values = [_signed_rank(difference_T) for difference_T in differences.values()]
        for (name, difference_T), p, corrected in zip(differences.items(), p_values, holm(p_values), strict=True):
            num_above, num_below = int((difference_T > 0).sum()), int((difference_T < 0).sum())
            signed = num_above, num_below, _is_above(difference_T)
            tests.append((method, name, len(difference_T), *signed, p, corrected))
    return pl.DataFrame(tests, schema=TESTS_SCHEMA, orient="row")


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number, so that one false discovery among all is improbable (Holm, 1979)."""
    p_T = np.array(p_values, dtype=np.float64)
    order_T = np.argsort(p_T, kind="stable")
    corrected_T = np.empty(len(p_T))
    corrected_T[order_T] = np.maximum.accumulate(p_T[order_T] * np.arange(len(p_T), 0, -1))
    return np.minimum(corrected_T, 1).tolist()


def _is_above(difference_T: NDArray[np.float64]) -> bool:
    from scipy.stats import rankdata  # late, because it takes 0.4 s to import

    unequal_T = difference_T[difference_T != 0]
    return bool(np.sign(unequal_T) @ rankdata(np.abs(unequal_T)) > 0)


def _signed_rank(difference_T: NDArray[np.float64]) -> float:
    if not difference_T.any():  # the test is not defined without a difference
        return 1.0
    from scipy.stats import wilcoxon  # late, because it takes 0.4 s to import

    return float(wilcoxon(difference_T).pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def significance(rows: pl.DataFrame, slice_name: str = "all") -> list[str]:
    """Give a sentence for each method, the best first, on its tests against the baselines; none for too few steps."""
    tests, best = wilcoxon_tests(rows, slice_name=slice_name), rows["best_baseline"].drop_nulls().first()
    values = dict(rows.filter(step="macro").group_by("method").agg(pl.col("value").mean()).iter_rows())
    sentences = []
    for method in sorted(tests["method"].unique(), key=lambda method: (-values.get(method, 0), method)):
        method_tests = tests.filter(method=method)
        significant = method_tests.filter(pl.col("p_holm") < SIGNIFICANT)
        num_above, num_below = (len(significant.filter(is_above=side)) for side in (True, False))
        sentence = f"{method}: above {num_above} of {len(method_tests)} baselines, below {num_below}"
        sentences += [sentence + _against(test) for test in method_tests.filter(baseline=best).to_dicts()] or [sentence]
    return [TESTS_TITLE, *sentences] if sentences else []


def _against(test: dict[str, Any]) -> str:
    p = f"{test['p_holm']:.2g}"
    return f"; above {test['baseline']} in {test['num_above']} of {test['num_differences']} (p = {p})"


def possible_steps(log: Log) -> list[int]:
    """List the steps with enough links between known nodes."""
    return evaluated_steps(log.graph(log.num_steps), first_step=FIRST_EVALUATED_STEP)


def _trial(job: Job) -> Trial:
    graph = job.log.graph(job.unit, interactions=True)
    return Trial(graph=graph, step=job.unit, seed=job.seed, config=job.config)


def _evaluate(title: str, method: Embedder | Scorer, trial: Trial) -> Tables:
    return {"pairs": to_table(evaluate_method(title, method, trial))}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give the metrics of all pairs, and those of the log."""
    scored = [pairs for result in results for pairs in from_table(result.table("pairs"))]
    steps = sorted({pairs.step for pairs in scored})
    of_log = log_metrics(log.graph(max(steps)), steps, log.dataset)
    return {"metrics": pl.concat([metrics_of(scored, log.dataset, "paper", baselines=baselines), of_log])}


def _table(part: str, key: str, pairs: str, position: int) -> TableOf:
    """Give the table of one slice; `position` is that of its micro value in PAPER_METRICS."""
    usual: Mapping[str, Any] = {"metric": "auc", "family": "random", "scale": 100.0, "digits": 2}
    return TableOf(
        name=part,
        key=key,
        slice=part,
        columns=(
            Column(title="Micro AUC", over="micro", form="{:.2f}", interval=False, missing=None, single=None, **usual),
            Column(title="Macro AUC", form="{:.2f}", single="AUC", missing=None, **usual),
            Column(title="difference", value="difference", form="{:+.2f}", missing=None, **usual),
        ),
        title=f"{{dataset}}, paper protocol: AUC in percent [95 % interval]; {{num}} {pairs}, {{where}}, {{seeds}}"
        "{best}",
        contents=f"{part} links",
        measure="AUC in percent [95 % interval]",
        sentences=lambda rows, metrics: significance(rows, part),
        published={
            dataset: {
                f"{method} (paper)": {"Micro AUC": values[position], "Macro AUC": values[position + 1]}
                for method, values in methods.items()
            }
            for dataset, methods in PAPER_METRICS.items()
        },
    )


def _period(graph: DynamicGraph, step: int) -> int:
    return period_before(graph, step, num_steps=NUM_OLDER_STEPS)


PROTOCOL = Protocol(
    name="paper",
    sentence="AUC of the next step's links against random pairs",
    heading="The paper's protocol",
    methods=(Embedder, Scorer),
    units=possible_steps,
    need="a step needs two earlier steps, and enough links between known nodes",
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        _table("all", "scores", "test pairs", 0),
        _table("new", "new-scores", "test pairs that no earlier step linked", 2),
    ),
    trained_until=lambda log, steps: model_steps(max(steps) - 1, _period(log.graph(max(steps) - 1), max(steps))),
    reads_interactions=False,
    main=Cell("auc", "random", "all"),
    plots=("steps", "comparison"),
)
