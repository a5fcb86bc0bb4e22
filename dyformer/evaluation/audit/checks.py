"""An audited case -> the outcome of every check, one after the other."""

from collections.abc import Iterator

from dyformer.evaluation.audit.case import AuditCase, Check, Fitted, inputs_of, probes_of
from dyformer.evaluation.audit.controls import candidates_check, chance_check, evaluator_check, planted_check
from dyformer.evaluation.audit.invariances import (
    hidden_step_check,
    past_check,
    poison_check,
    query_check,
    relabelling_check,
    row_order_check,
    truncation_check,
)
from dyformer.evaluation.audit.labels import labelled_check, memory_check, own_links_check, permutation_check
from dyformer.evaluation.audit.poisons import POISONS, RANDOM, poisoned

NUM_CHECKS = len(POISONS) + 14


def audit(case: AuditCase) -> Iterator[Check]:
    """Run all checks, the cheap ones first.

    Raises ValueError for a graph without a step after `until`, and TooFewLinks without labelled pairs.
    """
    if not 2 <= case.until < case.graph.num_steps:
        raise ValueError(
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
