"""What PPOIS has beside the other algorithms: controllers drawn for whole episodes, user controllers, warm starts."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_pois import APOIS, PPOIS
from tests.helpers.envs import AnySpacesEnv, ControlEnv, CountingEnv
from tests.helpers.policies import BiasedController, ConstantController
from tests.registry import CASES, assert_same_parameters, collect, log_of, parameters_of

make = CASES["PPOIS"].make


class EchoEnv(CountingEnv):
    """Pays back the action, so that a return tells who acted."""

    def __init__(self, lengths: tuple[int, ...] = (2, 5, 3)) -> None:
        super().__init__(lengths)
        self.action_space = spaces.Box(-99.0, 99.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float(action[0]), *rest


def echo_envs(n_envs: int) -> DummyVecEnv:
    """Environments whose episodes end at different times."""
    return DummyVecEnv([lambda i=i: EchoEnv((2 + i, 5 - i)) for i in range(n_envs)])  # type: ignore[misc]


# Which controllers act


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("budget", [dict(n_episodes=20), dict(batch_timesteps=50), dict(n_episodes=20, horizon=3)], ids=str)
def test_every_episode_has_a_controller_of_its_own(n_envs: int, budget: dict[str, Any]) -> None:
    """Its stored parameters are those that acted in all of its steps, whatever ran beside it."""
    buffer = collect(make(echo_envs(n_envs), ConstantController, **budget))
    params = buffer.controller_params[:, 0]
    assert len(np.unique(params)) == buffer.n_episodes > 10
    np.testing.assert_allclose(buffer.rewards, np.repeat(params, buffer.episode_lengths), rtol=1e-5)


def test_only_rewards_and_controllers_are_stored() -> None:
    model = PPOIS("LinearPolicy", ControlEnv(), n_episodes=5, seed=0).learn(1)
    assert len(model.rollout_buffer.observations) == len(model.rollout_buffer.actions) == 0


def test_drawn_controllers_follow_the_hyperpolicy() -> None:
    kwargs = dict(mean_init=[1.0, -2.0, 0.0], log_std_init=[0.5, -1.0, 0.0])
    params = collect(make(ControlEnv(), BiasedController, n_episodes=2_000, policy_kwargs=kwargs)).controller_params
    np.testing.assert_allclose(params.mean(0), kwargs["mean_init"], atol=0.12)
    np.testing.assert_allclose(params.std(0), np.exp(kwargs["log_std_init"]), rtol=0.06)


def test_controllers_do_not_depend_on_the_number_of_environments() -> None:
    one, four = (collect(make(echo_envs(n), "LinearPolicy")).controller_params for n in (1, 4))
    np.testing.assert_array_equal(one, four)


@pytest.mark.filterwarnings("ignore:the largest absolute return of the batch")
def test_learns_the_parameters_of_a_users_controller() -> None:
    class SquareEnv(EchoEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *rest = super().step(action)
            return observation, -((reward - 1.5) ** 2), *rest

    class Holding(ConstantController, th.nn.Module):
        """Has a torch parameter, too, which is not among those that are learned."""

        def __init__(self, *args: Any) -> None:
            th.nn.Module.__init__(self)
            self.own = th.nn.Parameter(th.ones(3))
            super().__init__(*args)

    model = make(SquareEnv((3,)), Holding, n_episodes=50).learn(2_000)
    assert model.policy.mean.item() == pytest.approx(1.5, abs=0.1)
    assert th.equal(model.policy.controller.own, th.ones(3))


def test_log_of_groups() -> None:
    env = AnySpacesEnv(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-1.0, 1.0, (2,)))
    for grouping, has_groups in (("none", False), ("neuron", True)):
        model = make(env, "LinearPolicy", grouping=grouping, policy_kwargs=dict(log_std_init=-0.5)).learn(1, log_interval=None)
        logged = log_of(model)
        assert ("train/ess_min" in logged) == has_groups
        assert logged["train/std"] == pytest.approx(model.policy.log_std.exp().mean().item())


# Prediction


OBSERVATIONS = np.array([[0.5, 0.1, 0.0], [0.2, 0.2, 0.0], [1.0, -1.0, 0.0]], dtype=np.float32)


@pytest.fixture
def model() -> Any:
    env = AnySpacesEnv(spaces.Box(-1.0, 1.0, (3,)), spaces.Box(-2.0, 2.0, (1,)))
    return make(env, BiasedController, policy_kwargs=dict(mean_init=[0.5, -0.5, 0.0]))


def test_predict_acts_with_the_centre(model: Any) -> None:
    actions, state = model.predict(OBSERVATIONS)
    np.testing.assert_allclose(actions, [[0.2], [0.0], [1.0]], atol=1e-6)
    assert state is None and actions.dtype == np.float32
    np.testing.assert_array_equal(model.predict(OBSERVATIONS[0])[0], actions[0])
    np.testing.assert_array_equal(model.policy(th.as_tensor(OBSERVATIONS)), actions)


def test_predict_with_drawn_controllers(model: Any) -> None:
    """One per environment, drawn anew where an episode starts and nowhere else."""
    actions, state = model.predict(OBSERVATIONS, deterministic=False)
    kept = state[0].copy()
    assert len(np.unique(kept)) == kept.size == 9
    np.testing.assert_allclose(actions.ravel(), np.clip((kept * OBSERVATIONS).sum(1), -2.0, 2.0), rtol=1e-5)
    for starts in (None, [False] * 3):
        again, same = model.predict(OBSERVATIONS, state, starts, deterministic=False)
        np.testing.assert_array_equal(again, actions)
        np.testing.assert_array_equal(same[0], kept)
    changed, new = model.predict(OBSERVATIONS, state, np.array([False, True, False]), deterministic=False)
    assert (new[0] == kept).all(axis=1).tolist() == (changed == actions).ravel().tolist() == [True, False, True]
    np.testing.assert_array_equal(state[0], kept)  # what the caller holds is left alone


def test_predict_single_observation_with_a_drawn_controller(model: Any) -> None:
    action, state = model.predict(OBSERVATIONS[0], deterministic=False)
    assert action.shape == (1,) and state[0].shape == (1, 3)
    _, new = model.predict(OBSERVATIONS[0], state=state, episode_start=True, deterministic=False)
    assert (new[0] != state[0]).all()


def test_evaluate_policy_draws_one_controller_per_episode() -> None:
    model = make(EchoEnv(), ConstantController)
    for deterministic, n_controllers in ((False, 5), (True, 1)):
        returns, lengths = evaluate_policy(model, EchoEnv(), 5, deterministic, return_episode_rewards=True, warn=False)
        assert len(np.unique((np.array(returns) / lengths).round(4))) == n_controllers


@pytest.mark.parametrize(
    ("state", "episode_start", "message"),
    [
        ((np.zeros((1, 3)),), None, r"state has parts of the shapes \[\(1, 3\)\], but the observation asks for \(3, 3\)"),
        ((), None, r"state has parts of the shapes \[\]"),
        ((np.zeros((3, 3)),), [True, False], "episode_start has 2 entries, but the observation asks for 3"),
    ],
)
def test_predict_refuses_what_does_not_fit(model: Any, state: Any, episode_start: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.predict(OBSERVATIONS, state, episode_start, deterministic=False)


# Warm starts


def test_warm_start_from_a_vector_and_from_a_model() -> None:
    model = make(ControlEnv(), "LinearPolicy")
    assert model.warm_start([1.0, 2.0, 3.0]) is model
    assert model.policy.mean.tolist() == [1.0, 2.0, 3.0]
    for source in (model, model.policy):
        other = make(ControlEnv(), "LinearPolicy", policy_kwargs=dict(log_std_init=-1.0)).warm_start(source)
        assert other.policy.mean.tolist() == [1.0, 2.0, 3.0]
        assert other.policy.log_std.tolist() == [-1.0] * 3
    with pytest.raises(ValueError, match=r"source has the shape \(2,\), but must be \(3,\)"):
        model.warm_start([1.0, 2.0])


@pytest.mark.parametrize("algorithm, policy", [(APOIS, "LinearPolicy"), (APOIS, "MlpPolicy"), (PPO, "MlpPolicy")])
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_warm_start_from_an_actor(algorithm: Any, policy: str, env: str) -> None:
    actor = algorithm(policy, env, device="cpu", seed=0)
    model = PPOIS(policy, env, seed=1).warm_start(actor)
    observations = np.stack([actor.observation_space.sample() for _ in range(50)])
    expected = actor.predict(observations, deterministic=True)[0]
    np.testing.assert_allclose(model.predict(observations)[0], expected, atol=1e-5)


def test_warm_start_from_layers() -> None:
    layer = th.nn.Linear(3, 1, bias=False)
    model = make(ControlEnv(), "LinearPolicy").warm_start(th.nn.Sequential(layer))
    np.testing.assert_array_equal(model.policy.mean.detach(), layer.weight.detach()[0].double())
    with pytest.raises(ValueError, match=r"layers are \[\(3, 5, True\), .* but the controller's are \[\(3, 1, False\)\]"):
        model.warm_start(th.nn.Sequential(th.nn.Linear(3, 5), th.nn.Tanh(), th.nn.Linear(5, 1)))
    with pytest.raises(ValueError, match="source is a network, but BiasedController is none"):
        make(ControlEnv(), BiasedController).warm_start(layer)


# User controllers


def test_controllers_by_dotted_name() -> None:
    model = make(ControlEnv(), "tests.helpers.policies.BiasedController")
    assert type(model.policy.controller) is BiasedController
    for name in ("tests.helpers.policies.Missing", "no_such_module.BiasedController"):
        with pytest.raises(ValueError, match=f"policy is '{name}', but there is no such class"):
            make(ControlEnv(), name)


def test_actions_of_another_shape_change_nothing() -> None:
    class WrongShape(BiasedController):
        def act(self, params: np.ndarray, observations: Any) -> np.ndarray:
            return np.zeros(len(params))

    model = make(ControlEnv(), WrongShape)
    before = parameters_of(model)
    with pytest.raises(ValueError, match=r"WrongShape.act returned actions of shape \(1,\), but must return \(1, 1\)"):
        model.learn(60)
    assert_same_parameters(before, parameters_of(model))


# Memory


MEMORY = """
import resource
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_pois import PPOIS
from tests.helpers.envs import AnySpacesEnv

def learn(n_obs, n_actions, **policy_kwargs):
    boxes = [spaces.Box(-1.0, 1.0, (n,), np.float32) for n in (n_obs, n_actions)]
    return PPOIS("MlpPolicy", AnySpacesEnv(*boxes), n_episodes=10, policy_kwargs=policy_kwargs, seed=0).learn(1)

th.set_num_threads(1)
learn(3, 2)  # loads what is loaded on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(learn(376, 17, net_arch=[256, 256]).policy.n_params, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_linear_in_the_number_of_parameters() -> None:
    """One square of the number of parameters alone would take 207 GiB."""
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    n_params, added_kib = map(int, result.stdout.split())
    assert n_params == 166_673
    assert added_kib < 64 * 1024
