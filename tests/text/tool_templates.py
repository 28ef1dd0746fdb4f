"""Chat templates with tools, each in one of the `TOOL_FORMATS`, and templates that mark reasoning."""

from __future__ import annotations

_TOOLS = """{%- if tools %}{{- '<|im_start|>system\\nYou can call these functions:\\n' }}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"""

_THOUGHT = """{%- set content = message.content if message.content else '' %}
{%- if '</think>' in content %}{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}"""

_HERMES = (
    _TOOLS
    + """{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}"""
    + _THOUGHT
    + """{{- '<|im_start|>' + message.role + '\\n' + content }}
{%- for call in message.tool_calls or [] %}{%- set function = call.function %}
{{- ('\\n' if content or not loop.first else '') + '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' }}
{{- function.arguments | tojson + '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}GENERATION{%- endif %}"""
)

HERMES = _HERMES.replace(_THOUGHT, "{%- set content = message.content or '' %}").replace("GENERATION", "")
QWEN_3 = _HERMES.replace(
    "GENERATION",
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}",
)
OPENS_THINKING = _HERMES.replace("GENERATION", "{{- '<think>\\n' }}")

LLAMA_3 = """{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('One call at a time.') }}{%- endif %}
{%- set function = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + function.name + '", "parameters": ' }}
{{- function.arguments | tojson + '}<|eot_id|>' }}
{%- elif message.role in ('tool', 'ipython') %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.first %}{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{%- endfor %}{%- endif %}
{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

_MISTRAL = """{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
CALLS
{%- elif message.role == 'tool' %}
{%- if message.tool_call_id | length != 9 %}{{- raise_exception('An id has nine characters.') }}{%- endif %}
{{- '[TOOL_RESULTS]{"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}' }}
{%- elif message.role == 'user' %}
{%- if tools and loop.last %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}"""
MISTRAL = _MISTRAL.replace(
    "CALLS",
    """{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('An id has nine characters.') }}{%- endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' + ('' if loop.last else ', ') }}
{%- endfor %}{{- ']' + eos_token }}""",
)
MISTRAL_NAMES = _MISTRAL.replace(
    "CALLS",
    """{%- for call in message.tool_calls %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
{%- endfor %}{{- eos_token }}""",
)

_DEEPSEEK = """{{- bos_token }}
{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message['content'] is none %}
{{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for call in message.tool_calls %}CALL{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message.role == 'tool' %}{{- '<｜tool▁output▁begin｜>' + message.content + '<｜tool▁output▁end｜>' }}
{%- else %}{{- '<｜' + message.role | capitalize + '｜>' + message.content }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{%- endif %}"""
DEEPSEEK = _DEEPSEEK.replace(
    "CALL{%",
    """{{- ('' if loop.first else '\\n') + '<｜tool▁call▁begin｜>' + call.type }}
{{- '<｜tool▁sep｜>' + call.function.name }}
{{- '\\n```json\\n' + call.function.arguments + '\\n```<｜tool▁call▁end｜>' }}{%""",
)
DEEPSEEK_NAMES = _DEEPSEEK.replace(
    "CALL{%",
    """{{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' + call.function.arguments }}
{{- '<｜tool▁call▁end｜>' }}{%""",
)

SHOWS_TOOLS = """{%- for tool in tools or [] %}{{- tool | tojson + '\\n' }}{%- endfor %}
{%- for message in messages %}{{- message.role + ': ' + message.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""

BY_FORMAT = {
    "hermes": HERMES,
    "llama-3": LLAMA_3,
    "mistral": MISTRAL,
    "mistral-names": MISTRAL_NAMES,
    "deepseek": DEEPSEEK,
    "deepseek-names": DEEPSEEK_NAMES,
    "json": SHOWS_TOOLS,
}
SPECIAL_TOKENS = {
    "hermes": ["<|im_start|>", "<|im_end|>"],
    "llama-3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"],
    "mistral": ["[INST]", "[/INST]", "[TOOL_CALLS]"],
    "mistral-names": ["[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]"],
    "deepseek": ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
    "deepseek-names": [],
    "json": [],
}
"""Special tokens of a checkpoint, by tool format. Other markers of a format are ordinary text."""
