"""Chat templates like those of published checkpoints, conversations to render with them, and hostile templates."""

from __future__ import annotations

CHATML = """{% for message in messages %}
{% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """{{- bos_token }}
{%- if tools is not none and tools %}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ "\\n\\n" }}{% endfor %}
{%- endif %}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("One tool at once.") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.tool_calls is defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles take turns: user, assistant, user...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {% generation %}{{ " " + message["content"] + eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception("Only user and assistant after the first message.") }}
    {%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role.') }}{% endif %}
{% for message in messages %}
{% if message.get('skip', false) %}{% continue %}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{% if message['content'] is string %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% else %}
{% for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'].strip() }}{% endif %}{% endfor %}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

EVERY_HELPER = """{%- macro show(value) -%}{{ value | tojson }}{%- endmacro -%}
{{ show({'b': "<é & 'q'>", 'a': [1, 2.5, none, true]}) }}
{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}
   {% for item in messages %}
   {% if loop.index > 2 %}{% break %}{% endif %}
   {{ loop.index0 }}{{ item.role | upper }} {{ item.content[:5] | default('none') }}
   {% endfor %}
{{ strftime_now('%Y') }}{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}|{{ tools }}|{{ documents }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('; ') }}
{{ messages[-1].content.split(' ')[0].replace('a', 'o').title() }}{{ 'x' if enable_thinking is defined else 'y' }}
{{ messages[0].reasoning_content | default('-') }}{{ dict(a=1).items() | list }}{{ '%s-%d' | format('a', 3) }}
"""

FRONT_ONLY = """{% for message in messages %}
{% if message.role == 'system' and not loop.first %}
{{ raise_exception('System message must be at the beginning.') }}
{% endif %}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{% endfor %}"""
"""A template that rejects a system message after the first message."""

FRONT_OR_NOTHING = """{% if messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}{% endif %}
{% for message in messages if message.role != 'system' %}
{{ message.role + ': ' + message.content + '\\n' }}
{% endfor %}"""
"""A template that leaves out a system message after the first message."""

ALL = {"chatml": CHATML, "llama-3": LLAMA_3, "mistral": MISTRAL, "gemma": GEMMA, "every-helper": EVERY_HELPER}

TURNS = [
    {"role": "user", "content": "  What is «naïve» in 日本語? 👩‍👩‍👧 "},
    {"role": "assistant", "content": 'A word.\n\n<b>bold</b> & "quoted" {{ messages }} {% raw %}', "reasoning": "Hm."},
    {"role": "user", "content": "And\tthis?\u2028Line"},
]
SYSTEM = {"role": "system", "content": " Answer shortly. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2}}}],
}
CONVERSATIONS = {
    "one-turn": TURNS[:1],
    "three-turns": TURNS,
    "system": [SYSTEM, *TURNS],
    "tool-call": [SYSTEM, TURNS[0], CALL],
    "parts": [{"role": "user", "content": [{"type": "text", "text": " part "}, {"type": "image"}]}],
    "wrong-order": [TURNS[1], TURNS[0]],
}

HOSTILE = {
    "walk-to-classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "walk-by-filter": "{{ (messages | attr('__class__')).__base__.__subclasses__() | length }}",
    "walk-by-format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "walk-by-format-map": "{{ '{x.__globals__}'.format_map({'x': raise_exception}) }}",
    "globals-of-a-helper": "{{ strftime_now.__globals__['sys'].modules }}",
    "globals-of-cycler": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "change-a-message": "{% set _ = messages.append({'role': 'user'}) %}{{ messages | length }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% from 'os' import system %}{{ system('id') }}",
    "nested-loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless-recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "huge-range": "{{ range(10000000000) | list | length }}",
    "huge-repetition": "{{ 'a' * 10000000000 }}",
    "huge-list": "{{ ([0] * 10000000000) | length }}",
    "huge-power": "{{ 9 ** (9 ** (9 ** 9)) }}",
    "huge-padding": "{{ '%10000000000d' % 1 }}",
    "huge-centre": "{{ 'a' | center(10000000000) }}",
    "doubling": "{% set n = namespace(s='a') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "long-output": "{% for i in range(99999) %}{{ 'aaaaaaaaaaaaaaaaaaaa' }}{% endfor %}",
    "syntax-error": "{% for %}",
    "deep-nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}
