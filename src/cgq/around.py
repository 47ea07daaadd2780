"""An optimizer around another one, whose parameter groups and state are its own."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from cgq.progress import read
from cgq.rates import note_full_rates
from cgq.searching import Searching

MODES = "train", "eval"  # which Schedule-Free's optimizers have


class Around(Searching):
    """Searches along the updates of `base`. A checkpoint of one loads into the other."""

    KEPT: ClassVar[tuple[str, ...]] = ("base", "defaults", "options")
    """What is copied and pickled."""

    def __init__(
        self, base: Optimizer, model: nn.Module | None, process_group: ProcessGroup | None
    ) -> None:
        self.base = base
        defaults = dict(getattr(base, "defaults", {}))
        super().__init__(base.param_groups, defaults, model, process_group)
        self.__setstate__({})

    def __getattr__(self, name: str) -> Any:
        """The base's modes, if it has any."""
        if name in MODES and "base" in self.__dict__:
            return getattr(self.base, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of the base."""
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Torch's constructor begins with none, but these are the base's."""

    @property
    def state(self) -> Any:
        """That of the base."""
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        """As with the groups."""

    def __getstate__(self) -> dict[str, Any]:
        kept = self.__dict__ | super().__getstate__()
        return {name: kept[name] for name in self.KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        note_full_rates(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the base."""
        if not any(param_group is group for group in self.param_groups):
            self._meet_groups()
            self._lookout.read_losses(self.param_groups)
            self.base.add_param_group(param_group)
            self.__setstate__({})

    def state_dict(self) -> dict[str, Any]:
        """The base's, whose groups hold the numbers of the search."""
        self._meet_groups()
        self._lookout.read_losses(self.param_groups)
        for group in self.param_groups:
            group.update(read(group, self.NUMBERS))
        return self.base.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, of this or of a bare optimizer like the base."""
        self.base.load_state_dict(state_dict)
        self.__setstate__({})

    def _meet_groups(self) -> None:
        """The base may have been given other groups, or rates, behind our back."""
        if not all("full_lr" in group for group in self.param_groups):
            self._complete_groups()
        note_full_rates(self.param_groups)
