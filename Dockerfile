# The service alone: no server, no lab, no load test. Built by docker-compose.yml.
#
# Its files are root's and stay as they are: it runs as nobody in particular, with a read-only root and no capability.
FROM python:3.14.6-slim-bookworm

ENV PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /srv/seckill
# With what signed buyers, rates, MySQL, ZooKeeper and traces need, each with its hash.
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md ./
COPY fencelock fencelock
COPY app app
RUN pip install --no-deps ./fencelock .

USER 10001:10001
ENV SECKILL_HOST=0.0.0.0
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('SECKILL_PORT', '8080') + '/healthz', timeout=2)"]
CMD ["seckill", "serve"]
