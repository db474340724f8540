"""PPOIS as a whole: learning, determinism, prediction, saving, warm starts, refusals."""

import io
import pickle
import subprocess
import sys
import zipfile
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, IdentityEnv, IdentityEnvBox
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from sb3_pois import APOIS, PPOIS
from sb3_pois.ppois import Controller, HyperPolicy

SMALL: dict[str, Any] = dict(n_episodes=6, seed=0)


class Targets(gym.Env):
    """Reward for answering an observation with a linear function of it; episodes of different lengths."""

    def __init__(self, observation_space=None, action_space=None, broken=None):
        self.observation_space = observation_space or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space or spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.broken = broken

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_left = int(self.np_random.integers(2, 9))
        return self._observe(), {}

    def step(self, action):
        self.steps_left -= 1
        action = np.ravel(action).astype(float)[0]
        reward = -abs(action - self.observation.sum()) if isinstance(self.observation, np.ndarray) else float(action)
        if self.broken == "reward" and self.steps_left == 0:
            reward = np.nan
        return self._observe(), reward, self.steps_left == 0, False, {}

    def _observe(self):
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        self.observation = self.observation_space.sample()
        if self.broken == "observation":
            self.observation[0] = np.nan
        return self.observation


class Proportional(Controller):
    """A controller of our own."""

    def __init__(self, observation_space, action_space, bias=0.0):
        super().__init__(observation_space, action_space)
        self.n_params = 2
        self.bias = bias

    def act(self, params, observations):
        return (params * observations).sum(1, keepdims=True) + self.bias


class NoNumbers(Proportional):
    def act(self, params, observations):
        return np.full((len(params), 1), np.nan)


class WrongShape(Proportional):
    def act(self, params, observations):
        return np.zeros(len(params))


def skip_training(model: Any) -> None:
    model.train = lambda: None


def parameters_of(model):
    return {name: p.detach().clone() for name, p in model.policy.named_parameters()}


def assert_same_parameters(one, other):
    for name, values in parameters_of(one).items():
        np.testing.assert_array_equal(values, parameters_of(other)[name])


# Running and learning


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(n_episodes=None, batch_timesteps=50),
        dict(horizon=4),
        dict(gamma=0.9, delta=0.7),
        dict(delta=1.0),
        dict(bound="J"),
        dict(bound="std-d2"),
        dict(bound="max-ess", iw_norm="none"),
        dict(bound="std-ess", center_returns=True),
        dict(natural_gradient=False),
        dict(grouping="neuron"),
        dict(grouping=[[0], [1, 2]], policy_kwargs=dict(with_bias=True)),
        dict(line_search="binary", line_search_max_iter=5, line_search_tol=1e-3),
        dict(n_offline_iters=1, line_search_initial_step=0.1, gradient_tol=1e-3),
    ],
)
def test_every_option(options):
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets] * 2), **{**SMALL, **options})
    before = parameters_of(model)
    model.learn(60)
    assert any((before[name] != values).any() for name, values in parameters_of(model).items())
    assert all(th.isfinite(values).all() for values in parameters_of(model).values())


@pytest.mark.parametrize(
    ("policy", "observation_space", "action_space"),
    [
        ("MlpPolicy", spaces.Discrete(3), spaces.Discrete(2)),
        ("MlpPolicy", spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 2])),
        ("LinearPolicy", spaces.MultiBinary(3), spaces.MultiBinary(2)),
        ("MlpPolicy", spaces.Box(-1.0, 1.0, (2, 2), np.float64), spaces.Box(-1.0, 1.0, (2, 2), np.float64)),
        ("MultiInputPolicy", spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Discrete(3)), spaces.Discrete(2)),
        ("LinearPolicy", spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Discrete(3)), spaces.Discrete(2)),
    ],
)
def test_every_space(policy, observation_space, action_space):
    env = DummyVecEnv([lambda: Targets(observation_space, action_space)] * 2)
    model = PPOIS(policy, env, **SMALL).learn(60)
    obs: Any = env.reset()
    for deterministic in (True, False):
        actions, _ = model.predict(obs, deterministic=deterministic)
        assert actions.shape == (2, *action_space.shape) and actions.dtype == action_space.dtype
        assert all(action_space.contains(action) for action in actions)


