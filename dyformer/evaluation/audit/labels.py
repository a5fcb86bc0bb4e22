"""An audited case -> checks of the labels: which ones methods learn from, and which ones they must not know.

Q queries    P pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.audit.case import AuditCase, Check, Fitted, described
from dyformer.evaluation.audit.controls import STANDARD_ERRORS, above, links_of
from dyformer.evaluation.fitting import OLDER_STEP_WEIGHT
from dyformer.evaluation.protocols.paper import Trial, evaluate_method
from dyformer.evaluation.scored_queries import RankingTrial, evaluate_queries
from dyformer.evaluation.seasons import period_before
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window
from dyformer.sampling.pairs import LinkExamples, NewPartners, evaluated_steps, is_among, pair_keys
from dyformer.sampling.ranking_queries import ranking_queries
from dyformer.scoring.interfaces import LabelledStep, Score, Scorer
from dyformer.scoring.metrics import auc

WORLD_NODES, WORLD_STEPS, WORLD_LINKS = 60, 6, 40


def labelled_check(case: AuditCase, trial: RankingTrial) -> Check:
    """Compare the labelled steps with their definition, read from the log itself."""
    period = period_before(case.graph, case.until + 1)
    ages = [(case.until - step.before.until) // period - 1 for step in trial.labelled]
    wrong = [
        f"{number}: {fault}"
        for number, (age, step) in enumerate(zip(ages, trial.labelled, strict=True), start=1)
        for fault in _label_faults(case, step, age_weight=OLDER_STEP_WEIGHT**age)
    ]
    steps = [step.before.until + 1 for step in trial.labelled]
    if steps != sorted(set(steps), reverse=True):
        wrong.append(f"steps {steps}, expected the newest first")
    return Check(
        name="labelled steps",
        compared="labels, weights and features' steps of the labelled pairs, and the log",
        methods=(),
        passed=not wrong,
        detail="; ".join(wrong) or f"pairs of steps {', '.join(map(str, steps))}, each before step {case.until + 1}",
    )


def _label_faults(case: AuditCase, step: LabelledStep, *, age_weight: float) -> list[str]:
    labelled, before = step.before.until + 1, step.before
    if labelled > case.until:
        return [f"labels of step {labelled}, which is forecast"]
    linked = links_of(case.graph, labelled)
    ends_2P, positive_P = (
        np.concatenate([parts, others], axis=-1)
        for parts, others in zip(_pairs(step.examples), _pairs(step.new_partners), strict=True)
    )
    is_linked_P = np.array([pair in linked for pair in zip(*ends_2P.tolist(), strict=True)])
    assert before.history.interactions is not None
    faults = {
        "labels differ from the log's": not np.array_equal(is_linked_P, positive_P),
        f"weight {step.weight}, expected {age_weight}": step.weight != age_weight,
        "nodes not known before": ends_2P.max(initial=-1) >= case.graph.snapshots[labelled - 2].num_nodes,
        "features with the labelled step": before.history.num_steps >= labelled
        or before.history.interactions.position_R.max(initial=0) >= labelled - 1,
    }
    return [fault for fault, is_found in faults.items() if is_found]


def _pairs(pairs: LinkExamples | NewPartners) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    return np.stack([pairs.source_P, pairs.target_P]), pairs.positive_P


@dataclass(frozen=True, kw_only=True)
class LabelMemory:
    """Score the labelled pairs of the forecast step by their labels and all other pairs alike."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Remember the labels of the step after `graph.until`."""
        num_nodes = len(graph.history.node_N)
        labels = [
            pairs
            for step in labelled
            if step.before.until >= graph.until
            for pairs in (step.examples, step.new_partners)
        ]
        keys = {
            is_positive: np.sort(
                np.concatenate([np.empty(0, np.int64)] + [_keys(num_nodes, part, is_positive) for part in labels])
            )
            for is_positive in (True, False)
        }

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            key_P = pair_keys(num_nodes, source_P, target_P)
            return is_among(key_P, keys[True]).astype(np.float64) - is_among(key_P, keys[False])

        return score_pairs


def _keys(num_nodes: int, examples: LinkExamples | NewPartners, is_positive: bool) -> NDArray[np.int64]:
    wanted_P = examples.positive_P == is_positive
    return pair_keys(num_nodes, examples.source_P[wanted_P], examples.target_P[wanted_P])


