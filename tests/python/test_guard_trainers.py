# ctest: timeout=120
"""Callbacks for Lightning and the Hugging Face Trainer: with the real packages where they are installed, and with small
trainers that make the documented calls in the documented order everywhere."""
import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
import types
import unittest

import guard_cases as cases
import torch

import esper
from esper import _guard  # noqa: F401: all of the package, before modules are exchanged


def installed(*names):
    return next((name for name in names if importlib.util.find_spec(name) is not None), None)


@contextlib.contextmanager
def exchanged(modules):
    """sys.modules with these, None for one that is not to be found. Afterwards these alone are as they were: what others
    import meanwhile stays, for parts of torch can be imported only once."""
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextlib.contextmanager
def imported_anew(name, modules):
    """A module of esper's, imported among these others; a later import does not get that one."""
    with exchanged(modules):
        sys.modules.pop(name, None)
        try:
            yield importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)


def stand_in(name, **content):
    """esper's part for the package of that name, whose modules are these instead."""
    modules, parts = {}, name.split(".")
    for i in range(len(parts)):
        modules[".".join(parts[:i + 1])] = types.ModuleType(".".join(parts[:i + 1]))
    vars(modules[name]).update(content)
    return imported_anew("esper." + parts[0], modules)


class TestExchanged(unittest.TestCase):
    def test_what_is_imported_meanwhile_stays(self):
        given, meanwhile, known = types.ModuleType("given"), types.ModuleType("meanwhile"), sys.modules["contextlib"]
        self.addCleanup(sys.modules.pop, "esper_meanwhile", None)
        with exchanged({"esper_given": given, "contextlib": given, "esper_absent": None}):
            sys.modules["esper_meanwhile"] = meanwhile
            self.assertIs(importlib.import_module("contextlib"), given)
            self.assertRaises(ImportError, importlib.import_module, "esper_absent")
        self.assertIs(sys.modules["esper_meanwhile"], meanwhile)
        self.assertIs(sys.modules["contextlib"], known)
        self.assertFalse({"esper_given", "esper_absent"} & set(sys.modules))


def batches(count, width=6):
    chance = torch.Generator().manual_seed(5)
    return [(torch.randn(8, width, generator=chance), torch.randn(8, 3, generator=chance)) for _ in range(count)]


class Callback:
    """lightning.pytorch.callbacks.Callback, as far as its hooks are called here."""

    def on_train_start(self, trainer, pl_module):
        pass

    on_train_end = on_train_start

    def on_before_backward(self, trainer, pl_module, loss):
        pass

    def on_exception(self, trainer, pl_module, exception):
        pass

    def state_dict(self):
        return {}

    def load_state_dict(self, state_dict):
        pass


class LightningTrainer:
    """Calls as a Trainer does: the closure that optimizer.step() is given makes forward and backward pass."""

    def __init__(self, callback, optimizers, scheduler=None, accumulate=1):
        self.callback, self.optimizers, self.accumulate = callback, optimizers, accumulate
        self.lr_scheduler_configs = [types.SimpleNamespace(scheduler=scheduler)] if scheduler else []
        self.precision_plugin = types.SimpleNamespace(scaler=None)

    def fit(self, model, data):
        try:
            self.callback.on_train_start(self, model)
            for i, batch in enumerate(data):
                self.run(model, batch, (i + 1) % self.accumulate == 0)
            self.callback.on_train_end(self, model)
        except BaseException as error:
            self.callback.on_exception(self, model, error)
            raise

    def run(self, model, batch, steps):
        optimizer = self.optimizers[0]

        def closure():
            loss = (model(batch[0]) - batch[1]).pow(2).mean() / self.accumulate
            self.callback.on_before_backward(self, model, loss)
            loss.backward()
            return loss

        if not steps:
            closure()
            return
        if self.accumulate == 1:
            optimizer.zero_grad()
        optimizer.step(closure=closure)
        if self.accumulate > 1:
            optimizer.zero_grad()
        for config in self.lr_scheduler_configs:
            config.scheduler.step()


