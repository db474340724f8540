"""Which episodes make up a batch."""

import numpy as np
import pytest

from sb3_pois.common import episode_schedule
from sb3_pois.common.episode_schedule import IDLE, EpisodeSchedule


def run(lengths, n_envs, **budget):
    """
    Play a schedule whose episode k would naturally last ``lengths[k]`` steps.

    :return: kept lengths, number of vector steps, and number of waves
    """
    schedule = EpisodeSchedule(n_envs, **budget)
    steps = np.zeros(n_envs, dtype=int)
    n_vec_steps = n_waves = 0
    while not schedule.is_complete:
        if schedule.wave_is_over:
            schedule.start_wave()
            steps[:] = 0
            n_waves += 1
        steps += 1
        n_vec_steps += 1
        dones = np.array([e != IDLE and steps[i] == lengths[e] for i, e in enumerate(schedule.episode_of_env)])
        running = schedule.episode_of_env.copy()
        _, started = schedule.advance(dones)
        steps[started] = 0
        assert (schedule.episode_of_env[schedule.active] != IDLE).all()
        assert schedule.n_active == schedule.active.sum()
        assert set(started) <= set(np.flatnonzero(dones)), "only an environment that was just reset may start an episode"
        assert len(set(running[running != IDLE])) == (running != IDLE).sum(), "no episode runs twice"
        assert n_vec_steps < 100_000
    return schedule.kept_lengths().tolist(), n_vec_steps, n_waves


LENGTHS = np.random.default_rng(0).integers(1, 30, 1000)


@pytest.mark.parametrize("n_envs", [1, 2, 7, 40, 64])
def test_episodes_are_counted_in_launch_order(n_envs):
    kept, _, n_waves = run(LENGTHS, n_envs, n_episodes=40)
    assert kept == LENGTHS[:40].tolist() and n_waves == 1


@pytest.mark.parametrize("n_envs", [1, 2, 7, 64])
@pytest.mark.parametrize("budget", [1, 29, 300, 1000])
def test_step_budget_depends_on_the_lengths_in_launch_order_only(n_envs, budget):
    kept, _, n_waves = run(LENGTHS, n_envs, batch_timesteps=budget)
    total = np.cumsum(LENGTHS)
    n_whole = int(np.searchsorted(total, budget))
    assert kept[:-1] == LENGTHS[:n_whole].tolist()
    assert sum(kept) == budget and n_waves == 1


@pytest.mark.parametrize("n_envs", [1, 2, 7, 64])
@pytest.mark.parametrize("budget", [1, 2, 29, 300, 1000])
@pytest.mark.parametrize("horizon", [None, 10])
def test_budget_whose_last_episode_is_finished_keeps_exactly_the_episodes_that_begin_within_it(n_envs, budget, horizon):
    """Those before whose start, in launch order, there are fewer steps than the budget: an oracle that loops over episodes."""
    for first in range(0, 900, 300):
        lengths = LENGTHS[first:]
        expected: list[int] = []
        while sum(expected) < budget:
            expected.append(min(int(lengths[len(expected)]), horizon or 10**9))
        kept, n_vec_steps, _ = run(lengths, n_envs, batch_timesteps=budget, finish_last_episode=True, horizon=horizon)
        assert kept == expected
        if n_envs == 1:
            assert n_vec_steps == sum(expected)


def test_the_last_episode_is_finished_and_superfluous_ones_are_stopped():
    # Episode 0 alone fills the budget: episode 1 runs until it has, and episode 0 on to its end
    schedule = EpisodeSchedule(2, batch_timesteps=100, finish_last_episode=True)
    schedule.start_wave()
    n_running = []
    for step in range(1, 131):
        schedule.advance(np.array([step == 130, False]))
        n_running.append(schedule.n_active)
    assert n_running == [2] * 99 + [1] * 30 + [0]
    assert schedule.is_complete and schedule.kept_lengths().tolist() == [130]
    # Episode 0 ends early, and episode 1 is the last
    kept, n_vec_steps, _ = run(np.array([60, 300, 1000]), 2, batch_timesteps=100, finish_last_episode=True)
    assert kept == [60, 300] and n_vec_steps == 300


@pytest.mark.parametrize("n_envs", [1, 3])
def test_an_endless_last_episode_names_the_horizon(n_envs, monkeypatch):
    monkeypatch.setattr(episode_schedule, "MAX_EPISODE_STEPS", 50)
    with pytest.raises(ValueError, match="not ended after 50 steps: set `horizon`"):
        run(np.full(10, 1000), n_envs, batch_timesteps=10, finish_last_episode=True)


