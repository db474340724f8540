r"""
Solvers for the natural gradient, :math:`(F + \lambda I)^{-1} g`.

Exact where the Fisher information F is a sum of a few outer products, by conjugate gradient where it is known by its
products only.
"""

from collections.abc import Callable

import torch as th


def solve_outer_products(scores: th.Tensor, weights: th.Tensor, damping: th.Tensor | float, b: th.Tensor) -> th.Tensor:
    r"""
    Solve :math:`(S^T W S + \lambda I) x = b` in the smaller of S's two dimensions.

    With :math:`A = W^{1/2} S` and fewer rows than columns this is Woodbury's identity,
    :math:`x = (b - A^T (A A^T + \lambda I)^{-1} A b) / \lambda`.

    :param scores: S, float64, shape (n_rows, n_params)
    :param weights: diagonal of W, not negative, float64, shape (n_rows,)
    :param damping: lambda, positive
    :param b: right-hand side, float64, shape (n_params,)
    :return: x, shape (n_params,); not finite where the system is singular to rounding
    """
    a = weights.sqrt().unsqueeze(1) * scores
    if a.shape[0] < a.shape[1]:
        return (b - a.T @ _solve_damped(a @ a.T, damping, a @ b)) / damping
    return _solve_damped(a.T @ a, damping, b)


def _solve_damped(matrix: th.Tensor, damping: th.Tensor | float, b: th.Tensor) -> th.Tensor:
    identity = th.eye(len(b), dtype=b.dtype, device=b.device)
    return th.linalg.solve_ex(matrix + damping * identity, b)[0]


def conjugate_gradient(
    matrix_vector_product: Callable[[th.Tensor], th.Tensor], b: th.Tensor, max_iter: int = 30, tol: float = 1e-6
) -> th.Tensor:
    """
    Solve A x = b approximately for a symmetric positive definite A (Hestenes and Stiefel 1952), from x = 0.

    :param matrix_vector_product: maps v of shape (n,) to A v
    :param b: right-hand side, shape (n,)
    :param max_iter: largest number of products
    :param tol: squared residual relative to b's at which the solution is good enough
    :return: x, shape (n,); every iterate satisfies b . x > 0 unless b is 0
    """
    x = th.zeros_like(b)
    residual, search = b.clone(), b.clone()
    squared_residual = residual @ residual
    enough = tol * squared_residual
    for _ in range(max_iter):
        if squared_residual <= enough:
            break
        product = matrix_vector_product(search)
        step = squared_residual / (search @ product)
        x = x + step * search
        residual = residual - step * product
        previous, squared_residual = squared_residual, residual @ residual
        search = residual + (squared_residual / previous) * search
    return x
