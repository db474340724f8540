"""Pictures: a canvas in the world's own coordinates, and a window."""

from collections.abc import Sequence
from math import ceil, cos, sin, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sb3_pois.common.arguments import check_choice
from sb3_pois.envs.engines import load_engine

Point = tuple[float, float]

RENDER_MODES = ["human", "rgb_array"]
PICTURE_WIDTH, PICTURE_HEIGHT = 600, 400
WINDOW_WIDTH, WINDOW_HEIGHT = 1200, 800
COLORS = {
    "background": (247, 247, 250),
    "track": (115, 115, 128),
    "ground": (172, 186, 150),
    "limit": (204, 77, 64),
    "cart": (51, 84, 140),
    "pole": (222, 140, 51),
    "joint": (38, 38, 51),
    "motor": (204, 77, 64),
    "goal": (46, 139, 87),
}


def check_render_mode(render_mode: str | None) -> None:
    """
    Refuse an unknown render mode.

    :param render_mode: what was asked for
    :raises ValueError: if it is neither None nor among ``RENDER_MODES``
    """
    if render_mode is not None:
        check_choice("render_mode", render_mode, RENDER_MODES)


class Canvas:
    """
    A picture drawn in metres.

    :param width: width in pixels
    :param height: height in pixels
    :param view: left edge, bottom edge and width of what is shown, in metres
    """

    def __init__(self, width: int, height: int, view: tuple[float, float, float]):
        self._pygame = load_engine("pygame", "rendering")
        self._gfxdraw = load_engine("pygame.gfxdraw", "rendering")
        self._surface = self._pygame.Surface((width, height))
        self._surface.fill(COLORS["background"])
        self._left, self._bottom, view_width = view
        self._scale = width / view_width
        self._height = height

    def _pixel(self, point: Point) -> tuple[int, int]:
        x, y = point
        return round((x - self._left) * self._scale), round(self._height - (y - self._bottom) * self._scale)

    def polygon(self, points: Sequence[Point], color: str) -> None:
        """
        :param points: corners
        :param color: name of the filling
        """
        pixels = [self._pixel(point) for point in points]
        self._gfxdraw.filled_polygon(self._surface, pixels, COLORS[color])
        self._gfxdraw.aapolygon(self._surface, pixels, COLORS[color])

    def box(self, center: Point, width: float, height: float, angle: float, color: str) -> None:
        """
        :param center: centre of the rectangle
        :param width: width, metres
        :param height: height, metres
        :param angle: how far it is turned counter-clockwise, radians
        :param color: name of the filling
        """
        c, s = cos(angle), sin(angle)
        corners = [(-width / 2, -height / 2), (width / 2, -height / 2), (width / 2, height / 2), (-width / 2, height / 2)]
        self.polygon([(center[0] + c * x - s * y, center[1] + s * x + c * y) for x, y in corners], color)

    def line(self, start: Point, end: Point, color: str, thickness: float) -> None:
        """
        :param start: one end
        :param end: the other end
        :param color: name of the color
        :param thickness: in metres
        """
        pixels = max(1, round(thickness * self._scale))
        self._pygame.draw.line(self._surface, COLORS[color], self._pixel(start), self._pixel(end), pixels)

    def disc(self, center: Point, radius: float, color: str) -> None:
        """
        :param center: centre
        :param radius: in metres
        :param color: name of the filling
        """
        x, y = self._pixel(center)
        pixels = max(1, round(radius * self._scale))
        self._gfxdraw.filled_circle(self._surface, x, y, pixels, COLORS[color])
        self._gfxdraw.aacircle(self._surface, x, y, pixels, COLORS[color])

    def ring(self, center: Point, radius: float, color: str) -> None:
        """
        :param center: centre
        :param radius: in metres
        :param color: name of the color of the ring; the middle stays empty
        """
        self.disc(center, radius, color)
        self.disc(center, 0.65 * radius, "background")
        self.disc(center, 0.3 * radius, color)

    def flag(self, foot: Point, height: float, color: str) -> None:
        """
        :param foot: where the pole stands
        :param height: of the pole, metres
        :param color: name of the color of the cloth
        """
        x, y = foot
        self.line(foot, (x, y + height), "joint", 0.02)
        self.polygon([(x, y + height), (x + 0.4 * height, y + 0.83 * height), (x, y + 0.66 * height)], color)

    def pixels(self) -> NDArray[np.uint8]:
        """
        Hand over what has been drawn.

        :return: the picture, shape ``(height, width, 3)``
        """
        return np.ascontiguousarray(self._pygame.surfarray.array3d(self._surface).transpose(1, 0, 2))


class Viewer:
    """
    Shows pictures in a window, which opens with the first one.

    A copied or unpickled viewer starts without a window.

    :param title: title of the window
    :param fps: pictures shown per second
    """

    def __init__(self, title: str, fps: int):
        self._title = title
        self._fps = fps
        self._pygame: Any = None
        self._screen: Any = None
        self._clock: Any = None

    def __reduce__(self) -> tuple[type["Viewer"], tuple[str, int]]:
        return type(self), (self._title, self._fps)

    def show(self, pictures: Sequence[NDArray[np.uint8]]) -> None:
        """
        Show pictures side by side, at the speed of the simulated time.

        :param pictures: each of shape ``(height, width, 3)``
        """
        tiled = tile(pictures)
        height, width = tiled.shape[:2]
        shrink = max(1.0, width / WINDOW_WIDTH, height / WINDOW_HEIGHT)
        size = int(width / shrink), int(height / shrink)
        if self._screen is None:
            self._pygame = load_engine("pygame", self._title)
            self._pygame.display.init()
            self._screen = self._pygame.display.set_mode(size)
            self._pygame.display.set_caption(self._title)
            self._clock = self._pygame.time.Clock()
        surface = self._pygame.surfarray.make_surface(tiled.transpose(1, 0, 2))
        if shrink > 1:
            surface = self._pygame.transform.smoothscale(surface, size)
        self._screen.blit(surface, (0, 0))
        self._pygame.event.pump()
        self._clock.tick(self._fps)
        self._pygame.display.flip()

    def close(self) -> None:
        """Close the window."""
        if self._screen is not None:
            self._pygame.display.quit()
            self._screen = None


def tile(pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """
    Put pictures of one size into a grid.

    :param pictures: each of shape ``(height, width, 3)``
    :return: the grid, as square as it gets, empty places black
    """
    height, width, _ = pictures[0].shape
    columns = ceil(sqrt(len(pictures)))
    rows = ceil(len(pictures) / columns)
    grid = np.zeros((rows * columns, height, width, 3), dtype=np.uint8)
    grid[: len(pictures)] = pictures
    return grid.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
