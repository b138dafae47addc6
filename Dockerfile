# The service alone: no server, no lab, no load test, and no pip: what is installed comes from a stage of its own.
# For amd64 and arm64: nothing here depends on the processor. Renovate raises the tag with its digest.
#
# Its files are root's and stay as they are: it runs as nobody in particular, with a read-only root and no capability.
FROM python:3.14.6-slim-bookworm@sha256:4c92ffcde4dd6f1ff72a24518f49fd4990b27134987dfa31a733badde66df9f8 AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PATH=/opt/seckill/bin:$PATH
WORKDIR /srv/seckill

FROM base AS builder
ENV PIP_NO_CACHE_DIR=1
RUN python3 -m venv --without-pip /opt/seckill
# With what signed buyers, MySQL, ZooKeeper, Stripe and traces need, each with its hash.
COPY requirements.lock build.lock ./
RUN pip --python /opt/seckill/bin/python install --require-hashes -r requirements.lock
COPY pyproject.toml LICENSE ./
COPY fencelock fencelock
COPY app app
RUN pip --python /opt/seckill/bin/python install --no-deps --build-constraint build.lock ./fencelock .

FROM base
LABEL org.opencontainers.image.title=seckill \
      org.opencontainers.image.description="A flash sale that sells from one stock through several instances, under a fenced lock" \
      org.opencontainers.image.licenses=MIT
RUN rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip
COPY --from=builder /opt/seckill /opt/seckill

USER 10001:10001
ENV SECKILL_HOST=0.0.0.0
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=3s --start-period=10s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ.get('SECKILL_PORT', '8080') + '/healthz', timeout=2)"]
CMD ["seckill", "serve"]
