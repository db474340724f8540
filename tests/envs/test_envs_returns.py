"""Returns of fixed policies against those recorded on the original tasks."""

import numpy as np
import pytest
from envs_helpers import PAPER_TASKS, TASKS, make_vec_env, recorded_returns, short_name

RECORDED_TASKS = [task for task in TASKS if short_name(task) in recorded_returns()]
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


def check_means(n_episodes: dict[str, int]) -> None:
    """At most one of 18 policies has a mean return further from the recorded one than both 95 % half-widths together."""
    missed, total = [], 0
    for task in RECORDED_TASKS:
        for policy, recorded in recorded_returns()[short_name(task)].items():
            returns = episode_returns(task, policy, recorded["K"], n_episodes.get(task, 200))
            half_width = 1.96 * returns.std(ddof=1) / np.sqrt(len(returns))
            total += 1
            if abs(returns.mean() - recorded["mean"]) > half_width + recorded["ci95"]:
                recorded_text = f"recorded {recorded['mean']:.3f} +- {recorded['ci95']:.3f}"
                missed.append(f"{task} {policy}: {returns.mean():.3f} +- {half_width:.3f}, {recorded_text}")
    assert len(missed) <= total // 18, "\n".join(missed)


def test_the_papers_tasks_are_recorded():
    policies = {"zero", "noise_N01", "uniform", "linear1", "linear2", "linear3"}
    assert all(recorded_returns()[short_name(task)].keys() == policies for task in PAPER_TASKS)
    assert set(PAPER_TASKS) <= set(RECORDED_TASKS)


def test_mean_returns_of_fixed_policies():
    check_means(EPISODES)


@pytest.mark.slow
def test_mean_returns_of_fixed_policies_over_200_episodes():
    check_means({})


def test_the_test_tells_a_wrong_task_apart():
    recorded = recorded_returns()["Cartpole"]["linear1"]
    returns = episode_returns("POIS/InvertedPendulum-v0", "linear1", recorded["K"], 50)
    assert abs(returns.mean() - recorded["mean"]) > 5 * recorded["ci95"]