def test_images_are_flattened():
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=True)
    model = PPOIS("MlpPolicy", env, n_episodes=2, horizon=5, policy_kwargs=dict(net_arch=[4]), seed=0).learn(10)
    assert model.policy.n_params == (36 * 36 + 1) * 4 + 5 * int(model.action_space.n)  # type: ignore[attr-defined]


def test_dict_observations_equal_their_flattened_vector():
    space = spaces.Dict(a=spaces.Box(-1.0, 1.0, (2,)), b=spaces.Box(-1.0, 1.0, (1,)))
    flat = gym.wrappers.FlattenObservation
    models = [
        PPOIS("MultiInputPolicy", DummyVecEnv([lambda: Targets(space, spaces.Discrete(2))]), **SMALL),
        PPOIS("MlpPolicy", DummyVecEnv([lambda: flat(Targets(space, spaces.Discrete(2)))]), **SMALL),
    ]
    for model in models:
        model.learn(60)
    assert_same_parameters(*models)


def test_learns_a_linear_controller():
    model = PPOIS(Proportional, DummyVecEnv([Targets] * 4), n_episodes=50, seed=0).learn(4_000)
    np.testing.assert_allclose(model.policy.mean.detach(), [1.0, 1.0], atol=0.15)


@pytest.mark.parametrize("env", [IdentityEnv(4, ep_length=10), IdentityEnvBox(ep_length=10)])
def test_learns_the_identity(env):
    model = PPOIS("LinearPolicy", env, n_episodes=50, seed=0).learn(15_000)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=20, warn=False)
    assert float(mean) >= 9.0  # type: ignore[arg-type]


def test_torch_parameters_of_a_controller_are_not_learned():
    class Holding(Proportional, th.nn.Module):
        def __init__(self, *args):
            th.nn.Module.__init__(self)
            self.own = th.nn.Parameter(th.ones(3))
            super().__init__(*args)

    model: Any = PPOIS(Holding, Targets(), n_episodes=20, seed=0)
    mean = model.policy.mean.detach().clone()
    model.learn(20)
    assert th.equal(model.policy.controller.own, th.ones(3)) and not th.equal(model.policy.mean, mean)


def test_what_is_stored_is_what_acted():
    """The return of an episode is that of its own controller, whatever ran beside it."""
    model: Any = PPOIS(Proportional, DummyVecEnv([Targets] * 3), n_episodes=20, seed=0)
    params: dict[int, np.ndarray] = {}
    lengths: dict[int, int] = {}
    rewards: dict[int, float] = {}
    acted: dict[str, np.ndarray] = {}
    act = model.policy.act

    def spy(params_of_envs, observations):
        acted["params"] = params_of_envs.copy()
        return act(params_of_envs, observations)

    model.policy.act = spy
    add = model.rollout_buffer.add

    def spy_add(observations, actions, reward, original, episode_of_env, active=None):
        for env, episode in enumerate(episode_of_env):
            if episode >= 0:
                np.testing.assert_array_equal(params.setdefault(episode, acted["params"][env]), acted["params"][env])
                rewards[episode] = rewards.get(episode, 0.0) + float(reward[env])
                lengths[episode] = lengths.get(episode, 0) + 1
        add(observations, actions, reward, original, episode_of_env, active)

    model.rollout_buffer.add = spy_add
    skip_training(model)
    model.learn(1)
    buffer = model.rollout_buffer
    np.testing.assert_array_equal(buffer.controller_params, [params[i] for i in range(20)])
    np.testing.assert_array_equal(buffer.episode_lengths, [lengths[i] for i in range(20)])
    np.testing.assert_allclose(buffer.episode_returns(), [rewards[i] for i in range(20)], rtol=1e-5)
    assert len(np.unique(buffer.controller_params[:, 0])) == 20
    assert len(buffer.observations) == len(buffer.actions) == 0  # nothing else is needed


