#!/usr/bin/env bash
# Score a served model in an lm-eval task; the server tokenizes. Usage: lm_eval.sh TASK [OPTIONS of lm_eval]
set -euo pipefail
url=${TRIPTYCH_URL:-http://127.0.0.1:8000}
model=${TRIPTYCH_MODEL:-story}
export OPENAI_API_KEY=${TRIPTYCH_API_KEY:-not-needed}
lm_eval --model local-completions --tasks "$@" --model_args \
    "model=$model,base_url=$url/models/$model/v1/completions,tokenizer_backend=remote,auth_token=$OPENAI_API_KEY"
