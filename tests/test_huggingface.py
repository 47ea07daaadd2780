"""Under the Hugging Face Trainer a run is, bit for bit, the plain loop's."""

from __future__ import annotations

import math
import os
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing as mp
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import SequentialSampler
from trainer_diary import (
    Batch,
    Diary,
    Noisy,
    arguments,
    assert_same,
    gpt2,
    mean_of_means,
    mean_over_tokens,
    noisy,
    plain_loop,
    sentences,
    stacked,
    trained,
    vectors,
    windows,
)
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from cgq import CGQ, LineSearch
from cgq.huggingface import CGQTrainer

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("make", "data", "loss_of"),
    [(noisy, vectors(), mean_of_means), (gpt2, sentences(), mean_over_tokens)],
    ids=["noisy", "gpt2"],
)
def test_equals_the_plain_loop(tmp_path, make, data, loss_of, size, max_norm):
    args = arguments(tmp_path, gradient_accumulation_steps=size, max_grad_norm=max_norm)
    trainer, diary = trained(make(), args, data)
    by_hand = make()
    losses, _ = plain_loop(by_hand, diary, loss_of, size, max_norm)
    assert_same(trainer.model, by_hand)
    assert all(search is not None and search.accepted for search in diary.searches)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, rel=1e-4)  # the Trainer sums in float32, and rounds


def around_adamw(params: Any) -> LineSearch:
    return LineSearch(torch.optim.AdamW(params, lr=0.01), search_prob=0.5)


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize("size", [1, 3])
def test_line_search_equals_the_plain_loop(tmp_path, size, max_norm):
    model, by_hand = gpt2(), gpt2()
    args = arguments(tmp_path, gradient_accumulation_steps=size, max_grad_norm=max_norm)
    more = {"optimizers": (around_adamw(model.parameters()), None)}
    trainer, diary = trained(model, args, sentences(), **more)
    _, optimizer = plain_loop(by_hand, diary, mean_over_tokens, size, max_norm, make=around_adamw)
    assert_same(model, by_hand)
    assert any(search is not None for search in diary.searches)
    ours, theirs = trainer.optimizer.param_groups[0], optimizer.param_groups[0]
    for name in ("step_size", "losses", "usual_loss", "usual_share"):
        assert ours[name] == theirs[name] > 0


def test_without_an_optimizer_it_makes_its_own(tmp_path):
    diary = Diary()
    more = {"data_collator": diary.collated, "callbacks": [diary]}
    trainer = CGQTrainer(noisy(), arguments(tmp_path), train_dataset=vectors(), **more)
    trainer.train()
    by_hand = noisy()
    plain_loop(by_hand, diary, mean_of_means)
    for one, two in zip(trainer.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)  # groups sum in another order


@pytest.mark.usefixtures("without_onednn")
def test_bf16_equals_the_plain_loop_under_autocast(tmp_path):
    def loss_of(model: nn.Module, window: list[Batch]) -> Callable[[Batch], Tensor]:
        return torch.autocast("cpu", torch.bfloat16)(mean_over_tokens(model, window))

    by_hand = gpt2()
    args = arguments(tmp_path, bf16=True, gradient_accumulation_steps=2)
    trainer, diary = trained(gpt2(), args, sentences())
    plain_loop(by_hand, diary, loss_of, 2)
    assert_same(trainer.model, by_hand)
    assert trainer.accelerator.mixed_precision == "bf16"
    assert all(search.accepted or search.rejected for search in diary.searches)
    assert any(search.accepted for search in diary.searches)


@pytest.mark.usefixtures("without_onednn")
def test_bf16_rejects_what_the_plain_loop_rejects(tmp_path):
    def loss_of(model: nn.Module, window: list[Batch]) -> Callable[[Batch], Tensor]:
        return torch.autocast("cpu", torch.bfloat16)(mean_of_means(model, window))

    model, by_hand, data = noisy().float(), noisy().float(), vectors()
    data = [{name: value.float() for name, value in row.items()} for row in data]
    more = {"optimizers": (CGQ(model.parameters(), lr=3e-4), None)}
    trainer, diary = trained(model, arguments(tmp_path, bf16=True), data, **more)
    optimizer = plain_loop(by_hand, diary, loss_of, lr=3e-4)[1]
    assert_same(model, by_hand)
    rejected = trainer.optimizer.param_groups[0]["rejected_fits"]
    assert rejected == optimizer.param_groups[0]["rejected_fits"] > 10


