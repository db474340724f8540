"""What PPOIS and N-POIS learn on real tasks; minutes each."""

import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_pois import PPOIS

pytestmark = pytest.mark.slow


def score(task, policy, budget, **options):
    model = PPOIS(policy, make_vec_env(task, 8, seed=0), seed=0, **options).learn(budget)
    mean, _ = evaluate_policy(model, make_vec_env(task, 1, seed=10_000), n_eval_episodes=20)
    return mean


@pytest.mark.parametrize(
    ("task", "budget", "least"),
    [("InvertedPendulum-v5", 349_999, 950.0), ("CartPole-v1", 149_999, 490.0), ("Swimmer-v5", 1_000_000, 300.0)],
)
def test_linear_controllers(task, budget, least):
    if task != "CartPole-v1":
        pytest.importorskip("mujoco")
    assert score(task, "LinearPolicy", budget) >= least


def test_deep_policies_need_groups():
    policy_kwargs = dict(net_arch=[100, 50, 25], mean_init="controller", log_std_init=-1.0)
    options = {**PPOIS.PAPER, "n_offline_iters": 20, "policy_kwargs": policy_kwargs}
    grouped = score("CartPole-v1", "MlpPolicy", 299_999, **{**options, "bound": "max-ess", "grouping": "neuron"})
    assert grouped >= 300.0
    assert score("CartPole-v1", "MlpPolicy", 299_999, **options) <= 100.0
