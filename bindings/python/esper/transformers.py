"""The guard as a callback of the Hugging Face Trainer.

    from esper.transformers import GuardCallback
    trainer = Trainer(model, args, ..., callbacks=[GuardCallback(on_bad="rollback", clip=1.0)])

Arguments are those of esper.Guard. `callback.guard` is the guard, from the start of the training to its end. Clip with
clip= here and set max_grad_norm=0: the Trainer clips before the guard looks. Losses are those that the Trainer logs,
the mean over logging_steps.
"""

import os
from typing import Any, Optional

import torch

from ._guard import Guard

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError("esper.transformers needs Transformers: `pip install transformers`") from error

_FILE = "esper_guard.pt"  # in every checkpoint's folder


class GuardCallback(TrainerCallback):  # type: ignore[misc]
    """Guards every step of Trainer.train()."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.guard: Optional[Guard] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None,
                       lr_scheduler: Any = None, **kwargs: Any) -> None:
        if self.guard is not None and self.guard._attachments:  # a train() before has raised
            self.guard.__exit__(RuntimeError)
            self.guard = None
        options = dict(self._options)
        if lr_scheduler is not None and (options.get("on_bad") == "rollback" or options.get("snapshot") is not None):
            options.setdefault("state", {"scheduler": _inner(lr_scheduler, "scheduler")})
        self.guard = Guard(model, _inner(optimizer, "optimizer"), **options)
        if state.global_step > 0:
            self._load(args, state.global_step)
        self.guard.attach(scaler=getattr(optimizer, "scaler", None))

    def _load(self, args: Any, step: int) -> None:
        """The training goes on from a checkpoint. What train(resume_from_checkpoint=...) was given is not told to
        callbacks; True there, or a folder in output_dir, is the checkpoint of that step."""
        folders = [os.path.join(args.output_dir, f"checkpoint-{step}")]
        given = getattr(args, "resume_from_checkpoint", None)
        if isinstance(given, (str, os.PathLike)):
            folders.insert(0, os.fspath(given))
        for folder in folders:
            saved = os.path.join(folder, _FILE)
            if os.path.exists(saved):
                self.guard.load_state_dict(torch.load(saved))
                return
        self.guard._tell("alarm", f"the training goes on at step {step}, and there is no {_FILE} in "
                         f"{' or '.join(folders)}: the guard begins anew, its counters and its rate factor too")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.guard is not None and self._options.get("spikes") is not None and "loss" in (logs or {}):
            self.guard.loss(float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if self.guard is not None and getattr(state, "is_world_process_zero", True) and os.path.isdir(folder):
            torch.save(self.guard.state_dict(), os.path.join(folder, _FILE))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.guard is not None:
            self.guard.detach()


def _inner(wrapped: Any, name: str) -> Any:
    """Accelerate puts optimisers and schedulers into others of the same name: the one whose step() is torch's own."""
    while hasattr(wrapped, name):
        wrapped = getattr(wrapped, name)
    return wrapped
