# ctest: timeout=60
"""Which tensor a report names: of gradients the one next to the loss, in the order of the forward pass."""
import unittest

import guard_cases as cases
import torch
from torch import nn

NAN = float("nan")


class Chain(nn.Module):
    """Blocks that are used in another order than the model lists them."""

    def __init__(self, order, fault_behind=None, how="backward"):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in order)
        self.order, self.fault_behind, self.how = order, fault_behind, how

    def forward(self, h):
        for i in self.order:
            h = torch.tanh(self.blocks[i](h))
            if i == self.fault_behind and self.how == "backward":
                h = h + torch.sqrt((h - h) ** 2)
            elif i == self.fault_behind:
                h = h * torch.tensor(-1.0).sqrt()
        return h


def clip(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class TestOrigin(cases.Case):
    def told(self, model, before=None, **options):
        """The line about one step, and the report."""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.guard(model, optimizer, options.pop("on_bad", "skip"), **options) as guard:
            model(torch.randn(4, 8)).sum().backward()
            if before is not None:
                before(guard)
            optimizer.step()
            guard.result()
            return [line for line in self.lines if line.startswith("step")][-1], guard.last

    def setUp(self):
        super().setUp()
        torch.manual_seed(0)

    def test_both_ends(self):
        line, report = self.told(Chain(range(10), 6))
        self.assertIn("NaN in blocks.6.bias.grad, 8 of 8, first at 0; 13 more tensors, back to blocks.0.weight.grad; "
                      "step skipped", line)
        self.assertEqual((report.first_bad, report.bad[-1].name, report.bad[0].name, report.n_bad),
                         ("blocks.6.bias.grad", "blocks.6.bias.grad", "blocks.0.weight.grad", 14))

    def test_the_order_is_that_of_the_forward_pass(self):
        line, report = self.told(Chain([3, 1, 0, 2, 4], 0))
        self.assertIn("NaN in blocks.0.", line)
        self.assertIn("5 more tensors, back to blocks.3.", line)
        self.assertEqual({bad.name.split(".")[1] for bad in report.bad}, {"3", "1", "0"})

    def test_a_bad_forward_pass(self):
        line, _ = self.told(Chain(range(3), 1, "forward"))
        self.assertIn("NaN in blocks.2.bias.grad", line)
        self.assertIn("all of every gradient: the loss was bad; guard.locate() finds where it began", line)

    def test_clipped_before(self):
        """By somebody else's function, and seen late."""
        for on_bad in ("skip", "report"):
            model = Chain(range(4))
            line, _ = self.told(model, lambda guard: (guard.inject("blocks.2.weight.grad", at=5), clip(model)),
                                on_bad=on_bad)
            self.assertIn("back to blocks.0.weight.grad; all of every gradient: the loss was bad, or clip_grad_norm_ "
                          "ran before the guard; guard.locate() finds where it began", line)

    def test_clipped_by_the_loop(self):
        model = Chain(range(4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer, "skip").attach()
        model(torch.randn(4, 8)).sum().backward()
        guard.inject("blocks.2.weight.grad", at=5)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        self.assertIn("all of every gradient, as clip_grad_norm_ before the guard leaves them: clip= keeps them apart",
                      self.lines[-1])
        optimizer.zero_grad(set_to_none=True)
        model(torch.full((4, 8), NAN)).sum().backward()  # not clipped this time
        optimizer.step()
        self.assertIn("all of every gradient: the loss was bad; guard.locate()", self.lines[-1])

    def test_clipped_before_with_inf(self):
        model = Chain(range(4))
        line, _ = self.told(model, lambda guard: (guard.inject("blocks.2.weight.grad", at=5, fault="inf"), clip(model)))
        self.assertIn("NaN in blocks.2.weight.grad, 1 of 64, first at 5; all else is 0, as clip_grad_norm_ before the "
                      "guard leaves it", line)

    def test_clipped_by_the_guard(self):
        line, _ = self.told(Chain(range(4)), lambda guard: guard.inject("blocks.2.weight.grad", at=5), clip=1.0)
        self.assertIn("NaN in blocks.2.weight.grad, 1 of 64, first at 5; step skipped", line)

    def test_not_clipped(self):
        line, _ = self.told(Chain(range(4)), lambda guard: guard.inject("blocks.2.weight.grad", at=5))
        self.assertNotIn("clip", line)

    def test_parameters_that_came_later(self):
        """The order goes on with those that it knows."""
        model = Chain([1, 0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer, "skip").attach()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        model.blocks.append(nn.Linear(8, 8))
        model.order = [1, 0, 2]
        optimizer.add_param_group({"params": list(model.blocks[2].parameters())})
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        for parameter in (model.blocks[0].weight, model.blocks[2].bias, model.blocks[1].bias):
            parameter.grad.view(-1)[0] = NAN
        optimizer.step()
        self.assertEqual([bad.name for bad in guard.last.bad],
                         ["blocks.1.bias.grad", "blocks.0.weight.grad", "blocks.2.bias.grad"])

    def test_hooks_are_taken_away(self):
        model = Chain(range(2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.guard(model, optimizer, "skip").attach()
        parameter = model.blocks[0].weight
        self.assertTrue(parameter._backward_hooks)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        self.assertFalse(parameter._backward_hooks)

    def test_a_bad_parameter_comes_before_gradients(self):
        model = Chain(range(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = self.guard(model, optimizer, "report").attach()
        model.blocks[1].weight.data[0, 0] = NAN
        model(torch.randn(4, 8)).sum().backward()
        import esper
        self.assertEqual(esper.check(model).first_bad, "blocks.1.weight")
        guard.detach()


if __name__ == "__main__":
    unittest.main()
