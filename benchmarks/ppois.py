"""
What PPOIS learns with linear controllers beside ARS, and what N-POIS does for deep ones.

    python benchmarks/ppois.py linear
    python benchmarks/ppois.py ablation    # deep policy on CartPole-v1: PPOIS and N-POIS, with d2 and with ESS

Every run uses 8 environments in one process and one thread. No batch of PPOIS starts after the budget of steps; ARS (default
hyperparameters) gets the budget too. The score is the mean undiscounted return of 20 episodes of the controller at the centre,
in environments of other seeds. `least gain` is the smallest difference of the surrogate after and before an optimisation over
all batches of the run, which must never be negative.
"""

import argparse
import math
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch as th
from sb3_contrib import ARS
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from sb3_pois import PPOIS

N_ENVS = 8
N_EVAL_EPISODES = 20

LINEAR_TASKS: dict[str, int] = {
    "InvertedPendulum-v5": 349_999,
    "CartPole-v1": 149_999,
    "Swimmer-v5": 1_000_000,
}
DEEP_PPOIS: dict[str, Any] = {
    **PPOIS.PAPER,
    "n_offline_iters": 20,
    "policy_kwargs": {"net_arch": [100, 50, 25], "mean_init": "controller", "log_std_init": -1.0},
}
# Suite, task: budget of environment steps, and what makes the models
SUITES: dict[str, dict[str, tuple[int, dict[str, Callable[..., BaseAlgorithm]]]]] = {
    "linear": {
        task: (budget, {"ppois": partial(PPOIS, "LinearPolicy"), "ars": partial(ARS, "LinearPolicy")})
        for task, budget in LINEAR_TASKS.items()
    },
    "ablation": {
        "CartPole-v1": (
            299_999,
            {
                f"{name}-{bound}": partial(PPOIS, "MlpPolicy", **{**DEEP_PPOIS, "bound": bound, "grouping": grouping})
                for name, grouping in (("ppois", "none"), ("npois", "neuron"))
                for bound in ("max-d2", "max-ess")
            },
        )
    },
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


def run(job: tuple[str, str, str, int, int | None]) -> dict[str, Any]:
    """
    Train and evaluate once.

    :param job: suite, task, algorithm, seed, budget of environment steps (None for the suite's own)
    :return: one row of the table
    """
    suite, task, algorithm, seed, budget = job
    th.set_num_threads(1)
    own_budget, makers = SUITES[suite][task]
    model = makers[algorithm](env=make_vec_env(task, N_ENVS, seed=seed), seed=seed, device="cpu")
    model.set_logger(configure(None, []))
    gains = SurrogateGains()
    start = time.perf_counter()
    model.learn(budget or own_budget, callback=gains, log_interval=None)  # type: ignore[arg-type]
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
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("--tasks", nargs="+", help="default: all of the suite")
    parser.add_argument("--algorithms", nargs="+", help="default: all of the suite")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, help="environment steps; default: the task's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--csv", type=Path, help="where to write the rows")
    arguments = parser.parse_args()

    suite = SUITES[arguments.suite]
    jobs = [
        (arguments.suite, task, algorithm, seed, arguments.budget)
        for task in arguments.tasks or suite
        for algorithm in arguments.algorithms or suite[task][1]
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
