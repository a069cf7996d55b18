# The service (docs/deployment.md): docker build -t jaxretr . && docker run -v MODELS:/models:ro jaxretr /models/MODEL ...
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml setup.py README.md LICENSE requirements*.txt ./
COPY configs configs
COPY jaxretr jaxretr
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# pgvector in addition: docker build --build-arg EXTRAS=serve,scann,pgvector
ARG EXTRAS=serve,scann
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-compile "$(echo /wheels/jaxretr-*.whl)[${EXTRAS}]"

# /data: live indexes; /cache: compiled programs, so that a restart is quick.
RUN useradd --uid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin jaxretr \
    && install -d -o jaxretr -g jaxretr -m 0750 /data /cache
USER jaxretr
ENV JAXRETR_CACHE=/cache PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME ["/data", "/cache"]
WORKDIR /data
EXPOSE 8080
# 503 until every program is compiled. A container whose check fails is only marked: restarting is the orchestrator's choice.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health', timeout=4)"]
STOPSIGNAL SIGTERM
# Whoever runs it says which MODEL, which --index, and --keys FILE (or --open): a public address needs one of the two.
ENTRYPOINT ["jaxretr", "serve", "--host", "0.0.0.0", "--port", "8080"]
