"""The life cycle: save, load, parameters, continued training."""

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

import sb3_pois
from tests.helpers.callbacks import StopAfter
from tests.helpers.envs import AnySpacesEnv, ControlEnv, CountingEnv
from tests.registry import (
    CASES,
    Case,
    assert_same_parameters,
    collect,
    differ,
    for_each_algorithm,
    for_each_algorithm_with_modules,
    parameters_of,
)

IMAGES = spaces.Box(0, 255, (36, 36, 3), np.uint8)
POLICY_KWARGS: list[dict[str, Any]] = [
    {},
    dict(net_arch=[7], activation_fn=nn.ReLU),
    dict(net_arch=[], with_bias=False),
    dict(net_arch=None),
    dict(net_arch=dict(pi=[4, 3])),
]
EVERY_POLICY = [
    pytest.param(case, policy, policy_kwargs, id=f"{name}-{i}")
    for name, case in CASES.items()
    for i, (policy, policy_kwargs) in enumerate(
        [
            *(("MlpPolicy", policy_kwargs) for policy_kwargs in POLICY_KWARGS),
            ("LinearPolicy", dict(with_bias=True)),
            *case.more_policies,
        ]
    )
]


def observations_of(model: Any, n: int = 12) -> Any:
    model.observation_space.seed(0)
    return np.array([model.observation_space.sample() for _ in range(n)])


def assert_predict_the_same(one: Any, other: Any) -> None:
    observations = observations_of(one)
    np.testing.assert_array_equal(
        one.predict(observations, deterministic=True)[0], other.predict(observations, deterministic=True)[0]
    )
    np.random.seed(0)
    th.manual_seed(0)
    sampled, _ = one.predict(observations, deterministic=False)
    np.random.seed(0)
    th.manual_seed(0)
    np.testing.assert_array_equal(sampled, other.predict(observations, deterministic=False)[0])


# Save and load


@pytest.mark.parametrize("case, policy, policy_kwargs", EVERY_POLICY)
def test_loaded_model_predicts_the_same(case: Case, tmp_path: Path, policy: Any, policy_kwargs: dict[str, Any]) -> None:
    model = case.make(ControlEnv(), policy, policy_kwargs=policy_kwargs).learn(24)
    model.save(tmp_path / "model")
    assert (tmp_path / "model.zip").exists()
    loaded = case.algorithm.load(tmp_path / "model")
    assert_same_parameters(parameters_of(model), parameters_of(loaded))
    assert_predict_the_same(model, loaded)
    for name, option in vars(model).items():
        if isinstance(option, (int, float, str, bool)):
            assert getattr(loaded, name) == option, name


@for_each_algorithm
def test_load_by_every_kind_of_path(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv())
    model.save(str(tmp_path / "folder" / "text"))
    model.save(tmp_path / "dotted.name")
    with open(tmp_path / "opened", "wb") as file:
        model.save(file)
    memory = io.BytesIO()
    model.save(memory)
    memory.seek(0)
    with open(tmp_path / "opened", "rb") as opened:
        for path in (
            str(tmp_path / "folder" / "text"),
            tmp_path / "folder" / "text.zip",
            tmp_path / "dotted.name",
            opened,
            memory,
        ):
            loaded = case.algorithm.load(path)
            assert_same_parameters(parameters_of(model), parameters_of(loaded))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dotted.name", "folder", "opened"]