def test_probes_leave_no_trace(tmp_path):
    args = arguments(tmp_path, gradient_accumulation_steps=3)
    trainer, diary = trained(noisy(), args, vectors())
    passes = sum(
        len(window) * (1 + search.evaluations)
        for window, search in zip(windows(diary.batches, 3, 7), diary.searches, strict=True)
    )
    assert trainer.model.forwards == passes
    assert passes > len(diary.batches)
    assert trainer.model.layers[1].num_batches_tracked == len(diary.batches) == 14
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 6


def test_noise_is_fresh_on_every_step(tmp_path):
    _, diary = trained(noisy(), arguments(tmp_path), vectors())
    assert len({tuple(noise.tolist()) for noise in diary.noise}) == len(diary.noise) == 14


@pytest.mark.parametrize("name", ["backward", "unscale_gradients"])
def test_what_others_have_patched_stays_patched(tmp_path, name):
    args = arguments(tmp_path, max_grad_norm=0.3)
    model, seen = noisy(), []
    diary = Diary()
    trainer = CGQTrainer(
        model,
        args,
        train_dataset=vectors(),
        data_collator=diary.collated,
        callbacks=[diary],
        optimizers=(CGQ(model.parameters()), None),
    )
    original = getattr(trainer.accelerator, name)

    def theirs(*args, **kwargs):
        seen.append(1)
        return original(*args, **kwargs)

    setattr(trainer.accelerator, name, theirs)
    trainer.train()
    assert vars(trainer.accelerator)[name] is theirs
    assert len(seen) == 14, "once for each batch, and never in a probe"
    assert model.forwards > 14
    by_hand = noisy()
    plain_loop(by_hand, diary, mean_of_means, 1, 0.3)
    assert_same(trainer.model, by_hand)


class Talkative(CGQTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        self.log({"said": 1.0})
        return super().compute_loss(*args, **kwargs)


def test_what_compute_loss_logs_is_logged_once(tmp_path):
    trainer = Talkative(noisy(), arguments(tmp_path), train_dataset=vectors())
    trainer.train()
    assert len([entry for entry in trainer.state.log_history if "said" in entry]) == 14
    assert trainer.model.forwards > 14


def test_the_schedule_acts_on_the_ceiling(tmp_path):
    args = arguments(tmp_path, warmup_steps=4, max_steps=8)
    trainer, _ = trained(gpt2(), args, sentences(), optimizer_cls_and_kwargs=(CGQ, {"lr": 0.2}))
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.15, 0.2, 0.15, 0.1, 0.05])
    group = trainer.optimizer.param_groups[0]
    assert (group["lr"], group["initial_lr"]) == (0.0, 0.2)
    assert 0 < group["step_size"] <= 0.05


def test_resuming_equals_continuing(tmp_path):
    changes = {"gradient_accumulation_steps": 2, "save_strategy": "steps", "save_steps": 3}
    more = {"optimizer_cls_and_kwargs": (CGQ, {"search_prob": 0.5, "smoothing": 0.5})}
    args = arguments(tmp_path, **changes, max_grad_norm=1.0)
    through, diary = trained(gpt2(), args, sentences(), **more)
    assert any(search is None for search in diary.searches)  # the coin fell on both sides
    assert any(search is not None for search in diary.searches[3:])
    again = CGQTrainer(gpt2(), args, train_dataset=sentences(), **more)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_same(through.model, again.model)
    file = tmp_path / "checkpoint-3" / "optimizer.pt"
    assert torch.load(file, weights_only=True)["param_groups"][0]["steps"] == 3


