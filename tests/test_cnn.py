"""Images."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecTransposeImage, is_vecenv_wrapped

from tests.helpers.envs import AnySpacesEnv
from tests.registry import Case, collect, differ, for_each_algorithm_with_modules, parameters_of


class ImageEnv(FakeImageEnv):
    """Small images, and rewards that differ."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(screen_height=40, screen_width=40, n_channels=1, **kwargs)

    def step(self, action: Any) -> Any:
        observation: Any
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(observation[0, 0, 0]), terminated, truncated, info


@for_each_algorithm_with_modules
@pytest.mark.parametrize("discrete", [True, False])
def test_channels_last_images_are_transposed(case: Case, tmp_path: Path, discrete: bool) -> None:
    env = ImageEnv(discrete=discrete)
    model = case.make(env, "CnnPolicy", n_episodes=2, horizon=5)
    assert is_vecenv_wrapped(model.get_env(), VecTransposeImage)
    before = parameters_of(model)
    model.learn(20)
    assert differ(before, parameters_of(model))
    assert model.rollout_buffer.observations.dtype == np.uint8
    assert model.rollout_buffer.observations.shape[1:] == (1, 40, 40)

    observation, _ = env.reset()  # channels last, as the user has it
    action, _ = model.predict(observation, deterministic=True)
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model")
    np.testing.assert_array_equal(action, loaded.predict(observation, deterministic=True)[0])


@for_each_algorithm_with_modules
def test_channels_first_images_are_left_alone(case: Case) -> None:
    env = ImageEnv(discrete=True, channel_first=True)
    model = case.make(env, "CnnPolicy", n_episodes=2, horizon=5)
    assert not is_vecenv_wrapped(model.get_env(), VecTransposeImage)
    model.learn(10)


@for_each_algorithm_with_modules
def test_stacked_images(case: Case) -> None:
    venv = VecFrameStack(DummyVecEnv([lambda: ImageEnv(discrete=True)] * 2), 3)
    model = case.make(venv, "CnnPolicy", n_episodes=2, horizon=5)
    buffer = collect(model)
    assert buffer.observations.shape == (10, 3, 40, 40)
    assert (buffer.observations[0, :2] == 0).all()
    model.learn(10)


@for_each_algorithm_with_modules
def test_images_without_normalization(case: Case) -> None:
    """What looks like an image but is scaled already."""
    env = AnySpacesEnv(spaces.Box(0.0, 1.0, (3, 40, 40), np.float32), spaces.Discrete(2))
    with pytest.raises(AssertionError):
        case.make(env, "CnnPolicy")
    kwargs = dict(features_extractor_kwargs=dict(normalized_image=True), normalize_images=False)
    model = case.make(env, "CnnPolicy", n_episodes=2, policy_kwargs=kwargs)
    model.learn(8)
    raw = AnySpacesEnv(spaces.Box(0, 255, (3, 40, 40), np.uint8), spaces.Discrete(2))
    divided = case.make(raw, "CnnPolicy", n_episodes=2)
    observation = raw.observation_space.sample()
    features = divided.policy.obs_to_tensor(observation)[0]
    extractor = divided.policy.features_extractor
    with th.no_grad():
        assert th.allclose(extractor(features / 255.0), divided.policy.extract_features(features, extractor))


@for_each_algorithm_with_modules
def test_image_policy_refuses_vectors(case: Case) -> None:
    with pytest.raises(AssertionError):
        case.make(AnySpacesEnv(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)), "CnnPolicy")
