"""The stages of a pipeline: reduce a full model to the part that one rank of `pp` holds, and compute that part.

Layers are divided evenly; if they do not divide, the first stages have one more. The first stage also has the
embedding, the last one the norm and the head. Parameters keep their names in the full model. The hidden
states between stages are the residual stream, which has the dtype of the weights, also under autocast.

Both ends need a tied embedding: the first and the last rank each hold a copy, named `embed_tokens.weight` on
both, and sum its gradient once per step: one all-reduce of it over `tied`, an axis of these two.

Shapes:  B batch, T time (sequence), t the positions of a rank between blocks, D model width.
"""

from __future__ import annotations

from torch import Tensor, nn

from frog.train.comm import Axis
from frog.train.model.moe import balance_losses, weigh
from frog.train.model.transformer import TinyTransformer
from frog.train.parallel.mesh import Mesh, groups
from frog.train.parallel.schedules.schedule import stage_layers

TIED = "embed_tokens.weight"


def build_stages(model: TinyTransformer, pp: Axis, virtual_stages: int = 1) -> TinyTransformer:
    """Reduce a full model, in place, to the stages of this rank: those whose number modulo p is its own.

    Assumes: all ranks hold the same weights. Call it after tensor parallelism has split the weights.
    Raises:  ConfigError if there are fewer layers than stages.
    """
    shares = stage_layers(model.config.num_hidden_layers, pp.size * virtual_stages)
    own = [layer for share in shares[pp.rank :: pp.size] for layer in share]
    is_first, is_last = pp.rank == 0, pp.rank == pp.size - 1
    model.layers = nn.ModuleDict({str(layer): model.layers[layer] for layer in own})  # type: ignore[assignment]
    if not is_first and not (is_last and model.config.tie_word_embeddings):
        del model.embed_tokens
    if not is_last:
        del model.norm, model.lm_head
    return model


class Stages:
    """The computation of one rank's stages."""

    def __init__(self, model: TinyTransformer, pp: Axis, virtual_stages: int = 1) -> None:
        self.model, self.num_stages = model, pp.size * virtual_stages
        shares = stage_layers(model.config.num_hidden_layers, self.num_stages)
        self.layers = {
            stage: [model.layers.get_submodule(str(layer)) for layer in shares[stage]]
            for stage in range(pp.rank, self.num_stages, pp.size)
        }
        """The layers of each stage that this rank holds."""

    def forward(
        self, stage: int, x_BtD: Tensor | None, tokens_BT: Tensor, labels_BT: Tensor, positions_T: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return a stage's output (for the last stage, the loss) and the loss of the stage's routers, if it has any.

        Shapes:  x_BtD (B, t, D): the previous stage's output; None for the first -> (B, t, D), or a scalar; a scalar
        """
        model = self.model
        cos_TC, sin_TC = model.rotations(tokens_BT.shape[1], positions_T)
        if x_BtD is None:
            x_BtD = model.embed_tokens(tokens_BT)
        with balance_losses(self.layers[stage]) as balance:
            for layer in self.layers[stage]:
                x_BtD = model.run_layer(layer, x_BtD, cos_TC, sin_TC)
        router_loss = weigh(balance, model.config) if balance else None
        return (model.head(x_BtD, labels_BT) if stage == self.num_stages - 1 else x_BtD), router_loss


def make_tied_axis(mesh: Mesh) -> Axis:
    """Return the axis `tied`: the first and the last rank of each pipeline; ranks between them form groups of one.

    A collective call.
    """
    rows = []
    for ranks in groups(mesh.sizes, ("pp",)):
        rows += [list(dict.fromkeys((ranks[0], ranks[-1]))), *([rank] for rank in ranks[1:-1])]
    return mesh.world.make_axis("tied", rows)
