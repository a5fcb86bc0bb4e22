"""An audited case -> checks against what is known beforehand: chance, planted rules, definitions.

Q queries    C candidates of a query    P pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.baselines.heuristics import EdgeBank
from dyformer.embedder import LabelledStep, Score, Scorer
from dyformer.evaluation.audit.case import AuditCase, Check, Fitted, described, fit_all
from dyformer.evaluation.audit.poisons import graph_of, rows_of
from dyformer.evaluation.bootstrap import node_resamples
from dyformer.evaluation.prequential import RankingTrial, ScoredQueries, evaluate_queries
from dyformer.evaluation.protocols import OLDER_STEP_WEIGHT, Trial, evaluate_method
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED, Cell, StepMetric, step_metrics
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.datasets import Window
from dyformer.sampling.pairs import LinkExamples, evaluated_steps, is_among, pair_keys
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries, ranking_queries, step_rows
from dyformer.scoring.metrics import auc

STANDARD_ERRORS = 4.0  # a method at chance is farther from 0.5 once in 16,000 times
PLANTED_AUC = 0.95
EXACT = 1e-12
WORLD_NODES, WORLD_STEPS, WORLD_LINKS = 60, 6, 40


def labelled_check(case: AuditCase, trial: RankingTrial) -> Check:
    """Compare the labelled steps with their definition, read from the log itself."""
    wrong = [
        f"{age + 1}: {fault}"
        for age, step in enumerate(trial.labelled)
        for fault in _label_faults(case, step, age_weight=OLDER_STEP_WEIGHT ** (case.until - step.before.until - 1))
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
    labelled, before, examples = step.before.until + 1, step.before, step.examples
    if labelled > case.until:
        return [f"labels of step {labelled}, which is forecast"]
    linked = _links(case.graph, labelled)
    pairs = zip(examples.source_P.tolist(), examples.target_P.tolist(), strict=True)
    is_linked_P = np.array([pair in linked for pair in pairs])
    known = max(int(examples.source_P.max(initial=-1)), int(examples.target_P.max(initial=-1)))
    assert before.history.interactions is not None
    faults = {
        "labels differ from the log's": not np.array_equal(is_linked_P, examples.positive_P),
        f"weight {step.weight}, expected {age_weight}": step.weight != age_weight,
        "nodes not known before": known >= case.graph.snapshots[labelled - 2].num_nodes,
        "features with the labelled step": before.history.num_steps >= labelled
        or before.history.interactions.position_R.max(initial=0) >= labelled - 1,
    }
    return [fault for fault, is_found in faults.items() if is_found]


def _links(graph: DynamicGraph, step: int) -> set[tuple[int, int]]:
    source_R, target_R = step_rows(graph, step)
    links = set(zip(source_R.tolist(), target_R.tolist(), strict=True))
    return links if graph.directed else links | {(target, source) for source, target in links}


def candidates_check(case: AuditCase, queries: RankingQueries) -> Check:
    """Compare the queries of the forecast step and their candidates with their definition."""
    links, num_known = _links(case.graph, queries.step), case.graph.snapshots[queries.step - 2].num_nodes
    past = {pair for step in range(1, queries.step) for pair in _links(case.graph, step)}
    historical = FAMILIES.index("historical")
    wrong: set[str] = set()
    for row, (source, target) in enumerate(zip(queries.source_Q.tolist(), queries.target_Q.tolist(), strict=True)):
        candidates = queries.candidate_QC[row][queries.family_QC[row] >= 0].tolist()
        partners = queries.candidate_QC[row][queries.family_QC[row] == historical].tolist()
        faults = {
            "a true pair is no link": (source, target) not in links,
            "a candidate is a link": any((source, node) in links for node in candidates),
            "a candidate is there twice": len(set(candidates)) < len(candidates),
            "a node was not known before": max([source, target, *candidates]) >= num_known,
            "a node is its own candidate": source in candidates,
            "a past partner is none": any((source, n) not in past and (n, source) not in past for n in partners),
        }
        wrong |= {fault for fault, is_found in faults.items() if is_found}
    return Check(
        name="candidates",
        compared=f"{len(queries.source_Q)} queries of step {queries.step} with their candidates, and the log",
        methods=(),
        passed=not wrong,
        detail="; ".join(sorted(wrong)) or f"{int((queries.family_QC >= 0).sum())} candidates, none of them a link",
    )


def chance_check(case: AuditCase, fitted: Fitted, queries: RankingQueries) -> Check:
    """Rank links that were replaced by uniform pairs among uniform candidates: every method must be at chance."""
    auc_of, wrong = {}, {}
    for title, scored in fitted.on(queries).items():
        above_Q = _above(scored, _uniform(case.graph))
        error = float(above_Q.std() / np.sqrt(len(above_Q)))
        auc_of[title] = float(above_Q.mean())
        if not abs(auc_of[title] - 0.5) <= STANDARD_ERRORS * error + EXACT:
            wrong[title] = f"AUC {auc_of[title]:.3f} with a standard error of {error:.3f}"
    low, high = min(auc_of.values()), max(auc_of.values())
    return Check(
        name="chance",
        compared=f"{len(queries.source_Q)} uniform pairs in the place of step {case.until + 1}, and uniform candidates",
        methods=tuple(case.methods),
        passed=not wrong,
        detail=described(wrong) or f"AUC of {len(auc_of)} rows from {low:.3f} to {high:.3f}",
    )


def planted_check(case: AuditCase, past: PreparedGraph) -> Check:
    """Let the links of the step `until` recur at the next one: a method that knows the rule must find them."""
    rows = rows_of(case.graph).filter(pl.col("step") <= case.until)
    newest, snapshot = rows.filter(pl.col("step") == case.until), case.graph.snapshots[case.until]
    again = newest.with_columns(step=pl.col("step") + 1, time=pl.lit(snapshot.start_time, dtype=pl.Int64))
    graph = graph_of(pl.concat([rows, again]), case.graph)
    queries = case.queries(graph, case.until + 1)
    score = EdgeBank(memory="last").fit_pairs(past, ())
    scored = ScoredQueries(method="", seed=case.seed, queries=queries, score_S=score(*_ends(queries)))
    found = float(_above(scored, _uniform(case.graph)).mean())
    return Check(
        name="planted rule",
        compared=f"the links of step {case.until} once more at step {case.until + 1}, by a method that remembers them",
        methods=("EdgeBank (last)",),
        passed=found >= PLANTED_AUC,
        detail=f"AUC {found:.3f}, expected {PLANTED_AUC} and more",
    )


def _uniform(graph: DynamicGraph) -> str:
    """Name the family whose candidates are drawn like a random link: uniform over all possible targets."""
    return "typed" if graph.side_N.any() else "random"


def _above(scored: ScoredQueries, family: str) -> NDArray[np.float64]:
    """Give the fraction of each query's candidates that its true pair outscores, ties counting half."""
    queries = scored.queries
    among_QC = queries.family_QC == FAMILIES.index(family)
    above_QC = (scored.score_Q[:, None] > scored.score_QC) + (scored.score_Q[:, None] == scored.score_QC) / 2
    used_Q = among_QC.any(axis=1)
    return (above_QC * among_QC).sum(axis=1)[used_Q] / among_QC.sum(axis=1)[used_Q]


