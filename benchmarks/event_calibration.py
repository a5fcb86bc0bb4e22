"""Probabilities of the event forecaster on test events -> how far they are from what came, for each log.

The forecaster is fitted and calibrated on the training and validation events of the protocol `tgb`, strict; test is
read once. Of each test event its source's candidates have probabilities to be the target; those of one event add up to
at most 1. "Mean" is that of the probabilities and "came" the fraction that came; the error is the expected calibration
error over 15 bins (Guo et al., 2017). "New partner" is the gate's, for sources with a past partner. A target may be an
older partner than the 128 newest, which have rows: it is no new one, and no candidate.

    python benchmarks/event_calibration.py uci --log out.opsahl-ucsocial.gz

Q queries    R rows of candidates
"""

import argparse
from collections import defaultdict

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sequence_view import is_new_partner, trial_of

from dyformer.evaluation.event_splits import EventTrial, rankable_events
from dyformer.experiments.printed import markdown_rows
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.metrics import expected_calibration_error
from dyformer.streams.event_state import candidate_rows

NUM_BEST = 10
BEST, TEN, ROWS, GATE = "best partner", f"{NUM_BEST} best, together", "every candidate", "new partner"


def outcomes(trial: EventTrial, seed: int) -> dict[str, tuple[NDArray[np.bool_], NDArray[np.float64]]]:
    """Fit on training and validation; give, by kind, what came on test and its probabilities."""
    fitted = EventForecaster().fit_events(*trial.fitting, seed=seed)
    event_Q = rankable_events(trial.log, trial.splits, "test")
    target_Q, is_new_Q = trial.log.target_E[event_Q], is_new_partner(trial.log)[event_Q]
    came, probability = defaultdict(list), defaultdict(list)
    first = 0
    for rows in candidate_rows(trial.log, trial.queries(event_Q), fitted.settings):
        probability_R = fitted.probabilities(rows)
        num_rows_Q = rows.num_past_Q + rows.num_new_Q
        end_Q = np.cumsum(num_rows_Q)
        for query, (end, num_rows, num_past) in enumerate(zip(end_Q, num_rows_Q, rows.num_past_Q, strict=True)):
            part = slice(end - num_rows, end)
            own_R, came_R = probability_R[part], rows.target_R[part] == target_Q[first + query]
            best_R = np.argsort(-own_R, kind="stable")[:NUM_BEST]
            for name, chosen_R in ((BEST, best_R[:1]), (ROWS, slice(None))):
                came[name].append(came_R[chosen_R].copy())
                probability[name].append(own_R[chosen_R])
            came[TEN].append([came_R[best_R].any()])
            probability[TEN].append([own_R[best_R].sum()])
            if num_past:
                came[GATE].append([is_new_Q[first + query]])
                probability[GATE].append([1 - own_R[:num_past].sum()])
        first += len(num_rows_Q)
    return {name: (np.concatenate(came[name]), np.clip(np.concatenate(probability[name]), 0, 1)) for name in came}


def main() -> None:
    """Print the table of a log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dataset", help="a known log, such as uci or ml-10m")
    parser.add_argument("--log", required=True, help="its file")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rows = []
    for name, (came_P, probability_P) in sorted(outcomes(trial_of(given.dataset, given.log), given.seed).items()):
        row = {"": f"{given.dataset}: {name}", "number": f"{len(came_P):,}", "mean": f"{probability_P.mean():.4f}"}
        row |= {"came": f"{came_P.mean():.4f}", "error": f"{expected_calibration_error(came_P, probability_P):.4f}"}
        rows.append(row)
    print("\n".join(markdown_rows(pl.DataFrame(rows))))


if __name__ == "__main__":
    main()