def test_evaluation_is_the_trainers_own_and_changes_nothing(tmp_path):
    data = vectors()
    args = arguments(tmp_path, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=20)
    trainer, diary = trained(noisy(), args, data, eval_dataset=data)
    by_hand = noisy()
    plain_loop(by_hand, diary, mean_of_means)
    assert_same(trainer.model, by_hand)
    by_hand.eval()
    with torch.no_grad():
        expected = by_hand(**stacked(data))["loss"].item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_gradient_checkpointing_changes_nothing(tmp_path):
    plainly, _ = trained(gpt2(), arguments(tmp_path), sentences())
    renamed = hasattr(TrainingArguments, "activation_checkpointing")  # since transformers 5.23
    setting = "activation_checkpointing" if renamed else "gradient_checkpointing"
    args = arguments(tmp_path, **{setting: True})
    sparingly, _ = trained(gpt2(), args, sentences())
    for one, two in zip(plainly.model.parameters(), sparingly.model.parameters(), strict=True):
        torch.testing.assert_close(one, two)


def test_a_batch_without_a_finite_loss_is_as_if_it_had_not_come(tmp_path):
    data = vectors(9)
    args = arguments(tmp_path, num_train_epochs=1)
    trainer, diary = trained(noisy(), args, data)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    diary.batches.clear()
    trainer.train_dataset = [{**row, "x": row["x"] * math.nan} for row in data]
    trainer.train()
    assert trainer.optimizer.param_groups[0]["skipped"] == 3
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_training_again_searches_once_per_step(tmp_path):
    trainer, _ = trained(noisy(), arguments(tmp_path), vectors())
    optimizer = trainer.optimizer.optimizer
    trainer.train()
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert optimizer.param_groups[0]["steps"] == 28
    assert trainer.model.layers[1].num_batches_tracked == 28


def test_the_optimizer_stays_usable_by_hand(tmp_path):
    trainer, diary = trained(noisy(), arguments(tmp_path), vectors())
    optimizer, batch = trainer.optimizer.optimizer, diary.batches[0]
    before = trainer.model.layers[1].num_batches_tracked.item()
    optimizer.param_groups[0]["lr"] = 0.3  # where the schedule ended, the ceiling is 0
    loss = optimizer.step(lambda: trainer.model(**batch)["loss"])
    assert loss.item() == optimizer.last_search.loss
    assert trainer.model.layers[1].num_batches_tracked == before + 1


def test_weight_decay_takes_the_trainers_groups(tmp_path):
    args = arguments(tmp_path, weight_decay=0.1, max_steps=1)
    trainer = CGQTrainer(gpt2(), args, train_dataset=sentences())
    trainer.train()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]
    decayed = {id(param) for param in trainer.optimizer.param_groups[0]["params"]}
    assert id(trainer.model.transformer.h[0].attn.c_attn.weight) in decayed
    assert id(trainer.model.transformer.h[0].ln_1.weight) not in decayed


def test_serves_as_a_mixin(tmp_path):
    class Both(CGQTrainer, Seq2SeqTrainer):
        pass

    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "max_steps": 2}
    args = Seq2SeqTrainingArguments(str(tmp_path), save_strategy="no", **settings)
    trainer = Both(gpt2(), args, train_dataset=sentences())
    trainer.train()
    assert trainer.optimizer.optimizer.last_search.accepted


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
def test_the_plain_trainer_drops_the_closure_so_the_average_step_is_taken(tmp_path):
    diary, model = Diary(), noisy()
    optimizer = CGQ(model.parameters())
    more = {"data_collator": diary.collated, "callbacks": [diary]}
    args = arguments(tmp_path, lr_scheduler_type="constant")
    Trainer(model, args, train_dataset=vectors(), optimizers=(optimizer, None), **more).train()
    assert diary.searches == [None] * 14
    assert optimizer.param_groups[0]["step_size"] == pytest.approx(0.1)  # the first trial, lr/3

    by_hand = noisy()
    optimizer = CGQ(by_hand.parameters())
    for batch, noise in zip(diary.batches, diary.noise, strict=True):
        torch.set_rng_state(noise)
        by_hand(**batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(model, by_hand)


def test_another_optimizer_is_refused(tmp_path):
    model = noisy()
    adam = torch.optim.AdamW(model.parameters())
    trainer = CGQTrainer(
        model, arguments(tmp_path), train_dataset=vectors(), optimizers=(adam, None)
    )
    with pytest.raises(TypeError, match=r"its optimizer is AdamW.*use transformers\.Trainer"):
        trainer.train()


def test_a_rate_for_adam_is_not_taken_for_a_ceiling(tmp_path):
    args = arguments(tmp_path, learning_rate=3e-4, max_steps=1)
    trainer = CGQTrainer(noisy(), args, train_dataset=vectors())
    with pytest.warns(UserWarning, match=r"learning_rate=0\.0003 is not used.*\(CGQ, \{\"lr\""):
        trainer.train()
    assert trainer.optimizer.param_groups[0]["initial_lr"] == 0.3


class Scaled(CGQTrainer):
    """With the gradient scaler of fp16, which the Trainer itself makes on an accelerator only."""

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.accelerator.__class__ = Unscaling
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)


