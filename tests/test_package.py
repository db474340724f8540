"""The package as a whole: import, version, typing, and who may import whom."""

import ast
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

import sb3_pois

ROOT = Path(sb3_pois.__file__).parent
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


# Dependency direction: every module may import from the layers below its own, and from the modules named as its friends

LAYERS = [
    ["common.divergences", "common.importance", "common.episodes", "common.line_search", "common.natural_gradient"],
    ["common.arguments", "common.net_arch", "common.array_network", "common.parameters", "common.saving"],
    ["common.estimators", "common.ascent", "common.std_limits", "common.buffers", "common.episode_schedule", "common.vec_env"],
    ["common.bounds", "common.gains"],
    ["common.surrogate", "common.collection"],
    ["apois.action_distributions", "apois.baselines", "ppois.controllers", "ppois.grouped_noise", "ppois.buffers"],
    ["apois.policies", "ppois.policies", "ppois.grouping"],
    ["apois.surrogate", "ppois.surrogate"],
    ["common.pois_algorithm"],
    ["apois.apois", "ppois.ppois"],
    ["apois", "ppois"],
    [""],
    ["zoo", "zoo_studies", "__main__"],
]
LAYER_OF = {f"sb3_pois.{name}".rstrip("."): number for number, layer in enumerate(LAYERS) for name in layer}
PURE_MATHEMATICS = [
    f"sb3_pois.{name}"
    for name in [*LAYERS[0], "common.std_limits", "common.estimators", "common.bounds", "common.gains", "common.surrogate"]
]
FORBIDDEN = {
    "sb3_pois.common.collection": ("torch",),
    "sb3_pois.common.buffers": ("torch",),
    "sb3_pois.common.ascent": ("stable_baselines3", "gymnasium"),
    **dict.fromkeys(
        ["sb3_pois.apois.policies", "sb3_pois.ppois.policies", "sb3_pois.apois.surrogate", "sb3_pois.ppois.surrogate"],
        (
            "sb3_pois.common.episode_schedule",
            "sb3_pois.common.collection",
            "sb3_pois.common.vec_env",
            "stable_baselines3.common.buffers",
            "stable_baselines3.common.vec_env",
            "stable_baselines3.common.base_class",
            "stable_baselines3.common.logger",
        ),
    ),
}


def layered(module: str) -> bool:
    return not module.startswith("sb3_pois.envs") and module not in ("sb3_pois.common", "sb3_pois.hyperparams")


def test_every_module_has_a_layer() -> None:
    assert {module for module in IMPORTS if layered(module)} == set(LAYER_OF)


@pytest.mark.parametrize("module", LAYER_OF)
def test_imports_point_down(module: str) -> None:
    below = {name for name, layer in LAYER_OF.items() if layer < LAYER_OF[module]}
    if module in ("sb3_pois.zoo", "sb3_pois.zoo_studies", "sb3_pois.__main__"):  # the top, which knows the environments
        below |= {"sb3_pois.envs", "sb3_pois.zoo", "sb3_pois.zoo_studies"}
    for imported in imports_any(module, "sb3_pois"):
        assert imported in below or imported.rpartition(".")[0] in below, imported


def test_the_algorithms_do_not_know_each_other() -> None:
    for module in IMPORTS:
        for one, other in (("apois", "ppois"), ("ppois", "apois")):
            if module.startswith(f"sb3_pois.{one}"):
                assert imports_any(module, f"sb3_pois.{other}", f"sb3_pois.{other.upper()}") == set(), module


def test_the_environments_know_no_algorithm() -> None:
    allowed = ("sb3_pois.envs", "sb3_pois.common.vec_env", "sb3_pois.common.arguments")
    for module in IMPORTS:
        if module.startswith("sb3_pois.envs"):
            assert imports_any(module, "sb3_pois") == imports_any(module, *allowed), module


@pytest.mark.parametrize("module", FORBIDDEN)
def test_forbidden_imports(module: str) -> None:
    assert imports_any(module, *FORBIDDEN[module]) == set()


@pytest.mark.parametrize("module", PURE_MATHEMATICS)
def test_pure_mathematics_knows_torch_and_the_package_alone(module: str) -> None:
    for imported in IMPORTS[module]:
        top = imported.split(".")[0]
        assert top in {"torch", "sb3_pois"} | STANDARD_LIBRARY - {"random", "logging", "warnings"}, imported


@pytest.mark.parametrize("module", PURE_MATHEMATICS)
def test_pure_mathematics_neither_prints_nor_draws(module: str) -> None:
    source = (ROOT.parent / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    called = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            called.add(function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", ""))
    assert called.isdisjoint(
        {"print", "rand", "randn", "rand_like", "randn_like", "randint", "normal", "manual_seed", "sample"}
    )


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
