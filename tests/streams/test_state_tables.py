import numpy as np
from numpy.typing import NDArray
from slow_events import SlowEvents, random_log, rows_of

from dyformer.streams.event_state import EventState, StateSettings
from dyformer.streams.kernels import tables


def _ordered_pairs(slow: SlowEvents, num_targets: int, rate_H: NDArray[np.float64]) -> dict[str, NDArray]:
    """The arrays of shared pairs as they were stored before: a slot for each order, one right after the other."""
    empty = tables.table_of(np.empty(0, dtype=tables.SLOT), np.full(num_targets, -1, dtype=np.int32))
    table = tables.with_room(empty, 2 * len(slow.shared))
    for partner, target, time in slow.shared:
        tables.touch(table, partner, target, time, rate_H)
        tables.touch(table, target, partner, time, rate_H)
    records = table.slot_S[: int(table.num_used_1[0])]
    fields = {f"shared.{field}": records[field].copy() for field in records.dtype.names or ()}
    return fields | {"shared.newest": table.newest_R.copy()}


def test_a_state_that_was_stored_with_both_orders_of_shared_pairs_has_the_bytes_of_a_new_one() -> None:
    log = random_log(7, two_sides=True)
    settings = StateSettings(two_sides=True, seconds=log.seconds)
    state = EventState(log.num_sources, log.num_targets, settings)
    state.observe(log)
    arrays = state.to_arrays()
    num_absorbed = state.num_events - len(arrays["waiting.time_E"])
    slow = SlowEvents(
        rows_of(log, num_absorbed, both_ways=False), 0, seconds=log.seconds, half_lives=settings.half_lives
    )
    shared = _ordered_pairs(slow, log.num_targets, settings.rate_H)
    older = {name: values for name, values in arrays.items() if not name.startswith("shared.")} | shared
    assert (shared["shared.row"] > shared["shared.column"])[::2].any()  # in both orders
    assert (shared["shared.row"] < shared["shared.column"])[::2].any()
    found = EventState.from_arrays(older, settings).to_arrays()
    assert found.keys() == arrays.keys()
    assert all(found[name].tobytes() == arrays[name].tobytes() for name in arrays)