def _ends(queries: RankingQueries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return queries.pairs.source_S, queries.pairs.target_S


@dataclass(frozen=True, kw_only=True)
class LabelMemory:
    """Score the labelled pairs of the forecast step by their labels and all other pairs alike."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Remember the labels of the step after `graph.until`."""
        num_nodes = len(graph.history.node_N)
        known = [step.examples for step in labelled if step.before.until >= graph.until]
        keys = {
            is_positive: np.sort(
                np.concatenate([np.empty(0, np.int64)] + [_keys(num_nodes, each, is_positive) for each in known])
            )
            for is_positive in (True, False)
        }

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            key_P = pair_keys(num_nodes, source_P, target_P)
            return is_among(key_P, keys[True]).astype(np.float64) - is_among(key_P, keys[False])

        return score_pairs


def _keys(num_nodes: int, examples: LinkExamples, is_positive: bool) -> NDArray[np.int64]:
    wanted_P = examples.positive_P == is_positive
    return pair_keys(num_nodes, examples.source_P[wanted_P], examples.target_P[wanted_P])


def memory_check(case: AuditCase, trial: RankingTrial) -> Check:
    """Let a method remember labels: no pair on which it is evaluated may be among them."""
    above_Q = np.concatenate([_above(each, "random") for each in evaluate_queries("memory", LabelMemory(), trial)])
    found = {"prequential": float(above_Q.mean()) if (above_Q != 0.5).any() else 0.5}
    step = case.until + 1
    if step in evaluated_steps(case.graph, first_step=step):
        paper = Trial(graph=case.graph, step=step, seed=case.seed, config=case.config)
        (scored,) = evaluate_method("memory", LabelMemory(), paper)
        found["paper"] = auc(scored.positive_P, scored.score_P) if scored.score_P.any() else 0.5
    wrong = {f"protocol {name}": f"AUC {value:.3f}" for name, value in found.items() if value != 0.5}
    return Check(
        name="label memory",
        compared="the labelled pairs of a method that remembers them, and the pairs on which it is evaluated",
        methods=("label memory",),
        passed=not wrong,
        detail=described(wrong) or f"AUC 0.5 in the protocols {' and '.join(found)}: it recognises no pair",
    )


def permutation_check(case: AuditCase, fitted: Fitted) -> Check:
    """Permute the labels of the forecast step in the paper's protocol: no method may do better than chance."""
    compared, step = "permuted labels, of labelled and of test pairs", case.until + 1
    about = {"name": "label permutation", "compared": compared, "methods": tuple(case.methods)}
    if step not in evaluated_steps(case.graph, first_step=step):
        return Check(**about, passed=None, detail=f"step {step} has too few links for the paper's protocol")
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
    return Check(**about, passed=not wrong, detail=described(wrong) or detail)


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
    flipped = [replace(s, examples=replace(s.examples, positive_P=~s.examples.positive_P)) for s in trial.labelled]
    scored, opposite = (fit_all(small, trial, labelled).on(queries) for labelled in (trial.labelled, flipped))
    found = {
        title: float(_above(each, "historical").mean())
        for title, each in scored.items()
        if not np.array_equal(each.score_S, opposite[title].score_S)
    }
    wrong = {title: f"AUC {value:.3f} against past pairs" for title, value in found.items() if not value >= 0.5}
    return Check(
        name="own links",
        compared="new pairs and past pairs, where no pair is linked twice, by methods that learn from labels",
        methods=tuple(found),
        passed=not wrong if found else None,
        detail=described(wrong)
        or (f"AUC {min(found.values()):.3f} and more" if found else "no method learns from labels"),
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


def evaluator_check(case: AuditCase, queries: RankingQueries) -> Check:
    """Evaluate scores whose metrics are known: constant, perfect, reversed, and random ones by the definition."""
    generator, num = np.random.default_rng(case.seed), len(queries.pairs.source_S)
    true_S = np.isin(np.arange(num), queries.pairs.position_Q).astype(np.float64)
    scores = {
        "constant": np.zeros(num),
        "perfect": true_S,
        "reversed": -true_S,
        "random": generator.integers(9, size=num),
    }
    scored = [
        ScoredQueries(method=name, seed=0, queries=queries, score_S=values * 1.0) for name, values in scores.items()
    ]
    resamples = node_resamples([np.concatenate(_ends(queries))], num_resamples=2, generator=generator)
    found = step_metrics(scored, case.graph, resamples)
    alone = step_metrics(scored[-1:], case.graph, resamples)
    num_Q = (queries.family_QC >= 0).sum(axis=1)
    num_Q = num_Q[num_Q > 0]
    ranks = {
        "constant": 1 + num_Q / 2,
        "perfect": np.ones(len(num_Q)),
        "reversed": 1.0 + num_Q,
        "random": _plain_ranks(scored[-1]),
    }
    wrong: dict[str, str] = {}
    for name, rank_Q in ranks.items():
        expected = {"mrr": (1 / rank_Q).mean(), "hits_at_10": (rank_Q <= 10).mean()}
        for metric, value in expected.items():
            wrong |= _deviation(f"{name} {metric}", found[name, 0][metric, MIXED, KNOWN].value, value)
    for name, value in (("constant", 0.5), ("perfect", 1.0), ("reversed", 0.0)):
        for metric, family, part in (cell for cell in found[name, 0] if cell[0] == "auc"):
            wrong |= _deviation(f"{name} auc {family} {part}", found[name, 0][metric, family, part].value, value)
    wrong |= {f"alone {cell}": "another value" for cell in _other_values(alone["random", 0], found["random", 0])}
    return Check(
        name="evaluator",
        compared="constant, perfect, reversed and random scores, and the definitions of their metrics",
        methods=tuple(scores),
        passed=not wrong,
        detail=described(wrong) or f"ranks of {len(num_Q)} queries and AUC by family as defined",
    )


def _plain_ranks(scored: ScoredQueries) -> NDArray[np.float64]:
    """Rank by the definition: count the candidates above and half of the equal ones."""
    ranks = []
    for own, others, families in zip(
        scored.score_Q.tolist(), scored.score_QC.tolist(), scored.queries.family_QC.tolist(), strict=True
    ):
        others = [score for score, family in zip(others, families, strict=True) if family >= 0]
        above, equal = sum(score > own for score in others), sum(score == own for score in others)
        if others:
            ranks.append(1 + above + equal / 2)
    return np.array(ranks)


def _deviation(name: str, found: float, expected: float) -> dict[str, str]:
    return {} if abs(found - expected) <= EXACT else {name: f"{found:.6f}, expected {expected:.6f}"}


def _other_values(found: dict[Cell, StepMetric], expected: dict[Cell, StepMetric]) -> list[Cell]:
    return [cell for cell in expected if abs(found[cell].value - expected[cell].value) > EXACT]
