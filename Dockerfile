# The image that pods run: Frog and what it needs, nothing else. Build it in the project's folder:
#
#   docker build -t registry.example.org/frog:0.1.0 .                 for NVIDIA GPUs: PyPI's torch for Linux carries CUDA
#   docker build -t registry.example.org/frog:0.1.0-cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# Every version is fixed: Python's by the image's tag, the others by constraints.txt, and what builds Frog below. A tag
# can be moved by its owner, a digest cannot; once pulled, name it so: --build-arg BASE=python:3.11.13-slim-bookworm@sha256:…
ARG BASE=python:3.11.13-slim-bookworm
FROM ${BASE}

ARG TORCH_INDEX=https://pypi.org/simple
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1

# torch first, in a layer that a change of Frog's code leaves alone. An index of torch's own stands beside PyPI, not in its
# place: it has torch, and not all that torch needs. Of one version pip takes the build with a suffix, such as +cpu.
WORKDIR /src
COPY constraints.txt ./
RUN pip install --extra-index-url "${TORCH_INDEX}" -c constraints.txt torch==2.13.0

COPY pyproject.toml README.md LICENSE train.py ./
COPY src ./src
COPY labs ./labs
COPY docs ./docs
COPY config ./config
# pip would build Frog with the newest hatchling, which no constraint reaches: so with this one.
RUN pip install -c constraints.txt hatchling==1.33.0 \
    && pip install --no-build-isolation -c constraints.txt .

# Pods run as this user, and must: runAsNonRoot. It owns no file of the image; it writes to the volumes alone.
RUN groupadd --gid 1000 frog \
    && useradd --uid 1000 --gid 1000 --create-home frog \
    && mkdir /workspace \
    && chown frog:frog /workspace
USER 1000:1000
WORKDIR /workspace

# Without a shell in between, so that the program is process 1 and hears SIGTERM itself. It ends its own children, so no
# init is needed beside it. Manifests name their own command: python -m frog.cluster.kubernetes.pod torchrun …
ENTRYPOINT ["frog"]
CMD ["--help"]

# Kubernetes does not read this; the manifests' probes ask the ranks' heartbeats. Elsewhere a run that hangs ends itself.
HEALTHCHECK NONE
