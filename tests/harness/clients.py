"""Keep the heads of real clients' requests, recorded word for word."""

# ruff: noqa: E501

from typing import Final

# A POST to /stock/reduce?sku=phone without a body, with a key.
BUYERS: Final = {
    "curl -X POST": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: curl/7.88.1
Accept: */*
Idempotency-Key: k-1
""",
    "requests": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: python-requests/2.34.2
Accept-Encoding: gzip, deflate, br
Accept: */*
Connection: keep-alive
Idempotency-Key: k-1
Content-Length: 0
""",
    "httpx": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
Content-Length: 0
Accept: */*
Accept-Encoding: gzip, deflate, br
Connection: keep-alive
User-Agent: python-httpx/0.28.1
Idempotency-Key: k-1
""",
    "urllib": """POST /stock/reduce?sku=phone HTTP/1.1
Accept-Encoding: identity
Content-Length: 0
Host: 127.0.0.1:8080
User-Agent: Python-urllib/3.11
Idempotency-Key: k-1
Connection: close
""",
    "aiohttp": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
Idempotency-Key: k-1
Accept: */*
Accept-Encoding: gzip, deflate
User-Agent: Python/3.11 aiohttp/3.14.5
Content-Length: 0
Content-Type: application/octet-stream
""",
    "Locust (geventhttpclient)": """POST /stock/reduce?sku=phone HTTP/1.1
User-Agent: python/gevent-http-client-2.6.1
Idempotency-Key: k-1
Host: 127.0.0.1:8080
Content-Length: 0
""",
    "fetch, in Chromium": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
Connection: keep-alive
Content-Length: 0
sec-ch-ua-platform: "Linux"
Idempotency-Key: k-1
Accept: application/json
sec-ch-ua: "Not:A-Brand";v="8", "Chromium";v="156"
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36
sec-ch-ua-mobile: ?0
Origin: http://127.0.0.1:8080
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: cors
Sec-Fetch-Dest: empty
Referer: http://127.0.0.1:8080/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
""",
    "fetch, in Node.js": """POST /stock/reduce?sku=phone HTTP/1.1
host: 127.0.0.1:8080
connection: keep-alive
Idempotency-Key: k-1
accept: */*
accept-language: *
sec-fetch-mode: cors
user-agent: node
accept-encoding: gzip, deflate
content-length: 0
""",
    "Go, net/http": """POST /stock/reduce?sku=phone HTTP/1.1
Host: 127.0.0.1:8080
User-Agent: Go-http-client/1.1
Content-Length: 0
Idempotency-Key: k-1
Accept-Encoding: gzip
""",
    "Java, HttpClient": """POST /stock/reduce?sku=phone HTTP/1.1
Connection: Upgrade, HTTP2-Settings
Content-Length: 0
Host: 127.0.0.1:8080
HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA
Upgrade: h2c
User-Agent: Java-http-client/17.0.15
Idempotency-Key: k-1
""",
}

# Chromium's request for a page of another origin, at localhost.
FOREIGN_PAGES: Final = {
    "an image": """GET /stock/reduce HTTP/1.1
Host: 127.0.0.1:8080
Connection: keep-alive
sec-ch-ua-platform: "Linux"
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36
sec-ch-ua: "Not:A-Brand";v="8", "Chromium";v="156"
sec-ch-ua-mobile: ?0
Accept: image/jxl,image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8
Sec-Fetch-Site: cross-site
Sec-Fetch-Mode: no-cors
Sec-Fetch-Dest: image
Sec-Fetch-Storage-Access: none
Referer: http://localhost:8080/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
""",
    "a form": """POST /stock/reduce HTTP/1.1
Host: 127.0.0.1:8080
Connection: keep-alive
Content-Length: 0
Cache-Control: max-age=0
sec-ch-ua: "Not:A-Brand";v="8", "Chromium";v="156"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
Content-Type: application/x-www-form-urlencoded
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/156.0.0.0 Safari/537.36
Origin: http://localhost:8080
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/jxl,image/avif,image/webp,image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7
Sec-Fetch-Site: cross-site
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Referer: http://localhost:8080/
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-US,en;q=0.9
""",
}
