"""Packages that only some parts need -> the error that names how to install them."""

from importlib.util import find_spec

from dyformer import DyformerError

EXTRAS = {
    "torch": "model",
    "prefect": "service",
    "mlflow": "service",
    "sqlalchemy": "service",
    "yaml": "service",
    **dict.fromkeys(("starlette", "httpx", "alembic", "requests", "urllib3"), "service"),  # come with the others
    "fastapi": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "prometheus_client": "serve",
    "optuna": "tuning",
    "ray": "ray",
}
"""Extra of each package, by the name under which it is imported."""


class MissingExtra(DyformerError, ImportError):
    """A package that this installation was made without."""


def missing(package: str) -> str | None:
    """Say which extra installs a package; None for one that every installation has."""
    extra = EXTRAS.get(package.partition(".")[0])
    if extra is None:
        return None
    name = package.partition(".")[0]
    return f"this needs the package {name}, which is not installed: pip install 'dyformer[{extra}]'"


def need(package: str) -> None:
    """Raise MissingExtra unless a package is installed."""
    if not is_installed(package):
        raise MissingExtra(missing(package))


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
