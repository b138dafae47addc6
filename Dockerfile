# The service alone: no server, no load test. Built by docker-compose.yml.
FROM python:3.13.1-slim-bookworm

WORKDIR /srv/seckill
COPY requirements.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements.lock
COPY pyproject.toml README.md ./
COPY fencelock fencelock
COPY app app
RUN pip install --no-cache-dir --no-deps ./fencelock . \
    && useradd --system --no-create-home --shell /usr/sbin/nologin seckill

USER seckill
ENV SECKILL_HOST=0.0.0.0
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('SECKILL_PORT', '8080') + '/healthz', timeout=2)"]
CMD ["seckill", "serve"]
