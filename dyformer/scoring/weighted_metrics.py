"""Sorted pairs and resampled nodes -> the AUC and the average precision of each resample.

B resamples    S nodes of the pairs    P pairs, the highest score first
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def weighted_metrics(weight_BS, source_P, target_P, positive_P, is_last_P):
    """Give AUC and average precision `[B]` where a pair counts as often as the product of its two ends' weights.

    The ends are positions in `weight_BS`; `is_last_P` marks the last pair of each group of tied scores. A resample
    without pairs of both kinds gives NaN. Scikit-learn's functions with `sample_weight` sort the scores at every call.
    """
    num_resamples = len(weight_BS)
    auc_B, precision_B = np.full(num_resamples, np.nan), np.full(num_resamples, np.nan)
    for resample in range(num_resamples):
        weight_S = weight_BS[resample]
        positives, negatives, above, precision = 0.0, 0.0, 0.0, 0.0
        group_positives, group_negatives = 0.0, 0.0
        for pair in range(len(source_P)):
            weight = float(weight_S[source_P[pair]]) * float(weight_S[target_P[pair]])
            if positive_P[pair]:
                group_positives += weight
            else:
                group_negatives += weight
            if is_last_P[pair]:
                # Positive pairs with a higher score count whole, those with an equal score half.
                above += group_negatives * (positives + group_positives / 2)
                positives += group_positives
                negatives += group_negatives
                if group_positives > 0.0:
                    precision += group_positives * positives / (positives + negatives)
                group_positives, group_negatives = 0.0, 0.0
        if positives > 0.0 and negatives > 0.0:
            auc_B[resample] = above / (positives * negatives)
            precision_B[resample] = precision / positives
    return auc_B, precision_B
