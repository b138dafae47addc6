// Money is written with the decimals that its currency has, and not with those that the browser would show.

import assert from "node:assert/strict";
import test from "node:test";

import { addUp, parsed, sums, written } from "./static/money.js";

test("an amount has the decimals of its currency", () => {
  const plain = (text) => text.replace(/[\u00a0\u202f]/g, " ");
  const cases = [
    [49900, "EUR", "€499.00"],
    [49900, "HUF", "HUF 499.00"],
    [49900, "IDR", "IDR 499.00"],
    [499, "JPY", "¥499"],
    [499, "CNY", "CN¥4.99"],
    [499, "HKD", "HK$4.99"],
    [1500, "KWD", "KWD 1.500"],
    [5, "EUR", "€0.05"],
  ];
  for (const [amount, currency, text] of cases) {
    const found = plain(written(amount, currency, "en"));
    assert.equal(found.replace(/^(Ft|Rp|KWD)\s?/, `${currency} `), text);
  }
  assert.equal(written(499, null, "en"), "499");
});

test("an amount that somebody types is one of its currency, or none", () => {
  assert.deepEqual(["499.95", "499,9", " 5 ", "0.05"].map((text) => parsed(text, "EUR")), [49995, 49990, 500, 5]);
  assert.deepEqual(["5990", "1.5"].map((text) => parsed(text, "JPY")), [5990, null]);
  assert.deepEqual(["", "1,499", "-1", "€5", "5.", "1e3"].map((text) => parsed(text, "EUR")), Array(6).fill(null));
});

test("orders are added up by currency, and what is none is not said", () => {
  const order = (currency, paid, owed, others = []) => ({ currency, paid, given_back: 0, owed, kept: paid, other_currencies: others });
  const money = addUp([order("JPY", 5990, 0), order("EUR", 499, 0), order("EUR", 499, 499, [order("XTS", 100, 0)])]);
  const said = (which) => sums(money, which, "en").replace(/\u00a0/g, " ");
  assert.deepEqual(["paid", "owed", "given_back"].map(said), ["€9.98 + ¥5,990 + XTS 1.00", "€4.99", ""]);
});
