"""An audited case -> the outcome of every check: results stay the same where nothing changed that they may depend on.

N nodes    E edges    P pairs    R rows    S probe pairs    L nodes with a self-loop
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.audit.case import (
    NUM_TARGETS,
    AuditCase,
    Check,
    Fitted,
    Pairs,
    Results,
    described,
    differing,
    history_of,
    inputs_of,
    probes_of,
)
from dyformer.evaluation.audit.controls import candidates_check, chance_check, evaluator_check, planted_check
from dyformer.evaluation.audit.labels import labelled_check, memory_check, own_links_check, permutation_check
from dyformer.evaluation.audit.poisons import POISONS, RANDOM, graph_of, poisoned, rows_of, split_rows
from dyformer.evaluation.fitting import fitted_vectors
from dyformer.evaluation.scored_queries import RankingTrial
from dyformer.graphs.interactions import Interactions
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.sampling.subgraphs import as_of_graph, make_batch
from dyformer.scoring.interfaces import Embedder, LabelledStep, Scorer

ROUNDING = 1e-9  # of the spread of a method's scores: matrices of other sizes are multiplied in another order
RENUMBERED_ROUNDING = 1e-5  # link features are 32-bit numbers
RENUMBERED_CORRELATION = 0.9  # of a method that draws rows of its labelled pairs by their position
NUM_SINGLE = 5
NUM_INDEPENDENT = 400
NUM_CHECKS = len(POISONS) + 14


def poison_check(case: AuditCase, name: str, fitted: Fitted, base: Results, probes: Pairs) -> Check:
    """Compare all results as of `until`, in a graph in which all later rows were replaced."""
    compared = f"rows after step {case.until} replaced: {name}"
    return _unchanged(f"future poison: {name}", compared, case, fitted, base, probes)


def truncation_check(case: AuditCase, base: Results, probes: Pairs) -> Check:
    """Compare the log up to `until`, read as if no later row existed, with the whole log as of `until`."""
    past = split_rows(case.graph, case.until).past
    fitted = Fitted(case=case, trial=_other_trial(case, graph_of(past, case.graph, case.until)))
    compared = f"the log of steps 1 to {case.until} alone, and the whole log"
    return _unchanged("truncation", compared, case, fitted, base, probes)


def _unchanged(name: str, compared: str, case: AuditCase, fitted: Fitted, base: Results, probes: Pairs) -> Check:
    history = history_of(fitted.trial.past)
    changed = differing(history, {key: base[key] for key in history})
    # Nothing is made of a history that differs, because broken weights may end in errors.
    changed = changed or differing({**inputs_of(case, fitted.trial, probes), **fitted.results(probes)}, base)
    detail = described(changed) or f"{len(base)} results, byte for byte the same"
    return Check(name=name, compared=compared, methods=tuple(case.methods), passed=not changed, detail=detail)


def past_check(case: AuditCase, base: Results, probes: Pairs) -> Check:
    """Give the links between known nodes of the step `until` random targets: all results must change."""
    num_known = case.graph.snapshots[case.until - 2].num_nodes
    past_rows = split_rows(case.graph, case.until - 1)
    rows = rows_of(case.graph)
    is_changed_R = (rows["step"] == case.until).to_numpy()
    for end in ("source", "target"):
        is_changed_R &= np.isin(rows[end].to_numpy(), case.graph.node_N[:num_known])
    target_R = rows["target"].to_numpy().copy()
    target_R[is_changed_R] = np.random.default_rng(case.seed).choice(past_rows.targets, size=int(is_changed_R.sum()))
    # The nodes are numbered as in the log, so that a pair of numbers is the same pair.
    graph = _renumbered_like(case.graph, graph_of(rows.with_columns(target=target_R), case.graph))
    trial = _other_trial(case, graph)
    results = {**inputs_of(case, trial, probes), **Fitted(case=case, trial=trial).results(probes)}
    changed = differing(results, base)
    # Older labelled steps and the nodes end before the step that changed.
    older = [
        f"labelled step {number}"
        for number, step in enumerate(trial.labelled, start=1)
        if step.before.until + 1 < case.until
    ]
    missing = [name for name in base if name not in changed and name not in ("nodes", *older)]
    detail = f"{len(changed)} of {len(base)} results changed"
    return Check(
        name="past matters",
        compared=f"random targets at step {case.until}, and the log as it is",
        methods=tuple(case.methods),
        passed=not missing,
        detail=f"unchanged: {', '.join(missing)}" if missing else detail,
    )


def query_check(case: AuditCase, fitted: Fitted, probes: Pairs) -> Check:
    """Request scores of pairs and vectors of nodes together, shuffled, in halves and alone."""
    generator = np.random.default_rng(case.seed)
    chosen_S = generator.permutation(len(probes[0]))[:NUM_INDEPENDENT]
    pair_2S = np.stack(probes)[:, chosen_S]
    differences = {
        title: _dependence(lambda index, score=score: score(*pair_2S[:, index]), len(chosen_S))
        for title, score in fitted.scores.items()
    }
    node_N = np.arange(len(fitted.trial.past.history.node_N))
    for name, method in fitted.methods.items():
        if isinstance(method, Embedder):
            embed = method.fit(fitted.trial.past, seed=case.seed)
            differences[f"vectors of {name}"] = _dependence(
                lambda index, embed=embed: embed(node_N[index]), len(node_N)
            )
    wrong = {name: f"{value:.3g} of the spread" for name, value in differences.items() if value > ROUNDING}
    return Check(
        name="query independence",
        compared=f"{len(chosen_S)} pairs and {len(node_N)} nodes together, shuffled, in halves and alone",
        methods=tuple(case.methods),
        passed=not wrong,
        detail=described(wrong) or f"largest difference {max(differences.values(), default=0):.3g} of the spread",
    )


def _dependence(values_of, num: int) -> float:
    """Give the largest difference between values requested together and otherwise, as a part of their spread."""
    order = np.random.default_rng(num).permutation(num)
    whole = np.asarray(values_of(np.arange(num)), dtype=np.float64)
    groups = [order, order[: num // 2], order[num // 2 :], *(order[[single]] for single in range(min(NUM_SINGLE, num)))]
    spread = max(float(np.ptp(whole)), np.finfo(np.float64).tiny)
    return max(float(np.abs(np.asarray(values_of(index)) - whole[index]).max(initial=0)) / spread for index in groups)


def relabelling_check(case: AuditCase, fitted: Fitted, probes: Pairs) -> Check:
    """Permute the permanent numbers of all nodes, and the node numbers of those that came at the same step.

    The labelled pairs are those of the log, renumbered, because candidates are drawn by node number. Trainings draw
    nodes by number, so vectors are compared under permuted permanent numbers alone, byte for byte.
    """
    generator = np.random.default_rng(case.seed)
    permanent = replace(case.graph, node_N=generator.permutation(case.graph.node_N))
    results: Results = {}
    past = _other_trial(case, permanent).past
    for name, method in case.methods.items():
        if isinstance(method, Embedder):
            results[f"vectors of {name}"] = [np.asarray(fitted_vectors(name, method, past, case.seed))]
    expected = fitted.results(probes)
    wrong = differing(results, {name: expected[name] for name in results})
    number_N = _permutation(case.graph, generator)
    scorers = {name: method for name, method in case.methods.items() if isinstance(method, Scorer)}
    renumbered = renumber(permanent, number_N)
    labelled = [_renumbered_step(step, renumbered, number_N) for step in fitted.trial.labelled]
    again = Fitted(case=replace(case, methods=scorers), trial=_other_trial(case, renumbered), other_labels=labelled)
    close: list[float] = []
    for name in scorers:
        was_S, is_S = (
            np.asarray(score(*ends))
            for score, ends in (
                (fitted.scores[name], probes),
                (again.scores[name], (number_N[probes[0]], number_N[probes[1]])),
            )
        )
        difference = float(np.abs(is_S - was_S).max()) / max(float(np.ptp(was_S)), np.finfo(np.float64).tiny)
        if difference <= RENUMBERED_ROUNDING:
            continue
        from scipy.stats import rankdata  # late, because it takes 0.4 s to import

        correlation = float(np.corrcoef(rankdata(was_S), rankdata(is_S))[0, 1])
        close.append(correlation)
        if not correlation >= RENUMBERED_CORRELATION:
            wrong[f"scores of {name}"] = f"rank correlation {correlation:.3f}"
    detail = f"{len(scorers) - len(close)} of {len(scorers)} methods equal up to rounding"
    if close:
        detail += f"; rank correlation {min(close):.3f} or more where trees draw rows of the labelled pairs"
    return Check(
        name="relabelling",
        compared="nodes with other permanent numbers and other node numbers",
        methods=tuple(case.methods),
        passed=not wrong,
        detail=described(wrong) or detail,
    )


def row_order_check(case: AuditCase) -> Check:
    """Shuffle the rows of the log's file; the snapshots must have the same edges in permanent numbers."""
    rows = rows_of(case.graph)
    shuffled = graph_of(rows[np.random.default_rng(case.seed).permutation(len(rows))], case.graph)
    pairs = zip(shuffled.snapshots, case.graph.snapshots, strict=True)
    wrong = [old.step for new, old in pairs if not _edges(new, shuffled.node_N).equals(_edges(old, case.graph.node_N))]
    return Check(
        name="order of rows",
        compared="the rows of the log in another order",
        methods=(),
        passed=not wrong,
        detail=f"other snapshots: {wrong}"
        if wrong
        else f"{case.graph.num_steps} snapshots have the same edges and nodes",
    )


