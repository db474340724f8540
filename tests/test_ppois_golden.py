"""
The authors' implementation of PPOIS and N-POIS as an oracle, on the random batches in tests/data/golden.

What is wrong there is not compared, and why:

* the divergence of a target whose std is infeasible in one parameter (NaN there) or in two (a meaningless finite number):
  it is +inf, and the bounds made from it are -inf;
* gradients at delta = 1 with a divergence in the bound (the derivative of a root at 0 times 0; here they are the
  estimate's) where they are not finite;
* N-POIS: the divergence of a group (not 0 from itself), every bound made from it, and the line searches over these;
* offline loops that end at such an infeasible target.

The reference ends a search at the first trial that is not finite; what follows from it is compared as "at least as high".
"""

import ast
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_pois.common.ascent import optimize_offline
from sb3_pois.common.bounds import Objective
from sb3_pois.common.importance import effective_sample_size, importance_weights, self_normalized_weights
from sb3_pois.common.line_search import line_search
from sb3_pois.ppois import LinearPolicy, MlpPolicy
from sb3_pois.ppois.surrogate import HyperpolicySurrogate, gaussian_natural_gradient

FOLDER = Path(__file__).parent / "data" / "golden"
PPOIS_DATA = np.load(FOLDER / "ppois.npz", allow_pickle=False)
NPOIS_DATA = np.load(FOLDER / "npois.npz", allow_pickle=False)
BATCHES = [0, 1, 2, 3]
FEASIBLE = slice(5)  # targets 5 and 6 are not
RULES = {"parabola": "parabolic", "binary": "binary"}


def assert_close(actual, expected):
    """Compare within what float32 allows: 1e-4 of the largest absolute value plus 1e-6."""
    expected = np.asarray(expected, dtype=np.float64)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=0, atol=1e-4 * scale + 1e-6)


def make_surrogate(data, prefix, bound, iw_norm, delta, group_index=None):
    mean, log_std = np.split(data[f"{prefix}rho0"].astype(np.float64), 2)
    noise = (data[f"{prefix}thetas"] - mean) / np.exp(log_std)
    returns = th.as_tensor(data[f"{prefix}rets"].astype(np.float64))
    return HyperpolicySurrogate(mean, log_std, noise, returns, Objective(bound, iw_norm, delta), group_index)


def targets_of(data, prefix):
    return th.as_tensor(data[f"{prefix}targets"].astype(np.float64))


def bound_of_option(normalize, use_rmax, use_renyi):
    scale, sample_size = ("max" if int(use_rmax) else "std"), ("d2" if int(use_renyi) else "ess")
    return f"{scale}-{sample_size}", "sn" if int(normalize) else "none"


@pytest.mark.parametrize("batch", BATCHES)
def test_weights_divergences_and_effective_sample_sizes(batch):
    surrogate = make_surrogate(PPOIS_DATA, f"b{batch}_", "J", "none", 1.0)
    terms = [surrogate.terms(rho, with_divergence=True) for rho in targets_of(PPOIS_DATA, f"b{batch}_")]
    log_weights = th.stack([term.log_weights[:, 0] for term in terms])
    assert_close(importance_weights(log_weights), PPOIS_DATA[f"b{batch}_iw"])
    assert_close(self_normalized_weights(log_weights.T).T, PPOIS_DATA[f"b{batch}_iw_norm"])
    assert_close(effective_sample_size(log_weights.T), PPOIS_DATA[f"b{batch}_ess"])
    log_d2 = th.cat([term.log_d2 for term in terms])
    assert_close(log_d2[FEASIBLE], PPOIS_DATA[f"b{batch}_D2"][FEASIBLE])
    assert log_d2[5:].tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("batch", BATCHES)
def test_fisher_information(batch):
    for rho, fisher in zip(targets_of(PPOIS_DATA, f"b{batch}_"), PPOIS_DATA[f"b{batch}_fisher"], strict=True):
        assert_close(1.0 / gaussian_natural_gradient(rho, th.ones_like(rho)), fisher)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("option", range(8))
def test_bounds_and_gradients_at_every_delta(batch, option):
    bound, iw_norm = bound_of_option(*str(PPOIS_DATA["option_names"][option]))
    is_infeasible_beyond = bound.endswith("d2")
    feasible = FEASIBLE if is_infeasible_beyond else slice(None)
    for delta_index, delta in enumerate(PPOIS_DATA["deltas"]):
        surrogate = make_surrogate(PPOIS_DATA, f"b{batch}_", bound, iw_norm, float(delta))
        results = [surrogate.value_and_gradient(rho) for rho in targets_of(PPOIS_DATA, f"b{batch}_")]
        values, gradients = (th.cat([result[0] for result in results]), th.stack([result[1] for result in results]))
        assert_close(values[feasible], PPOIS_DATA[f"b{batch}_bound"][option, delta_index][feasible])
        if is_infeasible_beyond:
            assert values[5:].tolist() == [-np.inf, -np.inf]
        assert_close(gradients[feasible], PPOIS_DATA[f"b{batch}_grad"][option, delta_index][feasible])


@pytest.mark.parametrize("batch", BATCHES)
def test_self_normalized_estimate(batch):
    surrogate = make_surrogate(PPOIS_DATA, f"b{batch}_", "J", "sn", 0.4)
    estimates = th.cat([surrogate.value(rho) for rho in targets_of(PPOIS_DATA, f"b{batch}_")])
    assert_close(estimates, PPOIS_DATA[f"b{batch}_J_sn"])