class TestLightning(cases.Case):
    def setUp(self):
        super().setUp()
        self.esper_lightning = self.enterContextHere(stand_in("lightning.pytorch.callbacks", Callback=Callback))

    def enterContextHere(self, context):
        value = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return value

    def made(self, **options):
        callback = self.esper_lightning.GuardCallback(log=self.lines.append, **options)
        model, optimizer = cases.seeded(cases.Net, lr=1e-3)
        return callback, model, optimizer

    def test_bits_are_the_same(self):
        states = []
        for guarded in (True, False):
            callback, model, optimizer = self.made(on_bad="skip", spikes=esper.Spikes())
            LightningTrainer(callback if guarded else Callback(), [optimizer]).fit(model, batches(40))
            states.append(cases.state_of(model, optimizer))
        self.assertSameState(*states)

    def test_a_bad_batch_is_passed_over(self):
        data = batches(20)
        data[7][0][2, 3] = float("nan")
        callback, model, optimizer = self.made(on_bad="skip")
        LightningTrainer(callback, [optimizer]).fit(model, data)
        self.assertEqual((callback.guard.n_skipped, callback.guard.steps), (1, 20))
        self.assertIn("step 8: NaN in last.", self.lines[-1])
        self.assertTrue(esper.check(model, optimizer).ok)
        other = Callback(), *cases.seeded(cases.Net, lr=1e-3)
        LightningTrainer(other[0], [other[2]]).fit(other[1], data[:7] + data[8:])
        self.assertSameState(cases.state_of(model, optimizer), cases.state_of(*other[1:]))

    def test_rollback_with_the_scheduler(self):
        callback, model, optimizer = self.made(on_bad="rollback", state_every=1, snapshot=esper.Snapshots(every=5))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        trainer = LightningTrainer(callback, [optimizer], scheduler)
        original = model.forward

        def forward(x):
            if callback.guard.steps == 8 and callback.guard.n_rollbacks == 0:
                model.last.weight.data[0, 0] = float("nan")
            return original(x)

        model.forward = forward
        trainer.fit(model, batches(12))
        self.assertEqual(callback.guard.n_rollbacks, 1)
        self.assertTrue(esper.check(model, optimizer).ok)

    def test_losses(self):
        callback, model, optimizer = self.made(on_bad="skip", spikes=esper.Spikes())
        data = batches(60)
        data[55] = (data[55][0] * 1e5, data[55][1])
        LightningTrainer(callback, [optimizer]).fit(model, data)
        self.assertEqual(callback.guard.n_skipped, 1)
        self.assertIn("step 56: the gradient norm jumps", "\n".join(self.lines))

    def test_accumulation(self):
        callback, model, optimizer = self.made(on_bad="skip", spikes=esper.Spikes())
        LightningTrainer(callback, [optimizer], accumulate=4).fit(model, batches(16))
        self.assertEqual(callback.guard.steps, 4)

    def test_checkpoint(self):
        callback, model, optimizer = self.made(on_bad="skip")
        LightningTrainer(callback, [optimizer]).fit(model, batches(5))
        saved = callback.state_dict()
        again, model, optimizer = self.made(on_bad="skip")
        again.load_state_dict(saved)
        LightningTrainer(again, [optimizer]).fit(model, batches(5))
        self.assertEqual(again.guard.steps, 10)

    def test_exceptions(self):
        callback, model, optimizer = self.made(on_bad="raise")
        data = batches(3)
        data[1][0][0, 0] = float("nan")
        with self.assertRaises(esper.BadGradient):
            LightningTrainer(callback, [optimizer]).fit(model, data)
        self.guard(model, optimizer).attach()  # the callback's has let go

    def test_fit_again_after_it_was_broken_off(self):
        callback, model, optimizer = self.made(on_bad="skip")
        trainer = LightningTrainer(callback, [optimizer])
        callback.on_train_start(trainer, model)  # and nothing more: callbacks were not told
        first = callback.guard
        trainer.fit(model, batches(3))
        self.assertIn("not attached", repr(first))
        self.assertEqual((first.steps, callback.guard.steps), (0, 3))

    def test_without_lightning(self):
        absent = ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks", "pytorch_lightning",
                  "pytorch_lightning.callbacks")
        with self.assertRaisesRegex(ImportError, "pip install lightning"):
            with imported_anew("esper.lightning", dict.fromkeys(absent)):
                pass


