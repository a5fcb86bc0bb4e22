"""Limits that keep the memory and the time of reading a file in proportion to its size."""

from pydantic import Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """A row beyond a limit is rejected with this reason; a file of which no row can be cut is refused."""

    max_line_bytes: int = Field(
        default=1 << 22, ge=1_000, le=1 << 30, description="bytes of a line, and of a quoted record of several lines"
    )
    max_unpacked_ratio: int = Field(
        default=1_000, ge=2, description="unpacked bytes for each stored byte of a compressed file or an archive"
    )
    max_years_apart: int = Field(
        default=30, ge=1, le=10_000, description="years between a row's time and those of nearly all rows of its file"
    )
    max_json_depth: int = Field(default=100, ge=1, le=500, description="nested objects and lists of a JSON line")