def test_drawn_controllers_follow_the_hyperpolicy():
    kwargs = dict(mean_init=[1.0, -2.0], log_std_init=[0.5, -1.0])
    model = PPOIS(Proportional, DummyVecEnv([Targets] * 4), n_episodes=2_000, policy_kwargs=kwargs, seed=0)
    skip_training(model)
    params = model.learn(1).rollout_buffer.controller_params
    np.testing.assert_allclose(params.mean(0), [1.0, -2.0], atol=0.12)
    np.testing.assert_allclose(params.std(0), np.exp([0.5, -1.0]), rtol=0.06)


def test_a_batch_without_information_changes_nothing():
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets]), n_episodes=1, seed=0)
    before = parameters_of(model)
    model.learn(10)
    for name, values in parameters_of(model).items():
        np.testing.assert_array_equal(values, before[name])


# Randomness


@pytest.mark.parametrize("budget", [dict(n_episodes=7), dict(batch_timesteps=30)])
def test_same_result_in_one_process_and_in_many(budget):
    models = [
        PPOIS("MlpPolicy", make_vec_env(Targets, 3, seed=1, vec_env_cls=cls), seed=1, **budget)
        for cls in (DummyVecEnv, DummyVecEnv, SubprocVecEnv)
    ]
    for model in models:
        model.learn(150)
    returns = [model.rollout_buffer.episode_returns() for model in models]
    for model, values in zip(models[1:], returns[1:], strict=True):
        np.testing.assert_array_equal(values, returns[0])
        assert_same_parameters(models[0], model)
    models[2].env.close()  # type: ignore[union-attr]


def test_controllers_do_not_depend_on_the_number_of_environments():
    def controller_params(n_envs):
        model = PPOIS("LinearPolicy", make_vec_env(Targets, n_envs, seed=1), n_episodes=10, seed=1)
        skip_training(model)
        return model.learn(1).rollout_buffer.controller_params

    np.testing.assert_array_equal(controller_params(1), controller_params(4))


def test_resume_continues_and_does_not_replay(tmp_path):
    def make():
        return PPOIS("LinearPolicy", DummyVecEnv([Targets] * 2), **SMALL)

    model = make().learn(40)
    noise = model.rollout_buffer.noise
    model.save(tmp_path / "model")
    loaded = PPOIS.load(tmp_path / "model", env=DummyVecEnv([Targets] * 3))
    assert_same_parameters(model, loaded)
    loaded.learn(40, reset_num_timesteps=False)
    assert loaded.num_timesteps > model.num_timesteps
    first = make()
    skip_training(first)
    first.learn(1)
    for earlier in (noise, first.rollout_buffer.noise):
        assert not np.isin(loaded.rollout_buffer.noise, earlier).any()


def test_resume_starts_from_the_saved_distribution(tmp_path):
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets] * 2), **SMALL).learn(40)
    model.save(tmp_path / "model")
    loaded = PPOIS.load(tmp_path / "model", env=DummyVecEnv([Targets] * 2))
    skip_training(loaded)
    loaded.learn(1, reset_num_timesteps=False)
    np.testing.assert_array_equal(loaded.rollout_buffer.mean, model.policy.mean.detach())
    np.testing.assert_array_equal(loaded.rollout_buffer.log_std, model.policy.log_std.detach())


# Prediction


@pytest.fixture
def model():
    return PPOIS(Proportional, DummyVecEnv([Targets] * 3), policy_kwargs=dict(mean_init=[0.5, -0.5]), seed=0)


