"""A method's name as the user writes it -> its title in METHODS, before any method is imported."""

import ast
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path


class UnknownMethod(ValueError):
    """A name that is neither an entry of METHODS nor a user's own method."""


def split_names(given: Sequence[str] | None) -> list[str]:
    """Split texts such as "dyformer,l3" into names."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]


def known_titles() -> list[str]:
    """Give the titles of METHODS, with those that a program added to it, without importing its module."""
    loaded = sys.modules.get("dyformer.experiments.methods")
    return list(loaded.METHODS) if loaded else written_titles()


def written_titles() -> list[str]:
    """Read the titles of METHODS from the source of their module, because importing it takes seconds (torch).

    Raises LookupError where METHODS is not written as one dictionary with constant keys.
    """
    source = Path(__file__).with_name("methods.py").read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "METHODS":
            return [ast.literal_eval(key) for key in statement.value.keys]  # pyright: ignore
    raise LookupError("methods.py has no dictionary METHODS")


def full_title(name: str, titles: Iterable[str]) -> str:
    """Complete a title, in any case and shortened as long as it fits one only. Raises UnknownMethod."""
    slugs, slug = {_slug(title): title for title in titles}, _slug(name)
    near = [title for known, title in slugs.items() if slug and known.startswith(slug)]
    if slug in slugs or len(near) == 1:
        return slugs.get(slug) or near[0]
    close = get_close_matches(slug, slugs, n=1)
    hint = f" Did you mean {slugs[close[0]]}?" if close else ""
    problem = f"{name!r} fits {len(near)} methods." if near else f"no method {name!r}.{hint}"
    raise UnknownMethod(f"{problem} Allowed: {', '.join(slugs.values())}; or a class of your own, package.module:Class")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
