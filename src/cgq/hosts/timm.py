"""CGQ by name in timm's optimizer factory."""

from __future__ import annotations

from cgq.cgq import CGQ


def register() -> None:
    """Let `timm.optim.create_optimizer_v2(model, "cgq")` make a CGQ, for the rest of this program.

    timm's weight decay and layer decay make the parameter groups, `lr` is the ceiling of the step,
    and other options go in by their names. timm's `momentum`, a number for SGD, is not used.

    Example::

        cgq.timm.register()
        optimizer = timm.optim.create_optimizer_v2(model, "cgq", search_prob=0.1)
        loss = optimizer.step(lambda: loss_fn(model(inputs), targets))
    """
    try:  # here, so that the file can be read where timm, which needs torchvision, is missing
        from timm.optim import OptimInfo  # type: ignore[import-not-found,unused-ignore]
        from timm.optim._optim_factory import (  # type: ignore[import-not-found,unused-ignore]
            default_registry,
        )
    except ImportError as error:
        raise ImportError(
            "cgq.timm.register() needs timm 1.0.12 or newer, with its torchvision: pip install timm"
        ) from error
    if not default_registry.list_optimizers("cgq"):  # of a second one timm would complain
        default_registry.register(
            OptimInfo(
                name="cgq",
                opt_class=CGQ,
                description="Conjugate gradients with a quadratic line search; use step(closure)",
                has_eps=False,
            )
        )
