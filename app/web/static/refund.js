// The question before money goes back: how much of which payment, and who gives it back.

import { texts } from "./ledger_texts.js";
import { make, part, write } from "./dom.js";
import { parsed, written } from "./money.js";

const KEY_BYTES = 16;

/** A key that tells a part from a repetition. */
export const newKey = () => [...crypto.getRandomValues(new Uint8Array(KEY_BYTES))].map((one) => one.toString(16).padStart(2, "0")).join("");

/**
 * Ask about a payment of an order (null: none is known). Resolves with null, or with `{ wish, key, sum }`: the body of the request, the key
 * that tells a part from a repetition, and what is given back, in words. `cashier`: somebody gives it back at the provider; `whole`: it may be
 * the order that is refunded, or units of it.
 */
export async function askRefund(order, payment, { cashier, whole }) {
  const dialog = part("refund");
  const { what } = dialog.querySelector("form").elements;
  const [units, of, amount] = [part("refund-units"), part("refund-of"), part("refund-amount")];
  const lines = order.items.filter(({ quantity }) => quantity > 0);
  const basket = order.items.length > 1;
  const currency = payment?.currency ?? order.currency;
  const left = payment === null || payment.amount === null ? null : payment.amount - payment.given_back - payment.owed;
  const sum = (value) => (value === null ? texts.all : written(value, currency, texts.locale));
  const asks = cashier && payment !== null;

  /** How much is wanted now, or what is wrong with that. */
  function chosen() {
    if (what.value === "units") {
      const { sku, price } = lines[of.selectedIndex];
      return { wish: { units: units.valueAsNumber, ...(basket && { sku }) }, value: price === null ? null : price * units.valueAsNumber };
    }
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
    units.disabled = of.disabled = what.value !== "units";
    units.max = lines[of.selectedIndex]?.quantity;
    amount.disabled = what.value !== "amount";
  }

  what.value = "all";
  part("refund-restock").checked = false;
  part("refund-what").hidden = payment === null;
  of.replaceChildren(...lines.map(({ sku }) => make("option", "", sku)));
  of.hidden = !basket;
  part("refund-units-choice").hidden = !whole || (lines.length < 2 && !(lines[0]?.quantity > 1));
  part("refund-note").hidden = !asks;
  write(part("refund-all"), `${texts.words.wholeSum} · ${sum(left)}`);
  [units.value, amount.value] = [1, ""];
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
  return { wish: { ...ref, restock, ...wish, ...(later && { later }) }, key: newKey(), sum: sum(value) };
}
