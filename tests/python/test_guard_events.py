# ctest: timeout=90
"""What is told, and where: the logger esper.guard, on_event, standard error; over ranks, by whom."""
import contextlib
import io
import logging
import unittest

import guard_cases as cases
import torch  # noqa: F401

import esper
from esper._events import KINDS, LEVELS, Event, Teller
from esper._report import Report


class Kept(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.records = []

    def emit(self, record):
        self.records.append(record)


@contextlib.contextmanager
def handler(name="esper.guard"):
    kept, logger = Kept(), logging.getLogger(name)
    level = logger.level
    logger.addHandler(kept)
    logger.setLevel(logging.DEBUG)
    try:
        yield kept
    finally:
        logger.removeHandler(kept)
        logger.setLevel(level)


class TestEvents(cases.Case):
    def run_with_faults(self, **options):
        """A skip at step 6, a rollback at step 12."""
        model, optimizer = cases.seeded(cases.Net)
        guard = self.guard(model, optimizer, "rollback", state_every=1, snapshot=esper.Snapshots(every=5),
                           lr_backoff=0.5, **options).attach()

        def spoil(step):
            if step == 5:
                guard.inject("second.weight.grad", at=3)
            if step == 11:
                guard.inject("last.weight", at=2)

        cases.train(model, optimizer, 15, before=spoil)
        return guard

    def test_records(self):
        with handler() as kept:
            self.run_with_faults(log=None)
        by_kind = {}
        for record in kept.records:
            by_kind.setdefault(record.kind, []).append(record)
            self.assertEqual((record.name, record.rank, record.levelno),
                             ("esper.guard", 0, LEVELS[record.kind]))
        self.assertEqual(set(by_kind), {"note", "snapshot", "skip", "rollback", "rate"})
        self.assertEqual((by_kind["skip"][0].step, by_kind["skip"][0].levelno), (6, logging.WARNING))
        self.assertEqual(by_kind["skip"][0].report.first_bad, "second.weight.grad")
        self.assertEqual(by_kind["skip"][0].getMessage(),
                         "step 6: NaN in second.weight.grad, 1 of 128, first at 3; step skipped, optimizer untouched")
        self.assertIn("rolled back to step 10", by_kind["rollback"][0].getMessage())

    def test_a_logger_of_one_s_own(self):
        with handler("mine") as kept:
            self.run_with_faults(log=logging.getLogger("mine"))
        self.assertGreater(len(kept.records), 3)

    def test_a_percent_sign_is_text(self):
        with handler() as kept:
            Teller()("note", "100 % of %s")
        self.assertEqual(kept.records[0].getMessage(), "100 % of %s")

    def test_on_event(self):
        events = []
        self.run_with_faults(on_event=events.append)
        self.assertEqual([event.text for event in events], self.lines)
        self.assertEqual([(event.kind, event.step) for event in events if event.kind in ("skip", "rollback")],
                         [("skip", 6), ("rollback", 10)])
        self.assertTrue(all(event.kind in KINDS for event in events))

    def test_exceptions_are_events(self):
        model, optimizer = cases.seeded(cases.Net)
        events = []
        guard = self.guard(model, optimizer, "raise", on_event=events.append).attach()
        with self.assertRaises(esper.BadGradient) as caught:
            cases.train(model, optimizer, 1, before=lambda step: guard.inject("last.bias.grad"))
        self.assertEqual((events[-1].kind, events[-1].text), ("raise", str(caught.exception)))
        self.assertNotIn(events[-1].text, self.lines)

    def test_a_function_that_raises(self):
        """Is told of once, and training goes on."""
        def fails(event):
            raise KeyError("mine")

        guard = self.run_with_faults(on_event=fails)
        self.assertEqual((guard.n_skipped, guard.n_rollbacks), (1, 1))
        self.assertEqual(len([line for line in self.lines if "on_event raised KeyError: 'mine'" in line]), 1)
        with self.assertRaisesRegex(TypeError, "on_event=3: expected a function of an esper.Event"):
            esper.Guard(*cases.seeded(cases.Net), on_event=3)


class TestRanks(unittest.TestCase):
    """Who tells what."""

    def report(self, first_rank):
        report = Report(3, [])
        report.first_rank, report.world = first_rank, 4
        return report

    def test_levels(self):
        for rank, first, level in ((0, 0, logging.WARNING), (0, 2, logging.WARNING), (2, 2, logging.WARNING),
                                   (1, 2, logging.DEBUG), (3, 0, logging.DEBUG)):
            self.assertEqual(Event("skip", "", 3, self.report(first), rank, 4).level, level, (rank, first))
        self.assertEqual(Event("note", "", 3, None, 0, 4).level, logging.INFO)
        self.assertEqual(Event("note", "", 3, None, 1, 4).level, logging.DEBUG)
        self.assertEqual(Event("note", "", 3, None, 1, 1).level, logging.INFO)  # decides alone

    def test_standard_error(self):
        """While logging is not set up."""
        logger = logging.getLogger("esper.guard")
        self.assertFalse(logger.hasHandlers())
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            for rank in range(3):
                teller = Teller()
                teller.rank, teller.world = rank, 3
                teller("note", "how it works")
                teller("skip", "step 3: bad", self.report(2))
        self.assertEqual(said.getvalue().splitlines(),
                         ["esper: how it works", "esper: step 3: bad", "esper: rank 2: step 3: bad"])

    def test_rank_in_the_record(self):
        with handler() as kept:
            teller = Teller()
            teller.rank, teller.world = 2, 3
            teller("skip", "step 3: bad", self.report(2))
            teller("note", "how it works")
        self.assertEqual([(record.rank, record.world, record.levelno) for record in kept.records],
                         [(2, 3, logging.WARNING), (2, 3, logging.DEBUG)])


if __name__ == "__main__":
    unittest.main()