class Unscaling(Accelerator):
    def unscale_gradients(self, optimizer: Any = None) -> None:  # a second time is an error
        for each in self._optimizers:
            self.scaler.unscale_(each.optimizer)


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
def test_a_gradient_scaler_changes_nothing(tmp_path, max_norm):
    args = arguments(tmp_path, gradient_accumulation_steps=3, max_grad_norm=max_norm)
    plainly, _ = trained(noisy(), args, vectors())
    scaled, _ = trained(noisy(), args, vectors(), cls=Scaled)
    assert scaled.accelerator.scaler.get_scale() == 1024.0
    assert_same(plainly.model, scaled.model)


class Overflowing(Scaled):
    """In whose third step a gradient leaves the range, so that the scaler leaves the step out."""

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step == 2:
            next(self.model.parameters()).grad.fill_(math.inf)
        return loss


def test_a_step_the_scaler_leaves_out_is_undone_and_counted(tmp_path):
    args = arguments(tmp_path, lr_scheduler_type="constant", num_train_epochs=1)
    trainer, diary = trained(noisy(), args, vectors(), cls=Overflowing)
    group = trainer.optimizer.param_groups[0]
    assert (group["steps"], group["skipped"]) == (6, 1)
    assert trainer.model.layers[1].num_batches_tracked == 6
    assert torch.equal(diary.noise[2], diary.noise[3])  # the noise of the step left out is unused
    passes = [1 + search.evaluations for search in diary.searches]
    assert trainer.model.forwards == sum(passes) - passes[2] + 1  # which shows the search before


def test_the_last_step_may_be_left_out_too(tmp_path):
    args = arguments(tmp_path, lr_scheduler_type="constant", max_steps=3)
    trainer, _ = trained(noisy(), args, vectors(), cls=Overflowing)
    group = trainer.optimizer.param_groups[0]
    assert (group["steps"], group["skipped"]) == (2, 1)
    assert trainer.model.layers[1].num_batches_tracked == 2
    assert trainer.optimizer.optimizer.last_search is None


class Alone(CGQTrainer):
    """Runs forward and backward by itself."""

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        return loss.detach()


@pytest.mark.filterwarnings("ignore:No step had a closure:UserWarning")
def test_a_training_step_without_super_is_told_what_it_misses(tmp_path):
    with pytest.warns(UserWarning, match=r"Alone\.training_step does not call super") as caught:
        _, diary = trained(noisy(), arguments(tmp_path), vectors(), cls=Alone)
    assert diary.searches == [None] * 14
    assert len([each for each in caught if "super()" in str(each.message)]) == 1


class Penalised(CGQTrainer):
    """Adds the norm of a derivative to the loss, with or without a graph to take it from."""

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        x = inputs["x"].requires_grad_()
        loss = model(**inputs)["loss"]
        return loss + torch.autograd.grad(loss, x, create_graph=True)[0].square().sum()


class PenalisedAlways(Penalised):
    compute_loss = torch.enable_grad()(Penalised.compute_loss)


def test_a_derivative_in_the_loss_needs_a_graph_in_probes_too(tmp_path):
    with pytest.raises(RuntimeError, match=r"Put `with torch\.enable_grad\(\):` around that part"):
        trained(noisy(), arguments(tmp_path), vectors(), cls=Penalised)
    _, diary = trained(noisy(), arguments(tmp_path), vectors(), cls=PenalisedAlways)
    assert all(search.evaluations for search in diary.searches)


