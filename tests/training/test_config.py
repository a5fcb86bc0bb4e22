"""Settings: each has a meaning and its limits, and none needs torch."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dyformer.graphs.config import GraphConfig
from dyformer.model.config import ModelConfig
from dyformer.training.config import FinetuneConfig, PretrainConfig

CONFIGS = [GraphConfig(), ModelConfig(), PretrainConfig(), FinetuneConfig()]
SETTINGS = [(config, name) for config in CONFIGS for name in vars(config)]


def fields(config: Any) -> dict[str, Any]:
    return type(config).__pydantic_fields__


@pytest.mark.parametrize(("config", "name"), SETTINGS)
def test_every_setting_has_a_meaning_and_refuses_other_kinds(config: Any, name: str):
    assert len(fields(config)[name].description) > 10
    for value in ("3", 2.5 if isinstance(getattr(config, name), int) else True, float("nan"), float("inf"), [1]):
        with pytest.raises(ValueError, match=f"{type(config).__name__}\\n{name}"):
            replace(config, **{name: value})


@pytest.mark.parametrize(("config", "name"), [(c, n) for c, n in SETTINGS if type(getattr(c, n)) in (int, float)])
def test_no_number_may_be_negative(config: Any, name: str):
    with pytest.raises(ValueError, match="greater than or equal to"):
        replace(config, **{name: type(getattr(config, name))(-1)})


@pytest.mark.parametrize("config", CONFIGS)
def test_unknown_setting_is_refused(config: Any):
    with pytest.raises(ValueError, match="widht"):
        replace(config, widht=3)


def test_settings_are_read_without_torch():
    modules = ", ".join(sorted({type(config).__module__ for config in CONFIGS}))
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
