"""What the environments' tests share: the recordings and random actions."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

import sb3_pois.envs
from sb3_pois.envs.mujoco_tasks import MujocoSimulation
from sb3_pois.envs.simulation import EngineSimulation
from sb3_pois.envs.tasks import make_simulation


def short_name(task: str) -> str:
    """The name a task's recordings go by."""
    return task.removeprefix("POIS/").removesuffix("-v0")


RECORDINGS = Path(__file__).parents[1] / "data" / "transitions"
SOLVER_TASKS = ["POIS/Cartpole-v0", "POIS/InvertedPendulum-v0", "POIS/Acrobot-v0"]
PAPER_TASKS = [*SOLVER_TASKS, "POIS/MountainCar-v0", "POIS/InvertedDoublePendulum-v0", "POIS/Swimmer-v0"]
# A new task is in this list by its row in the table; whether it is among the recorded ones, a file decides
TASKS = list(sb3_pois.envs.TASKS)
RECORDED_TASKS = [task for task in TASKS if (RECORDINGS / f"{short_name(task)}.npz").is_file()]


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
    return np.random.default_rng(seed).normal(size=(*shape, make_simulation(task, 1).action_dim)).astype(np.float32)


def has_engine(task: str) -> bool:
    """Whether the task's worlds live in an engine, whose memory (contacts, warm starts) a copy does not take over."""
    return isinstance(make_simulation(task, 1), EngineSimulation)


@cache
def can_draw(task: str) -> bool:
    """Whether this machine can draw a task: MuJoCo needs OpenGL, the others nothing."""
    env = make_env(task, render_mode="rgb_array")
    env.reset(seed=0)
    try:
        env.render()
    except Exception as error:
        if not isinstance(make_simulation(task, 1), MujocoSimulation):
            raise
        print(f"{task} cannot be drawn here: {error}")
        return False
    finally:
        env.close()
    return True