def hidden_step_check(case: AuditCase) -> Check:
    """Replace the edges of one step: a training's subgraphs that hide this step, or end before it, must not change."""
    past = prepare_graph(case.graph, until=case.until, config=case.config)
    window = case.config.history_window or case.until
    steps = sorted({case.until, max(2, case.until - 1, case.until - window + 1)})
    wrong: dict[str, str] = {}
    for step in steps:
        other = prepare_graph(_with_random_step(past.history, step, case.seed), until=case.until, config=case.config)
        target_G = np.sort(
            np.random.default_rng(case.seed).permutation(past.history.snapshots[step - 2].num_nodes)[:NUM_TARGETS]
        )
        for until, hidden in ((case.until, step), (step - 1, None)):
            if until == 1 and hidden:
                continue
            links_in, expected = (
                [
                    tensor.numpy()
                    for tensor in make_batch(
                        as_of_graph(graph, until=until, hidden_step=hidden), target_G, num_context=NUM_TARGETS
                    ).tensors()
                ]
                for graph in (other, past)
            )
            name = f"step {step} {'hidden' if hidden else 'forecast'} as of step {until}"
            wrong |= differing({name: links_in}, {name: expected})
    return Check(
        name="hidden step",
        compared=f"subgraphs of a training with random edges at step {' and '.join(map(str, steps))}, and as they are",
        methods=(),
        passed=not wrong,
        detail=described(wrong) or "the links that a training predicts are in none of its inputs",
    )


