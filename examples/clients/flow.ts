// Holds a unit, confirms its payment, looks at the order and notes a refund, with types made from /openapi.json.
//
//   node flow.js http://127.0.0.1:8080 TOKEN

import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Event = components["schemas"]["OrderEventView"]; // what the shop's webhook gets
export const isShipped = (event: Event): boolean => event.data.state === "confirmed";

const [url, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });

const held = await client.POST("/holds", {
  body: { buyer: "ann", items: [{ sku: "default", quantity: 2 }], ref: "cart 7" },
  params: { header: { "Idempotency-Key": crypto.randomUUID() } },
});
if (!held.data?.id) throw new Error(`not held: ${held.error?.type}`);
console.log(held.data.outcome);

const { id, to_pay: amount, currency } = held.data;
for (let press = 0; press < 3; press += 1) {
  // whatever was lost: the same payment counts once
  const confirmed = await client.POST("/holds/{hold_id}/confirm", {
    params: { path: { hold_id: id } },
    body: { payment_ref: `pay-${id}`, amount, currency },
  });
  if (confirmed.error?.effect === "nothing") throw new Error(`${confirmed.error.type}: ${confirmed.error.detail}`);
  console.log(confirmed.data?.outcome);
}

const order = await client.GET("/orders/{order_id}", { params: { path: { order_id: id } } });
console.log(order.data?.state, order.data?.paid);
const refund = await client.POST("/orders/{order_id}/refund", {
  params: { path: { order_id: id } },
  body: { restock: true },
});
console.log(refund.data?.outcome, refund.data?.state);
const wrong = await client.POST("/holds", { body: { sku: "nowhere", buyer: "ann" } });
console.log(wrong.error?.type);