class Centre(nn.Module):
    """A loss that follows what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))
        self.register_buffer("centre", torch.zeros((), dtype=torch.float64))

    def forward(self, predicted: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            self.calls += 1
            self.centre.lerp_(predicted.mean(), 0.1)
        return nn.functional.mse_loss(predicted - self.centre, labels)


class Centred(CGQTrainer):
    """Its loss is a module, but no part of the model."""

    def __init__(self, *args: Any, centre: Centre, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centre = centre

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return self.centre(model(**inputs)["logits"], inputs["labels"])


@pytest.mark.parametrize("names", ["nothing", "both", "the loss"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_loss_outside_the_model_is_as_in_the_plain_loop(tmp_path, size, names):
    model, by_hand, centre, theirs = noisy(), noisy(), Centre(), Centre()
    named = {"nothing": None, "both": nn.ModuleList([model, centre]), "the loss": centre}[names]
    optimizer = CGQ(model.parameters(), model=named)
    args = arguments(tmp_path, gradient_accumulation_steps=size)
    more = {"optimizers": (optimizer, None), "centre": centre}
    _, diary = trained(model, args, vectors(), Centred, **more)

    def loss_of(model: nn.Module, window: list[Batch]) -> Callable[[Batch], Tensor]:
        return lambda batch: theirs(model(**batch)["logits"], batch["labels"]) / len(window)

    plain_loop(by_hand, diary, loss_of, size)
    assert centre.calls == theirs.calls == len(diary.batches) == 14
    assert_same(model, by_hand)
    assert_same(centre, theirs)
    assert sum(search.evaluations for search in diary.searches) > len(diary.searches)
    assert optimizer.model is (model if named is None else named)


class Popping(Trainer):
    def training_step(self, model, inputs, *args, **kwargs):
        return super().training_step(model, inputs.pop("batch"), *args, **kwargs)


class PoppingInProbes(CGQTrainer, Popping):
    def training_step(self, model, inputs, *args, **kwargs):
        return super().training_step(model, {"batch": inputs}, *args, **kwargs)


def test_a_training_step_may_take_entries_out_of_its_inputs(tmp_path):
    trainer, diary = trained(noisy(), arguments(tmp_path), vectors(), PoppingInProbes)
    by_hand = noisy()
    plain_loop(by_hand, diary, mean_of_means)
    assert_same(trainer.model, by_hand)


class Writing(CGQTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs["x"].sub_(0.5)
        return model(**inputs)["loss"]


def test_who_writes_to_the_batch_is_told_once_to_work_on_a_copy(tmp_path):
    with pytest.warns(UserWarning, match="Work on a copy") as caught:
        trained(noisy(), arguments(tmp_path, max_steps=3), vectors(), Writing)
    assert sum("Work on a copy" in str(each.message) for each in caught) == 1


class InOrder(CGQTrainer):
    def _get_train_sampler(self, *args: Any) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)


def trained_in_parallel(folder: Path, processes: int) -> list[Tensor]:
    model = noisy().layers
    model[1], model[3] = nn.Identity(), nn.Identity()  # whose noise and statistics are per rank
    whole = Noisy()
    whole.layers = model
    args = arguments(
        folder,
        per_device_train_batch_size=4 // processes,
        gradient_accumulation_steps=2,
        max_grad_norm=1.0,
        ddp_backend="gloo" if processes > 1 else None,
        ddp_find_unused_parameters=False,
    )
    trainer = InOrder(whole, args, train_dataset=vectors(24))
    trainer.train()
    return [param.detach() for param in whole.parameters()]


def worker(rank: int, folder: Path) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")  # Accelerate asks for one
    torch.set_num_threads(1)
    # They meet in a file: a port that was free may be taken by the time they use it.
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", meeting, rank=rank, world_size=2)
    torch.save(trained_in_parallel(folder, 2), folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    mp.spawn(worker, args=(tmp_path,), nprocs=2)
    alone = trained_in_parallel(tmp_path, 1)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for one, first, second in zip(alone, *ranks, strict=True):
        assert torch.equal(first, second)
        torch.testing.assert_close(first, one, rtol=0.0, atol=1e-10)


def test_the_example_runs(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["with_trainer.py", "--epochs", "2"])
    runpy.run_path(str(ROOT / "examples" / "with_trainer.py"), run_name="__main__")
    before, after = re.findall(r"test loss ([\d.]+) -> ([\d.]+)", capsys.readouterr().out)[0]
    assert float(after) < float(before) / 1.5
