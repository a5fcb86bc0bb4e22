"""The names that columns of interaction logs usually go by."""

PAIRS = tuple(
    (frozenset(sources), frozenset(targets), two_kinds)
    for sources, targets, two_kinds in (
        (("source", "source_id", "src"), ("target", "target_id", "dst", "dest", "destination"), False),
        (("from", "from_id", "from_node", "fromnodeid"), ("to", "to_id", "to_node", "tonodeid"), False),
        (("sender", "sender_id"), ("recipient", "recipient_id", "receiver", "receiver_id"), False),
        (("follower", "follower_id"), ("followee", "followee_id", "followed"), False),
        (("user", "user_id", "userid"), ("friend", "friend_id", "contact", "contact_id"), False),
        (("caller",), ("callee",), False),
        (("u",), ("v",), False),
        (("i",), ("j",), False),
        (("node1", "id1", "user1"), ("node2", "id2", "user2"), False),
        (("head", "subject"), ("tail", "object"), False),
        (
            ("user", "user_id", "userid", "u", "uid", "customer", "customer_id", "reviewer", "editor"),
            (
                *("item", "item_id", "itemid", "i", "iid", "product", "product_id", "business", "business_id"),
                *("page", "page_id", "movie", "movie_id", "tag", "subreddit"),
            ),
            True,
        ),
    )
)
"""Names of sources, names of their targets, and whether the pair means two kinds of things."""

TIMES = frozenset(
    {
        *("time", "timestamp", "time_stamp", "ts", "t", "date", "datetime", "date_time", "when", "at", "step"),
        *("created", "created_at", "created_utc", "event_time", "unix_time", "unixtime", "unix_seconds", "epoch"),
    }
)
WEIGHTS = frozenset({"weight", "w"})
LABELS = frozenset({"label", "state_label"})
