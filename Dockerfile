# Two images from one file:
#   docker build -t triptych .                     CPU (the last stage is the default)
#   docker build -t triptych:cuda --target cuda .  NVIDIA GPUs; run it with --gpus all
# A private mirror or another base: --build-arg BASE=... --build-arg CPU_INDEX=...
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
# Compiles models/backends/cpu/kernels. Debian 12 and Ubuntu 22.04 or later have a version that is new enough (11).
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/triptych
ENV PATH=/opt/triptych/bin:$PATH
COPY constraints.txt ./

# torch alone in a layer of its own: it is most of the image and changes least.
FROM build AS build-cpu
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install -c constraints.txt --index-url "${CPU_INDEX}" torch
COPY pyproject.toml setup.py triptych.py README.md LICENSE ./
COPY models ./models
COPY weights ./weights
COPY server ./server
RUN pip install -c constraints.txt '.[audio,detect]'

FROM build AS build-cuda
RUN pip install -c constraints.txt torch
COPY pyproject.toml setup.py triptych.py README.md LICENSE ./
COPY models ./models
COPY weights ./weights
COPY server ./server
RUN pip install -c constraints.txt '.[audio,detect]'

FROM ${BASE} AS runtime
# A new volume takes the owner of the directory that it is mounted on.
RUN useradd --create-home --uid 10001 triptych && install -d -o 10001 -g 10001 /models
ENV PATH=/opt/triptych/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TRIPTYCH_HOST=0.0.0.0 \
    TRIPTYCH_PORT=8000 \
    HF_HOME=/models/hub
VOLUME /models
EXPOSE 8000
USER 10001
WORKDIR /home/triptych
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['TRIPTYCH_PORT']}/health\", timeout=2)"]
ENTRYPOINT ["triptych"]
CMD ["serve"]

FROM runtime AS cuda
# Triton compiles a small C module for each kernel that it launches. Its kernels, and other things that a first start on
# a device finds out, are kept in the volume.
USER 0
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    CC=gcc TRITON_CACHE_DIR=/models/triton XDG_CACHE_HOME=/models/cache
COPY --from=build-cuda /opt/triptych /opt/triptych

FROM runtime AS cpu
COPY --from=build-cpu /opt/triptych /opt/triptych
