"""The paper's networks: their size, counted by hand, and the point they start from."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from cgqbench.tasks.networks import NETWORKS, network

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def counted(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def blank(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The network without memory for its weights: quickly made."""
    with torch.device("meta"):
        return NETWORKS[name](shape, classes)


def vgg_size(channels: int, classes: int) -> int:
    widths = [channels, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    convolutions = sum(9 * inner * outer + outer for inner, outer in pairwise(widths))
    return convolutions + 2 * (512 * 512 + 512) + 513 * classes


def resnet_size(blocks: int, channels: int, classes: int) -> int:
    def bottleneck(inner: int, planes: int) -> int:
        norms = 2 * inner + 2 * planes + 2 * planes
        return norms + inner * planes + 9 * planes * planes + planes * 4 * planes

    first = 9 * channels * 16
    changing = bottleneck(16, 16) + bottleneck(64, 32) + bottleneck(128, 64)
    shortcuts = 16 * 64 + 64 * 128 + 128 * 256
    keeping = (blocks - 1) * (bottleneck(64, 16) + bottleneck(128, 32) + bottleneck(256, 64))
    return first + changing + shortcuts + keeping + 2 * 256 + 257 * classes


def densenet_size(channels: int, classes: int) -> int:
    def block(inner: int) -> int:
        widths = [inner + 12 * layer for layer in range(16)]
        return sum(2 * width + width * 48 + 2 * 48 + 9 * 48 * 12 for width in widths)

    # 24 + 16·12 = 216, of which half: 108; 108 + 192 = 300, of which half: 150; 150 + 192 = 342
    blocks = block(24) + block(108) + block(150)
    transitions = (2 * 216 + 216 * 108) + (2 * 300 + 300 * 150)
    return 9 * channels * 24 + blocks + transitions + 2 * 342 + 343 * classes


@pytest.mark.parametrize(
    ("name", "shape", "classes", "by_hand", "known"),
    [
        ("mlp", MNIST, 10, 785 * 1000 + 1001 * 10, 795_010),
        ("mlp", CIFAR, 100, 3073 * 1000 + 1001 * 100, 3_173_100),
        ("vgg16", CIFAR, 10, vgg_size(3, 10), 15_245_130),
        ("vgg16", CIFAR, 100, vgg_size(3, 100), 15_291_300),
        ("resnet20", CIFAR, 10, resnet_size(2, 3, 10), 219_482),
        ("resnet20", MNIST, 10, resnet_size(2, 1, 10), 219_194),
        ("resnet110", CIFAR, 10, resnet_size(12, 3, 10), 1_146_842),
        ("resnet164", CIFAR, 10, resnet_size(18, 3, 10), 1_703_258),
        ("resnet164", CIFAR, 100, resnet_size(18, 3, 100), 1_726_388),
        ("densenet100", CIFAR, 10, densenet_size(3, 10), 769_162),
        ("densenet100", CIFAR, 100, densenet_size(3, 100), 800_032),
    ],
)
def test_parameters_are_as_many_as_the_architecture_says(
    name: str, shape: tuple[int, int, int], classes: int, by_hand: int, known: int
) -> None:
    assert counted(blank(name, shape, classes)) == by_hand == known


@pytest.mark.parametrize(
    ("name", "depth"),
    [("vgg16", 16), ("resnet20", 20), ("resnet110", 110), ("resnet164", 164), ("densenet100", 100)],
)
def test_the_depth_is_the_one_in_the_name(name: str, depth: int) -> None:
    layers = [
        label
        for label, module in blank(name, CIFAR, 10).named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and not label.endswith("shortcut")
    ]
    assert len(layers) == depth


def kinds(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


def test_only_vgg_drops_out_and_it_has_no_batch_norm() -> None:
    drops = {name: kinds(blank(name, CIFAR, 10), nn.Dropout) for name in NETWORKS}
    assert drops == dict.fromkeys(NETWORKS, 0) | {"vgg16": 2}
    assert kinds(blank("vgg16", CIFAR, 10), nn.BatchNorm2d) == 0


@pytest.fixture(scope="module")
def models() -> dict[str, nn.Module]:
    """Each network as it is before training, for ten classes of small colour images."""
    torch.manual_seed(0)
    return {name: network(name, CIFAR, 10) for name in NETWORKS}


def images(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Smooth pictures of mean square one, as far apart from white noise as photographs."""
    generator = torch.Generator().manual_seed(1)
    coarse = torch.randn(count, shape[0], 4, 4, generator=generator)
    fine = nn.functional.interpolate(coarse, size=shape[1:], mode="bicubic")
    return fine / fine.square().mean().sqrt()


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_are_kaiming_normal_and_biases_zero(
    name: str, models: dict[str, nn.Module]
) -> None:
    for module in models[name].modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            weight = module.weight
            share = weight.square().mean().item() * weight[0].numel() / 2.0
            assert share == pytest.approx(1.0, abs=6.0 * (2.0 / weight.numel()) ** 0.5)
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.eq(1.0).all()
        bias = getattr(module, "bias", None)
        assert bias is None or not bias.any()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_signal_neither_explodes_nor_vanishes(name: str, models: dict[str, nn.Module]) -> None:
    torch.manual_seed(2)
    logits = models[name](images(2, CIFAR))
    assert logits.shape == (2, 10)
    assert 0.05 < logits.square().mean().item() < 20.0
    assert 0.01 < logits.diff(dim=0).square().mean().item() < 20.0  # images are told apart


@pytest.mark.parametrize("name", NETWORKS)
def test_a_short_step_down_the_gradient_lowers_the_loss(name: str) -> None:
    torch.manual_seed(3)
    model = network(name, CIFAR, 10)
    inputs, targets = images(2, CIFAR), torch.tensor([1, 7])

    def loss() -> Tensor:
        torch.manual_seed(4)  # the same dropout
        return nn.functional.cross_entropy(model(inputs), targets)

    before = loss()
    before.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.any() for gradient in gradients)
    squared = sum(gradient.square().sum() for gradient in gradients)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.01 * before / squared * gradient
        fall = before - loss()
    assert fall.item() == pytest.approx(0.01 * before.item(), rel=0.2)  # the first-order forecast


def test_dropout_acts_in_training_only(models: dict[str, nn.Module]) -> None:
    model, inputs = models["vgg16"], images(1, CIFAR)
    with torch.no_grad():
        assert not torch.equal(model(inputs), model(inputs))
        model.eval()
        assert torch.equal(model(inputs), model(inputs))
    model.train()


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "vgg16"])
def test_grey_images_of_28_pixels_are_welcome(name: str) -> None:
    with torch.no_grad():
        assert network(name, MNIST, 10)(images(2, MNIST)).shape == (2, 10)


def test_vgg_names_the_size_it_needs() -> None:
    with pytest.raises(ValueError, match="32×32 pixels, not 28×28"):
        network("vgg16", MNIST, 10)


def test_an_unknown_network_is_answered_with_the_names() -> None:
    with pytest.raises(ValueError, match=r"'lenet'.*mlp, vgg16, resnet20, .*densenet100"):
        network("lenet", CIFAR, 10)


def test_one_seed_is_one_initial_point() -> None:
    points = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        points.append(network("resnet20", CIFAR, 10).state_dict())
    same, other = ([torch.equal(points[0][k], p[k]) for k in points[0]] for p in points[1:])
    assert all(same)
    assert not all(other)
