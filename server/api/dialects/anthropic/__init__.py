"""The Anthropic dialect (API.md section 6): `/v1/messages` and `/v1/messages/count_tokens`."""
