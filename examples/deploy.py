"""
Load a trained model and let it act in a plain loop: all that deployment needs.

    python examples/deploy.py apois_inverted_pendulum.zip --env InvertedPendulum-v5 --episodes 20
"""

import argparse

import gymnasium as gym
import numpy as np

from sb3_pois import APOIS, PPOIS

ALGORITHMS = {"apois": APOIS, "ppois": PPOIS}


def run_episode(model: APOIS | PPOIS, env: gym.Env, seed: int) -> float:
    """
    Run one episode with the most likely actions.

    :param model: trained model
    :param env: environment to act in
    :param seed: seed of the episode's start
    :return: sum of the rewards
    """
    observation, _ = env.reset(seed=seed)
    episode_return = 0.0
    while True:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        episode_return += float(reward)
        if terminated or truncated:
            return episode_return


def main() -> None:
    """Evaluate a saved model from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="zip file that model.save wrote")
    parser.add_argument("--algo", choices=ALGORITHMS, default="apois", help="algorithm that saved it")
    parser.add_argument("--env", default="InvertedPendulum-v5", help="Gymnasium id of the environment")
    parser.add_argument("--episodes", type=int, default=20, help="number of episodes")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first episode")
    arguments = parser.parse_args()

    model = ALGORITHMS[arguments.algo].load(arguments.path)
    env = gym.make(arguments.env)
    returns = [run_episode(model, env, arguments.seed + i) for i in range(arguments.episodes)]
    env.close()
    print(f"{arguments.episodes} episodes: mean return {np.mean(returns):.1f}, standard deviation {np.std(returns):.1f}")


if __name__ == "__main__":
    main()
