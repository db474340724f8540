"""
Tune the gains of a PID controller by trial, without a model of the plant: landing a craft in wind.

    python examples/tune_pid.py

The task is Gymnasium's lunar lander with throttled engines, wind and turbulence. Three loops fly the craft: an offset loop
that says which tilt brings it over the pad, a tilt loop on the side engines, and a height loop on the main engine. PPOIS
searches around gains that were set by hand, and every landing flies with gains of its own. The controller is never
differentiated, so it may saturate, and it switches its engines off on the ground.
"""

import argparse
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_pois import PPOIS
from sb3_pois.ppois import Controller

N_ENVS = 8
GAINS = {  # name: (set by hand, standard deviation to start with)
    "offset P": (0.3, 0.1),
    "offset I": (0.0, 0.05),
    "offset D": (0.6, 0.2),
    "tilt P": (5.0, 1.5),
    "tilt D": (5.0, 1.5),
    "height P": (4.0, 1.5),
    "height I": (0.0, 0.2),
    "height D": (8.0, 2.0),
    "height feed-forward": (0.0, 0.5),
}
LARGEST_TILT = 0.4  # rad


class ErrorIntegrals(gym.Wrapper):
    """
    Appends the integrals of offset and height to the observation.

    Controllers remember nothing between two calls: what a PID loop has to remember belongs into the observation.

    :param env: environment whose observation starts with offset and height
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        unbounded = np.full(2, np.inf, dtype=np.float32)
        self.observation_space = spaces.Box(np.append(space.low, -unbounded), np.append(space.high, unbounded))

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """
        Reset the environment and the integrals.

        :param kwargs: arguments of the environment's own reset
        :return: observation and info
        """
        observation, info = self.env.reset(**kwargs)
        self.integrals = np.zeros(2, dtype=np.float32)
        return np.append(observation, self.integrals), info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        """
        Step the environment and add to the integrals.

        :param action: action
        :return: observation, reward, whether terminated, whether truncated, info
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.integrals = self.integrals + observation[:2] / np.float32(steps_per_second(self))
        return np.append(observation, self.integrals), reward, terminated, truncated, info


def steps_per_second(env: gym.Env) -> float:
    """
    Steps per second of simulated time.

    :param env: environment
    :return: its rate
    """
    return float(env.metadata["render_fps"])


class LandingPid(Controller):
    """Three PID loops, whose gains are the parameters in the order of ``GAINS``."""

    n_params = len(GAINS)
    param_names = tuple(GAINS)

    def act(self, params: np.ndarray, observations: np.ndarray) -> np.ndarray:
        """
        Throttle the engines.

        :param params: gains, shape (n_envs, n_params)
        :param observations: observations of ``ErrorIntegrals``, shape (n_envs, 10)
        :return: throttles of main and side engines, shape (n_envs, 2)
        """
        offset, height, drift, climb, tilt, turn, left_leg, right_leg, offset_integral, height_integral = observations.T
        offset_p, offset_i, offset_d, tilt_p, tilt_d, height_p, height_i, height_d, feed_forward = params.T
        wanted_tilt = offset_p * offset + offset_i * offset_integral + offset_d * drift
        tilt_error = np.clip(wanted_tilt, -LARGEST_TILT, LARGEST_TILT) - tilt
        side = -(tilt_p * tilt_error - tilt_d * turn)
        main = feed_forward - height_p * height - height_i * height_integral - height_d * climb
        is_flying = (left_leg == 0.0) | (right_leg == 0.0)
        return np.stack([main, side], axis=1) * is_flying[:, None]


def make_env() -> gym.Env:
    """
    Create one environment.

    :return: the environment
    """
    return Monitor(ErrorIntegrals(gym.make("LunarLander-v3", continuous=True, enable_wind=True)))


def tune(total_timesteps: int = 300_000, n_eval_episodes: int = 100, seed: int = 0) -> tuple[float, float]:
    """
    Tune the gains.

    :param total_timesteps: environment steps to tune with
    :param n_eval_episodes: landings to judge gains by
    :param seed: seed of everything
    :return: mean returns with the gains set by hand and with the tuned ones, on the same landings
    """
    by_hand, std = zip(*GAINS.values(), strict=True)
    model = PPOIS(
        LandingPid,
        DummyVecEnv([make_env] * N_ENVS),
        n_episodes=48,
        policy_kwargs=dict(mean_init=by_hand, log_std_init=np.log(std)),
        seed=seed,
    )
    before = evaluate(model, n_eval_episodes, seed)
    model.learn(total_timesteps)
    after = evaluate(model, n_eval_episodes, seed)
    print(f"{'gain':20s} {'by hand':>8s} {'tuned':>8s}")
    for name, old, new in zip(GAINS, by_hand, model.policy.mean.tolist(), strict=True):
        print(f"{name:20s} {old:8.2f} {new:8.2f}")
    print(f"mean return of {n_eval_episodes} landings: by hand {before:.1f}, tuned {after:.1f}")
    return before, after


def evaluate(model: PPOIS, n_eval_episodes: int, seed: int) -> float:
    """
    Judge the gains at the centre of the hyperpolicy.

    :param model: model
    :param n_eval_episodes: number of landings
    :param seed: seed of the landings
    :return: mean return
    """
    env = DummyVecEnv([make_env])
    env.seed(seed + 10_000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes)
    return float(mean)  # type: ignore[arg-type]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timesteps", type=int, default=300_000)
    parser.add_argument("--episodes", type=int, default=100, help="landings to judge gains by")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tune(arguments.timesteps, arguments.episodes, arguments.seed)
