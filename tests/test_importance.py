"""Importance weights and effective sample sizes."""

import math

import numpy as np
import pytest
import torch as th

from sb3_pois.common.importance import (
    effective_sample_size,
    effective_sample_size_from_divergence,
    importance_weights,
    self_normalized_weights,
    sum_per_episode,
)

LOG_WEIGHTS = th.tensor([[0.2, -0.1], [-0.3, 0.4]], dtype=th.float64).sum(1)


def test_check_value():
    assert effective_sample_size(LOG_WEIGHTS).item() == pytest.approx(2.0, abs=1e-6)


def test_sum_per_episode_against_a_loop():
    rng = np.random.default_rng(0)
    lengths = [3, 1, 7, 2]
    values = rng.normal(size=sum(lengths)).astype(np.float32)
    index = th.as_tensor(np.repeat(np.arange(4), lengths))
    expected = [part.astype(np.float64).sum() for part in np.split(values, np.cumsum(lengths)[:-1])]
    sums = sum_per_episode(th.as_tensor(values), index, 4)
    assert sums.dtype == th.float64
    np.testing.assert_allclose(sums, expected, rtol=1e-14)


def test_sum_per_episode_keeps_small_terms_over_long_horizons():
    values = th.cat([th.tensor([1e8]), th.full((10_000,), 0.1)])  # float32 would not move from 1e8
    assert sum_per_episode(values, th.zeros(10_001, dtype=th.int64), 1).item() == pytest.approx(1e8 + 1000.0, rel=1e-9)


def test_equal_policies_give_weights_of_one_and_the_whole_sample():
    assert (importance_weights(th.zeros(9)) == 1.0).all()
    assert effective_sample_size(th.zeros(9, dtype=th.float64)).item() == pytest.approx(9.0, rel=1e-14)


@pytest.mark.parametrize("shift", [-2000.0, 0.0, 5.0, 2000.0])
def test_a_common_factor_changes_neither_normalised_weights_nor_sample_size(shift):
    log_weights = th.randn(20, dtype=th.float64)
    th.testing.assert_close(self_normalized_weights(log_weights + shift), self_normalized_weights(log_weights))
    th.testing.assert_close(effective_sample_size(log_weights + shift), effective_sample_size(log_weights))
    assert self_normalized_weights(log_weights + shift).sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0, 1000.0])
def test_effective_sample_size_by_its_formula_and_in_its_range(scale):
    log_weights = scale * th.randn(30, dtype=th.float64)
    ess = effective_sample_size(log_weights).item()
    assert 1.0 - 1e-9 <= ess <= 30.0 + 1e-9
    if scale <= 10.0:
        w = np.exp(log_weights.numpy())
        assert ess == pytest.approx(w.sum() ** 2 / (w**2).sum(), rel=1e-10)


def test_groups_are_independent_columns():
    log_weights = th.randn(10, 3, dtype=th.float64)
    columns = [effective_sample_size(log_weights[:, i]) for i in range(3)]
    th.testing.assert_close(effective_sample_size(log_weights), th.stack(columns))


def test_effective_sample_size_from_divergence():
    assert effective_sample_size_from_divergence(th.tensor(math.log(4.0)), 100).item() == pytest.approx(25.0, rel=1e-6)
    assert effective_sample_size_from_divergence(th.tensor(math.inf), 100).item() == 0.0