def bias_of_the_mean_return(budget, returns_of, finishes):
    """
    Of episodes of 1 to 8 steps, all as likely, that earn their return, which is .5 in the mean, with their last step.

    Batches are drawn by the rule that the tests above hold the schedule to.
    """
    rng = np.random.default_rng(budget)
    n_batches = 2_000_000 // budget
    lengths = rng.integers(1, 9, (n_batches, budget // 2 + 8))
    returns = returns_of(lengths, rng).astype(float)
    total, batch = np.cumsum(lengths, axis=1), np.arange(n_batches)
    last = (total < budget).sum(1)
    if not finishes:
        returns[batch, last] *= total[batch, last] == budget
    return (np.cumsum(returns, axis=1)[batch, last] / (last + 1)).mean() - 0.5


def by_chance(lengths, rng):
    return rng.random(lengths.shape) < 0.5


def by_length(lengths, rng):
    return lengths > 4


@pytest.mark.parametrize(
    "returns_of, cut, finished",
    [
        (by_chance, [-0.081, -0.034, -0.009], [0.0, 0.0, 0.0]),
        (by_length, [-0.088, -0.035, -0.009], [0.042, 0.019, 0.005]),
    ],
)
def test_bias_of_a_budget_of_steps(returns_of, cut, finished):
    """
    As docs/apois.md has it, within .003, which is four standard errors.

    A cut loses the last return. Finished, what is left is Cov(R, T) / (E[T] E[N]), since the number N of episodes depends on
    their lengths T: here Cov(R, T) is 0 or 1, and E[T] 4.5.
    """
    for budget, of_cut, of_finished in zip((20, 50, 200), cut, finished, strict=True):
        assert bias_of_the_mean_return(budget, returns_of, finishes=False) == pytest.approx(of_cut, abs=0.003)
        assert bias_of_the_mean_return(budget, returns_of, finishes=True) == pytest.approx(of_finished, abs=0.003)


@pytest.mark.parametrize("n_envs", [1, 3, 8])
def test_horizon_cuts_every_episode(n_envs):
    kept, _, _ = run(LENGTHS, n_envs, n_episodes=40, horizon=10)
    assert kept == np.minimum(LENGTHS[:40], 10).tolist()


@pytest.mark.parametrize("n_envs", [1, 3, 8])
def test_horizon_and_step_budget(n_envs):
    kept, _, _ = run(LENGTHS, n_envs, batch_timesteps=150, horizon=10)
    cut = np.minimum(LENGTHS, 10)
    n_whole = int(np.searchsorted(np.cumsum(cut), 150))
    assert kept[:-1] == cut[:n_whole].tolist() and sum(kept) == 150


def test_cut_environments_idle_until_the_wave_is_over():
    # Two environments, horizon 5: all episodes are cut, so every pair is a wave
    _, n_vec_steps, n_waves = run(np.full(10, 100), 2, n_episodes=6, horizon=5)
    assert (n_vec_steps, n_waves) == (15, 3)
    # Natural endings relaunch at once: no second wave
    _, n_vec_steps, n_waves = run(np.full(10, 5), 2, n_episodes=6, horizon=5)
    assert (n_vec_steps, n_waves) == (15, 1)


def test_superfluous_episodes_are_stopped():
    # Episode 0 alone fills the budget, so episode 1 is needed only until it has
    kept, n_vec_steps, _ = run(np.array([1000, 1000]), 2, batch_timesteps=100)
    assert kept == [100] and n_vec_steps == 100
    # Episode 0 ends early, and episode 1 supplies the rest
    kept, n_vec_steps, _ = run(np.array([60, 1000, 1000]), 2, batch_timesteps=100)
    assert kept == [60, 40] and n_vec_steps == 60


def test_more_environments_than_episodes():
    schedule = EpisodeSchedule(5, n_episodes=2)
    np.testing.assert_array_equal(schedule.start_wave(), [0, 1])
    assert schedule.active.tolist() == [True, True, False, False, False] and not schedule.all_active


def test_skipped_steps_are_not_counted():
    schedule = EpisodeSchedule(1, n_episodes=2, horizon=1)
    schedule.start_wave()
    schedule.advance(np.array([True]))
    schedule.skip([0])
    assert not schedule.advance(np.array([False]))[0].any()
    assert schedule.advance(np.array([False]))[0].all()
    assert schedule.is_complete and schedule.kept_lengths().tolist() == [1, 1]


def test_endless_episode_names_the_horizon(monkeypatch):
    monkeypatch.setattr(episode_schedule, "MAX_EPISODE_STEPS", 50)
    schedule = EpisodeSchedule(2, n_episodes=2)
    schedule.start_wave()
    with pytest.raises(ValueError, match="not ended after 50 steps: set `horizon`"):
        for _ in range(50):
            schedule.advance(np.zeros(2, dtype=bool))
    schedule = EpisodeSchedule(2, n_episodes=2, horizon=60)
    schedule.start_wave()
    for _ in range(60):
        schedule.advance(np.zeros(2, dtype=bool))
    assert schedule.is_complete


def test_episodes_are_over_by_themselves_or_cut():
    schedule = EpisodeSchedule(3, n_episodes=2, horizon=2)
    schedule.start_wave()
    assert schedule.advance(np.array([False, False, False]))[0].tolist() == [False, False, False]
    assert schedule.advance(np.array([True, False, False]))[0].tolist() == [True, True, False], "the third is in no episode"
