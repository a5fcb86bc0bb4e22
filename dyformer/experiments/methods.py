"""METHODS: every method that a benchmark compares, with its hyper-parameters, under its title in the table."""

import inspect
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dyformer.baselines.activity import Activity, ActivityRegression
from dyformer.baselines.classifiers import BoostedTrees, LogisticRegression
from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency, Popularity
from dyformer.baselines.event_mixture import EventMixture
from dyformer.baselines.heuristics import EdgeBank, NeighbourPaths, PreferentialAttachment, RecentPaths
from dyformer.baselines.proximity import PersonalizedPageRank, ShortestPath
from dyformer.baselines.recency import ActiveAdamicAdar, ContactRecency
from dyformer.embedder import EPOCHS, Embed, Embedder, NodeScorer, Ranker, Scorer
from dyformer.experiments.published import PUBLISHED
from dyformer.experiments.settings import Experiment
from dyformer.experiments.titles import UnknownMethod
from dyformer.extras import MissingExtra, is_installed, need
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.event_pairs import EventPairForecaster
from dyformer.scoring.forecaster import Forecaster

if TYPE_CHECKING:
    from dyformer.training.checkpoint import Progress
    from dyformer.training.stored_weights import TrainedDyFormer

Method = Embedder | Scorer


class MethodFailed(ValueError):
    """A user's own method raised an error, or gave what cannot be used."""


PUBLISHED_TITLE = "DyFormer (as published)"

USUAL_KINDS: tuple[type, ...] = (Embedder, Scorer)
"""Interfaces of the methods that forecast links."""

CALLS: dict[type, tuple[str, int, dict[str, int], str]] = {
    Embedder: ("fit", 1, {"seed": 0}, "fit(graph, *, seed), which returns a function from nodes to vectors"),
    Scorer: ("fit_pairs", 2, {}, "fit_pairs(graph, labelled), which returns a function from pairs to scores"),
    Ranker: (
        "fit_events",
        3,
        {"seed": 0},
        "fit_events(log, training, validation, *, seed), which returns a function from a log and queries to scores",
    ),
}
"""The function of each interface, the number of its arguments, those that are named, and the function in words."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """DyFormer with the settings of an experiment, some of them changed (paper, Fig. 4).

    They are changed to those of `base`, then to those that a search chose for the base, then to its own `changes`.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    base: Mapping[str, Any] = field(default_factory=dict)
    chosen: Mapping[str, Any] = field(default_factory=dict)
    experiment: Experiment = field(default_factory=Experiment)

    @property
    def all_changes(self) -> Mapping[str, Any]:
        """Settings by name that differ from those of an experiment."""
        return {**self.base, **self.chosen, **self.changes}

    @property
    def base_title(self) -> str:
        """The title in METHODS whose chosen settings it has, so that two variations of it differ in `changes` alone."""
        return PUBLISHED_TITLE if self.base else "DyFormer"

    def sets(self, name: str) -> bool:
        """Whether it has a value of its own for a setting, or leaves out the part to which the setting belongs.

        A whole part, such as `pretrain`, counts as set if any of its settings is.
        """
        part, changes = name.partition(".")[0], self.all_changes
        is_in_part = any(own.startswith(f"{name}.") for own in changes)
        return is_in_part or name in changes or (part in changes and changes[part] is None)

    def changed(self, experiment: Experiment) -> Experiment:
        """Give an experiment with the changes; changes of pre-training bring it back where the experiment has none."""
        changes = self.all_changes
        is_back = experiment.pretrain is None and any(name.startswith("pretrain.") for name in changes)
        return experiment.changed({**({"pretrain": "default"} if is_back else {}), **changes})

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train from scratch; the flows train the same with checkpoints and evaluate a TrainedDyFormer."""
        return self.trained(graph, seed=seed).fit(graph, seed=seed)

    def trained(
        self,
        graph: PreparedGraph,
        *,
        seed: int,
        device: str = "cpu",
        report: "Callable[[Progress], None] | None" = None,
    ) -> "TrainedDyFormer":
        """Train from scratch; the result embeds this graph, and the graph of a later step too.

        `report` is called after each epoch. Raises MissingExtra without torch.
        """
        need("torch")
        from dyformer.training.stages import DyFormerEmbedder
        from dyformer.training.stored_weights import TrainedDyFormer

        changed = self.changed(self.experiment).capped
        method = DyFormerEmbedder(
            model=changed.model, pretrain=changed.pretrain, finetune=changed.finetune, device=device
        )
        weights = method.train(graph, seed=seed, report=report)
        return TrainedDyFormer(weights={graph.until: weights}, model=changed.model, device=device)


@dataclass(frozen=True, kw_only=True)
class TrainingStage:
    """One stage of DyFormer's training, whose costs are measured alone; fine-tuning starts from random weights."""

    variation: Variation
    stage: Literal["pretrain", "finetune"]

    def changed(self, experiment: Experiment) -> Experiment:
        """Give an experiment with the changes of the variation."""
        return self.variation.changed(experiment)

    def train_epochs(self, graph: PreparedGraph, num_epochs: int, *, seed: int) -> None:
        """Train for so many epochs, whatever number the experiment has. Raises MissingExtra without torch."""
        need("torch")
        from dyformer.training.stages import finetune, pretrain

        numbers = {f"{self.stage}.epochs": num_epochs, f"{self.stage}.patience": None}
        changed = self.changed(self.variation.experiment).changed(numbers)
        if self.stage == "pretrain":
            assert changed.pretrain is not None
            epochs = pretrain(graph, changed.model, changed.pretrain, seed=seed)
        else:
            epochs = finetune(graph, None, changed.model, changed.finetune, seed=seed)
        deque(epochs, maxlen=0)


