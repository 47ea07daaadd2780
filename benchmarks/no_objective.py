"""Where a batch's loss is no objective: a small GAN, and policy gradients on a pole to balance.

    python benchmarks/no_objective.py

GAN: 2,000 points of the generator after 1,500 steps, eight clusters on a circle; the share of
points near a cluster, how many clusters are met, and the discriminator's loss (1.39: it cannot
tell).
REINFORCE: how long the pole stands, the mean of the last 50 of 300 episodes; at most 500 steps.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as judge
from torch.nn.functional import cross_entropy
from where import measured_on

from cgq import CGQ, LineSearch

Make = Callable[[Any], Any]
SEEDS = 2

PLAYERS: dict[str, Make] = {
    "Adam 0.001": lambda params: torch.optim.Adam(params, lr=1e-3, betas=(0.5, 0.999)),
    "CGQ": lambda params: CGQ(params),
    "LineSearch": lambda params: LineSearch(torch.optim.Adam(params, betas=(0.5, 0.999))),
    "LineSearch, search_prob=0": lambda params: LineSearch(
        torch.optim.Adam(params, betas=(0.5, 0.999)), search_prob=0.0
    ),
}
POLICIES: dict[str, Make] = {
    "Adam 0.01": lambda params: torch.optim.Adam(params, lr=1e-2),
    "CGQ": lambda params: CGQ(params),
    "LineSearch": lambda params: LineSearch(torch.optim.Adam(params)),
    "LineSearch, search_prob=0": lambda params: LineSearch(
        torch.optim.Adam(params), search_prob=0.0
    ),
}


def step(optimizer: Any, loss: Callable[[], Tensor]) -> None:
    """Take a step by the loss; torch's optimizers by its gradient."""
    if hasattr(optimizer, "last_search"):
        optimizer.step(loss)
        return
    optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def network(inputs: int, outputs: int) -> nn.Module:
    hidden = nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def gan(make: Make) -> str:
    generator, discriminator = network(8, 2), network(2, 1)
    players = make(generator.parameters()), make(discriminator.parameters())
    angles = torch.arange(8) * math.pi / 4
    centres = 2.0 * torch.stack([angles.cos(), angles.sin()], 1)
    true, false = torch.ones(64, 1), torch.zeros(64, 1)
    told = 0.0
    for _ in range(1500):
        real = centres[torch.randint(8, (64,))] + 0.05 * torch.randn(64, 2)
        noise = torch.randn(64, 8)
        made = generator(noise).detach()

        def telling() -> Tensor:
            judged = discriminator(real), discriminator(made)  # noqa: B023
            return judge(judged[0], true) + judge(judged[1], false)

        step(players[1], telling)
        told = telling().item()
        discriminator.requires_grad_(False)
        step(players[0], lambda: judge(discriminator(generator(noise)), true))  # noqa: B023
        discriminator.requires_grad_(True)
    distances, nearest = torch.cdist(generator(torch.randn(2000, 8)), centres).min(1)
    near = distances < 0.3
    return f"{near.float().mean():.2f} near, {len(set(nearest[near].tolist()))} of 8, {told:.2f}"


def falls(state: tuple[float, ...], right: bool) -> tuple[tuple[float, ...], bool]:
    """The cart and its pole 0.02 seconds later, and whether that was too far."""
    x, speed, angle, turning = state
    force = 10.0 if right else -10.0
    push = (force + 0.05 * turning**2 * math.sin(angle)) / 1.1
    lever = 0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
    bend = (9.8 * math.sin(angle) - math.cos(angle) * push) / lever
    drive = push - 0.05 * bend * math.cos(angle) / 1.1
    later = x + 0.02 * speed, speed + 0.02 * drive, angle + 0.02 * turning, turning + 0.02 * bend
    return later, abs(later[0]) > 2.4 or abs(later[2]) > 0.2095


def reinforce(make: Make) -> str:
    policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
    optimizer, lengths = make(policy.parameters()), []
    for _ in range(300):
        state = tuple((0.1 * torch.rand(4) - 0.05).tolist())
        states: list[tuple[float, ...]] = []
        actions: list[int] = []
        fallen = False
        while not fallen and len(states) < 500:
            states.append(state)
            with torch.no_grad():
                chances = policy(torch.tensor(state)).softmax(0)
                actions.append(int(torch.multinomial(chances, 1)))
            state, fallen = falls(state, bool(actions[-1]))
        lengths.append(len(states))
        left = torch.arange(len(states), 0, -1)
        returns = (1.0 - 0.99**left) / 0.01
        returns = (returns - returns.mean()) / (returns.std() + 1e-8)
        seen, done = torch.tensor(states), torch.tensor(actions)
        step(
            optimizer,
            lambda: (cross_entropy(policy(seen), done, reduction="none") * returns).sum(),  # noqa: B023
        )
    return f"{sum(lengths[-50:]) / 50:.0f}"


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name, train, methods in ("GAN", gan, PLAYERS), ("REINFORCE", reinforce, POLICIES):
        print(name)
        for label, make in methods.items():
            results = []
            for seed in range(SEEDS):
                torch.manual_seed(seed)
                results.append(train(make))
            print(f"  {label:26}", *(f"{result:28}" for result in results), flush=True)
    print(measured_on(torch.device("cpu")))


if __name__ == "__main__":
    main()
