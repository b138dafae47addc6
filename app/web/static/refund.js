// The question before money goes back: how much of which payment, and who gives it back.

import { texts } from "./ledger_texts.js";
import { part, write } from "./dom.js";
import { parsed, written } from "./money.js";

const KEY_BYTES = 16;

/**
 * Ask about a payment of an order (null: none is known). Resolves with null, or with `{ wish, key, sum }`: the body of the request, the key
 * that tells a part from a repetition, and what is given back, in words. `cashier`: somebody gives it back at the provider; `whole`: it may be
 * the order that is refunded, or units of it.
 */
export async function askRefund(order, payment, { cashier, whole }) {
  const dialog = part("refund");
  const { what } = dialog.querySelector("form").elements;
  const [units, amount] = [part("refund-units"), part("refund-amount")];
  const currency = payment?.currency ?? order.currency;
  const left = payment === null || payment.amount === null ? null : payment.amount - payment.given_back - payment.owed;
  const sum = (value) => (value === null ? texts.all : written(value, currency, texts.locale));
  const asks = cashier && payment !== null;

  /** How much is wanted now, or what is wrong with that. */
  function chosen() {
    if (what.value === "units") return { wish: { units: units.valueAsNumber }, value: order.price === null ? null : order.price * units.valueAsNumber };
    if (what.value === "all") return { wish: {}, value: left };
    const value = parsed(amount.value, currency);
    if (!value) return { problem: texts.refund.noAmount(sum(left ?? 0)) };
    return left !== null && value > left ? { problem: texts.refund.tooMuch(sum(left)) } : { wish: { amount: value }, value };
  }

  function say() {
    const { problem = "", value = left } = chosen();
    amount.setCustomValidity(problem);
    write(part("refund-title"), asks ? texts.refund.ask(sum(value)) : texts.refund.note(sum(value)));
    write(part("refund-words"), asks ? texts.refund.asks(payment.ref, order.buyer) : texts.refund.notes(payment?.ref));
    write(part("refund-yes"), asks ? texts.refund.give(sum(value)) : texts.words.noteRefund);
    part("refund-restock-choice").hidden = !whole || what.value === "amount";
    units.disabled = what.value !== "units";
    amount.disabled = what.value !== "amount";
  }

  what.value = "all";
  part("refund-restock").checked = false;
  part("refund-what").hidden = payment === null;
  part("refund-units-choice").hidden = !whole || order.quantity < 2;
  part("refund-note").hidden = !asks;
  write(part("refund-all"), `${texts.words.wholeSum} · ${sum(left)}`);
  [units.max, units.value, amount.value] = [order.quantity, 1, ""];
  dialog.oninput = say;
  dialog.returnValue = "";
  say();
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (!["yes", "noted"].includes(dialog.returnValue)) return null;
  const { wish, value } = chosen();
  const later = asks && dialog.returnValue === "yes";
  const ref = payment === null ? {} : { payment_ref: payment.ref };
  const restock = !part("refund-restock-choice").hidden && part("refund-restock").checked;
  const key = [...crypto.getRandomValues(new Uint8Array(KEY_BYTES))].map((one) => one.toString(16).padStart(2, "0")).join("");
  return { wish: { ...ref, restock, ...wish, ...(later && { later }) }, key, sum: sum(value) };
}
