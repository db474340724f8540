"""Pictures and windows."""

import numpy as np
import pygame
import pytest
from envs_helpers import TASKS, can_draw, make_env, make_vec, make_vec_env

from sb3_pois.envs.rendering import PICTURE_HEIGHT, PICTURE_WIDTH, tile


@pytest.fixture(autouse=True)
def no_display(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


@pytest.fixture(params=TASKS)
def task(request):
    if not can_draw(request.param):
        pytest.skip("MuJoCo finds no OpenGL here")
    return request.param


def test_pictures_show_the_state(task):
    env = make_env(task, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (PICTURE_HEIGHT, PICTURE_WIDTH, 3) and before.dtype == np.uint8
    assert len(np.unique(before.reshape(-1, 3), axis=0)) > 1
    np.testing.assert_array_equal(env.render(), before)
    for _ in range(4):
        env.step(np.full(env.action_space.shape, 1.0, dtype=np.float32))
    assert (env.render() != before).any()
    env.close()


def test_looking_changes_nothing(task):
    seen, unseen = make_env(task, render_mode="rgb_array"), make_env(task)
    seen.reset(seed=1)
    unseen.reset(seed=1)
    for _ in range(8):
        action = np.full(seen.action_space.shape, -0.7, dtype=np.float32)
        seen.render()
        np.testing.assert_array_equal(seen.step(action)[0], unseen.step(action)[0])
    seen.close()


def test_human_mode_opens_a_window(task):
    env = make_env(task, render_mode="human")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert env.render() is None
    assert pygame.display.get_surface() is not None and pygame.display.get_caption()[0] == task
    env.close()
    assert not pygame.display.get_init()
    env.close()


def test_render_without_a_mode_says_so():
    env = make_env("POIS/Cartpole-v0").unwrapped
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


def test_vector_environments(task):
    envs = make_vec(task, 3, render_mode="rgb_array")
    single = make_env(task, render_mode="rgb_array")
    envs.reset(seed=0)
    single.reset(seed=1)
    pictures = envs.render()
    assert len(pictures) == 3
    np.testing.assert_array_equal(pictures[1], single.render())
    envs.close()
    single.close()
    window = make_vec(task, 3, render_mode="human")
    window.reset(seed=0)
    window.step(window.action_space.sample())
    assert window.render() is None
    window.close()


def test_vec_env():
    vec_env = make_vec_env("POIS/Cartpole-v0", 3, seed=0, render_mode="rgb_array")
    vec_env.reset()
    assert vec_env.get_attr("render_mode") == ["rgb_array"] * 3
    assert vec_env.render().shape == (2 * PICTURE_HEIGHT, 2 * PICTURE_WIDTH, 3)
    assert [image.shape for image in vec_env.get_images()] == [(PICTURE_HEIGHT, PICTURE_WIDTH, 3)] * 3
    vec_env.close()
    window = make_vec_env("POIS/Cartpole-v0", 3, seed=0, render_mode="human")
    window.reset()
    window.step(np.zeros((3, 1)))
    assert window.render() is None
    window.close()
    silent = make_vec_env("POIS/Cartpole-v0", 3)
    silent.reset()
    with pytest.warns(UserWarning, match="render_mode"):
        assert silent.render() is None


def test_tiles():
    pictures = [np.full((2, 3, 3), value, dtype=np.uint8) for value in (1, 2, 3)]
    grid = tile(pictures)
    assert grid.shape == (4, 6, 3)
    assert [grid[0, 0, 0], grid[0, 3, 0], grid[2, 0, 0], grid[2, 3, 0]] == [1, 2, 3, 0]
