# The image for pods, with Frog and its dependencies only. Build it in the project's folder:
#
#   docker build -t registry.example.org/frog:0.1.0 .                 for NVIDIA GPUs: PyPI's torch for Linux includes CUDA
#   docker build -t registry.example.org/frog:0.1.0-cpu --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu .
#
# All versions are fixed: Python's by the image's tag, hatchling's below, and all others by constraints.txt. The owner of a
# tag can move it, but not a digest. To fix the digest: --build-arg BASE=python:3.11.13-slim-bookworm@sha256:…
ARG BASE=python:3.11.13-slim-bookworm
FROM ${BASE}

ARG TORCH_INDEX=https://pypi.org/simple
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PYTHONDONTWRITEBYTECODE=1

# torch comes first, in a layer that a change of Frog's code does not rebuild. torch's own index is used in addition to
# PyPI, since it lacks some of torch's dependencies. For one version, pip prefers the build with a suffix, such as +cpu.
WORKDIR /src
COPY constraints.txt ./
RUN pip install --extra-index-url "${TORCH_INDEX}" -c constraints.txt torch==2.13.0

COPY pyproject.toml README.md LICENSE train.py ./
COPY src ./src
COPY labs ./labs
COPY docs ./docs
COPY config ./config
# pip ignores constraints for build tools and would use the newest hatchling. So install this version first.
RUN pip install -c constraints.txt hatchling==1.33.0 \
    && pip install --no-build-isolation -c constraints.txt .

# Pods must run as this user (runAsNonRoot). It owns no file of the image except its home and /workspace.
RUN groupadd --gid 1000 frog \
    && useradd --uid 1000 --gid 1000 --create-home frog \
    && mkdir /workspace \
    && chown frog:frog /workspace
USER 1000:1000
WORKDIR /workspace

# Without a shell, so that the program is process 1 and receives SIGTERM. It ends its own children, so the image needs no
# init process. Manifests have their own command: python -m frog.cluster.kubernetes.pod torchrun …
ENTRYPOINT ["frog"]
CMD ["--help"]

# Kubernetes ignores HEALTHCHECK; the manifests' probes read the ranks' heartbeats. Elsewhere, a run that hangs ends itself.
HEALTHCHECK NONE
