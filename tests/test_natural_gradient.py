"""The solvers of the natural gradient, against dense solutions."""

import pytest
import torch as th

from sb3_pois.common.natural_gradient import conjugate_gradient, solve_outer_products


def test_value_computed_by_hand():
    scores = th.tensor([[1.0, 0.0], [0.5, -1.0], [-1.0, 2.0]], dtype=th.float64)
    weights, gradient = th.tensor([0.2, 0.5, 0.3], dtype=th.float64), th.tensor([1.0, -0.5], dtype=th.float64)
    expected = th.tensor([3.53653502, 1.46552910], dtype=th.float64)
    th.testing.assert_close(solve_outer_products(scores, weights, 0.01, gradient), expected, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("damping", [1e-4, 0.3, 100.0])
@pytest.mark.parametrize("shape", [(5, 40), (40, 5), (12, 12), (1, 3), (3, 1)], ids=str)
def test_outer_products_against_a_dense_system(shape, damping):
    generator = th.Generator().manual_seed(0)
    scores = th.randn(shape, generator=generator, dtype=th.float64)
    scores *= th.logspace(-1, 1, shape[1], dtype=th.float64)
    weights = th.rand(shape[0], generator=generator, dtype=th.float64)
    weights[0] = 0.0
    b = th.randn(shape[1], generator=generator, dtype=th.float64)
    dense = scores.T @ th.diag(weights) @ scores + damping * th.eye(shape[1], dtype=th.float64)
    solution = solve_outer_products(scores, weights, damping, b)
    th.testing.assert_close(solution, th.linalg.solve(dense, b), rtol=1e-7, atol=1e-9)


def test_what_cannot_be_solved_is_not_finite():
    b, weights = th.ones(2, dtype=th.float64), th.ones(3, dtype=th.float64)
    for scores in (th.zeros(3, 2, dtype=th.float64), th.full((3, 2), th.inf, dtype=th.float64)):
        assert not th.isfinite(solve_outer_products(scores, weights, 0.0, b)).any()
    scores = th.zeros(1, 2, dtype=th.float64)
    assert not th.isfinite(solve_outer_products(scores, weights[:1], 0.0, b)).any()


def test_conjugate_gradient_solves_a_linear_system():
    generator = th.Generator().manual_seed(0)
    root = th.randn(8, 8, generator=generator, dtype=th.float64)
    matrix, b = root @ root.T + th.eye(8), th.randn(8, generator=generator, dtype=th.float64)
    solution = conjugate_gradient(lambda v: matrix @ v, b, max_iter=8, tol=0.0)
    th.testing.assert_close(solution, th.linalg.solve(matrix, b))
    for max_iter in range(1, 8):
        assert (conjugate_gradient(lambda v: matrix @ v, b, max_iter=max_iter) @ b).item() > 0.0
    assert th.equal(conjugate_gradient(lambda v: matrix @ v, th.zeros(8)), th.zeros(8))


def test_conjugate_gradient_stops_where_the_residual_is_small():
    diagonal, b = th.linspace(1.0, 3.0, 50, dtype=th.float64), th.ones(50, dtype=th.float64)
    solution = conjugate_gradient(lambda v: diagonal * v, b)
    assert 1e-6 * b.norm().item() < (diagonal * solution - b).norm().item() <= 1e-3 * b.norm().item()