class TrainerCallback:
    """transformers.TrainerCallback, as far as its events are called here."""

    def on_train_begin(self, args, state, control, **kwargs):
        pass

    on_step_begin = on_pre_optimizer_step = on_optimizer_step = on_step_end = on_train_begin
    on_log = on_save = on_train_end = on_train_begin


class AcceleratedOptimizer(torch.optim.Optimizer):
    """As Accelerate wraps one."""

    def __init__(self, optimizer):
        self.optimizer, self.scaler = optimizer, None
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=None):
        self.optimizer.zero_grad(set_to_none=True)


class HuggingFaceTrainer:
    """Calls in the order of the documentation: step begin, pre optimizer step, optimizer step, step end, log, save."""

    def __init__(self, callback, model, optimizer, folder, max_grad_norm=0.0):
        self.callback, self.model, self.optimizer = callback, model, AcceleratedOptimizer(optimizer)
        self.args = types.SimpleNamespace(output_dir=folder, resume_from_checkpoint=None)
        self.state = types.SimpleNamespace(global_step=0, is_world_process_zero=True)
        self.max_grad_norm = max_grad_norm

    def call(self, event, **more):
        getattr(self.callback, event)(self.args, self.state, None, model=self.model, optimizer=self.optimizer,
                                      lr_scheduler=self.scheduler, **more)

    def train(self, data, save_at=None):
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer.optimizer, 0.99)
        self.call("on_train_begin")
        for batch in data:
            self.call("on_step_begin")
            loss = (self.model(batch[0]) - batch[1]).pow(2).mean()
            loss.backward()
            if self.max_grad_norm:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.call("on_pre_optimizer_step")
            self.optimizer.step()
            self.call("on_optimizer_step")
            self.scheduler.step()
            self.model.zero_grad()
            self.state.global_step += 1
            self.call("on_step_end")
            self.call("on_log", logs={"loss": float(loss.detach()), "learning_rate": 0.1})
            if self.state.global_step == save_at:
                os.mkdir(os.path.join(self.args.output_dir, f"checkpoint-{save_at}"))
                self.call("on_save")
        self.call("on_train_end")


