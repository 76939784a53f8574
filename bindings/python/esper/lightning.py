"""The guard as a callback of Lightning, for trainings in which the Trainer owns the loop.

    from esper.lightning import GuardCallback
    trainer = Trainer(callbacks=[GuardCallback(on_bad="rollback", spikes=esper.Spikes())])

Arguments are those of esper.Guard. `callback.guard` is the guard, from the start of the training to its end. Clip with
clip= here rather than with the Trainer's gradient_clip_val: that clips before the guard looks.
"""

from typing import Any, Dict, List, Optional

import torch

from ._guard import Guard

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise ImportError("esper.lightning needs Lightning: `pip install lightning`") from error


class GuardCallback(Callback):  # type: ignore[misc]
    """Guards every step of a Trainer's fit()."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self._state: Optional[Dict[str, Any]] = None  # of a checkpoint, until there is a guard to take it
        self.guard: Optional[Guard] = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimisers are there now, and the model is on its device."""
        if self.guard is not None and self.guard._attachments:  # a fit() before has ended without a word to callbacks
            self.guard.__exit__(RuntimeError)
            self.guard = None
        optimizers: List[torch.optim.Optimizer] = list(trainer.optimizers)
        options = dict(self._options)
        options.setdefault("state", self._schedulers(trainer) if self._keeps_snapshots() else None)
        self.guard = Guard(pl_module, optimizers[0] if len(optimizers) == 1 else optimizers, **options)
        if self._state is not None:
            self.guard.load_state_dict(self._state)
            self._state = None
        self.guard.attach(scaler=self._scaler(trainer))

    def _keeps_snapshots(self) -> bool:
        return self._options.get("on_bad") == "rollback" or self._options.get("snapshot") is not None

    @staticmethod
    def _schedulers(trainer: Any) -> Dict[str, Any]:
        """Go back with a rollback."""
        configs = getattr(trainer, "lr_scheduler_configs", [])
        return {f"scheduler{i}": config.scheduler for i, config in enumerate(configs)}

    @staticmethod
    def _scaler(trainer: Any) -> Any:
        scaler = getattr(getattr(trainer, "precision_plugin", None), "scaler", None)
        return scaler if scaler is not None and scaler.is_enabled() else None

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        if self.guard is not None and self._options.get("spikes") is not None:
            scale = getattr(self._scaler(trainer), "_scale", None)  # by which the loss is multiplied here
            self.guard.loss(loss.detach() if scale is None else loss.detach() / scale)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.guard is not None:
            self.guard.detach()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """What is on its way is logged; the exception is what is told."""
        if self.guard is not None:
            self.guard.__exit__(type(exception), exception, None)

    def state_dict(self) -> Dict[str, Any]:
        return {} if self.guard is None else self.guard.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self._state = state_dict or None
