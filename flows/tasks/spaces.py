"""Vectors of a model, and those published before -> the same vectors in the space of these, where they agree enough.

Scores are computed from the model's vectors as they are, so that publishing changes none.
"""

import json
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.scoring.vector_spaces import align, rotated
from storage.artifacts.artifact import lineage_of, open_artifact, read_table
from storage.champions import check_one_space

OWN, ROTATION, SPACE = "own", "rotation", "space.json"
IDS = ["side", "id"]
NOT_COMPARED = {"num_nodes": 0, "agreement_before": None, "agreement": None, "agreement_of_others": None}


def aligned(table: pl.DataFrame, model: str, onto: str) -> dict[str, pl.DataFrame | bytes]:
    """Give the contents of a vectors artifact in the space of `onto`, or in their own if the two do not agree.

    The table `vectors` has the vectors that a user reads, `own` those of the model, from which scores are computed, and
    `rotation` the matrix between the two; the last two exist only where there is one. The file space.json is the
    record of `space_record`. Vectors of one model keep one rotation, so that only the graph moves them.

    Args:
        table: side, id, space_id, vector: the model's vectors unrotated, whose space is `space_id`.
        model: id of the model's own space.
        onto: address of vectors as of an earlier step, or of this one.

    Raises MixedSpaces where those of `onto` are of several spaces.
    """
    reference = read_table(onto, "vectors")
    space_id = check_one_space(reference, onto)
    record: dict[str, Any] = {"space_id": model, **NOT_COMPARED}
    widths = reference["vector"].list.len()[0], table["vector"].list.len()[0]
    if widths[0] != widths[1]:
        return _in_a_new_space(table, record, f"the width changed from {widths[0]} to {widths[1]}")
    own_ND, row_M, reference_MD = _shared(table, reference)
    is_same = lineage_of(onto).settings["model"] == model
    earlier_DD = read_rotation(onto) if is_same else None
    rotation_DD, before, after, is_close = align(own_ND, row_M, reference_MD, earlier_DD, is_same=is_same)
    record |= {"num_nodes": len(row_M), "agreement_before": before.itself}
    record |= {"agreement": after.itself, "agreement_of_others": after.others}
    if not is_close:
        cosines = f"{after.itself:.2f} with itself and {after.others:.2f} with others"
        return _in_a_new_space(table, record, f"a node's mean cosine with the vectors before is {cosines}")
    reason = "of the same weights" if is_same else "rotated onto those published before"
    record |= {"space_id": space_id, "reason": reason}
    if rotation_DD is None:
        return {"vectors": table.with_columns(space_id=pl.lit(space_id)), SPACE: _encoded(record)}
    vector = pl.Series("vector", rotated(own_ND, rotation_DD), dtype=pl.List(pl.Float32))
    return {
        "vectors": table.with_columns(vector, space_id=pl.lit(space_id)),
        OWN: table.select("vector"),
        ROTATION: pl.DataFrame({"row": rotation_DD.tolist()}, schema={"row": pl.List(pl.Float64)}),
        SPACE: _encoded(record),
    }


def unrotated_vectors(address: str) -> pl.Series:
    """Read the vectors of an artifact in the model's own space."""
    artifact = open_artifact(address)
    table = artifact.table(OWN if f"{OWN}.parquet" in artifact.entries else "vectors")
    return table["vector"] if "vector" in table.columns else pl.Series([None])


def read_rotation(address: str) -> NDArray[np.float64] | None:
    """Read the matrix `[D, D]` by which the model's vectors became those of the table; None where they are the same."""
    artifact = open_artifact(address)
    if f"{ROTATION}.parquet" not in artifact.entries:
        return None
    return np.array(artifact.table(ROTATION)["row"].to_list())


def space_record(address: str) -> dict[str, Any]:
    """Read the space of an artifact of vectors, and how far a node agrees with itself in the publication before.

    space_id; agreement, agreement_before: mean cosine of `num_nodes` nodes with themselves, with and without the
    rotation; agreement_of_others: with the other nodes; None where nothing was published before; reason.
    """
    artifact = open_artifact(address)
    if SPACE in artifact.entries:
        return json.loads(artifact.content(SPACE))
    space_id = check_one_space(artifact.table("vectors"), address)
    reason = "nothing was published before"
    return {"space_id": space_id, **NOT_COMPARED, "reason": reason}


def _in_a_new_space(table: pl.DataFrame, record: dict[str, Any], reason: str) -> dict[str, pl.DataFrame | bytes]:
    return {"vectors": table, SPACE: _encoded({**record, "reason": f"a new space, because {reason}"})}


def _encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record, indent=1).encode()


def _shared(
    table: pl.DataFrame, reference: pl.DataFrame
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Give all vectors [N, D], the rows of the nodes [M] that both tables have, and their earlier vectors [M, D]."""
    text = pl.col("id").cast(pl.String)  # numbers become texts where a log gets its first id of letters
    ids = table.select("side", text).with_row_index("row")
    both = ids.join(reference.select("side", text, "vector"), on=IDS, how="inner", maintain_order="left")
    width = table["vector"].list.len()[0]
    own_ND, reference_MD = (vectors.explode().to_numpy() for vectors in (table["vector"], both["vector"]))
    return own_ND.reshape(-1, width), both["row"].cast(pl.Int64).to_numpy(), reference_MD.reshape(-1, width)
