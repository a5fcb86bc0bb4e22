"""METHODS: every method that a benchmark compares, with its hyper-parameters, under its title in the table.

Beside them, which settings each of them reads.
"""

import inspect
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dyformer import InvalidInput
from dyformer.baselines.activity import Activity, ActivityRegression
from dyformer.baselines.classifiers import BoostedTrees, LogisticRegression
from dyformer.baselines.dynaernn.method import DynAERNN
from dyformer.baselines.dyngem.method import DynGEM
from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency, Popularity
from dyformer.baselines.event_mixture import EventMixture
from dyformer.baselines.evolvegcn.method import EvolveGCN
from dyformer.baselines.graphsage.method import GraphSAGE
from dyformer.baselines.heuristics import EdgeBank, NeighbourPaths, PreferentialAttachment, RecentPaths
from dyformer.baselines.node2vec import Node2Vec
from dyformer.baselines.proximity import PersonalizedPageRank, ShortestPath
from dyformer.baselines.recency import ActiveAdamicAdar, ContactRecency, LatestContact
from dyformer.experiments.extras import MissingExtra, missing, need
from dyformer.experiments.settings import Experiment, as_record
from dyformer.experiments.titles import UnknownMethod, full_title
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.event_pairs import EventPairForecaster
from dyformer.scoring.forecaster import Forecaster
from dyformer.scoring.interfaces import EPOCHS, Embed, Embedder, NodeScorer, Ranker, Scorer

if TYPE_CHECKING:
    from dyformer.training.checkpoint import Progress
    from dyformer.training.stored_weights import TrainedDyFormer


# Adam of PyTorch 1.4, with which the paper was computed. Both losses are sums in which every step counts alike.
_TRAINING: Mapping[str, Any] = {
    "optimizer": "plain",
    "learning_rate": 1e-3,
    "id_learning_rate": 1e-3,
    "weight_decay": 5e-4,
    "clip_norm": 1.0,
    "batches_per_step": 1,
    "step_half_life": None,
    "num_negatives": 10,
    "negative_weight": 1.0,
    "hard_negatives": 0.0,
    "validation_fraction": 0.1,
}

PUBLISHED: Mapping[str, Any] = {
    # Section 3.4: H^(0) is a linear map of one-hot vectors, and a vector is the output of the last layer.
    "model.inputs": "id",
    "model.id_fraction": 1.0,
    "model.id_dropout": 0.0,
    "model.output": "plain",
    "model.initial_weights": "plain",
    "model.width": 128,
    "model.num_layers": 2,
    "model.num_heads": 8,
    "model.feed_forward_width": 128,
    "model.residual_dropout": 0.5,
    "model.attention_dropout": 0.1,
    "model.gpu_precision": "float32",
    "model.encodings": "both",
    "model.towers": "two",
    "model.max_hops": None,
    # Section 3.2: as many context nodes as targets.
    "model.num_context": None,
    "model.num_targets": 1024,
    # Section 4.1: scores are inner products; L_recon of the first view + 1 x L_view, and no other loss.
    "model.pair_score": "plain",
    "pretrain.mask_lag": True,
    "pretrain.reconstructed_views": "first",
    "pretrain.view": "plain",
    "pretrain.view_weight": 1.0,
    "pretrain.id_weight": 0.0,
    "pretrain.id_penalty": 0.0,
    "pretrain.num_history_links": 1,
    "pretrain.num_positives": 128,
    "pretrain.num_targets": 256,
    # Section 4.2: 256 positive pairs, whose ends are up to 512 targets, and 2,560 negative pairs among 512 others.
    "finetune.num_positives": 256,
    "finetune.num_targets": 1024,
    "finetune.ranking_weight": 0.0,
    **{f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in _TRAINING.items()},
    # Section 5.1: every step's model is trained from scratch.
    "warm_start": None,
    # Section 5.1: a logistic regression on the products of two vectors.
}
"""Settings of the paper's own model (Cong et al., SDM 2023), every one but the length of its training.

Of the paper's ranges these are the values taken: 8 heads, 2 layers, width 128, negatives weighted like positives.
"""


Method = Embedder | Scorer


