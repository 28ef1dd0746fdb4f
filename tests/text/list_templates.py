"""Chat templates that read message contents as lists of parts, like those of published models for images."""

from __future__ import annotations


def _each(content: str) -> str:
    """A template that writes the role of each message, then what the expression `content` gives."""
    return "{%- for message in messages %}{{- '[' + message['role'] + ']' }}" + content + "{%- endfor %}" + _END


def _of_role(role: str, other: str) -> str:
    """A template that reads lists in messages of one role, and writes the others with the expression `other`."""
    return _each(f"{{%- if message.role == '{role}' %}}{_FIRST}{{%- else %}}{{{{- {other} }}}}{{%- endif %}}")


_END = "{%- if add_generation_prompt %}{{- '[assistant]' }}{%- endif %}"
_FIRST = "{{- message.content[0].text }}"
_TYPED = (
    "{%- for line in message['content'] %}{%- if line['type'] == 'text' %}{{- line['text'] }}{%- endif %}{%- endfor %}"
)
_FILTERED = "{%- for part in message.content | selectattr('type', 'equalto', 'text') %}{{- part.text }}{%- endfor %}"
_REFUSING = "{%- if message.content is string %}{{- raise_exception('Send parts.') }}{%- endif %}" + _FIRST
LISTS_ONLY = {
    "typed": _each(_TYPED),
    "filtered": _each(_FILTERED),
    "first": _each(_FIRST),
    "joined": _each("{{- message.content | map(attribute='text') | join }}"),
    "default": _each("{%- for part in message.content %}{{- part.text | default('') }}{%- endfor %}"),
    "refuses-text": _each(_REFUSING),
}
"""Templates that read contents as lists. They leave out or refuse contents that are texts."""
MIXED = {
    "user": _of_role("user", "message.content"),
    "system": _of_role("system", "message.content | trim"),
    "assistant": _of_role("assistant", "message.content + ''"),
}
"""Templates that read lists in messages of only one role, by this role."""
EITHER = _each("{%- if message.content is string %}{{- message.content }}{%- else %}" + _FIRST + "{%- endif %}")
"""A template that reads contents as texts and as lists."""
NO_SYSTEM_ROLE = _each("{%- if message.role != 'system' %}{{- message.content }}{%- endif %}")
"""A template that leaves out system messages without an error, as early templates of Phi 3 do."""
RESULTS_AS_LISTS = "{%- for tool in tools or [] %}{{- tool | tojson }}{%- endfor %}" + _each(
    "{%- for call in message.tool_calls or [] %}"
    "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}"
    "{%- if message.role == 'tool' %}" + _FIRST + "{%- elif message.content %}{{- message.content }}{%- endif %}"
)
"""A template with tools that reads the results of tools as lists of parts."""
LOST = {
    "constant": "fine",
    "other-key": _each("{{- message.text }}"),
    "other-role": _each("{%- if message.role == 'human' %}{{- message.content }}{%- endif %}"),
    "other-part": _each("{%- for part in message.content %}{{- part.value }}{%- endfor %}"),
}
"""Templates that leave out what the user writes, as text and as list."""