def test_predict_acts_with_the_centre(model):
    obs = np.array([[0.5, 0.1], [0.2, 0.2], [1.0, -1.0]], dtype=np.float32)
    actions, state = model.predict(obs)
    np.testing.assert_allclose(actions, [[0.2], [0.0], [1.0]], atol=1e-6)
    assert state is None
    single, _ = model.predict(obs[0])
    assert single.shape == (1,) and single == pytest.approx(actions[0])
    np.testing.assert_array_equal(model.policy(th.as_tensor(obs)), actions)
    np.testing.assert_array_equal(model.policy.predict(obs)[0], actions)


def test_predict_with_drawn_controllers(model):
    obs = np.full((3, 2), 0.3, dtype=np.float32)
    actions, state = model.predict(obs, deterministic=False)
    assert len(np.unique(actions)) == 3  # one controller per environment
    again, same = model.predict(obs, state=state, episode_start=np.array([False] * 3), deterministic=False)
    np.testing.assert_array_equal(again, actions)
    np.testing.assert_array_equal(same[0], state[0])
    kept = state[0].copy()
    changed, new = model.predict(obs, state=state, episode_start=np.array([False, True, False]), deterministic=False)
    assert (new[0] == kept).all(axis=1).tolist() == [True, False, True]
    assert (changed == actions).ravel().tolist() == [True, False, True]
    np.testing.assert_array_equal(state[0], kept)  # what the caller holds is left alone
    np.testing.assert_allclose(actions.ravel(), np.clip((kept * obs).sum(1), -2.0, 2.0), rtol=1e-5)


def test_predict_single_observation_with_a_drawn_controller(model):
    action, state = model.predict(np.zeros(2, dtype=np.float32), deterministic=False)
    assert action.shape == (1,) and state[0].shape == (1, 2)
    _, new = model.predict(np.zeros(2, dtype=np.float32), state=state, episode_start=True, deterministic=False)
    assert (new[0] != state[0]).all()


def test_evaluate_policy_draws_one_controller_per_episode(model, monkeypatch):
    used: list[np.ndarray] = []
    act = model.policy.act

    def spy(params, observations):
        used.append(params.copy())
        return act(params, observations)

    monkeypatch.setattr(model.policy, "act", spy)
    evaluate_policy(model, DummyVecEnv([Targets]), n_eval_episodes=5, deterministic=False, warn=False)
    assert len(np.unique(np.concatenate(used)[:, 0])) == 5
    evaluate_policy(model, DummyVecEnv([Targets]), n_eval_episodes=5, deterministic=True, warn=False)
    assert len(np.unique(np.concatenate(used)[:, 0])) == 6


def test_predict_refuses_what_does_not_fit(model):
    obs = np.zeros((3, 2), dtype=np.float32)
    for deterministic in (True, False):
        with pytest.raises(ValueError, match="tuple"):
            model.predict((obs, {}), deterministic=deterministic)
        with pytest.raises(ValueError, match="Unexpected observation shape"):
            model.predict(np.zeros((3, 5), dtype=np.float32), deterministic=deterministic)
    with pytest.raises(ValueError, match=r"state has parts of the shapes \[\(1, 2\)\], but the observation asks for \(3, 2\)"):
        model.predict(obs, state=(np.zeros((1, 2)),), deterministic=False)
    with pytest.raises(ValueError, match=r"state has parts of the shapes \[\]"):
        model.predict(obs, state=(), deterministic=False)
    with pytest.raises(ValueError, match="episode_start has 2 entries, but the observation asks for 3"):
        model.predict(obs, state=(np.zeros((3, 2)),), episode_start=[True, False], deterministic=False)


# Saving and loading


