"""A draft head: a small decoder that predicts tokens from hidden states of its target.

Parameter names, the targets of the rules for its tensors:

| name                                                         | shape                                             |
|--------------------------------------------------------------|---------------------------------------------------|
| `decoder.inputs.token_norm.weight`                        | [hidden]                                          |
| `decoder.inputs.state_norm.weight`                        | [hidden], prediction heads only, as the next row  |
| `decoder.inputs.{token,state}_projection.weight`          | [hidden, hidden]                                  |
| `decoder.inputs.own_tokens.weight`                        | [vocab, hidden], EAGLE-3 only, as the rows below  |
| `decoder.layers.0.attention.of_{tokens,states}.{query,key,value}.weight` | [heads or kv_heads * head_dim, hidden] |
| `decoder.layers.0....`                                       | as of a decoder, see `models.transformer`         |
| `decoder.final_norm.weight`                                  | [hidden], prediction heads only                   |
| `combine.{weight,bias}`                                      | [hidden, layers * target hidden], and [hidden]    |
| `norm.weight`, `head.weight`                                 | [hidden], [logits, hidden]                        |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from models.backends import choice
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import GraphSizes, why_not_captured
from models.backends.linear_weights import LinearPacker
from models.backends.logits import DecoderOutput, LogitsRequest, LogitsTopK
from models.config import LanguageModelHead
from models.config.draft_head import DraftHeadConfig, EagleHeadConfig
from models.executor import Executor, max_logits_rows
from models.layers.draft_inputs import AddedInputs, DraftInputs, SeparateInputs
from models.layers.eagle_layer import EagleLayer
from models.layers.embeddings import EmbeddingTable
from models.layers.heads import LanguageModel
from models.layers.linear import Linear
from models.layers.norms import make_norm
from models.stack import Stack
from models.steps.batch import DecoderBatch
from models.steps.kv_cache import KVCache
from models.steps.step_inputs.base import PagedStepInputs, StepInputs
from models.transformer import Transformer

if TYPE_CHECKING:
    from models.backends.cuda.graphs.graph_runner import GraphRunner
    from models.backends.cuda.graphs.head_graphs import HeadGraphs


class DraftStack(Stack):
    """The layer and the output norm of a draft head. table: the token table of its target, the model it drafts for."""

    def __init__(self, config: DraftHeadConfig, table: EmbeddingTable) -> None:
        super().__init__(config.stack, config.hidden_size, table)
        del self.embedding  # It would have the table of the target as a parameter.
        self.inputs: DraftInputs
        if isinstance(config, EagleHeadConfig):
            own_rows = None if config.target_tokens else config.vocab_size
            self.inputs = SeparateInputs(config.norm, config.hidden_size, table, own_rows)
            self.layers = nn.ModuleList([EagleLayer(config, 0)])
        else:
            self.inputs = AddedInputs(config.norm, config.hidden_size, table)

    @property
    def tokens(self) -> EmbeddingTable:
        return self.inputs.tokens

    def embed(self, token_ids: Tensor, positions: Tensor, step: StepInputs) -> Tensor:
        x: Tensor = self.inputs(token_ids, step)
        return x


class DraftHead(nn.Module):
    """A draft head with the parts that it shares with its target.

    Built on torch's meta device and filled by `models.checkpoint.load_draft_head`. For inference only.

    token_ids: [logits], int64, the token of each logit; None if they are all tokens, in order.
    attention_dtype: dtype of queries, keys and values; set by `WeightPacker`.
    """

    attention_dtype: torch.dtype
    token_ids: Tensor | None = None

    def __init__(self, config: DraftHeadConfig, target: Transformer) -> None:
        super().__init__()
        assert target.decoder is not None
        self.config = config
        self._target = (target,)  # A tuple, so that it is no part of the head.
        self.decoder = DraftStack(config, target.decoder.tokens)
        self.combine: Linear | None = None
        if isinstance(config, EagleHeadConfig):
            self.combine = Linear(len(config.layers) * config.target_size, config.hidden_size, config.input_bias)
            self.norm = make_norm(config.norm, config.hidden_size)
            self.head = LanguageModel(LanguageModelHead(tied=False), config.hidden_size, config.logits_size)
            self._compute_logits = self._own_logits
        else:
            self._compute_logits = target.logits_into
        self._executor = Executor(self.decoder, self.num_logits, self._compute_logits)

    @property
    def target(self) -> Transformer:
        """The model for which the head drafts."""
        return self._target[0]

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def vocab_size(self) -> int:
        """Number of tokens of the target. The configuration of an EAGLE-3 head may have more."""
        return self.target.vocab_size

    @property
    def num_logits(self) -> int:
        """Number of tokens that the head can predict."""
        return self.config.logits_size if isinstance(self.config, EagleHeadConfig) else self.config.vocab_size

    @property
    def max_logits_rows(self) -> int:
        """Largest number of output rows for which `decode` computes logits."""
        return max_logits_rows(self.device)

    @property
    def is_eager(self) -> bool:
        """Whether a part of the head ran eagerly although the device has compiled programs."""
        return self._executor.eager_part is not None

    def combined(self, states: Tensor) -> Tensor:
        """Project hidden states of the target to the width of the head: [tokens, width] -> [tokens, hidden].

        Returns the states unchanged for a head that reads the final states of its target.

        states: the inputs of the layers `DraftHeadConfig.target_layers`, one after the other, or the final states.
        """
        return states if self.combine is None else self.combine(states)

    def decode(
        self, batch: DecoderBatch, states: Tensor, cache: KVCache, logits: LogitsRequest | None = None
    ) -> DecoderOutput:
        """Run the head for some positions, and store their keys and values.

        batch: for each position, the next token. Positions count from the first position of a text that the head reads.
        states: [tokens, hidden], results of `combined`, or hidden states of an earlier result.
        cache: cache of the head, written.
        logits: request for the logits of the output rows; None for hidden states only.
        """
        encodings = self.decoder.encodings(batch.positions, max(batch.key_lens))
        step = PagedStepInputs(batch, cache, None, encodings, self.decoder.config)
        step.draft_states = states.contiguous()
        return self._executor.run_tokens(batch.token_ids, batch.positions, step, logits)

    def logits_top_k(self, hidden: Tensor, request: LogitsRequest) -> tuple[Tensor, LogitsTopK]:
        """Compute logits and their top k from hidden states of `decode`. hidden: [n, hidden]."""
        return self._executor.logits(hidden, request)

    def why_not_captured(self) -> str | None:
        """Why passes cannot be captured as CUDA graphs; None if they can."""
        if not choice.runs_cuda_kernels(self.device):
            return "the device has no Triton kernels"
        return why_not_captured(self.decoder)

    def capture_passes(self, cache: KVCache, limits: GraphSizes, runner: GraphRunner, time: CaptureTime) -> HeadGraphs:
        """Capture passes as CUDA graphs. Only where `why_not_captured` is None.

        cache: cache of the head; the graphs can run only with this cache.
        limits: limits of the passes; `limits.tokens` is above 0.
        runner: captures and replays the graphs. time: limits how many graphs are captured.
        """
        # The imports need triton, which devices without graphs do not have.
        from models.backends.cuda.graphs.graph_steps import GraphDecoder
        from models.backends.cuda.graphs.head_graphs import HeadGraphs
        from models.backends.cuda.graphs.token_sizes import sizes_up_to

        size, width = sizes_up_to(max(limits.tokens, limits.rows))[-1], self.config.hidden_size
        states = torch.zeros(size, width, dtype=self.decoder.tokens.weight.dtype, device=self.device)
        logits = self._executor.logits_memory(self.device)
        decoder = GraphDecoder(self.decoder, self._compute_logits, logits, cache, None, limits, states)
        return HeadGraphs(decoder, runner, time)

    def pack_head(self, packer: LinearPacker, table_packer: LinearPacker) -> None:
        """Pack the output head of an EAGLE-3 head. table_packer: unused, because the checkpoint is not quantised."""
        if self.combine is not None:
            self.head.pack(packer, None)

    def _own_logits(self, hidden: Tensor, out: Tensor | None) -> Tensor:
        """Compute logits of the hidden states of an EAGLE-3 head: [n, hidden] -> [n, logits], float32.

        out: [n or more, logits], float32, memory for the logits; None for new memory.
        """
        assert self.norm is not None
        logits: Tensor = self.head(self.norm(hidden), self.decoder.tokens.weight, out)
        return logits
