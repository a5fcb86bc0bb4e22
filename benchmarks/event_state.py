"""1M events through the streaming state -> events a CPU second, CPU milliseconds a query, and bytes of memory.

Two logs: one whose sources return to a few targets, as most logs do, and one in which nearly every pair is new, which
is the most expensive. The seconds contain the growth of the tables, and no compilation. `--slopes` measures states of
several sizes instead, with ten events a source, and continues their line to 100M events.
"""

import argparse
import time

import measure
import numpy as np

from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.event_state import EventState, StateSettings, candidate_rows
from dyformer.streams.state_tables import TABLES

NUM_EVENTS = 1_000_000
NUM_SOURCES, NUM_TARGETS = NUM_EVENTS // 10, NUM_EVENTS // 20
NUM_QUERIES = 2_000
MAX_SECONDS = 10.0
LOGS = {"returning": 0.9, "new": 0.0}  # the fraction of events that go to a usual target of their source
EVENTS_OF_SLOPES = {
    "returning": (500_000, 1_000_000, 2_000_000, 4_000_000),
    "new": (250_000, 500_000, 1_000_000, 2_000_000),
}
LARGE = 100_000_000  # events to which the line continues


def log_of(returning: float, num_events: int = NUM_EVENTS, seed: int = 0) -> EventLog:
    """Make events with power-law ends over a month; a fraction of them goes to one of three targets of the source."""
    generator = np.random.default_rng(seed)
    num_sources, num_targets = num_events // 10, num_events // 20
    ends = []
    for num_nodes in (num_sources, num_targets):
        cumulative_N = np.cumsum(np.arange(1, num_nodes + 1) ** (-2 / 3))
        ends.append(np.searchsorted(cumulative_N / cumulative_N[-1], generator.random(num_events)))
    usual_E = (ends[0] * 7 + generator.integers(0, 3, num_events)) % num_targets
    return EventLog(
        source_E=ends[0],
        target_E=np.where(generator.random(num_events) < returning, usual_E, ends[1]),
        time_E=np.sort(generator.integers(0, 30 * 86_400, num_events)),
        weight_E=np.ones(num_events),
        num_sources=num_sources,
        num_targets=num_targets,
        two_sides=True,
        seconds=1.0,
    )


def main() -> None:
    """Measure both logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slopes", action="store_true")
    if parser.parse_args().slopes:
        measure_slopes()
        return
    for name, returning in LOGS.items():
        log, settings = log_of(returning), StateSettings(two_sides=True, seconds=1.0)
        EventState(NUM_SOURCES, NUM_TARGETS, settings).observe(log.head(10))
        states: list[EventState] = []

        def observe(log: EventLog = log, settings: StateSettings = settings, states: list = states) -> None:
            states[:] = [EventState(NUM_SOURCES, NUM_TARGETS, settings)]
            states[0].observe(log)

        seconds = measure.cpu_seconds({"observe": observe}, rounds=3)["observe"]
        measure.verdict(f"event_state_{name}_1m", seconds, MAX_SECONDS, at_most=True, unit="CPU-seconds")
        arrays = states[0].to_arrays()
        used = {table: len(arrays[f"{table}.count"]) for table in TABLES}
        print(f"event_state_{name} slots {used}")
        allocated = states[0].allocated_bytes()
        used_tables = {table: num_slots for table, num_slots in used.items() if num_slots}  # by the kind of log
        for table, num_slots in used_tables.items():
            part = sum(values.nbytes for key, values in arrays.items() if key.startswith(f"{table}."))
            sizes = f"{part / num_slots:.0f}, allocated {allocated[table] / num_slots:.0f}"
            print(f"event_state_{name} {table} bytes a slot {sizes}")
        for side, num_nodes in (("source", NUM_SOURCES), ("target", NUM_TARGETS)):
            part = sum(values.nbytes for key, values in arrays.items() if key.startswith(f"{side}."))
            print(f"event_state_{name} bytes a {side} {part / num_nodes:.0f}")
        print(f"event_state_{name} MB {sum(allocated.values()) / 1e6:.0f}")
        print(f"event_state_{name} CPU ms of a query's candidates {query_milliseconds(log, settings):.2f}")


def measure_slopes() -> None:
    """Measure states of several sizes, and continue the line through the two largest."""
    for name, returning in LOGS.items():
        sizes, found = EVENTS_OF_SLOPES[name], []
        for num_events in sizes:
            log, settings = log_of(returning, num_events), StateSettings(two_sides=True, seconds=1.0)
            EventState(log.num_sources, log.num_targets, settings).observe(log.head(10))
            state, started = EventState(log.num_sources, log.num_targets, settings), time.process_time()
            state.observe(log)
            seconds = time.process_time() - started
            used = sum(values.nbytes for values in state.to_arrays().values())
            found.append((seconds, used / 1e9))
            print(f"event_state_{name} {num_events:,} events CPU-seconds {seconds:.2f} GB {used / 1e9:.3f}")
        for index, unit in enumerate(("CPU-seconds", "GB")):
            slope = (found[-1][index] - found[-2][index]) / (sizes[-1] - sizes[-2])
            value = found[-1][index] + slope * (LARGE - sizes[-1])
            print(f"event_state_{name} {LARGE:,} events, continued: {unit} {value:.0f}")


def query_milliseconds(log: EventLog, settings: StateSettings) -> float:
    """Give the CPU milliseconds of one query's candidates, as the difference between many queries and one."""
    source_Q = log.source_E[-NUM_QUERIES:]
    full = EventQueries(
        source_Q=source_Q,
        time_Q=np.full(NUM_QUERIES, log.time_E[-1] + 1),
        num_visible_Q=np.full(NUM_QUERIES, NUM_EVENTS),
        candidate_QC=np.zeros((NUM_QUERIES, 1), dtype=np.int64),
    )
    one = EventQueries(**{key: column[:1] for key, column in vars(full).items()})
    jobs = {
        "many": lambda: sum(len(rows.row_RF) for rows in candidate_rows(log, full, settings)),
        "one": lambda: sum(len(rows.row_RF) for rows in candidate_rows(log, one, settings)),
    }
    seconds = measure.medians(measure.cpu_seconds(jobs, rounds=1))
    return 1e3 * (seconds["many"] - seconds["one"]) / (NUM_QUERIES - 1)


if __name__ == "__main__":
    main()
