# One image for every service of docker-compose.yml.
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /opt/dyformer

# LightGBM needs OpenMP's library from the system.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*

# torch first: the index decides between the CPU and the CUDA build (see TORCH_INDEX in docker-compose.yml).
ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --index-url "${TORCH_INDEX}" "${TORCH}"

# What the project needs is a layer of its own, so that an edit of the code installs none of it again.
COPY pyproject.toml README.md LICENSE prefect.yaml ./
RUN mkdir dyformer storage flows && pip install ".[server,ray]" && pip uninstall --yes dyformer && rmdir dyformer storage flows

RUN useradd --create-home --uid 1000 dyformer && mkdir -p /data /prefect && chown dyformer /data /prefect

COPY dyformer dyformer
COPY storage storage
COPY flows flows
RUN pip install --no-deps ".[server,ray]" && pip check

USER dyformer
# Compiled loops are kept where any user may write: numba stops at the import of a module that it can keep nowhere.
ENV DYFORMER_STORAGE=/data PREFECT_HOME=/prefect NUMBA_CACHE_DIR=/tmp/numba
CMD ["dyformer", "--help"]
