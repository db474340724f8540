"""What ``predict`` takes and gives."""

from pathlib import Path

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from tests.helpers.envs import AnySpacesEnv, ControlEnv
from tests.registry import Case, assert_same_parameters, for_each_algorithm, parameters_of


@for_each_algorithm
@pytest.mark.parametrize("deterministic", [True, False])
def test_shapes(case: Case, deterministic: bool) -> None:
    model = case.make(ControlEnv())
    single = np.zeros(3, dtype=np.float32)
    action, _ = model.predict(single, deterministic=deterministic)
    assert isinstance(action, np.ndarray) and action.shape == (1,)
    for n in (1, 5):
        actions, _ = model.predict(np.zeros((n, 3), dtype=np.float32), deterministic=deterministic)
        assert actions.shape == (n, 1)
    with pytest.raises(ValueError, match="observation shape"):
        model.predict(np.zeros((2, 4), dtype=np.float32), deterministic=deterministic)


@for_each_algorithm
def test_batch_is_the_same_as_one_by_one(case: Case) -> None:
    model = case.make(ControlEnv()).learn(48)
    observations = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    batch, _ = model.predict(observations, deterministic=True)
    single = [model.predict(observation, deterministic=True)[0] for observation in observations]
    np.testing.assert_allclose(batch, single, rtol=1e-5, atol=1e-7)


@for_each_algorithm
def test_actions_lie_within_the_bounds(case: Case) -> None:
    model = case.make(ControlEnv())
    actions, _ = model.predict(np.full((200, 3), 2.0, dtype=np.float32), deterministic=False)
    assert actions.min() >= -0.1 and actions.max() <= 0.1


@for_each_algorithm
def test_deterministic_predictions_are_repeatable_and_change_nothing(case: Case) -> None:
    model = case.make(ControlEnv())
    before = parameters_of(model)
    numpy_state, torch_state = str(np.random.get_state()), th.get_rng_state()
    observation = np.ones(3, dtype=np.float32)
    actions = [model.predict(observation, deterministic=True)[0] for _ in range(5)]
    assert all((action == actions[0]).all() for action in actions)
    assert_same_parameters(before, parameters_of(model))
    assert str(np.random.get_state()) == numpy_state and th.equal(th.get_rng_state(), torch_state)


@for_each_algorithm
def test_sampled_predictions_differ(case: Case) -> None:
    model = case.make(AnySpacesEnv(spaces.Box(-1, 1, (3,)), spaces.Box(-100, 100, (1,), np.float32)))
    observation = np.ones(3, dtype=np.float32)
    actions = [float(model.predict(observation, deterministic=False)[0][0]) for _ in range(10)]
    assert len(set(actions)) > 1


@for_each_algorithm
@pytest.mark.parametrize("deterministic", [True, False])
def test_result_of_reset_as_a_whole_is_refused(case: Case, deterministic: bool) -> None:
    env = ControlEnv()
    model = case.make(env)
    with pytest.raises(ValueError, match="tuple"):
        model.predict(env.reset(), deterministic=deterministic)


@for_each_algorithm
def test_predict_while_training_leaves_the_training_alone(case: Case) -> None:
    def run(also_predict: bool) -> dict[str, np.ndarray]:
        model = case.make(ControlEnv())

        def predict(local_variables: dict, global_variables: dict) -> bool:
            if also_predict:
                model.predict(np.ones((2, 3), dtype=np.float32), deterministic=True)
            return True

        return parameters_of(model.learn(48, predict))

    assert_same_parameters(run(False), run(True))


@for_each_algorithm
def test_no_gradient_is_left_behind(case: Case) -> None:
    model = case.make(ControlEnv()).learn(24)
    model.predict(np.ones(3, dtype=np.float32))
    assert all(parameter.grad is None for parameter in model.policy.parameters())


@for_each_algorithm
def test_dict_observations(case: Case) -> None:
    space = spaces.Dict(a=spaces.Box(-1, 1, (2,), np.float32), b=spaces.Discrete(3))
    model = case.make(AnySpacesEnv(space, spaces.Box(-1, 1, (2,), np.float32)), "MultiInputPolicy")
    single = space.sample()
    assert model.predict(single)[0].shape == (2,)
    batch = {key: np.stack([value] * 4) for key, value in single.items()}
    assert model.predict(batch)[0].shape == (4, 2)


@for_each_algorithm
def test_evaluate_policy(case: Case) -> None:
    model = case.make(ControlEnv())
    for env in (ControlEnv(), make_vec_env(ControlEnv, n_envs=3), DummyVecEnv([ControlEnv])):
        mean, std = evaluate_policy(model, env, n_eval_episodes=5, warn=False)
        assert np.isfinite([mean, std]).all()


@for_each_algorithm
def test_model_without_environment_predicts(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model")
    assert loaded.get_env() is None
    assert loaded.predict(np.zeros(3, dtype=np.float32))[0].shape == (1,)


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
@for_each_algorithm
def test_predict_on_a_gpu(case: Case) -> None:
    model = case.make(ControlEnv(), device="cuda").learn(24)
    assert next(model.policy.parameters()).device.type == "cuda"
    assert model.predict(np.zeros(3, dtype=np.float32))[0].shape == (1,)
