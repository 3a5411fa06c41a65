# One image for the registry, the nodes and the driver; docker-compose.yml says which program a container runs.
# Wheels in ./wheels are used first: with everything there (`make wheels`) the build needs no network. See docs/compose.md.

FROM python:3.11-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
RUN python -m venv /opt/handoff
ENV PATH=/opt/handoff/bin:$PATH
COPY wheels/ wheels/
COPY pyproject.toml constraints.txt ./
# The dependencies alone, so that a change of the code does not install them again.
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > needed.txt \
    && { pip install --quiet --no-index --find-links wheels --constraint constraints.txt --requirement needed.txt \
        || pip install --quiet --find-links wheels --constraint constraints.txt --requirement needed.txt; } \
    && rm -rf /opt/handoff/lib/python3.*/site-packages/torch/include /opt/handoff/lib/python3.*/site-packages/torch/test
COPY README.md LICENSE ./
COPY harness/ harness/
COPY prefill_stub/ prefill_stub/
COPY decode_node/ decode_node/
RUN { pip install --quiet --no-index --find-links wheels --no-deps . || pip install --quiet --find-links wheels --no-deps .; } \
    && pip uninstall --quiet --yes pip

FROM python:3.11-slim
COPY --from=build /opt/handoff /opt/handoff
# Containers run with a read-only root: whatever a library wants to keep goes to /tmp.
ENV PATH=/opt/handoff/bin:$PATH HOME=/tmp OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
WORKDIR /tmp
CMD ["handoff", "--help"]
