"""
What PPOIS learns with linear controllers beside ARS, and what N-POIS does for deep ones.

    python benchmarks/ppois.py linear
    python benchmarks/ppois.py pid         # three gains on a second-order plant, beside Nelder and Mead's simplex search
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

import gymnasium as gym
import numpy as np
import pandas as pd
import torch as th
from sb3_contrib import ARS
from scipy.optimize import minimize
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure

from sb3_pois import PPOIS
from sb3_pois.ppois import Controller

N_ENVS = 8
N_EVAL_EPISODES = 20

LINEAR_TASKS: dict[str, int] = {
    "InvertedPendulum-v5": 349_999,
    "CartPole-v1": 149_999,
    "Swimmer-v5": 1_000_000,
}


class StepResponse(gym.Env):
    """
    A lightly damped mass under a constant load follows a step of its set point for five seconds.

    The observation is the error, its integral and the velocity; the action is the force. A step costs the squared error and a
    hundredth of the squared force.
    """

    N_STEPS, DT = 100, 0.05
    observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.velocity = self.integral = 0.0
        self.n_steps = 0
        return self.observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        force, dt = float(action[0]), self.DT / 2.0
        for _ in range(2):
            self.velocity += dt * (force - 0.2 * self.velocity - self.position - 0.5)
            self.position += dt * self.velocity
            self.integral += dt * (1.0 - self.position)
        self.n_steps += 1
        cost = (1.0 - self.position) ** 2 + 0.01 * force**2
        return self.observation(), -cost, False, self.n_steps == self.N_STEPS, {}

    def observation(self) -> np.ndarray:
        return np.array([1.0 - self.position, self.integral, self.velocity], dtype=np.float32)


class Pid(Controller):
    """Proportional, integral and derivative gains."""

    n_params = 3

    def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
        return (params * observations * [1.0, 1.0, -1.0]).sum(1, keepdims=True)


def return_of(gains: np.ndarray) -> float:
    """Return of a PID controller, which is the same in every episode."""
    env = StepResponse()
    controller = Pid(env.observation_space, env.action_space)
    observation, _ = env.reset()
    total, is_over = 0.0, False
    while not is_over:
        action = controller.act(gains[None], observation[None])[0].clip(-10.0, 10.0)
        observation, reward, _, is_over, _ = env.step(action)
        total += reward
    return total


def pid(seeds: list[int]) -> None:
    """The tuned gains' returns beside the best that simplex searches find."""
    th.set_num_threads(1)
    rng = np.random.default_rng(0)
    starts = [np.zeros(3), *rng.normal(0.0, [10.0, 10.0, 5.0], (11, 3))]
    optima = [minimize(lambda x: -return_of(x), start, method="Nelder-Mead", options=dict(maxfev=800)) for start in starts]
    print(f"best of {len(starts)} simplex searches: {-min(optimum.fun for optimum in optima):.2f}")
    for seed in seeds:
        model = PPOIS(Pid, make_vec_env(StepResponse, 20, seed=seed), seed=seed).learn(200_000, log_interval=None)
        mean, std = (values.detach().numpy() for values in (model.policy.mean, model.policy.log_std.exp()))
        print(f"seed {seed}: {return_of(mean):.2f}, gains {mean.round(2)}, standard deviations {std.round(2)}", flush=True)


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
    parser.add_argument("suite", choices=[*SUITES, "pid"])
    parser.add_argument("--tasks", nargs="+", help="default: all of the suite")
    parser.add_argument("--algorithms", nargs="+", help="default: all of the suite")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--budget", type=int, help="environment steps; default: the task's own")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--csv", type=Path, help="where to write the rows")
    arguments = parser.parse_args()

    if arguments.suite == "pid":
        pid(arguments.seeds)
        return
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
