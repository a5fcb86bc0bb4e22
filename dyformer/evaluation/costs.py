"""Titles of methods -> how much they cost: the order by which a tie is decided.

A class of methods costs more than the one before it, because it computes all of that or takes a fit more.
"""

from dyformer.evaluation.fitting import FORECASTER_WITH

FORECASTER_WITHOUT = "Forecaster without vectors"

ORDER: tuple[tuple[str, ...], ...] = (
    # counts of past interactions
    ("EdgeBank (ever)", "EdgeBank (last)", "EdgeBank (decayed)", "Last contact", "Recency rank", "Contact recency"),
    ("Preferential attachment", "Preferential attachment (last)", "Popularity (decayed)"),
    # the neighbourhood of a pair
    ("Common neighbours", "Adamic-Adar", "Adamic-Adar x recent activity", "L3", "Shortest path"),
    ("Adamic-Adar x root of recent degree", "L3 x root of recent degree"),
    # an iteration over the whole graph
    ("Personalized PageRank",),
    # a fit on fourteen features of pairs
    ("Logistic regression on pair features",),
    ("Boosted trees on pair features",),
    # several fits on all features
    (FORECASTER_WITHOUT,),
    # a pass over all events, and fits on its features twice: of events, then of pairs
    ("Event forecaster by pair",),
)
"""Methods without vectors, the cheapest first; those with vectors, and unknown ones, cost more than all of these."""

_CLASS = {title: number for number, titles in enumerate(ORDER) for title in titles}


def cost(title: str) -> int:
    """Give the class of a method in ORDER, or the one after it: vectors take a training."""
    return _CLASS.get(title, len(ORDER))


def is_simple(title: str) -> bool:
    """Whether a method is one of those that a forecaster has to be better than."""
    return cost(title) < cost(FORECASTER_WITHOUT)


def has_vectors(title: str) -> bool:
    """Whether a method is the forecaster with the vectors of another one."""
    return title.startswith(FORECASTER_WITH)
