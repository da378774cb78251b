# The server, with the routines and migrations it ships, for SQLite and PostgreSQL.
#
#   docker build -t swarmkeep .
#   docker run --rm -v swarmkeep:/data swarmkeep keys create --name first
#   docker run -p 127.0.0.1:8000:8000 -v swarmkeep:/data -e OPENAI_API_KEY --init --stop-timeout 40 swarmkeep
#
# In a container the server listens on all addresses, and so starts only once there is an API key. Without
# SWARMKEEP_DATABASE_URL, sessions are kept in a SQLite file in /data.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements.lock ./
COPY server server
COPY agents agents
COPY migrations migrations
COPY clients/python clients/python
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels ./clients/python .
# The environment gets no pip of its own: nothing is installed at run time. What comes from elsewhere has to have the hash
# that it was tested with; our own two wheels are named as files, so that no package of the same name can come instead.
RUN python -m venv --without-pip /opt/swarmkeep \
    && pip --python /opt/swarmkeep/bin/python install --no-cache-dir --require-hashes -r requirements.lock \
    && pip --python /opt/swarmkeep/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM python:3.12-slim
RUN useradd --system --uid 10001 --home-dir /data --shell /usr/sbin/nologin swarmkeep \
    && install --directory --owner swarmkeep --group swarmkeep /data
COPY --from=build /opt/swarmkeep /opt/swarmkeep
ENV PATH=/opt/swarmkeep/bin:$PATH \
    SWARMKEEP_HOST=0.0.0.0 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# By number, so that a host that refuses root images can tell.
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
# 503 from /health/ready, while draining or with a schema that is behind, counts as unhealthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('SWARMKEEP_PORT') or 8000), timeout=4); c.request('GET', '/health/ready'); sys.exit(c.getresponse().status != 200)"]
ENTRYPOINT ["swarmkeep"]
CMD ["serve"]
