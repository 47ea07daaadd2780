"""A host's method is replaced for a while; what somebody else had put there comes back."""

from __future__ import annotations

from typing import Any

import pytest

from cgq.hosts.patching import patched


class Host:
    def speak(self) -> str:
        return "host"


def test_the_method_of_the_class_is_seen_again() -> None:
    host = Host()
    with patched(host, "speak", lambda: "patch"):
        assert host.speak() == "patch"
    assert host.speak() == "host"
    assert vars(host) == {}


@pytest.mark.parametrize("theirs", [lambda: "theirs", None], ids=["function", "None"])
def test_a_third_party_s_patch_is_restored(theirs: Any) -> None:
    host = Host()
    host.speak = theirs  # type: ignore[method-assign]
    with patched(host, "speak", lambda: "patch"):
        assert host.speak() == "patch"
    assert vars(host) == {"speak": theirs}


def test_patches_lie_upon_each_other() -> None:
    host = Host()
    with patched(host, "speak", lambda: "outer"):
        with patched(host, "speak", lambda: "inner"):
            assert host.speak() == "inner"
        assert host.speak() == "outer"
    assert vars(host) == {}


def test_an_exception_restores_too() -> None:
    host = Host()
    host.speak = theirs = lambda: "theirs"  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), patched(host, "speak", lambda: "patch"):
        raise KeyboardInterrupt
    assert host.speak is theirs