def _other_trial(case: AuditCase, graph: DynamicGraph) -> RankingTrial:
    return case.trial(graph, case.queries(case.graph, case.until + 1))


def _renumbered_like(graph: DynamicGraph, other: DynamicGraph) -> DynamicGraph:
    """Number the nodes of `other` as in `graph`, which has the same ones at the same steps."""
    number_of = dict(zip(graph.node_N.tolist(), range(len(graph.node_N)), strict=True))
    return renumber(other, np.array([number_of[node] for node in other.node_N.tolist()]))


def renumber(graph: DynamicGraph, number_N: NDArray[np.int64]) -> DynamicGraph:
    """Give node n the number `number_N[n]`, and all arrays in the order that the new numbers give."""
    assert graph.interactions is not None
    rows = vars(graph.interactions)
    moved = {name: number_N[rows[name]] for name in ("source_R", "target_R")}
    old_N = np.argsort(number_N)
    return replace(
        graph,
        snapshots=tuple(_renumbered_snapshot(snapshot, number_N) for snapshot in graph.snapshots),
        node_N=graph.node_N[old_N],
        side_N=graph.side_N[old_N],
        interactions=Interactions(**{**rows, **moved}),
    )


def _renumbered_snapshot(snapshot: Snapshot, number_N: NDArray[np.int64]) -> Snapshot:
    ends_2E = np.sort(number_N[np.stack([snapshot.source_E, snapshot.target_E])], axis=0)
    order_E = np.lexsort((ends_2E[1], ends_2E[0]))
    return replace(
        snapshot,
        source_E=ends_2E[0, order_E],
        target_E=ends_2E[1, order_E],
        weight_E=snapshot.weight_E[order_E],
        self_loop_node_L=np.sort(number_N[snapshot.self_loop_node_L]),
    )


