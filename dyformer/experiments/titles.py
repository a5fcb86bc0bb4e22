"""A method's name as the user writes it -> its title in METHODS, before any method is imported."""

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from dyformer import InvalidInput

WRITTEN = ("METHODS", "VARIATIONS", "EVENT_METHODS")  # dictionaries of methods.py, by title
OF_NODES = ("NODE_METHODS",)  # those of the protocols with labels, whose titles begin as others of WRITTEN do


class UnknownMethod(InvalidInput):
    """A name that is neither an entry of METHODS nor a user's own method."""


def split_names(given: Sequence[str] | None) -> list[str]:
    """Split texts such as "dyformer,l3" into names; a title with a comma in it stays whole."""
    slugs = {_slug(title) for title in known_titles()} if given else set()
    names = []
    for text in given or []:
        parts = [part.strip() for part in text.split(",") if part.strip()]
        while parts:
            ends = (end for end in range(len(parts), 1, -1) if _slug(",".join(parts[:end])) in slugs)
            end = next(ends, 1)
            names.append(", ".join(parts[:end]))
            parts = parts[end:]
    return names


def known_titles() -> list[str]:
    """Give the titles of WRITTEN, with those that a program added, without importing their module."""
    loaded = sys.modules.get("dyformer.experiments.methods")
    return [title for name in WRITTEN for title in getattr(loaded, name)] if loaded else written_titles()


def written_titles(dictionaries: Sequence[str] = WRITTEN) -> list[str]:
    """Read the titles of dictionaries from the source of their module, whose import takes a second.

    Raises LookupError where one is not written as a dictionary with constant keys.
    """
    source = Path(__file__).with_name("methods.py").read_text(encoding="utf-8")
    values = {
        ast.unparse(statement.target): statement.value
        for statement in ast.parse(source).body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.value, ast.Dict)
    }
    try:
        return [ast.literal_eval(key) for name in dictionaries for key in values[name].keys if key]
    except KeyError as error:
        raise LookupError(f"methods.py has no dictionary {error}") from None


def short_name(title: str) -> str:
    """Write a title as it is easiest to type after `--method`: "L3" is l3, "EdgeBank (ever)" edgebank-ever."""
    return _slug(title).replace("_", "-")


def check_title(name: str) -> None:
    """Raise UnknownMethod for a title that no protocol has, before any method is imported."""
    try:
        full_title(name, written_titles(OF_NODES))
    except UnknownMethod:
        full_title(name, known_titles())


def full_title(name: str, titles: Iterable[str]) -> str:
    """Complete a title, in any case and shortened as long as it fits one only. Raises UnknownMethod."""
    slugs, slug = {_slug(title): title for title in titles}, _slug(name)
    near = [title for slug_known, title in slugs.items() if slug and slug_known.startswith(slug)]
    if slug in slugs or len(near) == 1:
        return slugs.get(slug) or near[0]
    close = get_close_matches(slug, slugs, n=1)
    hint = f" Did you mean {slugs[close[0]]}?" if close else ""
    problem = f"{name!r} fits {len(near)} methods." if near else f"no method {name!r}.{hint}"
    raise UnknownMethod(f"{problem} Allowed: {'; '.join(slugs.values())}; or a class of your own, package.module:Class")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
