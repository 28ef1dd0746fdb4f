"""`triptych quantize`: write a quantised copy of a checkpoint. Imports torch only when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from server.errors import CheckpointError, StartError
from server.system.help_texts import HelpFormatter

EXAMPLES = """\
  triptych quantize /path/llama /path/llama-int4 --to int4
  triptych quantize org/llama llama-fp8 --to fp8 --quiet"""
HELP_END = f"""
examples:
{EXAMPLES}

The copy is in the format of compressed-tensors, which vLLM and transformers read too. Weights are rounded as `serve
--quantize int4-128` and `int8-fast` round them when they load a checkpoint; the copy loads faster and needs less disk
and memory for that. `serve --quantize int8` and `int4` on the original checkpoint are closer to it.

  int4  linear layers in 4 bits, in groups of 128 inputs (64 or 32 where 128 does not divide them)
  int8  linear layers in 8 bits, one scale per output feature
  fp8   linear layers in fp8 (E4M3), one scale per output feature; for other engines, because this server computes
        fp8 in floating point

Token tables, output head, norms, biases and routers of experts keep their dtype. Tokenizer, settings and licence are
copied. One matrix at a time is in memory. OUT appears when it is complete.
Exit code: 0 written, 1 the checkpoint cannot be quantized, 2 wrong command or OUT cannot be written, 130 Ctrl-C.
"""

_SAME_AS = {"int4": "serve --quantize int4-128", "int8": "serve --quantize int8-fast"}
"""The setting that computes with the same numbers, for each written format."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to its parser."""
    parser.formatter_class = HelpFormatter
    parser.usage = "triptych quantize IN OUT --to int4|int8|fp8"
    parser.epilog = HELP_END
    parser.add_argument("source", metavar="IN", help="directory or Hugging Face Hub id of an unquantized checkpoint")
    parser.add_argument("out", metavar="OUT", type=Path, help="directory to create; it must not exist")
    parser.add_argument("--to", required=True, choices=("int4", "int8", "fp8"), help="format of the linear layers")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(arguments: argparse.Namespace) -> Sequence[tuple[str, str]]:
    """Run the command. Returns a table of what was written.

    Raises CheckpointError for a checkpoint that cannot be quantised, and StartError where files cannot be written.
    """
    from tqdm import tqdm

    from models.checkpoint.quantize_checkpoint import quantize_checkpoint
    from models.config import ConfigError
    from weights.errors import ResolveError, WeightsError
    from weights.resolve import resolve

    # A bar is drawn on a terminal only.
    hidden = True if arguments.quiet else None
    with tqdm(desc=f"to {arguments.to}", unit="B", unit_scale=True, unit_divisor=1024, disable=hidden) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        try:
            report = quantize_checkpoint(resolve(arguments.source), arguments.out, arguments.to, progress)
        except (ConfigError, WeightsError, ResolveError) as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            raise StartError(f"OUT cannot be written: {error.strerror or type(error).__name__}") from None
    before, after = report.bytes_before / 2**20, report.bytes_after / 2**20
    return [
        ("family", f"{report.family} ({report.architecture})"),
        ("format", report.description),
        ("rounded as", _SAME_AS.get(arguments.to, "weights alone, for other engines")),
        ("rounded", f"{report.matrices:,} matrices with {report.weights:,} weights"),
        ("kept", f"{report.others:,} of {report.matrices + report.others:,} matrices in their dtype"),
        ("weights", f"{before:,.1f} MiB before, {after:,.1f} MiB after ({after / before:.0%})"),
        ("written", str(arguments.out)),
    ]