def _permutation(graph: DynamicGraph, generator: np.random.Generator) -> NDArray[np.int64]:
    """Permute the numbers of the nodes that came at the same step, so that those of an earlier step come first."""
    bounds = [0, *(snapshot.num_nodes for snapshot in graph.snapshots)]
    parts = [first + generator.permutation(end - first) for first, end in pairwise(bounds) if end > first]
    return np.concatenate(parts)


def _renumbered_step(step: LabelledStep, graph: DynamicGraph, number_N: NDArray[np.int64]) -> LabelledStep:
    examples, new = step.examples, step.new_partners
    ends = {name: number_N[getattr(examples, name)] for name in ("source_P", "target_P")}
    new_ends = {name: number_N[getattr(new, name)] for name in ("node_P", "source_P", "target_P")}
    before = prepare_graph(graph, until=step.before.until, config=step.before.config)
    return replace(step, before=before, examples=replace(examples, **ends), new_partners=replace(new, **new_ends))


def _edges(snapshot: Snapshot, node_N: NDArray[np.int64]) -> pl.DataFrame:
    ends_2E = np.sort(node_N[np.stack([snapshot.source_E, snapshot.target_E])], axis=0)
    frame = pl.DataFrame({"source": ends_2E[0], "target": ends_2E[1], "weight": snapshot.weight_E})
    return frame.sort("source", "target")


def _with_random_step(graph: DynamicGraph, step: int, seed: int) -> DynamicGraph:
    """Replace the edges of a step by as many random ones between the nodes known before it."""
    snapshot, num_nodes = graph.snapshots[step - 1], graph.snapshots[step - 2].num_nodes
    ends_2E = np.sort(np.random.default_rng([seed, step]).integers(num_nodes, size=(2, len(snapshot.source_E))), axis=0)
    ends_2E = np.unique(ends_2E[:, ends_2E[0] != ends_2E[1]], axis=1)
    other = replace(snapshot, source_E=ends_2E[0], target_E=ends_2E[1], weight_E=np.ones(ends_2E.shape[1]))
    return replace(graph, snapshots=tuple(other if s.step == step else s for s in graph.snapshots))


def audit(case: AuditCase) -> Iterator[Check]:
    """Run all checks, the cheap ones first.

    Raises ValueError for a graph without a step after `until`, and TooFewLinks without labelled pairs.
    """
    if not 2 <= case.until < case.graph.num_steps:
        raise InvalidInput(
            f"step {case.until} cannot be audited: expected one from 2 to {case.graph.num_steps - 1}, because a later "
            f"step is replaced"
        )
    queries = case.queries(case.graph, case.until + 1)
    trial = case.trial(case.graph, queries)
    yield row_order_check(case)
    yield hidden_step_check(case)
    yield labelled_check(case, trial)
    yield candidates_check(case, queries)
    yield evaluator_check(case, queries)
    yield memory_check(case, trial)
    yield planted_check(case, trial.past)
    yield own_links_check(case)
    random = poisoned(case.graph, case.until, RANDOM, seed=case.seed)
    random_queries = case.queries(random, case.until + 1, (case.uniform,))
    probes = probes_of(queries, case.queries(case.graph, case.until), random_queries)
    fitted = Fitted(case=case, trial=trial)
    base = {**inputs_of(case, trial, probes), **fitted.results(probes)}
    yield query_check(case, fitted, probes)
    for name in POISONS:
        graph = random if name == RANDOM else poisoned(case.graph, case.until, name, seed=case.seed)
        other = Fitted(case=case, trial=case.trial(graph, queries))
        yield poison_check(case, name, other, base, probes)
        if name == RANDOM:
            yield chance_check(case, other, random_queries)
    yield truncation_check(case, base, probes)
    yield past_check(case, base, probes)
    yield relabelling_check(case, fitted, probes)
    yield permutation_check(case, fitted)