@dataclass(frozen=True, kw_only=True)
class NeedsTorch:
    """Stands for each method that trains by torch, where torch is not installed."""

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Raise MissingExtra."""
        need("torch")
        raise AssertionError("it stands in METHODS only where torch is not installed")


def _trained_baselines() -> dict[str, Embedder]:
    """Give the baselines that train by torch, by title."""
    if not is_installed("torch"):
        return defaultdict(NeedsTorch)
    from dyformer.baselines.dynaernn import DynAERNN
    from dyformer.baselines.dyngem import DynGEM
    from dyformer.baselines.dysat import DySAT
    from dyformer.baselines.evolvegcn import EvolveGCN
    from dyformer.baselines.graphsage import GraphSAGE
    from dyformer.baselines.node2vec import Node2Vec

    return {
        "node2vec": Node2Vec(),
        "GraphSAGE": GraphSAGE(),
        "DynGEM": DynGEM(),
        "DynAERNN": DynAERNN(),
        "DySAT": DySAT(),
        "EvolveGCN-O": EvolveGCN(evolution="O"),
        "EvolveGCN-H": EvolveGCN(evolution="H"),
    }


_TRAINED = _trained_baselines()

METHODS: dict[str, Method] = {
    "EdgeBank (ever)": EdgeBank(memory="ever"),
    "EdgeBank (last)": EdgeBank(memory="last"),
    "EdgeBank (decayed)": EdgeBank(memory="decayed"),
    "Preferential attachment": PreferentialAttachment(memory="ever"),
    "Preferential attachment (last)": PreferentialAttachment(memory="last"),
    "Popularity (decayed)": PreferentialAttachment(memory="decayed"),
    "Common neighbours": NeighbourPaths(kind="common_neighbors"),
    "Adamic-Adar": NeighbourPaths(kind="adamic_adar"),
    "L3": NeighbourPaths(kind="l3"),
    "Contact recency": ContactRecency(),
    "Adamic-Adar x recent activity": ActiveAdamicAdar(),
    "Adamic-Adar x root of recent degree": RecentPaths(kind="adamic_adar"),
    "L3 x root of recent degree": RecentPaths(kind="l3"),
    "Personalized PageRank": PersonalizedPageRank(),
    "Shortest path": ShortestPath(),
    "Logistic regression on pair features": LogisticRegression(),
    "Boosted trees on pair features": BoostedTrees(),
    # with their keys, because the titles are read from this source
    "node2vec": _TRAINED["node2vec"],
    "GraphSAGE": _TRAINED["GraphSAGE"],
    "DynGEM": _TRAINED["DynGEM"],
    "DynAERNN": _TRAINED["DynAERNN"],
    "DySAT": _TRAINED["DySAT"],
    "EvolveGCN-O": _TRAINED["EvolveGCN-O"],
    "EvolveGCN-H": _TRAINED["EvolveGCN-H"],
    "Forecaster without vectors": Forecaster(),
    "Event forecaster by pair": EventPairForecaster(),
    "DyFormer": Variation(),
    "DyFormer without pre-training": Variation(changes={"pretrain": None}),
    "DyFormer (as published)": Variation(base=PUBLISHED),
}


_FULL = {"model.towers": "one"}  # attention among all nodes of a batch
_ONE_HOP = {**_FULL, "model.max_hops": 1}

VARIATIONS: dict[str, Variation] = {
    "Published DyFormer without pre-training": Variation(base=PUBLISHED, changes={"pretrain": None}),
    "Published DyFormer, 2 layers": Variation(base=PUBLISHED, changes={"model.num_layers": 2}),
    "Published DyFormer, 4 layers": Variation(base=PUBLISHED, changes={"model.num_layers": 4}),
    "Published DyFormer, 6 layers": Variation(base=PUBLISHED, changes={"model.num_layers": 6}),
    "Published DyFormer, no encoding": Variation(base=PUBLISHED, changes={"model.encodings": "neither"}),
    "Published DyFormer, connections only": Variation(base=PUBLISHED, changes={"model.encodings": "connections"}),
    "Published DyFormer, distances only": Variation(base=PUBLISHED, changes={"model.encodings": "distances"}),
    "Published DyFormer, one tower": Variation(base=PUBLISHED, changes=_FULL),
    "Published DyFormer, 1 hop": Variation(base=PUBLISHED, changes=_ONE_HOP),
    "Published DyFormer, 3 hops": Variation(base=PUBLISHED, changes={**_FULL, "model.max_hops": 3}),
    "Published DyFormer, 1 hop, 10 % noise": Variation(base=PUBLISHED, changes={**_ONE_HOP, "graph.noise": 0.1}),
    "Published DyFormer, 1 hop, 20 % noise": Variation(base=PUBLISHED, changes={**_ONE_HOP, "graph.noise": 0.2}),
    "Published DyFormer, 1 hop, 50 % noise": Variation(base=PUBLISHED, changes={**_ONE_HOP, "graph.noise": 0.5}),
    "Published DyFormer, one tower, 10 % noise": Variation(base=PUBLISHED, changes={**_FULL, "graph.noise": 0.1}),
    "Published DyFormer, one tower, 20 % noise": Variation(base=PUBLISHED, changes={**_FULL, "graph.noise": 0.2}),
    "Published DyFormer, one tower, 50 % noise": Variation(base=PUBLISHED, changes={**_FULL, "graph.noise": 0.5}),
}
"""Variations of DyFormer that run only where they are named: the rows of the paper's studies of its parts."""