@pytest.mark.parametrize(
    ("policy", "policy_kwargs"),
    [
        ("LinearPolicy", dict(with_bias=True, log_std_init=-1.0, mean_init=np.arange(3))),
        ("MlpPolicy", dict(net_arch=dict(pi=[5]), activation_fn=th.nn.ReLU, mean_init="controller")),
        (Proportional, dict(controller_kwargs=dict(bias=0.5), mean_init=[0.1, 0.2])),
    ],
)
def test_save_and_load(tmp_path, policy, policy_kwargs):
    env = DummyVecEnv([Targets] * 2)
    model = PPOIS(policy, env, policy_kwargs=policy_kwargs, **SMALL).learn(40)
    model.save(tmp_path / "model.zip")
    loaded = PPOIS.load(tmp_path / "model.zip", env=env)
    assert_same_parameters(model, loaded)
    obs: Any = env.reset()
    np.testing.assert_array_equal(model.predict(obs)[0], loaded.predict(obs)[0])
    loaded.learn(40)

    model.policy.save(tmp_path / "policy.pt")
    policy = type(model.policy).load(tmp_path / "policy.pt")
    np.testing.assert_array_equal(model.predict(obs)[0], policy.predict(obs)[0])
    assert policy._get_constructor_parameters().keys() == model.policy._get_constructor_parameters().keys()

    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        weights = th.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
        assert b"torch._utils._rebuild_tensor" not in archive.read("data")
        assert set(weights) == {"mean", "log_std"}
    np.testing.assert_array_equal(weights["mean"], model.policy.mean.detach())


def test_no_tensor_in_the_pickled_data(tmp_path):
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets]), policy_kwargs=dict(mean_init=np.zeros(2)), **SMALL).learn(40)
    excluded = set(model._excluded_save_params()) | {"policy"}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            assert not isinstance(obj, th.Tensor)

    for name, value in model.__dict__.items():
        if name not in excluded and name not in ("action_space", "observation_space"):
            Pickler(io.BytesIO()).dump(value)


def test_file_does_not_grow_with_the_batch(tmp_path):
    sizes = []
    for n_episodes in (5, 500):
        model = PPOIS("LinearPolicy", DummyVecEnv([Targets]), n_episodes=n_episodes, seed=0).learn(1)
        model.save(tmp_path / "model")
        sizes.append((tmp_path / "model.zip").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 20_000  # the episode statistics of the last 100 episodes


def test_parameters():
    model: Any = PPOIS("LinearPolicy", DummyVecEnv([Targets]), **SMALL)
    parameters = model.get_parameters()
    assert set(parameters) == {"policy"}
    parameters["policy"]["mean"] = th.ones(2, dtype=th.float64)
    model.set_parameters(parameters)
    assert model.policy.mean.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="unknown"):
        model.set_parameters({"unknown": {}}, exact_match=False)
    with pytest.raises(RuntimeError, match="log_std"):
        model.set_parameters({"policy": {"mean": th.ones(2)}})


def test_load_refuses_unknown_keywords_and_values(tmp_path):
    PPOIS("LinearPolicy", DummyVecEnv([Targets]), **SMALL).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"PPOIS\.load got max_chunk_steps"):
        PPOIS.load(tmp_path / "model", max_chunk_steps=10)
    with pytest.raises(ValueError, match="grouping is 'layer'"):
        PPOIS.load(tmp_path / "model", grouping="layer")
    with pytest.raises(ValueError, match="must be a partition"):
        PPOIS.load(tmp_path / "model", grouping=[[0]])
    assert PPOIS.load(tmp_path / "model", grouping="neuron").grouping == "neuron"


def test_save_in_a_callback(tmp_path):
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets]), **SMALL)
    model.learn(40, callback=CheckpointCallback(10, str(tmp_path)))
    assert len(list(tmp_path.glob("*.zip"))) >= 3
    assert PPOIS.load(next(tmp_path.glob("*.zip"))).n_episodes == 6


def test_vec_normalize():
    env = VecNormalize(DummyVecEnv([Targets] * 2))
    model = PPOIS("LinearPolicy", env, **SMALL).learn(60)
    assert model.rollout_buffer.original_rewards is not model.rollout_buffer.rewards