@pytest.mark.parametrize("batch", BATCHES)
def test_actor_weights(batch):
    def get(name):
        return PPOIS_DATA[f"b{batch}_{name}"]

    obs_space = spaces.Box(-np.inf, np.inf, (int(get("do")),), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (int(get("da")),), np.float32)
    policy = LinearPolicy(obs_space, action_space, with_bias=bool(get("bias")), mean_init=get("thetas")[0])
    assert policy.n_params == int(get("n"))
    assert_close(policy.predict(get("act_ob"))[0], get("act_out"))


def line_search_cases():
    for spec in PPOIS_DATA["ls_index"]:
        index, *options = str(spec).split("|")
        yield int(index), dict(option.split("=") for option in options)


# Cases in which the reference's offline loop, on another path over a surface that is not concave, ends higher than ours by
# more than 1e-3 of its value: {(case, rule)}. In case 44 plain importance sampling explodes (values of 1e5 to 1e7 from
# returns of about 1), where a difference in the seventh digit of the first iteration decides about the tenth.
OFFLINE_EXCEPTIONS = {(44, "parabola"), (44, "binary")}


@pytest.mark.parametrize(("index", "options"), list(line_search_cases()))
@pytest.mark.parametrize("rule", list(RULES))
def test_line_searches_end_at_least_as_high(index, options, rule):
    bound, iw_norm = bound_of_option(options["normalize"], options["use_rmax"], options["use_renyi"])
    prefix = f"b{options['batch']}_"
    surrogate = make_surrogate(PPOIS_DATA, prefix, bound, iw_norm, float(options["delta"]))
    start = targets_of(PPOIS_DATA, prefix)[int(options["start_target"])]
    value, gradient = surrogate.value_and_gradient(start)
    direction = gaussian_natural_gradient(start, gradient)
    assert_close(gradient, PPOIS_DATA[f"ls_{index}_{rule}_grad"])
    assert_close(direction, PPOIS_DATA[f"ls_{index}_{rule}_natgrad"])
    slope = (gradient * direction).sum(0, keepdim=True)
    result = line_search(surrogate.value, start, value, direction, slope, rule=RULES[rule])
    reference = float(PPOIS_DATA[f"ls_{index}_{rule}_delta_bound"])
    if np.isfinite(reference):
        assert result.improvement.item() >= reference - 1e-4 * max(1.0, abs(reference))

    key = f"ls_{index}_off_{rule}_final_bound"
    if key in PPOIS_DATA.files and np.isfinite(PPOIS_DATA[key]):
        offline = optimize_offline(surrogate, start, gaussian_natural_gradient, rule=RULES[rule])
        assert offline.value.item() >= offline.value_before.item()
        reference = float(PPOIS_DATA[key])
        reference_rho = th.as_tensor(PPOIS_DATA[f"ls_{index}_off_{rule}_rho"].astype(np.float64))
        if surrogate.value(reference_rho).item() == -np.inf:  # it ended where the divergence is infinite
            assert (index, rule) in {(48, "binary"), (52, "binary")}
        elif (index, rule) in OFFLINE_EXCEPTIONS:
            assert offline.value.item() < reference
        else:
            assert offline.value.item() >= reference - 1e-3 * max(1.0, abs(reference))


def reference_blocks():
    """The reference's groups: contiguous runs of the flat vector."""
    return [ast.literal_eval(str(block)) for block in NPOIS_DATA["n0_blocks_actual_flat_indices"]]


def block_surrogate():
    blocks = reference_blocks()
    group_index = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    assert [np.flatnonzero(group_index == m).tolist() for m in range(len(blocks))] == blocks
    return make_surrogate(NPOIS_DATA, "n0_", "max-ess", "sn", 0.4, group_index)


def test_group_weights_bounds_and_gradients():
    surrogate = block_surrogate()
    targets = targets_of(NPOIS_DATA, "n0_")
    for target, rho in enumerate(targets):
        weights = importance_weights(surrogate.terms(rho, with_divergence=False).log_weights)
        assert_close(weights, NPOIS_DATA["n0_max-ess_iw"][target])
    values, gradients = zip(*(surrogate.value_and_gradient(rho) for rho in targets), strict=True)
    assert_close(th.stack(values), NPOIS_DATA["n0_max-ess_bound"])
    assert_close(th.stack(gradients), NPOIS_DATA["n0_max-ess_grad"])


@pytest.mark.parametrize("rule", list(RULES))
def test_offline_loop_over_groups_ends_at_least_as_high(rule):
    surrogate = block_surrogate()
    start = targets_of(NPOIS_DATA, "n0_")[0]
    result = optimize_offline(surrogate, start, gaussian_natural_gradient, surrogate.group_of_theta, rule=RULES[rule])
    reference_rho = th.as_tensor(NPOIS_DATA[f"n0_max-ess_off_{rule}_rho"].astype(np.float64))
    reference = surrogate.value(reference_rho)
    assert (result.value >= result.value_before).all()
    assert result.value.sum() >= reference.sum() - 1e-3 * reference.abs().sum()


def test_deep_actor_weights():
    thetas = NPOIS_DATA["n0_thetas"]
    obs_space, action_space = gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Box(-np.inf, np.inf, (2,))
    policy = MlpPolicy(obs_space, action_space, net_arch=[4, 3], mean_init=thetas[0])
    assert_close(policy.predict(NPOIS_DATA["n0_act_ob"])[0], NPOIS_DATA["n0_act_out"])
