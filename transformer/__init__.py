"""The Transformer in JAX: `functional` (pure functions), `modules` (Flax Linen), `training`."""