# Warm starts


def test_warm_start_from_a_vector_and_from_a_model():
    model = PPOIS("LinearPolicy", DummyVecEnv([Targets]), **SMALL)
    assert model.warm_start([1.0, 2.0]) is model
    assert model.policy.mean.tolist() == [1.0, 2.0]
    other = PPOIS("LinearPolicy", DummyVecEnv([Targets]), policy_kwargs=dict(log_std_init=-1.0), **SMALL)
    for source in (model, model.policy):
        other.policy.mean.data.zero_()
        other.warm_start(source)
        assert other.policy.mean.tolist() == [1.0, 2.0]
        assert other.policy.log_std.tolist() == [-1.0, -1.0]
    with pytest.raises(ValueError, match=r"source has the shape \(3,\), but must be \(2,\)"):
        model.warm_start([1.0, 2.0, 3.0])


@pytest.mark.parametrize("policy", ["LinearPolicy", "MlpPolicy"])
@pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
def test_warm_start_from_apois(policy, env):
    actor = APOIS(policy, env, seed=0)
    model = PPOIS(policy, env, seed=1).warm_start(actor)
    obs = np.stack([actor.observation_space.sample() for _ in range(50)])
    np.testing.assert_allclose(model.predict(obs)[0], actor.predict(obs, deterministic=True)[0], atol=1e-5)


def test_warm_start_from_other_networks():
    ppo = PPO("MlpPolicy", "Pendulum-v1", device="cpu", seed=0)
    obs = np.stack([ppo.observation_space.sample() for _ in range(50)])
    model = PPOIS("MlpPolicy", "Pendulum-v1", seed=1).warm_start(ppo)
    np.testing.assert_allclose(model.predict(obs)[0], ppo.predict(obs, deterministic=True)[0], atol=1e-5)
    layer = th.nn.Linear(3, 1, bias=False)
    chain = th.nn.Sequential(layer)
    model = PPOIS("LinearPolicy", "Pendulum-v1").warm_start(chain)
    np.testing.assert_array_equal(model.policy.mean.detach(), layer.weight.detach()[0].double())
    with pytest.raises(ValueError, match=r"layers are \[\(3, 64, True\), .* but the controller's are \[\(3, 1, False\)\]"):
        model.warm_start(ppo)
    with pytest.raises(ValueError, match="source is a network, but Proportional is none"):
        PPOIS(Proportional, DummyVecEnv([Targets])).warm_start(chain)


# Refusals


def test_controllers_by_dotted_name():
    model = PPOIS(f"{__name__}.Proportional", DummyVecEnv([Targets]), **SMALL)
    assert type(model.policy.controller) is Proportional
    for name in (f"{__name__}.Missing", "no_such_module.Proportional"):
        with pytest.raises(ValueError, match=f"policy is '{name}', but there is no such class"):
            PPOIS(name, DummyVecEnv([Targets]))


@pytest.mark.parametrize("policy", [PPO, BasePolicy, int])
def test_no_policy(policy):
    with pytest.raises(ValueError, match=r"must be a subclass of sb3_pois\.ppois\.Controller or"):
        PPOIS(policy, DummyVecEnv([Targets]))


def test_subclass_of_a_policy():
    class OnlyDict(HyperPolicy):
        def __init__(self, observation_space, action_space):
            super().__init__(observation_space, action_space, Proportional)

    assert type(PPOIS(OnlyDict, DummyVecEnv([Targets])).policy) is OnlyDict