class MethodFailed(InvalidInput):
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
        is_in_part = any(changed.startswith(f"{name}.") for changed in changes)
        return is_in_part or name in changes or (part in changes and changes[part] is None)

    def changed(self, experiment: Experiment) -> Experiment:
        """Give an experiment with the changes; changes of pre-training bring it back where the experiment has none."""
        changes = self.all_changes
        is_back = experiment.pretrain is None and any(name.startswith("pretrain.") for name in changes)
        return experiment.changed({**({"pretrain": "default"} if is_back else {}), **changes})

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train from scratch; the flows train the same with checkpoints and evaluate a TrainedDyFormer."""
        return self.trained(graph, seed=seed).fit(graph, seed=seed)

    def train_epochs(self, graph: PreparedGraph, num_epochs: int, *, seed: int) -> None:
        """Train each of its stages for so many epochs, as a TrainingStage of it does. Raises MissingExtra."""
        stages: tuple[Literal["pretrain", "finetune"], ...] = ("pretrain", "finetune")
        for stage in stages[self.changed(self.experiment).pretrain is None :]:
            TrainingStage(variation=self, stage=stage).train_epochs(graph, num_epochs, seed=seed)

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
    "Last contact": LatestContact(newest_only=True),
    "Recency rank": LatestContact(),
    "Contact recency": ContactRecency(),
    "Adamic-Adar x recent activity": ActiveAdamicAdar(),
    "Adamic-Adar x root of recent degree": RecentPaths(kind="adamic_adar"),
    "L3 x root of recent degree": RecentPaths(kind="l3"),
    "Personalized PageRank": PersonalizedPageRank(),
    "Shortest path": ShortestPath(),
    "Logistic regression on pair features": LogisticRegression(),
    "Boosted trees on pair features": BoostedTrees(),
    "node2vec": Node2Vec(),
    "GraphSAGE": GraphSAGE(),
    "DynGEM": DynGEM(),
    "DynAERNN": DynAERNN(),
    "DySAT": DySAT(),
    "EvolveGCN-O": EvolveGCN(evolution="O"),
    "EvolveGCN-H": EvolveGCN(evolution="H"),
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
    "DyFormer, 4 layers": Variation(changes={"model.num_layers": 4}),
    "DyFormer, 6 layers": Variation(changes={"model.num_layers": 6}),
    "DyFormer, no encoding": Variation(changes={"model.encodings": "neither"}),
    "DyFormer, connections only": Variation(changes={"model.encodings": "connections"}),
    "DyFormer, distances only": Variation(changes={"model.encodings": "distances"}),
    "DyFormer, one tower": Variation(changes=_FULL),
    "DyFormer, 1 hop": Variation(changes=_ONE_HOP),
    "DyFormer, 3 hops": Variation(changes={**_FULL, "model.max_hops": 3}),
    "DyFormer, 1 hop, 10 % noise": Variation(changes={**_ONE_HOP, "graph.noise": 0.1}),
    "DyFormer, 1 hop, 20 % noise": Variation(changes={**_ONE_HOP, "graph.noise": 0.2}),
    "DyFormer, 1 hop, 50 % noise": Variation(changes={**_ONE_HOP, "graph.noise": 0.5}),
    "DyFormer, one tower, 10 % noise": Variation(changes={**_FULL, "graph.noise": 0.1}),
    "DyFormer, one tower, 20 % noise": Variation(changes={**_FULL, "graph.noise": 0.2}),
    "DyFormer, one tower, 50 % noise": Variation(changes={**_FULL, "graph.noise": 0.5}),
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
    titles = {**of_links, **NODE_METHODS, **of_events}
    return frozenset(title for title, method in titles.items() if isinstance(method, kinds))


TRAINED_BASELINES = frozenset(title for title in BASELINES if isinstance(METHODS[title], Embedder))
"""Titles of the baselines that train for minutes: they run only where they are named."""


ON_REQUEST = TRAINED_BASELINES | {"Event forecaster by pair"}
"""Titles of methods that a benchmark runs only where they are named, because they take long."""


def method_of(row: str) -> Method | NodeScorer | None:
    """Return the method of a title; of a row such as "DyFormer, pre-training" of the study `cost`, that of DyFormer."""
    all_methods = {**METHODS, **VARIATIONS, **NODE_METHODS}
    return all_methods.get(row, all_methods.get(row.partition(", ")[0]))


def default_methods(kinds: tuple[type, ...] = USUAL_KINDS) -> dict[str, Any]:
    """Give the methods of a benchmark that names none: those of these interfaces, without ON_REQUEST."""
    all_methods = {**METHODS, **NODE_METHODS, **EVENT_METHODS}
    return {
        title: method for title, method in all_methods.items() if title not in ON_REQUEST and isinstance(method, kinds)
    }


def pair_scorers(*, on_request: bool = False) -> dict[str, Scorer]:
    """Give the METHODS that score pairs without vectors; those of ON_REQUEST only `on_request`."""
    all_methods = {title: method for title, method in METHODS.items() if on_request or title not in ON_REQUEST}
    return {title: method for title, method in all_methods.items() if isinstance(method, Scorer)}


def capped(method: Method, max_epochs: int | None) -> Method:
    """Give a method that trains for at most so many epochs; DyFormer's are those of its experiment.

    A method without epochs, or with fewer, stays the same.
    """
    if max_epochs is None or not is_dataclass(method):
        return method
    arguments = {field.name for field in fields(method) if field.init}
    epochs_of = {name: getattr(method, name) for name in EPOCHS if name in arguments}
    epochs_of = {name: epochs for name, epochs in epochs_of.items() if epochs is None or isinstance(epochs, int)}
    fewer = {name: max_epochs for name, epochs in epochs_of.items() if epochs is None or epochs > max_epochs}
    return replace(method, **fewer) if fewer else method


def _instance(name: str, found: Any) -> Any:
    """Make the object of a class without arguments."""
    if not inspect.isclass(found):
        return found
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError) as error:  # a class of C, such as int, may have no signature
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


def named_methods(methods: "Sequence[str | Method] | Mapping[str, Method] | None") -> dict[str, Method]:
    """Give methods by title, from titles of METHODS, objects, a mapping, or None (default ones). Raises ValueError."""
    if isinstance(methods, Mapping | list | tuple | set | frozenset) and not methods:
        raise InvalidInput(f'methods = {methods!r}: expected one method at least, such as "L3"')
    if methods is None or isinstance(methods, Mapping):
        chosen = default_methods() if methods is None else methods
        return {title: checked_method(title, method) for title, method in chosen.items()}
    named: dict[str, Method] = {}
    for entry in methods if isinstance(methods, list | tuple | set | frozenset) else [methods]:
        name = (
            full_title(entry, METHODS) if isinstance(entry, str) else getattr(entry, "__name__", type(entry).__name__)
        )
        method = METHODS[name] if isinstance(entry, str) else checked_method(name, entry)
        title = next((title for title, usual_method in METHODS.items() if usual_method is method), name)
        if title in named:
            raise InvalidInput(
                f"two methods have the title {title!r}: give a mapping from titles of your own to methods"
            )
        named[title] = method
    return named


def is_built_in(method: object) -> bool:
    """Whether a method is one of this package."""
    return type(method).__module__.startswith("dyformer.")


@contextmanager
def own_errors(title: str, method: object, where: str, *, is_alone: bool = True) -> Iterator[None]:
    """Turn an error of a user's own method into MethodFailed, with its title, the step `where`, and the line.

    An error that another line raises comes of what the method gave, where the method `is_alone`. One that begins
    with the title, and one of files or memory that no line of the method raises, stays as it is. Raises MissingExtra
    where a package of an extra is not installed.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (message := missing(error.name or "")) is not None:
            raise MissingExtra(message) from error
        frames = traceback.extract_tb(error.__traceback__)
        frames_of_method = [frame for frame in frames if frame.filename in _files_of(method)]
        is_of_another = not frames_of_method and (
            not is_alone or isinstance(error, OSError | MemoryError | MissingExtra)
        )
        if is_built_in(method) or is_of_another or str(error).startswith(f"{title}:"):
            raise
        last = (frames_of_method or frames)[-1]
        origin = "" if frames_of_method else ", from what the method gave"
        raise MethodFailed(
            f"{title}, {where}: {_found(error)}{origin} ({last.filename}, line {last.lineno})"
        ) from error


