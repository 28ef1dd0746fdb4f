"""Tokenize prompts in which texts of the request may contain the names of special tokens, which stay plain text.

Otherwise a client could write, for example, an end token into a message. See
docs/decisions/0138-special-tokens-in-texts.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from server.ipc.client.call import Call
from server.operations.runtime import Runtime
from server.text.tokens.marked_text import MarkedText
from server.text.tokens.tokenizer import Tokenizer

_ROWS_AT_ONCE = 64

Result = TypeVar("Result")


def special_texts(runtime: Runtime, tokenizer: Tokenizer) -> frozenset[str]:
    """Names of the special tokens that stay plain text in texts of requests. Empty with `--special-tokens-in-texts`."""
    return frozenset() if runtime.special_tokens_in_texts else tokenizer.special_texts


async def encode_prompts(
    runtime: Runtime,
    call: Call,
    tokenizer: Tokenizer,
    prompts: Sequence[MarkedText],
    convert: Callable[[list[int]], Result],
    *,
    param: str,
    add_special_tokens: bool = False,
) -> list[Result]:
    """Tokenize prompts in threads, and return `convert(ids)` of each. Marked special tokens become plain text.

    param: the request's field with the prompts, for errors.
    add_special_tokens: add the special tokens of the model's family around each prompt.
    Raises the errors of `Runtime.encode_with`.
    """
    plain = [place for place, prompt in enumerate(prompts) if not prompt.marks]
    marked = [place for place, prompt in enumerate(prompts) if prompt.marks]
    found: dict[int, Result] = {}
    converted = await runtime.encode_with(
        tokenizer,
        [prompts[place].text for place in plain],
        lambda encoding: convert(encoding.ids),
        param=param,
        add_special_tokens=add_special_tokens,
        call=call,
    )
    found.update(zip(plain, converted, strict=True))
    if marked:
        runtime.check_characters([prompts[place].text for place in marked], param)
        runtime.check_tokens(tokenizer, [prompts[place].text for place in marked], param)
        first = tokenizer.encode([""], add_special_tokens=True, offsets=False)[0].ids if add_special_tokens else []

        def encode(places: Sequence[int]) -> None:
            found.update({place: convert([*first, *tokenizer.encode_marked(prompts[place])]) for place in places})

        pieces = [marked[start : start + _ROWS_AT_ONCE] for start in range(0, len(marked), _ROWS_AT_ONCE)]
        await runtime.pools.tokenize.run_pieces([partial(encode, piece) for piece in pieces], call)
    return [found[place] for place in range(len(prompts))]