@for_each_algorithm
def test_failed_save_leaves_the_old_file(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = case.make(ControlEnv())
    path = tmp_path / "model.zip"
    model.save(path)
    old = path.read_bytes()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(th, "save", fail)
    with pytest.raises(OSError, match="no space left"):
        model.save(path)
    assert path.read_bytes() == old
    assert [file.name for file in tmp_path.iterdir()] == ["model.zip"]


@for_each_algorithm
def test_file_does_not_grow_with_the_batch(case: Case, tmp_path: Path) -> None:
    sizes = []
    for n_episodes in (5, 500):
        model = case.make(CountingEnv((20,)), n_episodes=n_episodes, stats_window_size=1)
        collect(model)
        model.save(tmp_path / "model.zip")
        sizes.append((tmp_path / "model.zip").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 200


@for_each_algorithm
def test_policy_weights_load_with_weights_only(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv()).learn(24)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        assert "policy.optimizer.pth" not in archive.namelist()
        state = th.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    assert_same_parameters(parameters_of(model), {name: value.numpy() for name, value in state.items()})


@for_each_algorithm
def test_no_tensor_in_the_pickled_data(case: Case, tmp_path: Path) -> None:
    """Tensors live in policy.pth alone, so that no device is pickled and one copy of the truth is kept."""
    model = case.make(ControlEnv()).learn(24)
    model.save(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        data = json.loads(archive.read("data"))
        assert [name for name in archive.namelist() if name.endswith(".pth")] in (
            ["policy.pth"],
            ["policy.pth", "pytorch_variables.pth"],
            ["pytorch_variables.pth", "policy.pth"],
        )
    assert "torch.Tensor" not in json.dumps(data)
    assert "rollout_buffer" not in data and "policy" not in data

    found: list[str] = []

    class Finder(pickle.Pickler):
        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, th.Tensor):
                found.append(repr(obj))
            return NotImplemented

    loaded_data, _, variables = load_from_zip_file(tmp_path / "model.zip")
    assert not variables
    for name, value in loaded_data.items():  # type: ignore[union-attr]
        try:
            Finder(io.BytesIO()).dump(value)
        except (pickle.PicklingError, AttributeError, TypeError):
            assert name in ("policy_class", "lr_schedule"), name
    assert found == []


@for_each_algorithm
def test_save_from_a_callback(case: Case, tmp_path: Path) -> None:
    """In the middle of a batch: what is saved is the behavioral policy."""
    path = tmp_path / "model.zip"
    behavioral = {}

    def save_once(local_variables: dict, global_variables: dict) -> bool:
        model = local_variables["self"]
        if model.num_timesteps == 30:
            behavioral.update(parameters_of(model))
            model.save(path)
        return True

    model = case.make(ControlEnv()).learn(48, save_once)
    loaded = case.algorithm.load(path, env=ControlEnv())
    assert loaded.num_timesteps == 30
    assert_same_parameters(behavioral, parameters_of(loaded))
    assert differ(behavioral, parameters_of(model))
    loaded.learn(24, reset_num_timesteps=False)
    assert loaded.num_timesteps == 54


@for_each_algorithm
def test_process_that_never_saw_the_environment(case: Case, tmp_path: Path) -> None:
    """It has the package and nothing of the tests, hence not the environment's class either."""
    (tmp_path / "sb3_pois").symlink_to(Path(sb3_pois.__file__).parent)
    model = case.make(ControlEnv()).learn(24)
    model.save(tmp_path / "model")
    script = (
        f"import numpy as np; from sb3_pois import {case.algorithm.__name__} as Algorithm; "
        "model = Algorithm.load('model'); import sys; assert 'tests' not in sys.modules; "
        "print(model.predict(np.ones(3, dtype=np.float32), deterministic=True)[0].tolist())"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={"PYTHONPATH": "."}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    action, _ = model.predict(np.ones(3, dtype=np.float32), deterministic=True)
    assert json.loads(result.stdout) == action.tolist()


@for_each_algorithm
def test_device_stays_cpu(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a machine that has a GPU."""
    monkeypatch.setattr(th.cuda, "is_available", lambda: True)
    model = case.make(ControlEnv(), seed=None)
    assert model.device == th.device("cpu")
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model")
    assert loaded.device == th.device("cpu")
    for parameter in loaded.policy.parameters():
        assert parameter.device == th.device("cpu")


@pytest.mark.skipif(not th.cuda.is_available(), reason="needs a GPU")
@for_each_algorithm
def test_load_on_another_device(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv(), device="cuda").learn(24)
    model.save(tmp_path / "model")
    for device in ("cpu", "cuda"):
        loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv(), device=device)
        assert loaded.device.type == device
        loaded.learn(24)
    assert case.algorithm.load(tmp_path / "model").device == th.device("cpu")


@for_each_algorithm
def test_load_with_unknown_keyword(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).save(tmp_path / "model")
    for unknown in ("learning_rate", "n_steps", "use_sde", "policy_class", "num_timesteps"):
        with pytest.raises(ValueError, match=rf"got {unknown}, but allowed are .*n_episodes"):
            case.algorithm.load(tmp_path / "model", **{unknown: 1})
    with pytest.raises(ValueError, match="got learning_rate, tau, but"):
        case.algorithm.load(tmp_path / "model", tau=1, learning_rate=2)


@for_each_algorithm
def test_load_with_changed_options(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).save(tmp_path / "model")
    loaded = case.algorithm.load(
        tmp_path / "model", env=ControlEnv(), n_episodes=3, gamma=0.5, bound="J", stats_window_size=2, verbose=1, seed=5
    )
    assert (loaded.n_episodes, loaded.gamma, loaded.bound, loaded.verbose, loaded.seed) == (3, 0.5, "J", 1, 5)
    loaded.verbose = 0
    loaded.learn(1)
    assert loaded.rollout_buffer.n_episodes == 3
    assert loaded.ep_info_buffer.maxlen == 2

    swapped = case.algorithm.load(tmp_path / "model", env=ControlEnv(), n_episodes=None, batch_timesteps=10).learn(1)
    assert swapped.rollout_buffer.n_steps == 10


@for_each_algorithm
def test_load_with_another_window_goes_on_with_it(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).learn(24).save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv(), stats_window_size=2)
    loaded.learn(24, reset_num_timesteps=False)
    assert loaded.ep_info_buffer.maxlen == loaded.ep_success_buffer.maxlen == 2


@for_each_algorithm
def test_load_with_custom_objects(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", custom_objects=dict(gamma=0.25), print_system_info=False)
    assert loaded.gamma == 0.25


@for_each_algorithm
def test_load_refuses_other_policy_kwargs_and_spaces(case: Case, tmp_path: Path) -> None:
    case.make(ControlEnv()).save(tmp_path / "model")
    with pytest.raises(ValueError, match="policy kwargs"):
        case.algorithm.load(tmp_path / "model", policy_kwargs=dict(net_arch=[3]))
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        case.algorithm.load(tmp_path / "model", env=CountingEnv())


@for_each_algorithm
def test_files_have_the_permissions_that_the_process_gives(case: Case, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        case.make(ControlEnv()).save(tmp_path / "model")
    finally:
        os.umask(mask)
    assert (tmp_path / "model.zip").stat().st_mode & 0o777 == 0o640


@for_each_algorithm
@pytest.mark.parametrize("n_envs", [1, 2, 5])
def test_load_with_another_number_of_environments(case: Case, tmp_path: Path, n_envs: int) -> None:
    case.make(make_vec_env(ControlEnv, n_envs=2)).learn(1).save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=make_vec_env(ControlEnv, n_envs=n_envs))
    assert loaded.n_envs == n_envs
    for force_reset in (True, False):
        loaded.learn(1, reset_num_timesteps=force_reset)
        assert loaded.rollout_buffer.n_episodes == 6


@for_each_algorithm
def test_exclude_and_include(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv())
    model.save(tmp_path / "default.zip")
    model.save(tmp_path / "less.zip", exclude=["gamma"])
    data, _, _ = load_from_zip_file(tmp_path / "default.zip")
    assert data is not None and "gamma" in data and "_last_obs" not in data
    data, _, _ = load_from_zip_file(tmp_path / "less.zip")
    assert data is not None and "gamma" not in data
    model._last_obs = np.ones(3)
    model.save(tmp_path / "more.zip", include=["_last_obs"])
    data, _, _ = load_from_zip_file(tmp_path / "more.zip")
    assert data is not None and data["_last_obs"].tolist() == [1.0, 1.0, 1.0]


@for_each_algorithm
def test_closures_among_the_policy_kwargs_survive(case: Case, tmp_path: Path) -> None:
    slope = 0.3
    model = case.make(ControlEnv(), policy_kwargs=dict(activation_fn=lambda: nn.LeakyReLU(slope))).learn(24)
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv())
    assert_predict_the_same(model, loaded)
    loaded.learn(24)


@for_each_algorithm
def test_vec_normalize_environment(case: Case, tmp_path: Path) -> None:
    model = case.make(VecNormalize(DummyVecEnv([ControlEnv]))).learn(24)
    assert model.get_vec_normalize_env() is model.env
    model.save(tmp_path / "model")
    model.get_vec_normalize_env().save(str(tmp_path / "statistics"))
    venv = VecNormalize.load(str(tmp_path / "statistics"), DummyVecEnv([ControlEnv]))
    loaded = case.algorithm.load(tmp_path / "model", env=venv)
    np.testing.assert_array_equal(loaded.get_vec_normalize_env().obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    loaded.learn(24, reset_num_timesteps=False)


# Continued training


@for_each_algorithm
def test_training_continues_from_what_was_saved(case: Case, tmp_path: Path) -> None:
    """Before its next update the loaded model searches from where the saved one ended, not from the start."""
    model = case.make(ControlEnv()).learn(48)
    model.save(tmp_path / "model")
    saved = parameters_of(model)
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv())
    loaded.learn(1000, StopAfter(20), reset_num_timesteps=False)  # stops in the first batch: no update
    assert_same_parameters(saved, parameters_of(loaded))
    loaded.learn(24, reset_num_timesteps=False)
    assert differ(saved, parameters_of(loaded))


@for_each_algorithm
def test_draws_after_a_load_continue_and_do_not_replay(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv(), seed=3)
    first = collect(model).actions.copy()  # the policy stays as it is: what differs from here on is the noise
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv())
    later = collect(loaded).actions
    assert not np.allclose(later, first, atol=0.05)

    again = case.algorithm.load(tmp_path / "model", env=ControlEnv())
    np.testing.assert_array_equal(collect(again).actions, later)  # but they are repeatable


@for_each_algorithm
def test_global_draws_after_a_load_do_not_replay(case: Case, tmp_path: Path) -> None:
    """The environments' seeds too depend on how far the training was."""
    model = case.make(ControlEnv(), seed=3)
    fresh_draw = np.random.random()
    model.learn(24)
    model.save(tmp_path / "model")
    case.algorithm.load(tmp_path / "model")
    assert np.random.random() != fresh_draw


@for_each_algorithm
def test_continued_learning_continues_the_counters(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv()).learn(24)
    assert (model.num_timesteps, model._n_updates, model._episode_num) == (24, 1, 6)
    model.learn(24, reset_num_timesteps=False)
    assert (model.num_timesteps, model._n_updates, model._episode_num) == (48, 2, 12)
    assert len(model.ep_info_buffer) == 12
    model.save(tmp_path / "model")
    loaded = case.algorithm.load(tmp_path / "model", env=ControlEnv())
    loaded.learn(24, reset_num_timesteps=False)
    assert (loaded.num_timesteps, loaded._n_updates, loaded._episode_num) == (72, 3, 18)
    loaded.learn(24)
    assert (loaded.num_timesteps, loaded._episode_num) == (24, 6)


# Parameters


@for_each_algorithm
def test_get_and_set_parameters(case: Case) -> None:
    model = case.make(ControlEnv())
    original = parameters_of(model)
    assert list(model.get_parameters()) == ["policy"]
    random = {"policy": {name: th.rand_like(value.float()) for name, value in model.policy.state_dict().items()}}
    model.set_parameters(random)
    for name, value in model.policy.state_dict().items():
        assert th.equal(value.float(), random["policy"][name])
    assert differ(original, parameters_of(model))


@for_each_algorithm
def test_set_parameters_refuses_what_does_not_fit(case: Case) -> None:
    model = case.make(ControlEnv())
    state = model.get_parameters()
    with pytest.raises(ValueError, match="invalid object"):
        model.set_parameters({**state, "nobody": {}})
    with pytest.raises(ValueError, match="expected"):
        model.set_parameters({})
    incomplete = {"policy": {name: value for name, value in list(state["policy"].items())[1:]}}
    with pytest.raises(RuntimeError, match="Missing key"):
        model.set_parameters(incomplete)


@for_each_algorithm
def test_set_some_parameters(case: Case) -> None:
    model = case.make(ControlEnv())
    before = parameters_of(model)
    name = next(iter(before))
    model.set_parameters({"policy": {name: th.zeros_like(model.policy.state_dict()[name])}}, exact_match=False)
    assert (parameters_of(model)[name] == 0.0).all()
    for other in list(before)[1:]:
        np.testing.assert_array_equal(parameters_of(model)[other], before[other])


@for_each_algorithm
def test_set_parameters_from_a_file(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv()).learn(24)
    model.save(tmp_path / "model")
    other = case.make(ControlEnv(), seed=9)
    assert differ(parameters_of(model), parameters_of(other))
    other.set_parameters(str(tmp_path / "model"))
    assert_same_parameters(parameters_of(model), parameters_of(other))


# The policy on its own


def assert_policy_survives_on_its_own(model: Any, folder: Path) -> None:
    model.policy.save(str(folder / "policy"))
    assert_predict_the_same(model.policy, type(model.policy).load(str(folder / "policy"), device="cpu"))


@pytest.mark.parametrize("case, policy, policy_kwargs", EVERY_POLICY)
def test_policy_on_its_own(case: Case, tmp_path: Path, policy: Any, policy_kwargs: dict[str, Any]) -> None:
    model = case.make(ControlEnv(), policy, policy_kwargs=policy_kwargs).learn(24)
    assert_policy_survives_on_its_own(model, tmp_path)


@for_each_algorithm_with_modules
def test_image_policy_on_its_own(case: Case, tmp_path: Path) -> None:
    model = case.make(AnySpacesEnv(IMAGES, spaces.Discrete(2)), "CnnPolicy", n_episodes=2)
    assert_policy_survives_on_its_own(model, tmp_path)


@for_each_algorithm
def test_saving_writes_through_a_link(case: Case, tmp_path: Path) -> None:
    model = case.make(ControlEnv())
    (tmp_path / "folder").mkdir()
    (tmp_path / "latest.zip").symlink_to(tmp_path / "folder" / "model.zip")
    model.save(tmp_path / "latest.zip")
    assert (tmp_path / "latest.zip").is_symlink() and (tmp_path / "folder" / "model.zip").stat().st_size > 0
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["model.zip"]
