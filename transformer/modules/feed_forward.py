"""The position-wise feed-forward layer with its parameters."""

import jax
from flax import linen as nn

from transformer.config import TransformerConfig
from transformer.functional import ACTIVATIONS, feed_forward, gated_feed_forward
from transformer.modules.weights import Weights


class FeedForward(nn.Module):
    """`feed_forward` ('mlp') or `gated_feed_forward` ('glu') on x [B, T, D].

    Attributes:
        gain, depth: of the initial kernels, see `kernel_init`.
    """

    config: TransformerConfig
    gain: float = 1.0
    depth: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        config = self.config
        width, inner, bias = (config.embed_dim,), (config.mlp_dim,), config.mlp_bias
        activation = ACTIVATIONS[config.activation]
        w_up, b_up = Weights(config, width, inner, bias, self.gain, name='up')()
        down = Weights(config, inner, width, bias, self.gain, self.depth, name='down')
        w_down, b_down = down()
        if config.feed_forward == 'mlp':
            return feed_forward(x, w_up, w_down, b_up, b_down, activation=activation)
        w_gate, b_gate = Weights(config, width, inner, bias, self.gain, name='gate')()
        return gated_feed_forward(
            x, w_gate, w_up, w_down, b_gate, b_up, b_down, activation=activation
        )
