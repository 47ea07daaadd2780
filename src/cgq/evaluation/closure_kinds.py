"""Which kind of closure somebody wrote."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

Closure = Callable[..., Any]


def called_with_backward(closure: Closure) -> tuple[Callable[[bool], Any], bool]:
    """The closure as a function of `backward`, and whether it makes use of it.

    It does if it has a parameter of that name, or one positional parameter without default.
    """
    code = getattr(closure, "__code__", None)
    takes_any = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS  # as decorators' wrappers do
    if code and not (code.co_argcount or code.co_kwonlyargcount or code.co_flags & takes_any):
        return (lambda backward: closure()), False  # by far the most frequent, and quickly told
    names = _plain_names(closure)  # the next; to ask for a signature costs as much as a layer
    if names == ():
        return (lambda backward: closure()), False
    if names == ("backward",):
        return (lambda backward: closure(backward=backward)), True
    try:
        signature = inspect.signature(closure)
    except (TypeError, ValueError):  # a builtin that hides its signature
        return (lambda backward: closure()), False
    parameters = signature.parameters.values()
    needed = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    named = signature.parameters.get("backward")
    if named is not None and named.kind is not named.POSITIONAL_ONLY and needed in ([], [named]):
        return (lambda backward: closure(backward=backward)), True
    if len(needed) == 1 and needed[0].kind is not inspect.Parameter.KEYWORD_ONLY:
        return closure, True
    if needed:
        raise ValueError(
            f"The closure needs arguments that step() cannot give: {signature}. "
            "Write closure() -> loss or closure(backward: bool) -> loss."
        )
    return (lambda backward: closure()), False


def _plain_names(closure: Closure) -> tuple[str, ...] | None:
    """Of a plain function, or a method that is one, what it takes by name; else None."""
    is_method = isinstance(closure, MethodType)
    function: Any = closure.__func__ if isinstance(closure, MethodType) else closure
    if type(function) is not FunctionType or function.__dict__:  # where a wrapper tells of another
        return None
    code = function.__code__
    others = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    if code.co_posonlyargcount or code.co_flags & others or code.co_argcount < is_method:
        return None
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names[is_method:]


def is_lightning_s(closure: Closure) -> bool:
    """Whether it is the closure of Lightning's Trainer, which no user can rewrite."""
    owner = getattr(closure, "func", closure)  # it comes as a partial
    package = str(getattr(owner, "__module__", "")).partition(".")[0]
    return package in ("lightning", "pytorch_lightning")