def memory_check(case: AuditCase, trial: RankingTrial) -> Check:
    """Let a method remember labels: no pair on which it is evaluated may be among them."""
    above_Q = np.concatenate([above(scored, "random") for scored in evaluate_queries("memory", LabelMemory(), trial)])
    auc_of = {"prequential": float(above_Q.mean()) if (above_Q != 0.5).any() else 0.5}
    step = case.until + 1
    if step in evaluated_steps(case.graph, first_step=step):
        paper = Trial(graph=case.graph, step=step, seed=case.seed, config=case.config)
        (scored,) = evaluate_method("memory", LabelMemory(), paper)
        auc_of["paper"] = auc(scored.positive_P, scored.score_P) if scored.score_P.any() else 0.5
    wrong = {f"protocol {name}": f"AUC {value:.3f}" for name, value in auc_of.items() if value != 0.5}
    return Check(
        name="label memory",
        compared="the labelled pairs of a method that remembers them, and the pairs on which it is evaluated",
        methods=("label memory",),
        passed=not wrong,
        detail=described(wrong) or f"AUC 0.5 in the protocols {' and '.join(auc_of)}: it recognises no pair",
    )


def permutation_check(case: AuditCase, fitted: Fitted) -> Check:
    """Permute the labels of the forecast step in the paper's protocol: no method may do better than chance."""
    compared, step = "permuted labels, of labelled and of test pairs", case.until + 1
    described_as = {"name": "label permutation", "compared": compared, "methods": tuple(case.methods)}
    if step not in evaluated_steps(case.graph, first_step=step):
        return Check(**described_as, passed=None, detail=f"step {step} has too few links for the paper's protocol")
    trial = Trial(graph=case.graph, step=step, seed=case.seed, config=case.config)
    generator = np.random.default_rng(case.seed)
    permuted = {name: _permuted(part, generator) for name, part in vars(trial.split).items()}
    vars(trial)["split"] = replace(trial.split, **permuted)  # a cached property, which everything else is read from
    auc_of, wrong = {}, {}
    for name, method in fitted.methods.items():
        for scored in evaluate_method(name, method, trial):
            num = int(scored.positive_P.sum()), int((~scored.positive_P).sum())
            error = np.sqrt((sum(num) + 1) / (12 * num[0] * num[1]))  # of the Mann-Whitney statistic
            auc_of[scored.method] = auc(scored.positive_P, scored.score_P)
            if not auc_of[scored.method] <= 0.5 + STANDARD_ERRORS * error:
                wrong[scored.method] = f"AUC {auc_of[scored.method]:.3f} with a standard error of {error:.3f}"
    detail = f"AUC of {len(auc_of)} rows from {min(auc_of.values()):.3f} to {max(auc_of.values()):.3f}"
    return Check(**described_as, passed=not wrong, detail=described(wrong) or detail)


def _permuted(examples: LinkExamples, generator: np.random.Generator) -> LinkExamples:
    return replace(examples, positive_P=generator.permutation(examples.positive_P))


def own_links_check(case: AuditCase) -> Check:
    """Fit methods where no pair is ever linked twice: past pairs must not outrank new ones.

    A method whose labelled pairs have features that know their links learns the opposite. Methods that learn from no
    labels may rank past pairs first, and are left out.
    """
    scorers = {name: method for name, method in case.methods.items() if isinstance(method, Scorer)}
    small = replace(case, graph=_world(case.seed), until=WORLD_STEPS - 1, methods=scorers)
    queries = ranking_queries(small.graph, WORLD_STEPS, seed=case.seed, families=("historical",))
    trial = small.trial(small.graph, queries)
    flipped = [
        replace(
            step,
            examples=replace(step.examples, positive_P=~step.examples.positive_P),
            new_partners=replace(step.new_partners, positive_P=~step.new_partners.positive_P),
        )
        for step in trial.labelled
    ]
    scored, opposite = (
        Fitted(case=small, trial=trial, other_labels=labelled).on(queries) for labelled in (trial.labelled, flipped)
    )
    values = {
        title: float(above(scored_queries, "historical").mean())
        for title, scored_queries in scored.items()
        if not np.array_equal(scored_queries.score_S, opposite[title].score_S)
    }
    wrong = {title: f"AUC {value:.3f} against past pairs" for title, value in values.items() if not value >= 0.5}
    return Check(
        name="own links",
        compared="new pairs and past pairs, where no pair is linked twice, by methods that learn from labels",
        methods=tuple(values),
        passed=not wrong if values else None,
        detail=described(wrong)
        or (f"AUC {min(values.values()):.3f} and more" if values else "no method learns from labels"),
    )


def _world(seed: int) -> DynamicGraph:
    """Give a log of random pairs, each linked once."""
    generator = np.random.default_rng([seed, WORLD_NODES])
    source_P, target_P = np.triu_indices(WORLD_NODES, k=1)
    chosen_R = generator.permutation(len(source_P))[: WORLD_STEPS * WORLD_LINKS]
    swapped_R = generator.random(len(chosen_R)) < 0.5
    events = {
        "source": np.where(swapped_R, source_P[chosen_R], target_P[chosen_R]),
        "target": np.where(swapped_R, target_P[chosen_R], source_P[chosen_R]),
        "time": np.arange(len(chosen_R)),
    }
    return build_snapshots(pl.DataFrame(events), Window(rule="equal_time", length=str(WORLD_LINKS)), "step")
