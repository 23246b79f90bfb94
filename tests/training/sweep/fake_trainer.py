"""A trainer that computes nothing, for tests of what is around it."""

import numpy as np


class Slots:
    """A trainer whose loss is 1 / step + learning rate; rates from 9 on fail at step 7."""

    def __init__(self, slots, lockstep=True):
        self.slots, self.lockstep = slots, lockstep
        self.steps = np.zeros(slots, int)
        self.rates = np.zeros(slots)
        self.starts = []

    def start(self, trials):
        self.starts.append(sorted(trials))
        for slot, config in trials.items():
            self.steps[slot], self.rates[slot] = 0, config.optimizer.learning_rate

    def train(self, updates):
        assert 0 < updates <= 50
        self.steps += updates

    def evaluate(self):
        return [{'loss': 1 / s + r} for s, r in zip(self.steps, self.rates, strict=True)]

    def bad_steps(self):
        return np.where((self.rates >= 9) & (self.steps > 7), 7, -1)

    def clear(self):
        self.rates[:] = np.nan
