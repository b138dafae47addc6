// Money is written with the decimals that its currency has, and not with those that the browser would show.

import assert from "node:assert/strict";
import test from "node:test";

import { written } from "./static/money.js";

test("an amount has the decimals of its currency", () => {
  const plain = (text) => text.replace(/[\u00a0\u202f]/g, " ");
  const cases = [
    [49900, "EUR", "€499.00"],
    [49900, "HUF", "HUF 499.00"],
    [49900, "IDR", "IDR 499.00"],
    [499, "JPY", "¥499"],
    [1500, "KWD", "KWD 1.500"],
    [5, "EUR", "€0.05"],
  ];
  for (const [amount, currency, text] of cases) {
    const found = plain(written(amount, currency, "en"));
    assert.equal(found.replace(/^(Ft|Rp|KWD)\s?/, `${currency} `), text);
  }
  assert.equal(written(499, null, "en"), "499");
});
