"""The example that tunes a PID controller."""

import numpy as np
import pytest
from stable_baselines3.common.env_checker import check_env

pytest.importorskip("Box2D")

from examples import tune_pid


def test_tuned_gains_beat_those_set_by_hand(capsys):
    before, after = tune_pid.tune(total_timesteps=30_000, n_eval_episodes=20, seed=100)
    assert after > before
    printed = capsys.readouterr().out
    assert all(name in printed for name in tune_pid.GAINS)


def test_the_integrals_are_those_of_offset_and_height():
    env = tune_pid.make_env()
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(seed=0)
    assert observation[8:].tolist() == [0.0, 0.0]
    total = np.zeros(2)
    for _ in range(50):
        observation, *_ = env.step(np.zeros(2, dtype=np.float32))
        total += observation[:2] / 50.0
        np.testing.assert_allclose(observation[8:], total, rtol=1e-4, atol=1e-6)


def test_engines_are_off_on_the_ground():
    env = tune_pid.make_env()
    controller = tune_pid.LandingPid(env.observation_space, env.action_space)
    observations = np.zeros((3, 10))
    observations[:, 1] = -0.1
    observations[1, 6] = 1.0
    observations[2, 6:8] = 1.0
    actions = controller.act(np.tile([gain for gain, _ in tune_pid.GAINS.values()], (3, 1)), observations)
    assert actions[0, 0] == actions[1, 0] == pytest.approx(0.4)
    assert actions[2].tolist() == [0.0, 0.0]
