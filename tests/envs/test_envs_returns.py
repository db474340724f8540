"""Returns of fixed policies against those recorded on the original tasks."""

import numpy as np
import pytest
from envs_helpers import TASKS, make_vec_env, recorded_returns, short_name

EPISODES = {"POIS/Acrobot-v0": 100, "POIS/MountainCar-v0": 24, "POIS/Swimmer-v0": 8}


def episode_returns(task: str, policy: str, gain: list | None, n_episodes: int, seed: int = 0) -> np.ndarray:
    """Undiscounted returns of the first episode of ``n_episodes`` environments under one of the recorded policies."""
    vec_env = make_vec_env(task, n_episodes, seed=seed)
    rng = np.random.default_rng(seed)
    shape = (n_episodes, *vec_env.action_space.shape)
    observations = vec_env.reset()
    returns, running = np.zeros(n_episodes), np.ones(n_episodes, dtype=bool)
    while running.any():
        if policy == "zero":
            actions = np.zeros(shape)
        elif policy == "uniform":
            actions = rng.uniform(-1, 1, shape)
        else:
            actions = rng.normal(size=shape) + (0 if gain is None else observations @ np.array(gain).T)
        observations, rewards, dones, _ = vec_env.step(actions)
        returns += rewards * running
        running &= ~dones
    return returns


def misses(n_episodes: dict[str, int]) -> tuple[list[str], int]:
    """
    Policies whose mean return is further from the recorded one than both 95 % half-widths together.

    :return: A line about each of them, and the number of policies.
    """
    missed, total = [], 0
    for task in TASKS:
        for policy, recorded in recorded_returns()[short_name(task)].items():
            returns = episode_returns(task, policy, recorded["K"], n_episodes[task])
            half_width = 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
            total += 1
            if abs(returns.mean() - recorded["mean"]) > half_width + recorded["ci95"]:
                recorded_text = f"recorded {recorded['mean']:.3f} +- {recorded['ci95']:.3f}"
                missed.append(f"{task} {policy}: {returns.mean():.3f} +- {half_width:.3f}, {recorded_text}")
    return missed, total


def test_mean_returns_of_fixed_policies():
    missed, total = misses({task: EPISODES.get(task, 200) for task in TASKS})
    assert total == 36
    assert len(missed) <= 2, "\n".join(missed)


@pytest.mark.slow
def test_mean_returns_of_fixed_policies_over_200_episodes():
    missed, total = misses({task: 200 for task in TASKS})
    assert total == 36
    assert len(missed) <= 2, "\n".join(missed)


def test_the_test_tells_a_wrong_task_apart():
    recorded = recorded_returns()["Cartpole"]["linear1"]
    returns = episode_returns("POIS/InvertedPendulum-v0", "linear1", recorded["K"], 50)
    assert abs(returns.mean() - recorded["mean"]) > 5 * recorded["ci95"]
