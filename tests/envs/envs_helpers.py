"""What the environments' tests share: the recordings and random actions."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import sb3_pois.envs

RECORDINGS = Path(__file__).parents[1] / "data" / "transitions"
TASKS = list(sb3_pois.envs.TASKS)
SOLVER_TASKS = TASKS[:3]


def short_name(task: str) -> str:
    """The name a task's recordings go by."""
    return task.removeprefix("POIS/").removesuffix("-v0")


def make_env(task: str, **kwargs: Any) -> Any:
    """A single environment, as anyone would make it."""
    return gym.make(f"sb3_pois.envs:{task}", **kwargs)


def make_vec(task: str, num_envs: int, **kwargs: Any) -> Any:
    """The native vector environment."""
    return gym.make_vec(f"sb3_pois.envs:{task}", num_envs=num_envs, vectorization_mode="vector_entry_point", **kwargs)


def make_vec_env(task: str, n_envs: int, **kwargs: Any) -> Any:
    """The Stable-Baselines3 vector environment."""
    return sb3_pois.envs.make_vec_env(task, n_envs, **kwargs)


def recorded_transitions(task: str) -> dict[str, np.ndarray]:
    """The recorded one-step transitions of a task."""
    with np.load(RECORDINGS / f"{short_name(task)}.npz") as file:
        return dict(file)


def recorded_returns() -> Any:
    """The recorded return statistics, by short name and policy."""
    return json.loads((RECORDINGS / "returns.json").read_text())


def random_actions(task: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Actions of which about a third are beyond the control range, shape ``(*shape, action_dim)``."""
    action_dim = 2 if "Swimmer" in task else 1
    return np.random.default_rng(seed).normal(size=(*shape, action_dim)).astype(np.float32)


@cache
def can_draw(task: str) -> bool:
    """Whether this machine can draw a task: MuJoCo needs OpenGL."""
    env = make_env(task, render_mode="rgb_array")
    env.reset(seed=0)
    try:
        env.render()
    except Exception as error:
        if task in SOLVER_TASKS or "MountainCar" in task:
            raise
        print(f"{task} cannot be drawn here: {error}")
        return False
    finally:
        env.close()
    return True
