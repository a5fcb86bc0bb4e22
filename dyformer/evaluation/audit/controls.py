"""An audited case -> checks against what is known beforehand: chance, planted rules, definitions.

Q queries    C candidates of a query    P pairs
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.audit.case import AuditCase, Check, Fitted, described
from dyformer.evaluation.audit.poisons import graph_of, rows_of
from dyformer.evaluation.bootstrap import node_resamples
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.scored_queries import MIXED, ScoredQueries, step_metrics
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries, step_pairs

STANDARD_ERRORS = 4.0  # a method at chance is farther from 0.5 once in 16,000 times
PLANTED_AUC = 0.95
EXACT = 1e-12
UNIFORM_DEVIATION = 12**-0.5  # of a rank without ties; the least one, because few queries may have equal ranks


def links_of(graph: DynamicGraph, step: int) -> set[tuple[int, int]]:
    """Give the links of a step as pairs source, target; in both orders where the log has no direction."""
    source_R, target_R = step_pairs(graph, step)
    links = set(zip(source_R.tolist(), target_R.tolist(), strict=True))
    return links if graph.directed else links | {(target, source) for source, target in links}


def candidates_check(case: AuditCase, queries: RankingQueries) -> Check:
    """Compare the queries of the forecast step and their candidates with their definition."""
    links, num_known = links_of(case.graph, queries.step), case.graph.snapshots[queries.step - 2].num_nodes
    past = {pair for step in range(1, queries.step) for pair in links_of(case.graph, step)}
    historical = FAMILIES.index("historical")
    wrong: set[str] = set()
    for row, (source, target) in enumerate(zip(queries.source_Q.tolist(), queries.target_Q.tolist(), strict=True)):
        candidates = queries.candidate_QC[row][queries.family_QC[row] >= 0].tolist()
        partners = queries.candidate_QC[row][queries.family_QC[row] == historical].tolist()
        faults = {
            "a true pair is not among the step's links": (source, target) not in links,
            "a candidate is a link": any((source, node) in links for node in candidates),
            "a candidate is there twice": len(set(candidates)) < len(candidates),
            "a node was not known before": max([source, target, *candidates]) >= num_known,
            "a node is its own candidate": source in candidates,
            "a historical candidate is no past partner": any(
                (source, n) not in past and (n, source) not in past for n in partners
            ),
        }
        wrong |= {fault for fault, is_found in faults.items() if is_found}
    return Check(
        name="candidates",
        compared=f"{len(queries.source_Q)} queries of step {queries.step} with their candidates, and the log",
        methods=(),
        passed=not wrong,
        detail="; ".join(sorted(wrong)) or f"{int((queries.family_QC >= 0).sum())} candidates, none of them a link",
    )


def above(scored: ScoredQueries, family: str) -> NDArray[np.float64]:
    """Give the fraction of each query's candidates that its true pair outscores, ties counting half."""
    queries = scored.queries
    among_QC = queries.family_QC == FAMILIES.index(family)
    above_QC = (scored.score_Q[:, None] > scored.score_QC) + (scored.score_Q[:, None] == scored.score_QC) / 2
    used_Q = among_QC.any(axis=1)
    return (above_QC * among_QC).sum(axis=1)[used_Q] / among_QC.sum(axis=1)[used_Q]


def chance_check(case: AuditCase, fitted: Fitted, queries: RankingQueries) -> Check:
    """Rank links that were replaced by uniform pairs among uniform candidates: every method must be at chance."""
    auc_of, wrong = {}, {}
    for title, scored in fitted.on(queries).items():
        above_Q = above(scored, case.uniform)
        error = max(float(above_Q.std()), UNIFORM_DEVIATION) / np.sqrt(len(above_Q))
        auc_of[title] = float(above_Q.mean())
        if not abs(auc_of[title] - 0.5) <= STANDARD_ERRORS * error + EXACT:
            wrong[title] = f"AUC {auc_of[title]:.3f} with a standard error of {error:.3f}"
    low, high = min(auc_of.values()), max(auc_of.values())
    return Check(
        name="chance",
        compared=f"{len(queries.source_Q)} uniform pairs instead of step {case.until + 1}, and uniform candidates",
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
    queries = case.queries(graph, case.until + 1, (case.uniform,))
    [(title, method)] = case.remembering.items()
    score = method.fit_pairs(past, ())
    scored = ScoredQueries(method="", seed=case.seed, queries=queries, score_S=score(*_ends(queries)))
    auc = float(above(scored, case.uniform).mean())
    return Check(
        name="planted rule",
        compared=f"the links of step {case.until} once more at step {case.until + 1}, by a method that remembers them",
        methods=(title,),
        passed=auc >= PLANTED_AUC,
        detail=f"AUC {auc:.3f}, expected {PLANTED_AUC} and more",
    )


def _ends(queries: RankingQueries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return queries.pairs.source_S, queries.pairs.target_S


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
    measured = step_metrics(scored, case.graph, resamples)
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
            wrong |= _deviation(f"{name} {metric}", measured[name, 0][metric, MIXED, KNOWN].value, value)
    for name, value in (("constant", 0.5), ("perfect", 1.0), ("reversed", 0.0)):
        for metric, family, part in (cell for cell in measured[name, 0] if cell[0] == "auc"):
            wrong |= _deviation(f"{name} auc {family} {part}", measured[name, 0][metric, family, part].value, value)
    again, expected = alone["random", 0], measured["random", 0]
    differing = [cell for cell in expected if abs(again[cell].value - expected[cell].value) > EXACT]
    wrong |= {f"alone {cell}": "another value" for cell in differing}
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
    for scores, others, families in zip(
        scored.score_Q.tolist(), scored.score_QC.tolist(), scored.queries.family_QC.tolist(), strict=True
    ):
        others = [score for score, family in zip(others, families, strict=True) if family >= 0]
        above, equal = sum(score > scores for score in others), sum(score == scores for score in others)
        if others:
            ranks.append(1 + above + equal / 2)
    return np.array(ranks)


def _deviation(name: str, found: float, expected: float) -> dict[str, str]:
    return {} if abs(found - expected) <= EXACT else {name: f"{found:.6f}, expected {expected:.6f}"}
