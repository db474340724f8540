"""The package as a whole: import, version, typing, and who may import whom."""

import ast
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import sb3_pois

ROOT = Path(sb3_pois.__file__).parent
PURE_MATHEMATICS = ("divergences", "importance", "estimators", "bounds", "line_search", "surrogate")
STANDARD_LIBRARY = set(sys.stdlib_module_names)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str) -> set[str]:
    """Every module that a source imports, at the top or within a function, with the names it takes from packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "relative imports are not understood here"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


IMPORTS = {module_name(path): imports_of(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


def imports_any(module: str, *packages: str) -> set[str]:
    return {name for name in IMPORTS[module] for package in packages if name == package or name.startswith(f"{package}.")}


# Dependency direction


def test_the_modules_are_all_seen() -> None:
    assert {f"sb3_pois.common.{name}" for name in PURE_MATHEMATICS} <= set(IMPORTS)
    assert {"sb3_pois", "sb3_pois.apois.apois", "sb3_pois.apois.policies", "sb3_pois.common.pois_algorithm"} <= set(IMPORTS)


@pytest.mark.parametrize("name", PURE_MATHEMATICS)
def test_pure_mathematics_knows_torch_and_itself(name: str) -> None:
    own = {f"sb3_pois.common.{other}" for other in PURE_MATHEMATICS}
    for imported in IMPORTS[f"sb3_pois.common.{name}"]:
        top = imported.split(".")[0]
        if top == "sb3_pois":
            assert imported in own or imported.rpartition(".")[0] in own, imported
        else:
            assert top == "torch" or top in STANDARD_LIBRARY - {"random", "logging", "warnings"}, imported


@pytest.mark.parametrize("name", PURE_MATHEMATICS)
def test_pure_mathematics_neither_prints_nor_draws(name: str) -> None:
    source = (ROOT / "common" / f"{name}.py").read_text(encoding="utf-8")
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            called.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    assert called.isdisjoint(
        {"print", "rand", "randn", "rand_like", "randn_like", "randint", "normal", "manual_seed", "sample"}
    )


@pytest.mark.parametrize("module", [name for name in IMPORTS if name.endswith(".policies")])
def test_policies_know_no_buffers_environments_or_algorithms(module: str) -> None:
    forbidden = (
        "sb3_pois.common.buffers",
        "sb3_pois.common.vec_env",
        "sb3_pois.common.pois_algorithm",
        "sb3_pois.common.episode_schedule",
        "sb3_pois.apois.apois",
        "sb3_pois.ppois.ppois",
        "sb3_pois.envs",
        "sb3_pois.zoo",
        "stable_baselines3.common.buffers",
        "stable_baselines3.common.vec_env",
        "stable_baselines3.common.base_class",
        "stable_baselines3.common.logger",
    )
    assert imports_any(module, *forbidden) == set()


def test_the_algorithms_do_not_know_each_other() -> None:
    for module in IMPORTS:
        if module.startswith("sb3_pois.apois"):
            assert imports_any(module, "sb3_pois.ppois", "sb3_pois.PPOIS") == set()
        if module.startswith("sb3_pois.ppois"):
            assert imports_any(module, "sb3_pois.apois", "sb3_pois.APOIS") == set()


def test_the_common_part_knows_no_algorithm() -> None:
    for module in IMPORTS:
        if module.startswith("sb3_pois.common"):
            assert imports_any(module, "sb3_pois.apois", "sb3_pois.ppois") == set()


def test_nothing_knows_the_environments_or_the_zoo() -> None:
    for module in IMPORTS:
        if not module.startswith("sb3_pois.envs"):
            if module not in ("sb3_pois.zoo", "sb3_pois.zoo_studies"):
                assert imports_any(module, "sb3_pois.envs", "rl_zoo3", "sb3_pois.zoo_studies") == set(), module
            if module != "sb3_pois.__main__":  # the console script
                assert imports_any(module, "sb3_pois.zoo") == set(), module


def test_buffers_know_no_policies_or_algorithms() -> None:
    assert imports_any("sb3_pois.common.buffers", "torch", "sb3_pois.common.pois_algorithm", "sb3_pois.apois") == set()


def test_the_direction_test_can_fail() -> None:
    found = imports_of("import numpy.random\ndef f():\n    from sb3_pois.envs import X\n")
    assert found == {"numpy.random", "sb3_pois.envs", "sb3_pois.envs.X"}


# Import

CHANGES_NOTHING = """
import random, sys, warnings
import numpy as np
import torch as th
import gymnasium as gym
import stable_baselines3

def state():
    return (
        th.get_num_threads(), th.get_num_interop_threads(), th.get_rng_state().tolist(), th.get_default_dtype(),
        th.is_grad_enabled(), th.are_deterministic_algorithms_enabled(), random.getstate(),
        [str(part) for part in np.random.get_state()], np.geterr(), list(warnings.filters), sorted(gym.registry),
    )

before = state()
import sb3_pois
assert state() == before
assert not {"mujoco", "rl_zoo3", "matplotlib", "Box2D", "pygame", "tensorboard"} & (set(sys.modules) - loaded)
"""


def test_import_changes_no_global_state() -> None:
    script = CHANGES_NOTHING.replace("before = state()", "before = state()\nloaded = set(sys.modules)")
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_version() -> None:
    text = (ROOT / "version.txt").read_text(encoding="utf-8").strip()
    assert sb3_pois.__version__ == text
    assert all(part.isdigit() for part in text.split(".")[:2])
    try:
        assert version("sb3_pois") == text
    except PackageNotFoundError:  # runs from a checkout that is not installed
        pass


def test_public_names() -> None:
    assert "APOIS" in sb3_pois.__all__ and "__version__" in sb3_pois.__all__
    assert all(hasattr(sb3_pois, name) for name in sb3_pois.__all__)


def test_py_typed() -> None:
    assert (ROOT / "py.typed").exists()


def test_every_package_has_an_init() -> None:
    for path in ROOT.rglob("*.py"):
        assert (path.parent / "__init__.py").exists(), path