class TestTransformers(cases.Case):
    def setUp(self):
        super().setUp()
        context = stand_in("transformers", TrainerCallback=TrainerCallback)
        self.esper_transformers = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trainer(self, guarded=True, max_grad_norm=0.0, **options):
        model, optimizer = cases.seeded(cases.Net, lr=1e-3)
        callback = self.esper_transformers.GuardCallback(log=self.lines.append, **options) if guarded \
            else TrainerCallback()
        return HuggingFaceTrainer(callback, model, optimizer, self.folder, max_grad_norm)

    def state(self, trainer):
        return cases.state_of(trainer.model, trainer.optimizer.optimizer)

    def test_bits_are_the_same(self):
        with_guard, without = self.trainer(on_bad="rollback", spikes=esper.Spikes()), self.trainer(False)
        for trainer in (with_guard, without):
            trainer.train(batches(40))
        self.assertSameState(self.state(with_guard), self.state(without))

    def test_a_bad_batch_is_passed_over(self):
        data = batches(20)
        data[7][0][2, 3] = float("nan")
        trainer = self.trainer(on_bad="rollback")
        trainer.train(data)
        self.assertEqual((trainer.callback.guard.n_skipped, trainer.callback.guard.n_rollbacks), (1, 0))
        self.assertTrue(esper.check(trainer.model).ok)

    def test_clipping_before_is_told(self):
        data = batches(3)
        data[1][0][2, 3] = float("nan")
        trainer = self.trainer(on_bad="skip", max_grad_norm=1.0)
        trainer.train(data)
        self.assertIn("as clip_grad_norm_ before the guard leaves them", self.lines[-1])

    def test_losses_and_checkpoint(self):
        trainer = self.trainer(on_bad="skip", spikes=esper.Spikes())
        trainer.train(batches(10), save_at=6)
        self.assertIsNotNone(trainer.callback.guard.last.loss)
        again = self.trainer(on_bad="skip", spikes=esper.Spikes())
        again.args.resume_from_checkpoint = os.path.join(self.folder, "checkpoint-6")
        again.state.global_step = 6
        again.train(batches(4))
        self.assertEqual(again.callback.guard.steps, 10)

    def test_the_checkpoint_that_train_was_told(self):
        """train(resume_from_checkpoint=True) leaves the arguments as they are."""
        self.trainer(on_bad="skip").train(batches(10), save_at=6)
        again = self.trainer(on_bad="skip")
        again.state.global_step = 6
        again.train(batches(4))
        self.assertEqual(again.callback.guard.steps, 10)
        self.assertFalse(any("begins anew" in line for line in self.lines), self.lines)

    def test_a_checkpoint_without_a_guard(self):
        trainer = self.trainer(on_bad="skip")
        trainer.state.global_step = 7
        trainer.args.resume_from_checkpoint = os.path.join(self.folder, "elsewhere")
        trainer.train(batches(2))
        told = [line for line in self.lines if "the guard begins anew" in line]
        self.assertEqual(len(told), 1, self.lines)
        self.assertIn("elsewhere or ", told[0])
        self.assertIn("checkpoint-7", told[0])

    def test_train_again_after_it_raised(self):
        trainer = self.trainer(on_bad="skip")
        self.assertRaises(TypeError, trainer.train, [*batches(2), None])
        first = trainer.callback.guard
        trainer.train(batches(3))
        self.assertIn("not attached", repr(first))
        self.assertIsNot(trainer.callback.guard, first)
        self.assertEqual((first.steps, trainer.callback.guard.steps), (2, 3))

    def test_without_transformers(self):
        with self.assertRaisesRegex(ImportError, "pip install transformers"):
            with imported_anew("esper.transformers", {"transformers": None}):
                pass


@unittest.skipUnless(installed("lightning", "pytorch_lightning"), "Lightning is not installed")
class TestRealLightning(cases.Case):
    def test_fit(self):
        lightning = importlib.import_module("lightning.pytorch" if installed("lightning") else "pytorch_lightning")
        from esper.lightning import GuardCallback

        class Module(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = cases.Net()

            def training_step(self, batch, index):
                return (self.net(batch[0]) - batch[1]).pow(2).mean()

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-3)

        data = batches(20)
        data[7][0][2, 3] = float("nan")
        callback = GuardCallback(on_bad="skip", spikes=esper.Spikes(), log=self.lines.append)
        trainer = lightning.Trainer(max_epochs=1, callbacks=[callback], logger=False, enable_checkpointing=False,
                                    enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
        model = Module()
        trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=None))
        self.assertEqual((callback.guard.n_skipped, callback.guard.steps), (1, 20))
        self.assertTrue(esper.check(model).ok)


@unittest.skipUnless(installed("transformers") and installed("accelerate"), "Transformers is not installed")
class TestRealTransformers(cases.Case):
    def test_train(self):
        import transformers
        from esper.transformers import GuardCallback

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = cases.Net()

            def forward(self, x, labels=None):
                out = self.net(x)
                return {"loss": (out - labels).pow(2).mean(), "logits": out}

        data = [{"x": x, "labels": y} for batch in batches(20) for x, y in zip(*batch)]
        data[60]["x"][2] = float("nan")
        callback = GuardCallback(on_bad="skip", log=self.lines.append)
        with tempfile.TemporaryDirectory() as folder:
            args = transformers.TrainingArguments(folder, per_device_train_batch_size=8, max_steps=20, report_to=[],
                                                  save_strategy="no", disable_tqdm=True, use_cpu=True,
                                                  max_grad_norm=0.0)
            model = Model()
            transformers.Trainer(model, args, train_dataset=data, callbacks=[callback]).train()
        self.assertEqual((callback.guard.n_skipped, callback.guard.steps), (1, 20))
        self.assertTrue(esper.check(model).ok)


if __name__ == "__main__":
    unittest.main()
