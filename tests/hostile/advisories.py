"""Classes of published security advisories about model servers (2025 and 2026), with tests for each class.

`docs/advisories.md` has the table: `python -m tests.hostile.advisories docs/advisories.md` writes it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

BEGIN, END = "<!-- table: begin (python -m tests.hostile.advisories) -->", "<!-- table: end -->"


class Advisory(NamedTuple):
    """A class of vulnerabilities.

    name: description of the vulnerability. examples: published cases. tests: names of our tests, as in pytest.
    """

    name: str
    examples: str
    tests: tuple[str, ...]


ADVISORIES = (
    Advisory(
        "The key is checked for another path than the one that is served, by its spelling or by `Host`",
        "Starlette CVE-2026-48710, LiteLLM CVE-2026-49468",
        (
            "tests/api/test_keys_by_path_and_host.py::test_another_spelling_of_a_path_needs_the_key",
            "tests/api/test_keys_by_path_and_host.py::test_a_host_with_a_path_needs_the_key",
        ),
    ),
    Advisory(
        "A web page uses the server of its visitor: DNS rebinding, forms, a method that the check forgets",
        "Ray CVE-2025-62593, CVE-2026-27482; Ollama",
        (
            "tests/api/test_browser_attacks.py::test_no_route_of_any_method_serves_a_hostile_page",
            "tests/api/test_browser_attacks.py::test_no_form_of_a_hostile_page_is_read",
        ),
    ),
    Advisory(
        "One request becomes any number of rows",
        "vLLM CVE-2026-34756 (`n`)",
        (
            "tests/wire/test_fields.py::test_a_refusal_names_the_field",
            "tests/ipc/test_large_calls.py::test_rows_are_sent_over_several_turns",
        ),
    ),
    Advisory(
        "A number of a request reaches native code unchecked",
        "llama.cpp CVE-2026-21869 (negative `n_discard`)",
        ("tests/wire/test_fields.py::test_values_at_the_bounds_pass",),
    ),
    Advisory(
        "One request ends the worker: a malformed tool, a token without its picture, a degenerate input",
        "vLLM CVE-2025-48944, CVE-2026-22773, CVE-2026-44222",
        (
            "tests/invariance/test_bad_row_fails_alone.py::test_one_poisoned_request_of_sixteen_fails_alone",
            "tests/engine/test_encoder_engine.py::test_a_text_with_a_token_type_that_the_model_lacks_fails_alone",
        ),
    ),
    Advisory(
        "Special tokens in the text of a user become tokens",
        "vLLM CVE-2026-44222",
        (
            "tests/operations/test_special_tokens.py::test_a_content_adds_no_special_token",
            "tests/operations/test_special_tokens_in_rankings.py::test_a_document_adds_no_special_token",
        ),
    ),
    Advisory(
        "Offsets of 32 bits give a request the data of another one",
        "kernels with pools above 2^31 elements",
        (
            "tests/models/test_large_pools.py::test_blocks_of_a_pool",
            "tests/models/test_large_pools.py::test_states_of_hybrids",
        ),
    ),
    Advisory(
        "The prefix cache mixes requests by equal hashes, or tells by its time what others have asked",
        "vLLM CVE-2025-25183, CVE-2025-46570",
        ("tests/engine/test_prefix_cache.py::test_a_request_with_another_salt_reuses_no_blocks",),
    ),
    Advisory(
        "A small recording, archive or document becomes gigabytes",
        "vLLM audio before 0.23.1; Triton CVE-2025-33201",
        (
            "tests/audio/test_decoder.py::test_a_recording_over_the_limit_is_refused",
            "tests/audio/test_decoder.py::test_memory_is_limited",
            "tests/text/documents/test_archives.py::test_archives_that_grow",
            "tests/text/documents/test_reader.py::test_a_document_that_takes_too_much_is_refused",
        ),
    ),
    Advisory(
        "Grammars recurse, backtrack, or fill a cache in memory or on the disk",
        "xgrammar CVE-2025-32381, CVE-2025-57809; Outlines in vLLM CVE-2025-29770; llama.cpp",
        (
            "tests/operations/test_grammar.py::test_a_value_nested_too_deeply_for_the_library_is_refused",
            "tests/operations/test_grammar.py::test_a_format_that_needs_too_much_memory_is_refused",
            "tests/hostile/test_advisories.py::test_markers_of_requests_do_not_fill_memory",
        ),
    ),
    Advisory(
        "Text work takes time with the square of the text, or without end (regular expressions)",
        "vLLM CVE-2025-46560, CVE-2025-48887; Transformers CVE-2025-1194, CVE-2025-6051, CVE-2025-6638",
        (
            "tests/text/test_bounded_tokenizers.py::test_a_component_without_bounds_is_refused",
            "tests/hostile/test_hostile_files.py::test_an_expression_of_a_checkpoint_has_a_time_limit",
        ),
    ),
    Advisory(
        "A chat template of a checkpoint runs code",
        "llama-cpp-python CVE-2024-34359, SGLang CVE-2026-5760",
        ("tests/text/test_chat.py::test_hostile_templates_render_nothing_or_fail",),
    ),
    Advisory(
        "A pickle of a checkpoint, or between processes, runs code",
        "torch CVE-2025-32434; ShadowMQ in vLLM, SGLang and others; BentoML CVE-2025-27520",
        (
            "tests/weights/test_read.py::test_pickles_that_run_code_are_refused",
            "tests/ipc/test_frames.py::test_messages_before_an_invalid_one_are_received",
        ),
    ),
    Advisory(
        "Counts and offsets of a model file are believed: memory of the process is overwritten or leaks",
        "llama.cpp CVE-2025-49847, CVE-2025-53630; Ollama",
        ("tests/hostile/test_hostile_files.py::test_a_hostile_file_is_refused_in_one_line",),
    ),
    Advisory(
        "A path in metadata or in the name of a model leaves its directory",
        "Triton CVE-2026-24208, SGLang CVE-2026-7302, BentoML CVE-2026-24123",
        (
            "tests/hostile/test_advisories.py::test_quantize_takes_no_path_from_an_index",
            "tests/api/test_published_faults.py::test_a_name_of_a_model_is_no_path",
        ),
    ),
    Advisory(
        "The server fetches an address that a client names",
        "LMDeploy CVE-2026-33626, vLLM CVE-2026-24779, BentoML CVE-2025-54381, Ollama CVE-2026-5530",
        ("tests/api/test_published_faults.py::test_no_address_of_a_request_is_fetched",),
    ),
    Advisory(
        "Framing of HTTP: bodies of many chunks, two lengths, long headers, many ranges",
        "Triton CVE-2025-23310, h11 CVE-2025-43859, vLLM CVE-2025-48956, Starlette CVE-2025-62727",
        (
            "tests/wire/test_hostile.py::test_a_body_of_many_small_chunks_costs_no_stack",
            "tests/wire/test_hostile.py::test_bytes_that_are_not_http_get_json_with_an_id",
            "tests/wire/test_hostile.py::test_many_ranges_of_a_page_are_not_merged",
        ),
    ),
    Advisory(
        "JSON that nests ends the parser",
        "orjson CVE-2025-67221",
        ("tests/wire/test_hostile.py::test_hostile_json_is_refused_and_not_echoed",),
    ),
    Advisory(
        "Errors show addresses, paths or names of memory",
        "vLLM CVE-2026-22778, Triton CVE-2025-23320",
        (
            "tests/api/test_fault_log.py::test_a_fault_before_the_answer",
            "tests/operations/test_grammar.py::test_reasons_of_the_library_quote_no_word_of_the_request",
        ),
    ),
    Advisory(
        "The time of a comparison tells a part of the key",
        "vLLM CVE-2025-59425",
        ("tests/api/test_published_faults.py::test_keys_are_found_by_digests_alone",),
    ),
)


def table() -> str:
    lines = ["| class | published, for example | tests |", "|---|---|---|"]
    for advisory in ADVISORIES:
        tests = "<br>".join(f"`{test}`" for test in advisory.tests)
        lines.append(f"| {advisory.name} | {advisory.examples} | {tests} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """Replace the table in the text of a page by the current one."""
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n{table()}\n{text[text.index(END) :]}"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
