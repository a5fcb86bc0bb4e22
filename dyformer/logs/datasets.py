"""The known interaction logs: origin, columns, and the windows of the paper."""

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from dyformer import InvalidInput
from dyformer.logs.time_windows import TimeUnit, Window

OWN_LOG_WINDOW = Window(rule="equal_count", count=12)
"""The default windows of a user's own log."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The column of each value of an interaction: its name, or its position from 0."""

    source: str | int
    target: str | int
    time: str | int
    weight: str | int | None = None
    label: str | int | None = None

    def by_role(self) -> dict[str, str | int]:
        """Give the columns that the log has, by role."""
        return {role: column for role, column in asdict(self).items() if column is not None}


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A known log; checksums are SHA-256 of the decompressed bytes."""

    name: str
    title: str
    columns: Columns
    separator: str  # " " stands for any run of spaces and tabs
    has_header: bool
    time_unit: TimeUnit
    window: Window
    bipartite: bool = False  # two id spaces: source 7 and target 7 are different nodes
    directed: bool = True
    first_evaluated_step: int = 3
    file_names: tuple[str, ...] = ()  # the publisher's names for the file, without endings such as .gz
    sha256: str | None = None  # checksum of the copy from which the reference counts were made
    origin: str | None = None  # the publisher's download address
    archive_member: str | None = None  # the file wanted from the archive at `origin`
    origin_sha256: str | None = None  # checksum of the bytes at `origin`, where it is known
    homepage: str | None = None
    terms: str | None = None


GENERATED = {
    "generated": "drifting communities, repeat contacts, newcomers",
    "generated-communities": "communities that drift, few links a node, hardly a pair twice",
    "generated-roles": "six roles in a ring, each of which contacts the next one, few links a node",
    "generated-season": "groups that link in every fourth week alone",
    "generated-repeats": "nearly all contacts are with one of the latest four partners",
}
"""What is planted in each log that the program makes."""

_KNOWN = (
    *(
        Dataset(
            name=name,
            title=f"Generated: {contents}",
            columns=Columns(source="source", target="target", time="time"),
            separator=",",
            has_header=True,
            time_unit="iso",
            window=Window(rule="equal_time", length="7d"),
            terms="made by this program",
        )
        for name, contents in GENERATED.items()
    ),
    Dataset(
        name="rds",
        title="RDS: internal e-mail of a manufacturing company, 2010",
        columns=Columns(source=0, target=1, time=2, weight=3),
        separator=" ",
        has_header=False,
        time_unit="s",
        window=Window(rule="equal_count", count=100),
        first_evaluated_step=86,
        file_names=("ia-radoslaw-email.edges",),
        sha256="0274206c6025d684739cc147d6eac8b2203403c222c08477e5158b0521bb3458",
        origin="https://nrvis.com/download/data/dynamic/ia-radoslaw-email.zip",
        archive_member="ia-radoslaw-email.edges",
        origin_sha256="0274206c6025d684739cc147d6eac8b2203403c222c08477e5158b0521bb3458",
        homepage="https://networkrepository.com/ia-radoslaw-email.php",
        terms="Network Repository: CC BY-SA stated for the site",
    ),
    Dataset(
        name="uci",
        title="UCI: private messages among students, 2004",
        columns=Columns(source=0, target=1, time=3, weight=2),
        separator=" ",
        has_header=False,
        time_unit="s",
        window=Window(rule="equal_time", length="10d", trim_start="5d", trim_end="60d"),
        file_names=("out.opsahl-ucsocial",),
        sha256="72515c16504464736f35498047cf8e163df2e95f89ea3063d48aa367936bd951",
        origin="http://konect.cc/files/download.tsv.opsahl-ucsocial.tar.bz2",
        archive_member="out.opsahl-ucsocial",
        origin_sha256="72515c16504464736f35498047cf8e163df2e95f89ea3063d48aa367936bd951",
        homepage="http://konect.cc/networks/opsahl-ucsocial/",
        terms="KONECT: CC BY-SA 2.0 DE (2016 notice)",
    ),
    Dataset(
        name="yelp",
        title="Yelp: users reviewing businesses, 16 windows (the paper's authors' extract)",
        columns=Columns(source="user_id", target="item_id", time="timestamp", label="state_label"),
        separator=",",
        has_header=True,
        time_unit="step",
        window=Window(rule="equal_time", length="1"),
        directed=False,
        first_evaluated_step=4,
        file_names=("Yelp_16.csv",),
        sha256="3b1076222ede52370bac933d484e66889afb342ff41452b1a76fc717bb2450da",
        homepage="https://www.yelp.com/dataset",
        terms="Yelp Dataset Terms of Use: academic, non-commercial, no redistribution",
    ),
    Dataset(
        name="ml-10m",
        title="MovieLens 10M: users applying tags, 2005-2009",
        columns=Columns(source=0, target=1, time=3, weight=2),
        separator=" ",
        has_header=False,
        time_unit="s",
        window=Window(rule="equal_time", length="90d", time_zone="America/Chicago"),
        bipartite=True,
        directed=False,
        first_evaluated_step=4,
        file_names=("ia-movielens-user2tags-10m.edges",),
        sha256="82a3b31d9365b2565aa8d52c3ab881c094cb47b56aeea5ab8ba4ae923a7db623",
        homepage="https://networkrepository.com/ia-movielens-user2tags-10m.php",
        terms="GroupLens: research use with acknowledgement, no redistribution without permission",
    ),
    Dataset(
        name="snap-wikipedia",
        title="Wikipedia: one month of edits on the 1,000 most edited pages (JODIE)",
        columns=Columns(source=0, target=1, time=2, label=3),
        separator=",",
        has_header=True,
        time_unit="s",
        window=Window(rule="equal_time", length="250000s"),
        bipartite=True,
        file_names=("wikipedia.csv",),
        sha256="b68d35966dd1c013bce7432184778eb6edb0766ad65cd66bb5ca7ed9876c81ab",
        origin="http://snap.stanford.edu/jodie/wikipedia.csv",  # with 172 features a row; its checksum is not known
        homepage="https://snap.stanford.edu/jodie/",
        terms="none stated; made from public Wikipedia edit history",
    ),
    Dataset(
        name="snap-reddit",
        title="Reddit: one month of posts on the 1,000 most active subreddits (JODIE)",
        columns=Columns(source=0, target=1, time=2, label=3),
        separator=",",
        has_header=True,
        time_unit="s",
        window=Window(rule="equal_time", length="250000s"),
        bipartite=True,
        file_names=("reddit.csv",),
        origin="http://snap.stanford.edu/jodie/reddit.csv",
        homepage="https://snap.stanford.edu/jodie/",
        terms="none stated",
    ),
)

DATASETS = {dataset.name: dataset for dataset in _KNOWN}


def dataset_named(name: str, stored: Iterable[str] = ()) -> Dataset:
    """Find a known log by name; raises ValueError with the known names and those that are `stored`."""
    if name not in DATASETS:
        names = list(dict.fromkeys([*DATASETS, *sorted(stored)]))
        near = difflib.get_close_matches(name, names, n=1)
        raise InvalidInput(
            f"no known dataset is called {name!r}{f', did you mean {near[0]!r}?' if near else ''};"
            f" known: {', '.join(names)}. For your own log, pass its file: dyformer run {name} --log FILE"
        )
    return DATASETS[name]
