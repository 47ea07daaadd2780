"""Colours that every reader can tell apart, on every page."""

import itertools

import numpy as np
import pytest

from cgqbench.output.page.report import _told_apart
from cgqbench.output.palette import STYLES, styles


def linear(colour):
    channels = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def luminance(colour):
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("method", STYLES)
def test_colours_stand_out_from_light_and_dark_pages(method):
    ours, dark = luminance(STYLES[method].colour), luminance("#14171a")
    assert 1.05 / (ours + 0.05) > 3.0
    assert (ours + 0.05) / (dark + 0.05) > 3.0


# What an eye without green or red cones makes of linear RGB (Machado and others, 2009).
VISION = {
    "full": np.eye(3),
    "no green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "no red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
}


def lab(colour, vision):
    seen = np.clip(np.asarray(VISION[vision]) @ linear(colour), 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.asarray(to_xyz) @ seen / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_methods_of_one_dash_differ_in_colour_for_every_eye(vision):
    for one, other in itertools.combinations(STYLES.values(), 2):
        if one.dash == other.dash:
            apart = np.linalg.norm(lab(one.colour, vision) - lab(other.colour, vision))
            assert apart > 15, (one, other)


def test_other_methods_get_styles_of_their_own():
    found = styles(["sgd", "cgq", *(f"cgq:lr=0.{digit}" for digit in range(9))])
    assert len(set(found.values())) == 11
    assert found["sgd"] == STYLES["sgd"]


def test_a_chart_on_a_page_of_many_methods_tells_its_own_apart():
    crowd = styles(f"mine:lr={number}" for number in range(200))
    alike = next([a, b] for a, b in itertools.combinations(crowd, 2) if crowd[a] == crowd[b])
    told = _told_apart(alike, crowd)
    assert told[alike[0]] != told[alike[1]]
    different = list(crowd)[:5]
    assert _told_apart(different, crowd) == {method: crowd[method] for method in different}
