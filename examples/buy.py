"""Buy one unit once, whatever gets lost on the way: python buy.py [URL ...]"""

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
import uuid

urls = sys.argv[1:] or ["http://localhost:8080", "http://localhost:8090"]
if any(not url.startswith(("http://", "https://")) for url in urls):
    sys.exit(__doc__)
key = str(uuid.uuid4())  # one for each press of the button: every retry has the same

for attempt in range(10):
    pause_s, url = 1.0, f"{urls[attempt % len(urls)]}/stock/reduce?buyer=ann"
    headers = {"Accept": "application/json", "Idempotency-Key": key}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers), timeout=15) as answer:
            print(json.dumps(json.load(answer)))
        break
    except urllib.error.HTTPError as error:
        if error.code not in (429, 503):
            sys.exit(f"refused: {error.read().decode()}")  # asking again would not help
        pause_s, reason = float(error.headers.get("Retry-After", 1)), str(error.code)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = repr(error)  # a time-out, or a lost connection: we don't know whether it was sold
    print(f"{reason}; asking again in {pause_s:g} s", file=sys.stderr)
    time.sleep(pause_s)
else:
    sys.exit(f"still not known; ask again with the key {key}")