_STAGES: dict[str, Literal["pretrain", "finetune"]] = {"pre-training": "pretrain", "fine-tuning": "finetune"}

STAGES: dict[str, TrainingStage] = {
    f"{title}, {name}": TrainingStage(variation=Variation(base=base), stage=stage)
    for title, base in (("DyFormer", {}), (PUBLISHED_TITLE, PUBLISHED))
    for name, stage in _STAGES.items()
}
"""The stages of DyFormer's training, as rows of the study `cost`."""


NODE_METHODS: dict[str, NodeScorer] = {
    "Activity in the newest step": Activity(kind="last"),
    "Activity so far": Activity(kind="ever"),
    "Recency of activity": Activity(kind="recency"),
    "Logistic regression on activity": ActivityRegression(),
}
"""Baselines that score nodes, for the experiment with labels of nodes, where they stand beside embedders of METHODS."""


EVENT_METHODS: dict[str, Ranker] = {
    "Last partner": LastPartner(),
    "Pair recency": PairRecency(),
    "Pair recency with fallback": PairRecency(fallback=True),
    "Pair recency both ways with fallback": PairRecency(fallback=True, both_ways=True),
    "Event EdgeBank (unlimited)": PairMemory(memory="unlimited"),
    "Event EdgeBank (time window)": PairMemory(memory="window"),
    "Event popularity": Popularity(),
    "Event mixture": EventMixture(),
    "Event mixture both ways": EventMixture(both_ways=True),
    "Event forecaster": EventForecaster(),
}
"""Methods that rank a source's candidates as of every event."""


OURS = Variation | Forecaster | EventPairForecaster

BASELINES = frozenset(title for title, method in METHODS.items() if not isinstance(method, OURS))
"""Titles, in a table of scores, of the methods that ours are compared with."""


def baselines_of(kinds: tuple[type, ...]) -> frozenset[str]:
    """Give the titles of known methods with one of these interfaces that ours are compared with."""
    of_links = {title: method for title, method in METHODS.items() if title in BASELINES}
    of_events = {title: method for title, method in EVENT_METHODS.items() if not isinstance(method, EventForecaster)}
    known = {**of_links, **NODE_METHODS, **of_events}
    return frozenset(title for title, method in known.items() if isinstance(method, kinds))


