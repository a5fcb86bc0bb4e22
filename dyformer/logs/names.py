"""Usual names of the columns of a log -> their roles."""

import re
from collections.abc import Sequence
from itertools import product

PAIRS = tuple(
    (frozenset(sources.split()), frozenset(targets.split()), two_kinds)
    for sources, targets, two_kinds in (
        ("source sourceid src srcid", "target targetid dst dstid dest destination destinationid", False),
        ("from fromid fromnode fromnodeid", "to toid tonode tonodeid", False),
        ("fromuser fromuserid fromaddress", "touser touserid toaddress", False),
        ("accountfrom fromaccount nameorig", "accountto toaccount namedest", False),
        ("origin originid orig", "destination destinationid dest", False),
        ("startstation startstationid", "endstation endstationid", False),
        ("srcip sourceip", "dstip destinationip destip", False),
        ("sender senderid", "recipient recipientid receiver receiverid", False),
        ("payer payerid", "payee payeeid", False),
        ("buyer buyerid", "seller sellerid", False),
        ("lender lenderid", "borrower borrowerid", False),
        ("rater raterid", "ratee rateeid rated", False),
        ("truster trusterid", "trustee trusteeid", False),
        ("citing citingid", "cited citedid", False),
        ("follower followerid", "followee followeeid followed", False),
        ("user userid", "friend friendid contact contactid", False),
        ("caller callerid", "callee calleeid", False),
        ("u", "v", False),
        ("i", "j", False),
        ("node1 id1 user1", "node2 id2 user2", False),
        ("head subject", "tail object", False),
        (
            "user userid u uid customer customerid reviewer editor",
            (
                "item itemid i iid product productid business businessid merchant merchantid page pageid"
                " movie movieid tag subreddit artist artistid track trackid song songid video videoid"
            ),
            True,
        ),
    )
)
"""Names of sources and of targets, as `plain_name` writes them, and whether the two are different kinds of nodes."""

TIMES = frozenset(
    {
        *("time", "timestamp", "ts", "t", "date", "datetime", "when", "at", "step", "created", "createdat"),
        *("createdutc", "eventtime", "unixtime", "unixseconds", "epoch"),
    }
)
WEIGHTS = frozenset({"weight", "w"})
LABELS = frozenset({"label", "statelabel"})


def plain_name(name: str) -> str:
    """Write a column's name without capitals, spaces and punctuation: `Account From` as `accountfrom`."""
    return re.sub(r"[\W_]+", "", name.lower())


def named_pairs(names: Sequence[str]) -> list[tuple[int, int]]:
    """Find the positions of two columns whose names are those of a source and its target."""
    plain = [plain_name(name) for name in names]

    def at(usual: frozenset[str]) -> list[int]:
        return [index for index, name in enumerate(plain) if name in usual]

    return sorted({pair for sources, targets, _ in PAIRS for pair in product(at(sources), at(targets))})


def roles_by_name(names: Sequence[str]) -> dict[str, int]:
    """Give the positions of source, target and time where the names leave no choice."""
    pairs = named_pairs(names)
    roles = dict(zip(("source", "target"), pairs[0], strict=True)) if len(pairs) == 1 else {}
    times = [index for index, name in enumerate(names) if plain_name(name) in TIMES and index not in roles.values()]
    return roles | ({"time": times[0]} if len(times) == 1 else {})
