"""What an installation without extras runs: the Python API, and commands."""

from pathlib import Path

API = """
import dyformer
rows = [(f"u{n % 7}", f"u{(n * n + 1) % 9}", 3600 * n) for n in range(600)]
log = dyformer.read_log(rows, time_unit="s", bipartite=False)
graph = log.snapshots("3d")
model = dyformer.fit(graph, method="Forecaster without vectors")
assert model.top(3).height and set(dyformer.METHODS) >= {"L3", "GraphSAGE", "DyFormer"}
assert dyformer.evaluate(graph, ["L3"], steps=[graph.num_steps]).height
assert dyformer.fit_events(log).rank("u1", k=3).height
assert dyformer.fit(graph, method="node2vec").vectors().height
for method in ("DyFormer", "GraphSAGE", "EvolveGCN-O"):
    try:
        dyformer.fit(graph, method=method)
    except dyformer.experiments.extras.MissingExtra as error:
        assert str(error) == "this needs the package torch, which is not installed: pip install 'dyformer[model]'"
    else:
        raise AssertionError(method)
"""
# Several commands in one process, because each imports the libraries of the core for a second.
COMMANDS = """
import json
import sys
from flows.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["dyformer", *arguments]
    try:
        main()
    except SystemExit as ending:
        assert not ending.code, (arguments, ending.code)
"""


def core_commands(folder: Path) -> list[list[str]]:
    """Write a log into a folder; give commands that need no extra, in an order in which each can run."""
    log = folder / "log.csv"
    log.write_text("source,target,time\n" + "".join(f"a{n % 5},b{n % 3},{n}\n" for n in range(90)))
    return [
        ["ingest", "mylog", "--log", str(log), "--time-unit", "s", "--window", "10s"],
        ["sql", "select count(*) from events"],
        ["champions", "mylog"],
        ["drift", "mylog"],
        ["rank", "mylog", "a1"],
        ["verify"],
        ["settings"],
    ]