def test_spaces_that_are_not_supported():
    space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
    with pytest.raises(AssertionError, match="The algorithm only supports"):
        PPOIS("MlpPolicy", DummyVecEnv([lambda: Targets(action_space=space)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(grouping="layer"), "grouping is 'layer', but allowed are 'none', 'neuron' and a list of lists"),
        (dict(grouping=[[0]]), "but must be a partition"),
        (dict(bound="max-d3"), "bound is 'max-d3'"),
        (dict(iw_norm="regression"), "iw_norm is 'regression'"),
        (dict(delta=0.0), "delta is 0.0"),
        (dict(policy_kwargs=dict(mean_init="xavier")), "mean_init is 'xavier'"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        PPOIS("LinearPolicy", DummyVecEnv([Targets]), **options)


def test_arguments_of_others_do_not_exist():
    for name in ("max_chunk_steps", "learning_rate", "use_sde", "fisher_damping"):
        other: dict[str, Any] = {name: 1}
        with pytest.raises(TypeError, match=name):
            PPOIS("LinearPolicy", DummyVecEnv([Targets]), **other)


def test_neurons_of_a_user_controller():
    with pytest.raises(ValueError, match="grouping is 'neuron', but Proportional has no neurons"):
        PPOIS(Proportional, DummyVecEnv([Targets]), grouping="neuron")


@pytest.mark.parametrize(
    ("policy", "broken", "message"),
    [
        (NoNumbers, None, r"the action of environment 0 at step 0 of the batch is \[nan\], but must be finite"),
        (WrongShape, None, r"WrongShape.act returned actions of shape \(2,\), but must return \(2, 1\)"),
        (Proportional, "observation", "the observation of environment 0 at step 0 of the batch is"),
        (Proportional, "reward", "the reward of environment 0 at step"),
    ],
)
def test_what_is_not_finite_or_of_another_shape_changes_nothing(policy, broken, message):
    model = PPOIS(policy, DummyVecEnv([lambda: Targets(broken=broken)] * 2), **SMALL)
    before = parameters_of(model)
    with pytest.raises(ValueError, match=message):
        model.learn(60)
    for name, values in parameters_of(model).items():
        np.testing.assert_array_equal(values, before[name])


# Logging


@pytest.mark.parametrize(("grouping", "n_groups"), [("none", 1), ("neuron", 2)])
def test_logs(tmp_path, monkeypatch, grouping, n_groups):
    space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    model = PPOIS("LinearPolicy", DummyVecEnv([lambda: Targets(action_space=space)]), grouping=grouping, **SMALL)
    model.set_logger(configure(str(tmp_path), []))
    logged: dict[str, Any] = {}
    monkeypatch.setattr(model, "dump_logs", lambda iteration: logged.update(model.logger.name_to_value))
    model.learn(1)
    names = (
        "surrogate_before surrogate surrogate_improvement penalty ess d2 max_importance_weight mean_importance_weight "
        "std_importance_weight grad_norm step_size n_offline_iters n_line_search_evals is_line_search_success std"
    )
    assert {f"train/{name}" for name in names.split()} <= set(logged)
    assert ("train/ess_min" in logged) == (n_groups > 1)
    assert logged["train/std"] == pytest.approx(model.policy.log_std.exp().mean().item())
    assert logged["train/surrogate_improvement"] >= 0.0


# Memory


MEMORY = """
import resource
import numpy as np
import torch as th
from gymnasium import spaces
from sb3_pois import PPOIS
from tests.test_ppois import Targets

def learn(n_obs, n_actions, **policy_kwargs):
    boxes = [spaces.Box(-1.0, 1.0, (n,), np.float32) for n in (n_obs, n_actions)]
    return PPOIS("MlpPolicy", Targets(*boxes), n_episodes=10, policy_kwargs=policy_kwargs, seed=0).learn(1)

th.set_num_threads(1)
learn(3, 2)  # loads what is loaded on first use
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(learn(376, 17, net_arch=[256, 256]).policy.n_params, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_memory_is_linear_in_the_number_of_parameters():
    """One square of the number of parameters alone would take 207 GiB."""
    result = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    n_params, added_kib = map(int, result.stdout.split())
    assert n_params == 166_673
    assert added_kib < 64 * 1024
