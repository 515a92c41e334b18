# CUDA: docker build -t pgcli:cuda .
# CPU:  docker build -t pgcli --build-arg TORCH_INDEX=... .
# TORCH_INDEX is the index of CPU builds that pytorch.org names.
# docs/how-to/containers.md has the command that runs it without a network, as any user, on a read-only file system.
FROM python:3.11-slim AS build
# the package index that has the wanted build of PyTorch; without one, the default build, which brings CUDA
ARG TORCH_INDEX
RUN python -m venv /opt/pgcli
ENV PATH=/opt/pgcli/bin:$PATH
COPY constraints.txt /src/
RUN pip install --no-cache-dir -c /src/constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE /src/
COPY pgcli /src/pgcli
# bytecode now, as it cannot be cached on a read-only file system
RUN pip install --no-cache-dir --no-compile -c /src/constraints.txt /src \
    && python -m compileall -q -j 0 /opt/pgcli/lib

FROM python:3.11-slim
# Triton compiles its launcher with gcc and Python.h, which this image has
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && test -f "$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"
COPY --from=build /opt/pgcli /opt/pgcli
# models are mounted at /models: folders, or the cache that `hf download` fills
ENV PATH=/opt/pgcli/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HF_HOME=/models \
    HF_HUB_OFFLINE=1 \
    HF_HUB_DISABLE_TELEMETRY=1 \
    TRITON_CACHE_DIR=/tmp/triton
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["pgcli"]
CMD ["--help"]