def _files_of(method: object) -> set[str]:
    functions = [getattr(type(method), function, None) for function, *_ in CALLS.values()]
    return {function.__code__.co_filename for function in functions if inspect.isfunction(function)}


def _found(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


READ = ("graph", "model", "pretrain", "finetune", "warm_start", "max_epochs")
"""Parts of the settings that a benchmark reads; the others are of retrainings."""


class NoEffect(InvalidInput):
    """A changed setting that changes no score."""


def check_effect(names: Iterable[str], methods: Iterable[Any], written: Mapping[str, str] | None = None) -> None:
    """Raise NoEffect for a changed setting that no method reads, or that each which reads it sets itself.

    Args:
        names: of settings, such as "model.width".
        methods: with the settings that a search chose.
        written: settings that the user changed by other words than their name, such as an option.
    """
    compared, written = list(methods), written or {}
    for name in names:
        if not any(_reads(method, name) for method in compared):
            raise NoEffect(
                f"{written.get(name, name)} has no effect here: the methods do not read it, or set it themselves; leave"
                " it out, or choose methods that read it"
            )


def changes_of(experiment: Experiment) -> dict[str, Any]:
    """Give the settings, of those that benchmarks read, in which an experiment differs from the defaults."""
    usual = _flat(as_record(Experiment(), READ))
    return {name: value for name, value in _flat(as_record(experiment, READ)).items() if usual.get(name, ()) != value}


def settings_of(method: Any, experiment: Experiment) -> dict[str, Any]:
    """Give the settings with which a method is trained and evaluated, those of a part nested, as in as_record.

    DyFormer's are those of the experiment with its own changes; another method's are its fields, and the experiment's
    `graph.*`, which a ranker of events does not read. Numbers of epochs are those after the cap of `max_epochs`, for
    which `method` is one of `capped`.
    """
    if isinstance(method, Variation | TrainingStage):
        return as_record(method.changed(experiment).capped, READ[:-1])
    parameters = (
        {field.name: getattr(method, field.name) for field in fields(method) if field.init}
        if is_dataclass(method)
        else {}
    )
    return parameters if isinstance(method, Ranker) else {**as_record(experiment, "graph"), **parameters}


def _reads(method: Any, name: str) -> bool:
    part = name.partition(".")[0]
    method = method.variation if isinstance(method, TrainingStage) else method
    if isinstance(method, Variation):
        return part in READ and not method.sets(name)
    if part == "max_epochs":
        return is_dataclass(method) and any(field.name in EPOCHS for field in fields(method) if field.init)
    return part == "graph" and not isinstance(method, Ranker)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Give a record with dotted names, in its order; a part that is none stays under its own name."""
    flat: dict[str, Any] = {}
    for name, value in record.items():
        flat |= (
            {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return flat
