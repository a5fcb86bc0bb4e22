"""Inputs of the forecaster -> the reasons of a forecast, in words.

Each input has a quantity with the words for a large and for a small value of it. Whether a value is large is measured
against the mean of the pairs that the forecaster was fitted on. A quantity with a direction is written once: the two
ends stand in it as {a} and {b}.
"""

import re
from typing import NamedTuple

from dyformer.scoring.contact_features import SIDES
from dyformer.scoring.link_features import SYMMETRIC, WITH_DIRECTION

NUMBER, SMOOTH = re.compile(r"_\d+(?=_back$|$)"), "smooth"
MANY, MUCH, LONG, HIGH = ("many", "few"), ("much", "little"), ("a long", "a short"), ("a high", "a low")


class Quantity(NamedTuple):
    """The words for a large and for a small value, and the quantity that they belong to."""

    words: tuple[str, str]
    text: str


QUANTITIES = {
    "seen": Quantity(("an", "no"), "earlier link of the two"),
    "num_steps_linked": Quantity(MANY, "windows in which the two were linked"),
    "inverse_steps_since_link": Quantity(("a recent", "no recent"), "link of the two"),
    "log_common_neighbors": Quantity(MANY, "common partners"),
    "adamic_adar": Quantity(MANY, "common partners with few others (Adamic-Adar)"),
    "log_l3": Quantity(MANY, "paths of three links between the two (L3)"),
    "sum_log_degree": Quantity(MANY, "partners of both ends together"),
    "product_log_degree": Quantity(MANY, "partners of each of both ends"),
    "difference_log_degree": Quantity(("a large", "a small"), "difference of both ends' numbers of partners"),
    "sum_log_last_degree": Quantity(MANY, "partners of both ends together in the newest window"),
    "product_log_last_degree": Quantity(MANY, "partners of each of both ends in the newest window"),
    "sum_activity": Quantity(("recent", "no recent"), "activity of one end or of both"),
    "product_activity": Quantity(("recent", "no recent"), "activity of both ends"),
    "sum_log_step_degree": Quantity(MANY, "links of both ends together, counted in each window"),
    "log_walks_2": Quantity(MANY, "short ways between the two over one common partner"),
    "log_walks_3": Quantity(MANY, "short ways between the two over two partners"),
    "opposite_sides": Quantity(("opposite", "equal"), "sides of the two in a log of two kinds of nodes"),
    **{
        f"{name}_{rank}": Quantity(HIGH, f"{text} ({rank} main patterns of the log)")
        for rank in (16, 32)
        for name, text in {
            "smooth_walk_1": "closeness of the two in the network",
            "smooth_walk_3": "closeness of the two in the wider network",
            "smooth_cosine": "likeness of the two in the network",
        }.items()
    },
    "log_contacts_025": Quantity(MANY, "contacts from {a} to {b} within about a quarter of a window"),
    "log_contacts_1": Quantity(MANY, "contacts from {a} to {b} within about one window"),
    "log_contacts_4": Quantity(MANY, "contacts from {a} to {b} within about four windows"),
    "log_since_contact": Quantity(LONG, "time since the newest contact from {a} to {b}"),
    "log_newer_partners": Quantity(MANY, "partners of {a} with a newer contact than {b}"),
    "fraction_of_source": Quantity(("a large", "a small"), "fraction of the contacts of {a} that goes to {b}"),
    "factor_product": Quantity(HIGH, "expectation of contacts from {a} to {b} by the habits of both"),
    "factor_cosine": Quantity(HIGH, "agreement of the habits of {a} as sender and of {b} as receiver"),
    "log_sent_025": Quantity(MUCH, "sent by {a} within about a quarter of a window"),
    "log_sent_1": Quantity(MUCH, "sent by {a} within about one window"),
    "log_sent_4": Quantity(MUCH, "sent by {a} within about four windows"),
    "log_received_025": Quantity(MUCH, "received by {a} within about a quarter of a window"),
    "log_received_1": Quantity(MUCH, "received by {a} within about one window"),
    "log_received_4": Quantity(MUCH, "received by {a} within about four windows"),
    "log_since_sent": Quantity(LONG, "time since {a} sent something"),
    "log_since_received": Quantity(LONG, "time since {a} received something"),
    "log_since_first": Quantity(LONG, "time since {a} appeared"),
    "log_partners": Quantity(MANY, "partners of {a}"),
    "new_link_fraction": Quantity(("a large", "a small"), "fraction of new partners in the recent links of {a}"),
    "concentration": Quantity(HIGH, "concentration of the contacts of {a} on few partners"),
}
"""By the name of the input: all of `SYMMETRIC`, and of `WITH_DIRECTION` without their direction."""

VECTORS = {
    "structure_product": "match of the two vectors in structure",
    "id_product": "match of the two vectors in identity",
    "plain_product": "product of the two vectors",
    "cosine": "likeness of the two vectors",
    "target_cosine": "likeness of the target's vector with those of the source's partners",
    "source_cosine": "likeness of the source's vector with those of the target's partners",
    "target_id_cosine": "likeness in identity of the target's vector with those of the source's partners",
    "source_id_cosine": "likeness in identity of the source's vector with those of the target's partners",
    "average_partner_cosine": "likeness of each end's vector with those of the other end's partners",
    "difference_partner_cosine": "difference in how much each end's vector is like those of the other end's partners",
    "average_partner_id_cosine": "likeness in identity of each end's vector with those of the other end's partners",
    "difference_partner_id_cosine": "difference in that likeness in identity between both ends",
    "mean_product": "match of the vectors of both ends' partners",
    "mean_cosine": "likeness in identity of the vectors of both ends' partners",
}
"""By the name of a score of vectors, without its half-life."""


def reason(name: str, *, is_large: bool) -> str:
    """Write the reason that an input gives whose value is above (`is_large`) or below the usual one.

    Raises KeyError for a name that is no input of the forecaster.
    """
    quantity, text = _quantity(name)
    return f"{quantity.words[0 if is_large else 1]} {text}"


def kind_of(name: str) -> str:
    """Name what an input measures, which those of other half-lives, lengths and ranks measure, too."""
    base = NUMBER.sub("", name)
    return SMOOTH if base.startswith(SMOOTH) else base


def _quantity(name: str) -> tuple[Quantity, str]:
    if name in SYMMETRIC:
        return QUANTITIES[name], QUANTITIES[name].text
    if name in WITH_DIRECTION:
        return QUANTITIES[name], QUANTITIES[name].text.format(a="the source", b="the target")
    start, _, rest = name.partition("_")
    if name.endswith("_back"):
        quantity = QUANTITIES[name.removesuffix("_back")]
        return quantity, quantity.text.format(a="the target", b="the source")
    if start == "mean" and rest in WITH_DIRECTION:
        own = QUANTITIES[rest]
        return own, own.text.format(a="an end", b="the other") + ("" if rest in SIDES else ", in both directions")
    if start == "difference" and rest in WITH_DIRECTION:
        what = QUANTITIES[rest].text.format(a="an end", b="the other")
        between = "ends" if rest in SIDES else "directions"
        return Quantity(("a large", "a small"), ""), f"difference between both {between}: {what}"
    return _of_vectors(name)


def _of_vectors(name: str) -> tuple[Quantity, str]:
    base, _, half_life = name.rpartition("_")
    if base not in VECTORS:
        base, half_life = name, ""
    recent = {"1": ", the newest partners first", "4": ", of the last windows"}.get(half_life, "")
    words = ("a large", "a small") if base.startswith("difference") else HIGH
    return Quantity(words, VECTORS[base]), VECTORS[base] + recent
