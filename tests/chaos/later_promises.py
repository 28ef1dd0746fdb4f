"""The promises from number 30 on, such as fairness, hostile files and pages, faults of helpers. See `promises.py`."""

from __future__ import annotations

from tests.chaos.checks import cost, fairness, hostile, on_demand, overload, processes, security, stored
from tests.chaos.promise import Promise

LATER_PROMISES: tuple[Promise, ...] = (
    Promise(
        30,
        "Fair by key, then call, then row",
        "beside 300 unread streams with n 4, and 1,024 prompts with n 4: first token and `/embed` within 3 times alone "
        "plus one step",
        (
            "tests/engine/test_fair_shares.py::test_keys_share_the_rows_before_calls_do",
            "tests/engine/test_fair_shares.py::"
            "test_a_short_call_starts_in_the_next_step_beside_a_call_with_a_thousand_rows",
        ),
        fairness.fair_shares,
        "rows-are-never-shared",
        {"runs": 2},
        {"runs": 1, "prompts": 64, "tries": 3},
    ),
    Promise(
        31,
        "No body stands the event loop",
        "start, end and abort of 4,096 rows in turns; `/health` beside the dearest bodies: p99 ≤ 100 ms",
        (
            "tests/ipc/test_large_calls.py::test_a_client_that_leaves_is_counted_in_one_piece",
            "tests/chaos/test_dearest.py::test_the_generator_multiplies_inputs_answers_and_beams",
        ),
        cost.turns,
        "aborts-take-one-turn",
        {"together": 4},
        {"together": 0},
    ),
    Promise(
        32,
        "An idle server never says 429",
        "every route at its published limits and their combinations, with several models: served, or 422",
        (
            "tests/api/test_idle_limits.py::test_no_request_within_the_limits_is_refused_with_429",
            "tests/operations/test_idle_server.py::test_the_second_reservation_of_a_call_may_exceed_the_share_of_its_model",
        ),
        overload.idle,
        "own-reservations-count-as-others",
        {},
        {"only_reservations": 1},
        conditions="any",
    ),
    Promise(
        33,
        "A tokenizer is data, not a program that owns the host",
        "hostile `tokenizer.json`: refused at load, or ≤ 1 s and ≤ 256 MB a request; a panic is one request's error",
        (
            "tests/text/test_bounded_tokenizers.py::test_a_component_without_bounds_is_refused",
            "tests/text/test_bounded_tokenizers.py::test_a_panic_is_an_error_of_one_request",
            "tests/text/test_bounded_tokenizers.py::test_the_bound_of_a_foreign_tokenizer_is_true",
        ),
        hostile.tokenizers,
        "panics-pass-all-handlers",
        {"refused": 100},
        {"refused": 1},
        more_bugs=("characters-of-bytes-grow-twice",),
    ),
    Promise(
        34,
        "Absurd files are refused at once",
        "180 hostile configurations, headers, indexes, GGUF, sentencepiece, adapters: one line, ≤ 5 s, ≤ 1 GiB",
        (
            "tests/hostile/test_hostile_files.py::test_a_hostile_file_is_refused_in_one_line",
            "tests/hostile/test_hostile_files.py::test_an_expression_of_a_checkpoint_has_a_time_limit",
        ),
        hostile.files,
        "the-start-has-no-limit",
        {"starts": 4},
        {"starts": 0, "only_first": 1},
        more_bugs=("tensors-may-share-bytes",),
    ),
    Promise(
        35,
        "A web page cannot use a keyless server",
        "foreign Host, Origin, Sec-Fetch-Site and forms on every route: refused; probes and a reverse proxy work",
        (
            "tests/api/test_browser_attacks.py::test_a_hostile_page_reads_nothing",
            "tests/wire/test_foreign_pages.py::test_a_foreign_page_is_refused_before_its_body_arrives",
        ),
        security.pages,
        "pages-are-never-checked",
        conditions="any",
    ),
    Promise(
        36,
        "Nobody forges the log",
        "forwarded addresses, paths, ids and names with quotes, newlines and escapes",
        (
            "tests/api/test_forwarded.py::test_the_client_is_the_last_address_that_is_no_proxy",
            "tests/api/test_access_log.py::test_a_path_cannot_forge_a_line",
        ),
        security.log_lines,
        "every-peer-is-a-proxy",
        more_bugs=("secrets-of-links-are-logged",),
        conditions="any",
    ),
    Promise(
        37,
        "A text cannot take a role",
        "special tokens stay text in user, system, tool and document content; other prompts keep their ids",
        (
            "tests/operations/test_special_tokens.py::test_a_content_adds_no_special_token",
            "tests/operations/test_special_tokens_in_rankings.py::test_a_document_adds_no_special_token",
        ),
        security.roles,
        "texts-may-take-roles",
        more_bugs=("names-may-take-roles", "ranked-texts-may-take-roles"),
        conditions="any",
    ),
    Promise(
        38,
        "Faults of helpers are ours",
        "helpers stopped or killed, a full disk, a directory that is gone: 503 or one line, nothing half written",
        (
            "tests/wire/test_full_disk.py::test_a_full_disk_is_503_and_leaves_no_part_of_a_file",
            "tests/test_line_process.py::test_a_slow_answer_is_told_from_a_process_that_was_stopped",
            "tests/operations/test_glossary_store.py::test_a_glossary_whose_file_cannot_be_removed_stays",
        ),
        processes.helpers,
        "full-disks-are-faults",
        conditions="any",
    ),
    Promise(
        39,
        "Models come and go",
        "declared models under a quarter of their memory, Zipf order, a broken checkpoint, a killed worker: nothing "
        "lost, memory above an empty server within 5% of the budget, answers as alone",
        (
            "tests/operations/test_model_registry.py::test_random_requests_are_all_served_within_the_budget",
            "tests/engine/test_model_loader.py::test_unloading_gives_the_memory_back",
            "tests/engine/test_model_loader.py::test_an_idle_model_gives_its_kv_cache_back_and_answers_as_before",
        ),
        on_demand.come_and_go,
        "models-never-leave",
        {"models": 24, "seconds": 120, "requests": 400},
        {"models": 8, "seconds": 12, "requests": 60},
        bug_conditions="waiting",
    ),
    Promise(
        40,
        "Loading does not disturb",
        "16 streams while a model of 1.1 billion parameters is loaded: p99 gap ≤ 1.5 times alone",
        ("tests/operations/test_model_registry.py::test_requests_for_loaded_models_do_not_wait_for_a_load",),
        on_demand.loading,
        "models-load-between-steps",
        {"runs": 3, "layers": 16},
        {"runs": 1, "layers": 2},
        bug_conditions="alone",
    ),
    Promise(
        41,
        "Documents leave nothing",
        "documents of hours or gigabytes are refused within bounds; nothing on disk; 300 pages beside 16 streams: p99 "
        "gap ≤ 1.5 times alone",
        (
            "tests/text/documents/test_reader.py::test_a_document_that_takes_too_much_is_refused",
            "tests/api/test_document_jobs.py::test_texts_that_are_larger_than_their_file_are_counted",
        ),
        stored.documents,
        "texts-of-archives-are-not-counted",
        {"runs": 3},
        {"runs": 0},
    ),
    Promise(
        42,
        "Stored responses are bounded and private",
        "by bytes, time and key; nothing crosses keys",
        (
            "tests/api/test_stored_responses.py::test_a_record_is_found_by_its_owner_only",
            "tests/api/test_stored_responses.py::test_any_sequence_of_actions_stays_within_the_bounds",
            "tests/chaos/test_controls.py::test_stored_responses",
        ),
        stored.responses,
        "stored-responses-know-no-keys",
        {"records": 400},
        {"records": 0},
        more_bugs=("stored-responses-have-no-bounds",),
        conditions="any",
    ),
)