TRAINED_BASELINES = frozenset(title for title in BASELINES if isinstance(METHODS[title], Embedder))
"""Titles of the baselines that train for minutes: they run only where they are named."""


ON_REQUEST = TRAINED_BASELINES | {"Event forecaster by pair"}
"""Titles of methods that a benchmark runs only where they are named, because they take long."""


def method_of(row: str) -> Method | NodeScorer | None:
    """Return the method of a title; of a row such as "DyFormer, pre-training" of the study `cost`, that of DyFormer."""
    known = {**METHODS, **VARIATIONS, **NODE_METHODS}
    return known.get(row, known.get(row.partition(", ")[0]))


def default_methods(kinds: tuple[type, ...] = USUAL_KINDS) -> dict[str, Any]:
    """Give the methods of a benchmark that names none: those of these interfaces, without ON_REQUEST."""
    known = {**METHODS, **NODE_METHODS, **EVENT_METHODS}
    return {title: method for title, method in known.items() if title not in ON_REQUEST and isinstance(method, kinds)}


def pair_scorers(*, on_request: bool = False) -> dict[str, Scorer]:
    """Give the METHODS that score pairs without vectors; those of ON_REQUEST only `on_request`."""
    known = {title: method for title, method in METHODS.items() if on_request or title not in ON_REQUEST}
    return {title: method for title, method in known.items() if isinstance(method, Scorer)}


def capped(method: Method, max_epochs: int | None) -> Method:
    """Give a method that trains for at most so many epochs; DyFormer's are those of its experiment.

    A method without epochs, or with fewer, stays the same.
    """
    if max_epochs is None or not is_dataclass(method):
        return method
    arguments = {each.name for each in fields(method) if each.init}
    own = {name: getattr(method, name) for name in EPOCHS if name in arguments}
    own = {name: epochs for name, epochs in own.items() if epochs is None or isinstance(epochs, int)}
    fewer = {name: max_epochs for name, epochs in own.items() if epochs is None or epochs > max_epochs}
    return replace(method, **fewer) if fewer else method


def _instance(name: str, found: Any) -> Any:
    """Make the object of a class without arguments."""
    if not inspect.isclass(found):
        return found
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UnknownMethod(f"{name}: it is called without arguments, but {error}; give defaults") from error
    try:
        return found()
    except Exception as error:
        raise UnknownMethod(f"{name}: called without arguments, it raises {_found(error)}") from error


def checked_method(name: str, found: Any, kinds: tuple[type, ...] = USUAL_KINDS) -> Any:
    """Return a user's method, made without arguments if it is a class. Raises UnknownMethod for one of no such kind."""
    calls = [CALLS[kind] for kind in CALLS if kind in kinds]
    expected = f"expected a class (or an object) with {', or with '.join(words for *_, words in calls)}"
    if any(found is kind for kind in CALLS):  # not "in", as a method may have no hash
        raise UnknownMethod(f"{name}: {expected}; found the interface itself")
    method = _instance(name, found)
    for function, num_arguments, named, _ in calls:
        if hasattr(method, function):
            try:
                inspect.signature(getattr(method, function)).bind(*[None] * num_arguments, **named)
            except TypeError as error:
                raise UnknownMethod(f"{name}: {expected}; its arguments differ: {error}") from error
            return method
    lacks = "it" if len(calls) == 1 else "either"
    raise UnknownMethod(f"{name}: {expected}; found {type(method).__name__} without {lacks}")


def is_built_in(method: object) -> bool:
    """Whether a method is one of this package."""
    return type(method).__module__.startswith("dyformer.")


@contextmanager
def own_errors(title: str, method: object, where: str, *, is_alone: bool = True) -> Iterator[None]:
    """Turn an error of a user's own method into MethodFailed, with its title, the step `where`, and the line.

    An error that another line raises comes of what the method gave, where the method `is_alone`. One that begins
    with the title, and one of files or memory that no line of the method raises, stays as it is.
    """
    try:
        yield
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename in _files_of(method)]
        is_of_another = not own and (not is_alone or isinstance(error, OSError | MemoryError | MissingExtra))
        if is_built_in(method) or is_of_another or str(error).startswith(f"{title}:"):
            raise
        last = (own or frames)[-1]
        given = "" if own else ", from what the method gave"
        raise MethodFailed(f"{title}, {where}: {_found(error)}{given} ({last.filename}, line {last.lineno})") from error


def _files_of(method: object) -> set[str]:
    functions = [getattr(type(method), function, None) for function, *_ in CALLS.values()]
    return {function.__code__.co_filename for function in functions if inspect.isfunction(function)}


def _found(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
