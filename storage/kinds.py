"""A JSON record of the store -> what is wrong with the kinds of its values, None for a record that can be used.

A checksum finds accidents. A record that another program wrote, or an earlier version, may be whole and hold a list for
a text all the same.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError

MOST_NAME_BYTES = 255


def is_below(path: str) -> bool:
    """Whether a relative path stays below the folder that it is appended to, and a disk can have it."""
    try:
        parts = path.encode().split(b"/")
    except UnicodeEncodeError:  # half of a pair of code units, which JSON can hold
        return False
    is_name = all(0 < len(part) <= MOST_NAME_BYTES for part in parts)
    return is_name and "://" not in path and not {"\\", "\0"} & set(path) and not {b".", b".."} & set(parts)


def _below(path: str) -> str:
    if not is_below(path):
        raise ValueError("expected a path below the folder")
    return path


def _unicode(text: str) -> str:
    text.encode()  # UnicodeEncodeError is a ValueError, as a validator raises it
    return text


Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Text = Annotated[str, AfterValidator(_unicode)]
Path = Annotated[str, AfterValidator(_below)]


class LogForm(BaseModel, strict=True, extra="forbid"):
    """The form of the files of a log, which later files must have too."""

    format: Literal["delimited", "jsonl", "parquet"]
    separator: str | None
    names: list[str]
    columns: dict[str, str | Count]
    num_fields: Count
    batch: str = ""  # SHA-256 of the bytes of the first source that had it


class Declaration(BaseModel, strict=True):
    """How a log is read; the names of options that are missing are guessed or have defaults."""

    source: str | Count | None = None
    target: str | Count | None = None
    time: str | Count | None = None
    weight: str | Count | None = None
    label: str | Count | None = None
    format: str | None = None
    separator: str | None = None
    has_header: bool | None = None
    time_unit: str | None = None
    bipartite: bool | None = None
    directed: bool | None = None
    comment_marks: str = ""
    window: str = ""
    lateness: str = "0"
    finished: bool | None = None
    new_ids: bool | None = None
    drop_duplicates: bool | None = None
    forms: list[LogForm] = []
    dataset: str | None = None


class Published(BaseModel, strict=True):
    """The newest forecasts and vectors of a champion; `number` counts those of all champions."""

    number: Count
    step: Count
    forecasts: Path
    vectors: Path | None
    published_at: str | None = None


class Tenure(BaseModel, strict=True):
    """A champion of a dataset, the outcomes of its tests by their keys, and what it published last."""

    title: str
    models: list[Path]
    identity: str
    num_tests: Count
    tests: dict[str, dict[str, Any]]
    number: Count = 1
    end_time: Whole | None = None
    published: Published | None = None


class Champion(Tenure, strict=True):
    """The present champion of a dataset, and those before it."""

    earlier: list[Tenure] = []


class EarlierChampion(BaseModel, strict=True):
    """The champion as the first version wrote it: a model."""

    model: Path
    space: str


class RawContent(BaseModel, strict=True):
    """The checksum of a raw file, and what shows that it has changed since."""

    sha256: Text
    num_bytes: Count
    stamp: list[int | str]


class RawFiles(BaseModel, strict=True):
    """The raw files of a log that were read, by name."""

    files: dict[Text, RawContent]


class StoredFile(BaseModel, strict=True):
    """A file of an artifact."""

    path: str
    bytes: Count
    sha256: str


class StoredLineage(BaseModel, strict=True):
    """What an artifact depends on."""

    kind: str
    dataset: str
    table_version: Whole
    until: Whole | None = None
    settings: dict[str, Any] = {}
    settings_hash: str = ""
    code_version: str = ""
    max_event_time: Whole | None = None
    inputs: dict[str, str] = {}


class Manifest(BaseModel, strict=True):
    """The files of an artifact by their names, and its lineage."""

    digest: str
    lineage: StoredLineage
    files: dict[str, StoredFile]


def wrong_kind(model: type[BaseModel], record: Any) -> str | None:
    """Say which value of a record is wrong in kind, and why."""
    try:
        model.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))[:80]
        return f"is wrong in kind: {where or 'the record'}: {fault['msg']}".encode("ascii", "backslashreplace").decode()
    return None
