// Buy one unit once, whatever gets lost on the way. Node.js 20: node buy.mjs [URL ...]
// In a page of the shop itself: import { buy } from "./buy.mjs"; const answer = await buy([""]);

export async function buy(urls, key = crypto.randomUUID()) { // one for each press: every retry has the same
  for (let attempt = 0; attempt < 10; attempt++) {
    let pauseS = 1, reason, answer;
    try {
      answer = await fetch(`${urls[attempt % urls.length]}/stock/reduce?buyer=ann`, {
        method: "POST",
        headers: { Accept: "application/json", "Idempotency-Key": key },
        signal: AbortSignal.timeout(15_000),
      });
      if (answer.ok) return await answer.json();
      pauseS = Number(answer.headers.get("Retry-After") ?? 1);
      reason = answer.status;
    } catch (error) {
      reason = error.cause ?? error; // a time-out, or a lost connection: we don't know whether it was sold
    }
    if (answer && !answer.ok && ![429, 503].includes(answer.status)) // asking again would not help
      throw new Error(`refused: ${await answer.text()}`);
    console.warn(`${reason}; asking again in ${pauseS} s`);
    await new Promise((wake) => setTimeout(wake, pauseS * 1000));
  }
  throw new Error(`still not known; ask again with the key ${key}`);
}

if (globalThis.process?.argv[1]?.endsWith("buy.mjs")) {
  const urls = process.argv.slice(2);
  console.log(JSON.stringify(await buy(urls.length ? urls : ["http://localhost:8080", "http://localhost:8090"])));
}
