"""Train a controller on a MuJoCo task, save it, and use it."""

import gymnasium as gym

from sb3_pois import APOIS


def main(total_timesteps: int = 100_000, path: str = "apois_inverted_pendulum.zip") -> None:
    """
    Train, save, reload and act.

    :param total_timesteps: environment steps to train for
    :param path: where to save the model
    """
    model = APOIS("MlpPolicy", "InvertedPendulum-v5", seed=0, verbose=1)
    model.learn(total_timesteps)
    model.save(path)

    env = gym.make("InvertedPendulum-v5")
    model = APOIS.load(path)
    observation, _ = env.reset(seed=1)
    episode_return, done = 0.0, False
    while not done:
        action, _ = model.predict(observation, deterministic=True)
        observation, reward, terminated, truncated, _ = env.step(action)
        episode_return += float(reward)
        done = terminated or truncated
    print(f"return of one episode: {episode_return:.0f}")


if __name__ == "__main__":
    main()
