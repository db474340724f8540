"""
What APOIS learns on standard tasks, beside PPO and TRPO after the same number of environment steps.

    python benchmarks/learning.py --csv learning.csv

Every run uses 8 environments in one process and one thread. No batch of APOIS starts after the budget of steps; PPO and
TRPO (SB3's and sb3-contrib's default hyperparameters) get the budget too. The score is the mean undiscounted return of
20 episodes of the deterministic policy in environments of other seeds. `least gain` is the smallest difference of the
surrogate after and before an optimisation over all batches of the run, which must never be negative.
"""

import argparse
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from sb3_pois import APOIS

N_ENVS = 8
N_EVAL_EPISODES = 20

# Chosen on seeds 100 to 117 and reported on others; the tasks without an entry get what was best on another one
TUNED: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"policy": "MlpPolicy", "n_episodes": 30, "bound": "std-ess", "iw_norm": "sn"},
    "InvertedPendulum-v5": {"policy": "LinearPolicy", "n_episodes": 20, "bound": "max-ess", "iw_norm": "sn"},
}
NOT_TUNED: dict[str, Any] = {"policy": "MlpPolicy", "n_episodes": 50, "bound": "max-ess", "iw_norm": "sn"}
TASKS = {
    "CartPole-v1": 400_000,
    "InvertedPendulum-v5": 400_000,
    "MountainCarContinuous-v0": 400_000,
    "Pendulum-v1": 400_000,
    "InvertedDoublePendulum-v5": 400_000,
}


class SurrogateGains(BaseCallback):
    """Keeps the smallest gain of the surrogate over all optimisations."""

    def __init__(self) -> None:
        super().__init__()
        self.least = math.nan

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        self._on_rollout_start()

    def _on_rollout_start(self) -> None:
        gain = self.logger.name_to_value.get("train/surrogate_improvement")
        if gain is not None:
            self.least = float(np.fmin(self.least, gain))


def make_model(algorithm: str, task: str, seed: int) -> BaseAlgorithm:
    """
    Create a model by the benchmark's name for it.

    :param algorithm: ``apois-linear`` or ``apois-mlp`` (default options), ``apois-tuned``, ``ppo``, ``trpo``
    :param task: Gymnasium id
    :param seed: seed of everything
    :return: the model
    """
    env = make_vec_env(task, N_ENVS, seed=seed)
    if algorithm == "ppo":
        return PPO("MlpPolicy", env, seed=seed, device="cpu")
    if algorithm == "trpo":
        return TRPO("MlpPolicy", env, seed=seed, device="cpu")
    if algorithm == "apois-tuned":
        return APOIS(env=env, seed=seed, **TUNED.get(task, NOT_TUNED))
    return APOIS({"apois-linear": "LinearPolicy", "apois-mlp": "MlpPolicy"}[algorithm], env, seed=seed)


def run(job: tuple[str, str, int, int]) -> dict[str, Any]:
    """
    Train and evaluate once.

    :param job: algorithm, task, seed, budget of environment steps
    :return: one row of the table
    """
    algorithm, task, seed, budget = job
    th.set_num_threads(1)
    model = make_model(algorithm, task, seed)
    model.set_logger(configure(None, []))
    gains = SurrogateGains()
    start = time.perf_counter()
    model.learn(budget, callback=gains, log_interval=None)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    evaluation_env = make_vec_env(task, 1, seed=seed + 10_000)
    mean, std = evaluate_policy(model, evaluation_env, N_EVAL_EPISODES, deterministic=True)
    row = {
        "task": task,
        "algorithm": algorithm,
        "seed": seed,
        "steps": model.num_timesteps,
        "mean": round(mean, 1),  # type: ignore[arg-type]
        "std": round(std, 1),  # type: ignore[arg-type]
        "least gain": gains.least,
        "seconds": round(seconds, 1),
    }
    print(row, flush=True)
    return row


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--algorithms", nargs="+", default=["apois-linear", "apois-mlp", "apois-tuned", "ppo", "trpo"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, help="environment steps; default: the task's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--csv", type=Path, help="where to write the rows")
    arguments = parser.parse_args()

    jobs = [
        (algorithm, task, seed, arguments.budget or TASKS[task])
        for task in arguments.tasks
        for algorithm in arguments.algorithms
        for seed in arguments.seeds
    ]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        rows = pd.DataFrame(pool.imap(run, jobs))
    if arguments.csv is not None:
        rows.to_csv(arguments.csv, index=False)
    table = rows.pivot_table(index=["task", "algorithm"], columns="seed", values="mean")
    table["least gain"] = rows.groupby(["task", "algorithm"])["least gain"].min()
    print(table.to_string())


if __name__ == "__main__":
    main()
