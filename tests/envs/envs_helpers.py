"""What the environments' tests share: the recordings and random actions."""

import json
from pathlib import Path

import numpy as np

import sb3_pois.envs

RECORDINGS = Path(__file__).parents[1] / "data" / "transitions"
TASKS = list(sb3_pois.envs.TASKS)
SOLVER_TASKS = TASKS[:3]


def short_name(task: str) -> str:
    """The name a task's recordings go by."""
    return task.removeprefix("POIS/").removesuffix("-v0")


def recorded_transitions(task: str) -> dict[str, np.ndarray]:
    """The recorded one-step transitions of a task."""
    with np.load(RECORDINGS / f"{short_name(task)}.npz") as file:
        return dict(file)


def recorded_returns() -> dict[str, dict[str, dict]]:
    """The recorded return statistics, by short name and policy."""
    return json.loads((RECORDINGS / "returns.json").read_text())


def random_actions(task: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Actions of which about a third are beyond the control range, shape ``(*shape, action_dim)``."""
    action_dim = 2 if "Swimmer" in task else 1
    return np.random.default_rng(seed).normal(size=(*shape, action_dim)).astype(np.float32)
